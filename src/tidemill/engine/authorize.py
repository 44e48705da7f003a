"""Authorization: decide in one place who may do what.

A door holds an ``Access``: the authorizer's answers for one principal. The rows of the door say
which questions a call asks. The default authorizer allows everything, and costs nothing.

Knows names of resources only: no protocol, no log, no state.

The operations follow Apache Kafka's access control (KIP-11). An authorizer should let READ, WRITE,
DELETE and ALTER on a resource imply DESCRIBE: the engine looks topics up before it uses them.
``security.authorizer`` is the one with rules.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import NamedTuple

from tidemill.engine.errors import (
    AuthorizationError,
    ClusterAuthorizationError,
    ExchangeAuthorizationError,
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from tidemill.state.security.types import Operation as Operation
from tidemill.state.security.types import ResourceKind as ResourceKind

MOST_ANSWERS = 4096
"""Answers that are kept for one connection. Above it all are forgotten."""


class Principal(NamedTuple):
    """An identity that a client has proved, or the anonymous one."""

    name: str
    kind: str = "User"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""The principal of a connection that has not authenticated."""


TOPIC = ResourceKind.TOPIC
GROUP = ResourceKind.GROUP
TRANSACTIONAL_ID = ResourceKind.TRANSACTIONAL_ID
EXCHANGE = ResourceKind.EXCHANGE
CLUSTER = ResourceKind.CLUSTER


class Resource(NamedTuple):
    """One resource: a topic, a group, a transactional id or the cluster."""

    kind: ResourceKind
    name: str = ""


class Authorizer(abc.ABC):
    """Decides about each access. Called on the event loop: it must not block.

    Attributes:
        generation: a number that changes with the decisions, which are kept until then; None: no
            decision is kept.
        notes_allowed: whether it takes note of what is allowed, too.
    """

    generation: int | None = None
    notes_allowed: bool = False

    @abc.abstractmethod
    def authorize(
        self, principal: Principal, operation: Operation, resource: Resource, host: str = ""
    ) -> bool:
        """Return whether the principal may do the operation on the resource, from a host."""

    def authorize_any(
        self, principal: Principal, operation: Operation, kind: ResourceKind, host: str = ""
    ) -> bool:
        """Return whether the principal may do the operation on at least one resource."""
        return False

    def authorize_key(
        self, principal: Principal, operation: Operation, exchange: str, key: str
    ) -> bool:
        """Return whether the principal may use a routing key of an exchange that it may use."""
        return True

    def is_unrestricted(self, principal: Principal) -> bool:
        """Return whether the principal may do everything, now and later."""
        return False

    def for_queues(self) -> Authorizer:
        """Return the authorizer of queues and exchanges: this one, or another."""
        return self

    def report(  # noqa: B027 - most authorizers take no note
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        host: str,
        *,
        allowed: bool,
    ) -> None:
        """Take note of an access that was refused or allowed, for the log."""


class AllowAll(Authorizer):
    """The default authorizer: everyone may do everything."""

    def authorize(
        self, principal: Principal, operation: Operation, resource: Resource, host: str = ""
    ) -> bool:
        """Return True."""
        return True

    def is_unrestricted(self, principal: Principal) -> bool:
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
    Operation.IDEMPOTENT_WRITE: "write idempotently to",
}
_NAMES = {
    TOPIC: "topic {!r}",
    GROUP: "group {!r}",
    TRANSACTIONAL_ID: "transactional id {!r}",
    EXCHANGE: "exchange {!r}",
    CLUSTER: "the cluster",
}


class Access:
    """The authorizer's answers for one principal, on one connection.

    Attributes:
        principal: the identity that is asked about.
        host: the address of the client.
        is_unrestricted: whether everything is allowed, so that per-resource checks can be skipped.
    """

    __slots__ = (
        "_answers",
        "_authorizer",
        "_generation",
        "_kept",
        "host",
        "is_unrestricted",
        "principal",
    )

    def __init__(self, principal: Principal, authorizer: Authorizer, host: str = "") -> None:
        self.principal = principal
        self.host = host
        self.is_unrestricted = authorizer.is_unrestricted(principal)
        self._authorizer = authorizer
        self._answers: dict[tuple[Operation, ResourceKind], dict[str, bool]] = {}
        self._kept = 0
        self._generation: int | None = None

    def allows(self, operation: Operation, kind: ResourceKind, name: str = "") -> bool:
        """Return whether the principal may do the operation on the resource."""
        return self.is_unrestricted or self.allows_all(operation, kind, (name,))

    def allows_all(self, operation: Operation, kind: ResourceKind, names: Iterable[str]) -> bool:
        """Return whether the principal may do the operation on all of the resources."""
        if self.is_unrestricted:
            return True
        generation = self._authorizer.generation
        if generation is None or generation != self._generation:
            self._answers.clear()
            self._kept = 0
            self._generation = generation
        answers = self._answers.get((operation, kind))
        if answers is None:
            answers = self._answers[operation, kind] = {}
        for name in names:
            answer = answers.get(name)
            if answer is None:
                answer = self._ask(operation, kind, name, answers)
            if not answer:
                return False
        return True

    def _ask(
        self, operation: Operation, kind: ResourceKind, name: str, answers: dict[str, bool]
    ) -> bool:
        answer = self._authorizer.authorize(
            self.principal, operation, Resource(kind, name), self.host
        )
        if self._kept >= MOST_ANSWERS:
            self._answers.clear()
            answers.clear()
            self._kept = 0
        if self._generation is not None:
            answers[name] = answer
            self._kept += 1
        return answer

    def allows_any(self, operation: Operation, kind: ResourceKind) -> bool:
        """Return whether the principal may do the operation on at least one resource."""
        return self.is_unrestricted or self._authorizer.authorize_any(
            self.principal, operation, kind, self.host
        )

    def check_key(self, operation: Operation, exchange: str, key: str) -> None:
        """Return if the principal may use a routing key of an exchange.

        Raises:
            ExchangeAuthorizationError: it is refused.
        """
        if not self.is_unrestricted and not self._authorizer.authorize_key(
            self.principal, operation, exchange, key
        ):
            raise ExchangeAuthorizationError(
                f"{self.principal} is not allowed to {_VERBS[operation]} topic {key!r} in "
                f"exchange {exchange!r}"
            )

    def for_queues(self) -> Access:
        """Return the access of the same principal to queues, which can have rules of their own."""
        return Access(self.principal, self._authorizer.for_queues(), self.host)

    def refusal(
        self, operation: Operation, kind: ResourceKind, name: str = ""
    ) -> AuthorizationError | None:
        """Return the error of a denied access, or None if the access is allowed."""
        allowed = self.allows(operation, kind, name)
        if not allowed or self._authorizer.notes_allowed:
            self._authorizer.report(
                self.principal, operation, Resource(kind, name), self.host, allowed=allowed
            )
        if allowed:
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
