"""Choose the authorizer that the settings and the stored users ask for."""

from __future__ import annotations

from tidemill.engine.authorize import AllowAll, Authorizer
from tidemill.engine.security.authorizer import RuleAuthorizer
from tidemill.settings import Settings
from tidemill.state.security.machine import Security


def new_authorizer(settings: Settings, state: Security) -> Authorizer:
    """Return the authorizer: rules count if there is a user who can change them.

    That is a super user of the settings, or a user who was stored as one. A broker without any
    allows everything, as Apache Kafka does without ``authorizer.class.name``.
    """
    security = settings.security
    named = {each.strip() for each in security.super_users.split(";")} - {""}
    super_users = frozenset(named | {f"User:{name}" for name in state.admins})
    if not super_users and not security.allow_everyone_if_no_acl_found:
        return AllowAll()
    return RuleAuthorizer(
        state,
        super_users,
        allow_if_no_rules=security.allow_everyone_if_no_acl_found,
        notes_allowed=settings.telemetry.level == "debug",
    )
