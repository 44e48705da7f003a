"""Plain data that goes into and comes out of the state machines: topics, configs, groups.

No behaviour, no I/O, no protocol's numbers.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from tidemill.log.config import ConfigType as ConfigType
from tidemill.log.names import TopicPartition

# --- topics --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as clients see it."""

    name: str
    topic_id: UUID
    partitions: int
    internal: bool
    leader_epoch: int = 0


@dataclass(slots=True)
class NewTopic:
    """A topic to create. ``partitions`` and ``replication_factor`` -1 mean the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, list[int]] = field(default_factory=dict)
    """partition -> broker ids; with it ``partitions`` and ``replication_factor`` must be -1."""
    configs: Mapping[str, str | None] = field(default_factory=dict)


class ConfigSource(enum.Enum):
    """Where a config's value comes from."""

    DYNAMIC_TOPIC = enum.auto()
    DYNAMIC_BROKER = enum.auto()
    STATIC_BROKER = enum.auto()
    DEFAULT = enum.auto()


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config with its value in force."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    read_only: bool = False
    sensitive: bool = False
    doc: str = ""
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...] = ()
    """(name, value, source) of all that apply, strongest first."""


class AlterOp(enum.Enum):
    """How an incremental alteration changes a config (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One incremental change of a config."""

    name: str
    op: AlterOp
    value: str | None


# --- groups: classic protocol --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A member asks to join (KIP-62, KIP-345, KIP-394, KIP-800)."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(assignor name, subscription metadata) in order of preference."""
    require_known_member_id: bool
    """Protocol v4 and later: an unknown dynamic member is told its id first."""
    reason: str | None = None
    supports_skipping_assignment: bool = False
    """Protocol v9 and later (KIP-814)."""


@dataclass(frozen=True, slots=True)
class JoinMember:
    """What the leader is told of each member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The new generation; ``members`` is filled for the leader only."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: tuple[JoinMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings everybody's."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class SyncResult:
    """A member's assignment."""

    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class LeaveMember:
    """A member that leaves, named by member id or (static, by an admin) by instance id."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """One committed position: the offset of the next record to read."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed position as it is stored."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Offsets to commit. ``generation`` -1 with an empty member id is a simple consumer's."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int = -1


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A line of ``list_groups``."""

    group_id: str
    protocol_type: str
    state: str
    """Empty, PreparingRebalance, CompletingRebalance, Stable or Dead."""
    group_type: str = "classic"


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """A member as ``describe_groups`` shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as ``describe_groups`` shows it."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMemberInfo, ...]


# --- transactions --------------------------------------------------------------------------------


class ProducerIdentity(NamedTuple):
    """What a producer puts into each of its batches: its id, and which incarnation it is."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerIdentity(-1, -1)


class TransactionState(enum.StrEnum):
    """Of a transactional id; the values are Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    DEAD = "Dead"


class TransactionVersion(enum.IntEnum):
    """The two protocols between producers and the coordinator (KIP-890)."""

    V1 = 1
    """The producer announces each partition (AddPartitionsToTxn) before it writes there."""
    V2 = 2
    """Writing announces it, and each transaction has an epoch of its own."""


@dataclass(frozen=True, slots=True)
class InitProducer:
    """A transactional producer starts, or recovers from an error (KIP-360: ``current`` given)."""

    transactional_id: str
    timeout_ms: int
    current: ProducerIdentity = NO_PRODUCER
    version: TransactionVersion = TransactionVersion.V1


@dataclass(frozen=True, slots=True)
class TxnOffsetCommit:
    """Offsets to commit as part of a transaction (KIP-98, KIP-447)."""

    transactional_id: str
    producer: ProducerIdentity
    commit: CommitRequest
    version: TransactionVersion = TransactionVersion.V1


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A line of ``list_transactions``."""

    transactional_id: str
    producer_id: int
    state: TransactionState


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as ``describe_transactions`` shows it."""

    transactional_id: str
    state: TransactionState
    producer: ProducerIdentity
    timeout_ms: int
    start_time_ms: int
    """Of the transaction that is open or being ended; -1 where there is none."""
    partitions: tuple[TopicPartition, ...]
