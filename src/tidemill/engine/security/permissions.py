"""Permissions of AMQP users, as RabbitMQ has them: configure, write and read.

A permission is a regular expression that is searched in the name of a queue or an exchange. They
answer the questions of queues; rules (``authorizer``) answer all others. Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from tidemill.engine.authorize import Operation, Principal, Resource
from tidemill.engine.security.authorizer import StateAuthorizer
from tidemill.engine.security.security_log import SecurityLog
from tidemill.state.patterns import name_matcher
from tidemill.state.security.types import Permission, TopicPermission

DEFAULT_EXCHANGE = "amq.default"
"""The name that permissions have for the default exchange."""

_FIELDS = {
    Operation.CREATE: "configure",
    Operation.DELETE: "configure",
    Operation.ALTER: "configure",
    Operation.WRITE: "write",
    Operation.READ: "read",
}

Matcher = Callable[[str], bool]


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> Matcher:
    return name_matcher(pattern)


class PermissionAuthorizer(StateAuthorizer):
    """Decides about queues and exchanges as RabbitMQ."""

    def authorize(
        self, principal: Principal, operation: Operation, resource: Resource, host: str = ""
    ) -> bool:
        """Return what the user's permission says. A user who has one can describe everything."""
        permission = self._state.permissions.get(principal.name)
        if permission is None:
            return self._allow_without
        field = _FIELDS.get(operation)
        if field is None:
            return operation is Operation.DESCRIBE
        return _matcher(getattr(permission, field))(resource.name or DEFAULT_EXCHANGE)

    def authorize_key(
        self, principal: Principal, operation: Operation, exchange: str, key: str
    ) -> bool:
        """Return what the user's topic permission on the exchange says; without one, True."""
        permission = self._state.topic_permissions.get((principal.name, exchange))
        if permission is None:
            return True
        pattern = permission.write if operation is Operation.WRITE else permission.read
        return _matcher(pattern)(key)


class PermissionAdmin:
    """The permissions, as an administrator sees them."""

    def __init__(self, log: SecurityLog) -> None:
        self._log = log

    def all(self) -> list[dict[str, str]]:
        """Return all permissions, and the topic permissions with their exchange."""
        state = self._log.state
        found = [{"user": user, **each._asdict()} for user, each in state.permissions.items()]
        for (user, exchange), topic in state.topic_permissions.items():
            found.append({"user": user, "exchange": exchange, **topic._asdict()})
        return found

    async def set(self, user: str, permission: Permission | None) -> None:
        """Set the permission of a user, or delete it.

        Raises:
            InvalidRegularExpressionError: a pattern is invalid.
            PolicyViolationError: there are too many.
            StorageError: nothing has changed.
        """
        for pattern in permission or ():
            name_matcher(pattern)
        await self._log.run(partial(self._log.state.set_permission, user, permission))

    async def set_topic(self, user: str, exchange: str, permission: TopicPermission | None) -> None:
        """Set the topic permission of a user on an exchange, or delete it.

        Raises:
            TidemillError: as ``set``.
        """
        for pattern in permission or ():
            name_matcher(pattern)
        await self._log.run(
            partial(self._log.state.set_topic_permission, user, exchange, permission)
        )
