"""Authorization: decide in one place who may do what.

A door holds an ``Access``: the authorizer's answers for one principal. The rows of the door say
which questions a call asks. The default authorizer allows everything, and costs nothing.

Knows names of resources only: no protocol, no log, no state.

The operations follow Apache Kafka's access control (KIP-11). An authorizer should let READ, WRITE,
DELETE and ALTER on a resource imply DESCRIBE: the engine looks topics up before it uses them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from tidemill.engine.errors import (
    AuthorizationError,
    ClusterAuthorizationError,
    ExchangeAuthorizationError,
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)


class Principal(NamedTuple):
    """An identity that a client has proved, or the anonymous one."""

    name: str
    kind: str = "User"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""The principal of a connection that has not authenticated."""


class Operation(enum.Enum):
    """A kind of access to a resource."""

    READ = enum.auto()
    WRITE = enum.auto()
    CREATE = enum.auto()
    DELETE = enum.auto()
    ALTER = enum.auto()
    DESCRIBE = enum.auto()
    DESCRIBE_CONFIGS = enum.auto()
    ALTER_CONFIGS = enum.auto()
    CLUSTER_ACTION = enum.auto()
    """Work that brokers of a cluster do for each other, and repairs by an operator."""


class ResourceKind(enum.Enum):
    """A kind of resource."""

    TOPIC = enum.auto()
    GROUP = enum.auto()
    TRANSACTIONAL_ID = enum.auto()
    EXCHANGE = enum.auto()
    """An exchange of queues. Queues are topics."""
    CLUSTER = enum.auto()
    """The broker as a whole. There is one, and its name is empty."""


TOPIC = ResourceKind.TOPIC
GROUP = ResourceKind.GROUP
TRANSACTIONAL_ID = ResourceKind.TRANSACTIONAL_ID
EXCHANGE = ResourceKind.EXCHANGE
CLUSTER = ResourceKind.CLUSTER


class Resource(NamedTuple):
    """One resource: a topic, a group, a transactional id or the cluster."""

    kind: ResourceKind
    name: str = ""


class Authorizer(Protocol):
    """Decides about each access. Called on the event loop: it must not block."""

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        """Return whether the principal may do the operation on the resource."""


class AllowAll:
    """The default authorizer: everyone may do everything."""

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        """Return True."""
        return True


_ERRORS: dict[ResourceKind, type[AuthorizationError]] = {
    TOPIC: TopicAuthorizationError,
    GROUP: GroupAuthorizationError,
    TRANSACTIONAL_ID: TransactionalIdAuthorizationError,
    EXCHANGE: ExchangeAuthorizationError,
    CLUSTER: ClusterAuthorizationError,
}
_VERBS = {
    Operation.READ: "read",
    Operation.WRITE: "write to",
    Operation.CREATE: "create",
    Operation.DELETE: "delete",
    Operation.ALTER: "alter",
    Operation.DESCRIBE: "describe",
    Operation.DESCRIBE_CONFIGS: "describe the configs of",
    Operation.ALTER_CONFIGS: "alter the configs of",
    Operation.CLUSTER_ACTION: "act for",
}
_NAMES = {
    TOPIC: "topic {!r}",
    GROUP: "group {!r}",
    TRANSACTIONAL_ID: "transactional id {!r}",
    EXCHANGE: "exchange {!r}",
    CLUSTER: "the cluster",
}


class Access:
    """The authorizer's answers for one principal.

    Attributes:
        principal: the identity that is asked about.
        is_unrestricted: whether everything is allowed, so that per-resource checks can be skipped.
    """

    __slots__ = ("_authorizer", "is_unrestricted", "principal")

    def __init__(self, principal: Principal, authorizer: Authorizer) -> None:
        self.principal = principal
        self.is_unrestricted = isinstance(authorizer, AllowAll)
        self._authorizer = authorizer

    def allows(self, operation: Operation, kind: ResourceKind, name: str = "") -> bool:
        """Return whether the principal may do the operation on the resource."""
        return self.is_unrestricted or self._authorizer.authorize(
            self.principal, operation, Resource(kind, name)
        )

    def refusal(
        self, operation: Operation, kind: ResourceKind, name: str = ""
    ) -> AuthorizationError | None:
        """Return the error of a denied access, or None if the access is allowed."""
        if self.allows(operation, kind, name):
            return None
        what = f"{_VERBS[operation]} {_NAMES[kind].format(name)}"
        return _ERRORS[kind](f"{self.principal} is not allowed to {what}")

    def check(self, operation: Operation, kind: ResourceKind, name: str = "") -> None:
        """Return if the access is allowed.

        Raises:
            AuthorizationError: the access is denied. The subclass depends on the resource's kind.
        """
        if self.is_unrestricted:
            return
        error = self.refusal(operation, kind, name)
        if error is not None:
            raise error

    def refusals(
        self, operation: Operation, kind: ResourceKind, names: Iterable[str]
    ) -> list[AuthorizationError | None]:
        """Return the refusal or None for each name, in order. Asks once per distinct name."""
        names = list(names)
        if self.is_unrestricted:
            return [None] * len(names)
        answers = {name: self.refusal(operation, kind, name) for name in dict.fromkeys(names)}
        return [answers[name] for name in names]


UNRESTRICTED = Access(Principal("tidemill", "Internal"), AllowAll())
"""The engine's own access, for work that no client asked for."""
