"""Plain data of users, rules, permissions and quotas.

Source: KIP-11 (rules), KIP-290 (prefixed patterns), KIP-554 (SCRAM users), KIP-546 (quotas).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple


class ScramMechanism(enum.StrEnum):
    """A SCRAM mechanism (RFC 5802, RFC 7677). The value is its SASL name."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        """The name of its hash function for ``hashlib``."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"


class ScramCredential(NamedTuple):
    """The keys of a user, from which the password can't be computed (RFC 5802)."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class Operation(enum.Enum):
    """A kind of access to a resource (KIP-11)."""

    __hash__ = object.__hash__  # each request looks decisions up: Enum's own is slow

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
    IDEMPOTENT_WRITE = enum.auto()
    """Use a producer id without a transactional id. WRITE on any topic is enough for that, too."""
    CREATE_TOKENS = enum.auto()
    DESCRIBE_TOKENS = enum.auto()
    TWO_PHASE_COMMIT = enum.auto()
    ALL = enum.auto()
    """In a rule: each of the others."""


class ResourceKind(enum.Enum):
    """A kind of resource."""

    __hash__ = object.__hash__

    TOPIC = enum.auto()
    GROUP = enum.auto()
    TRANSACTIONAL_ID = enum.auto()
    EXCHANGE = enum.auto()
    """An exchange of queues. Queues are topics. Rules can't name it: see ``permissions``."""
    CLUSTER = enum.auto()
    """The broker as a whole. There is one, and its name is empty."""
    DELEGATION_TOKEN = enum.auto()
    USER = enum.auto()


CLUSTER_NAME = "kafka-cluster"
"""The name of the cluster in rules. An access to the cluster has an empty name."""
WILDCARD = "*"
"""As the name of a literal pattern: all resources of the kind. As a host: every host."""
EVERYONE = "User:*"
"""As the principal of a rule: every user."""


class Pattern(enum.Enum):
    """The way in which a rule names resources (KIP-290)."""

    LITERAL = enum.auto()
    PREFIXED = enum.auto()


class Rule(NamedTuple):
    """A rule: who is allowed or denied to do what, from where (an ACL binding)."""

    kind: ResourceKind
    pattern: Pattern
    name: str
    principal: str
    host: str
    operation: Operation
    allows: bool
    """Whether it allows; else it denies."""


class RuleFilter(NamedTuple):
    """Selects rules. None matches everything.

    Attributes:
        patterns: the patterns that the name is for.
        matches: whether the name is that of a resource, and rules with patterns that match it are
            selected, too (Kafka's MATCH).
    """

    kind: ResourceKind | None = None
    patterns: frozenset[Pattern] = frozenset(Pattern)
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    allows: bool | None = None
    matches: bool = False

    def selects(self, rule: Rule) -> bool:
        """Return whether a rule is selected."""
        return (
            self.kind in (None, rule.kind)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (None, rule.operation)
            and self.allows in (None, rule.allows)
            and self._selects_name(rule)
        )

    def _selects_name(self, rule: Rule) -> bool:
        if rule.pattern not in self.patterns:
            return False
        if self.name is None or rule.name == self.name:
            return True
        if not self.matches:
            return False
        if rule.pattern is Pattern.PREFIXED:
            return self.name.startswith(rule.name)
        return rule.name == WILDCARD


class Permission(NamedTuple):
    """Regular expressions over the names that an AMQP user can configure, write and read."""

    configure: str
    write: str
    read: str


class TopicPermission(NamedTuple):
    """The routing keys that an AMQP user can publish to and bind from an exchange of type topic."""

    write: str
    read: str


class QuotaEntity(NamedTuple):
    """The clients that a quota is for. None: not named. ``DEFAULT``: those without their own."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


DEFAULT = ""
"""In a ``QuotaEntity``: all that have no quota of their own. Kafka has null for it."""

QuotaValues = Mapping[str, float]
"""The name of a quota, as Kafka calls it, and its value."""
