"""The authorizer with rules: the engine's questions, answered by ``state.security.rules``."""

from __future__ import annotations

from collections.abc import Collection

from tidemill.engine.authorize import (
    CLUSTER,
    EXCHANGE,
    Authorizer,
    Operation,
    Principal,
    Resource,
    ResourceKind,
)
from tidemill.engine.security.audit import AuditLog
from tidemill.state.security.machine import Security


class StateAuthorizer(Authorizer):
    """Decides by what is stored, and takes note of it in the audit log.

    Args:
        state: the rules and the permissions.
        super_users: ``User:alice``; they are allowed everything.
        allow_without: whether an access is allowed if nothing is stored about it.
        notes_allowed: whether allowed accesses are logged, too.
        audit: takes note of accesses.
        queues: the authorizer of queues and exchanges; None: this one.
    """

    def __init__(
        self,
        state: Security,
        super_users: Collection[str],
        *,
        allow_without: bool,
        notes_allowed: bool,
        audit: AuditLog,
        queues: Authorizer | None = None,
    ) -> None:
        self._state = state
        self._super_users = super_users
        self._allow_without = allow_without
        self.notes_allowed = notes_allowed
        self.report = audit.report  # type: ignore[method-assign]
        self._queues = queues or self

    @property
    def generation(self) -> int:  # type: ignore[override]
        """The version of what is stored."""
        return self._state.version

    def is_unrestricted(self, principal: Principal) -> bool:
        """Return whether the principal is a super user."""
        return str(principal) in self._super_users

    def for_queues(self) -> Authorizer:
        """Return the authorizer of queues and exchanges."""
        return self._queues


class RuleAuthorizer(StateAuthorizer):
    """Decides as Apache Kafka's StandardAuthorizer."""

    def authorize(
        self, principal: Principal, operation: Operation, resource: Resource, host: str = ""
    ) -> bool:
        """Return what the rules say."""
        if resource.kind is EXCHANGE:
            return False
        return self._state.rules.decide(
            str(principal),
            host,
            operation,
            resource.kind,
            resource.name,
            super_users=self._super_users,
            allow_if_no_rules=self._allow_without,
        ).allowed

    def authorize_any(
        self, principal: Principal, operation: Operation, kind: ResourceKind, host: str = ""
    ) -> bool:
        """Return whether the rules allow the operation on at least one resource."""
        if self.is_unrestricted(principal):
            return True
        # A name that no rule is for: it is allowed where everything without rules is.
        if kind is not CLUSTER and self.authorize(
            principal, operation, Resource(kind, "hardcode"), host
        ):
            return True
        return self._state.rules.allows_any(str(principal), host, operation, kind)
