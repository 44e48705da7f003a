"""Plain data of consumer groups: requests of members, answers, what is stored, views for admins.

This module must not contain behaviour, I/O or numbers of a protocol.

Source: KIP-848; KIP-1251 (assignment epochs).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from tidemill.state.assignors.types import Partitions
from tidemill.state.modern_groups.types import GroupInfo, MemberInfo

STATIC_LEAVE_EPOCH = -2
"""The member epoch of a static member that leaves for a while."""

OwnedPartitions: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Topic id -> partition -> the member epoch in which the member got it."""


class MigrationPolicy(enum.Enum):
    """Whether a group can change its protocol while it has members."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    """From classic to consumer only."""
    DOWNGRADE = "downgrade"
    """From consumer to classic only."""
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group with members can become a consumer group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group with classic members only becomes a classic group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A member's heartbeat (ConsumerGroupHeartbeat). None: as in the heartbeat before."""

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    """How long the member can take to revoke partitions, in milliseconds; -1: as before."""
    topic_names: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    """RE2; it must match the whole name. Empty: no pattern."""
    assignor: str | None = None
    owned: Partitions | None = None
    """The partitions that the member has now."""
    chooses_member_id: bool = True
    """Whether the client makes its member id (version 1). If not, the broker does."""
    can_see: Callable[[str], bool] | None = None
    """Whether the member's user can describe a topic. None: all."""


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """The protocols and the session timeout of a member with the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member as it is stored: what it asked for."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    """Sorted."""
    topic_pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocols | None = None
    """Set if it uses the classic protocol."""


class MemberState(enum.IntEnum):
    """The state of a member's reconciliation. The values are those of Apache Kafka's records."""

    STABLE = 0
    """It has what the target assignment of its epoch says."""
    UNREVOKED = 1
    """It must give partitions back before it gets a new epoch."""
    UNRELEASED = 2
    """It waits for partitions that other members have not given back yet."""


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """A member's epoch and partitions, as they are stored."""

    epoch: int = 0
    previous_epoch: int = 0
    """The epoch before. A member whose answer was lost sends it again."""
    state: MemberState = MemberState.STABLE
    assigned: OwnedPartitions = field(default_factory=dict)
    """The partitions that it can use."""
    revoking: OwnedPartitions = field(default_factory=dict)
    """The partitions that it has to give back."""

    @property
    def partitions(self) -> Partitions:
        """The partitions that the member can use."""
        return {topic: frozenset(each) for topic, each in self.assigned.items()}


@dataclass(frozen=True, slots=True)
class ResolvedPattern:
    """The topics that matched a pattern."""

    topics: frozenset[str]
    version: int
    """The version of the topics that it was resolved with. It means nothing after a restart."""
    timestamp_ms: int


ConsumerMemberInfo: TypeAlias = MemberInfo[ConsumerMember]
ConsumerGroupInfo: TypeAlias = GroupInfo[ConsumerMember]
