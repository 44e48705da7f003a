"""Choose the authorizer that the settings and the stored users ask for."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.clock import Clock
from tidemill.engine.authorize import AllowAll, Authorizer
from tidemill.engine.security.audit import AuditLog
from tidemill.engine.security.authorizer import RuleAuthorizer
from tidemill.engine.security.permissions import PermissionAuthorizer
from tidemill.settings import Settings
from tidemill.state.security.machine import Security


def super_users_of(settings: Settings, admins: Iterable[str]) -> frozenset[str]:
    """Return the principals of the settings, and those of users who are super users."""
    named = {each.strip() for each in settings.security.super_users.split(";")} - {""}
    return frozenset(named | {f"User:{name}" for name in admins})


def new_authorizer(
    settings: Settings, state: Security, super_users: frozenset[str], clock: Clock
) -> Authorizer:
    """Return the authorizer: rules count if there is a user who can change them.

    A broker without any super user allows everything, as Apache Kafka does without
    ``authorizer.class.name``.
    """
    everyone = settings.security.allow_everyone_if_no_acl_found
    if not super_users and not everyone:
        return AllowAll()
    notes_allowed = settings.telemetry.level == "debug"
    audit = AuditLog(clock)
    queues = PermissionAuthorizer(
        state, super_users, allow_without=everyone, notes_allowed=notes_allowed, audit=audit
    )
    return RuleAuthorizer(
        state,
        super_users,
        allow_without=everyone,
        notes_allowed=notes_allowed,
        audit=audit,
        queues=queues,
    )
