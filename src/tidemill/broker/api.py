"""What goes through the door: the questions protocols ask the broker, and its answers.

Plain data only. No protocol's numbers or names of fields; no I/O. Handlers import this module and
``broker.Broker``, and nothing below.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidemill.errors import TidemillError
from tidemill.state.types import (
    NO_PRODUCER,
    AlterOp,
    CommitRequest,
    CommittedOffset,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    GroupDescription,
    GroupListing,
    GroupMemberInfo,
    InitProducer,
    JoinMember,
    JoinRequest,
    JoinResult,
    LeaveMember,
    NewTopic,
    OffsetToCommit,
    ProducerIdentity,
    SyncRequest,
    SyncResult,
    TopicInfo,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
    TxnOffsetCommit,
)

__all__ = [
    "EARLIEST",
    "EARLIEST_LOCAL",
    "LATEST",
    "LATEST_TIERED",
    "MAX_TIMESTAMP",
    "NO_PRODUCER",
    "Acks",
    "AlterOp",
    "CommitRequest",
    "CommittedOffset",
    "ConfigChange",
    "ConfigEntry",
    "ConfigSource",
    "ConfigType",
    "FetchQuery",
    "GroupDescription",
    "GroupListing",
    "GroupMemberInfo",
    "InitProducer",
    "Isolation",
    "JoinMember",
    "JoinRequest",
    "JoinResult",
    "LeaveMember",
    "LogDir",
    "MetadataLog",
    "NewTopic",
    "OffsetAt",
    "OffsetToCommit",
    "PartitionRead",
    "PartitionSize",
    "PartitionWrite",
    "ProducerIdentity",
    "ProducerInfo",
    "ReadResult",
    "SyncRequest",
    "SyncResult",
    "TopicInfo",
    "TransactionDescription",
    "TransactionListing",
    "TransactionState",
    "TransactionVersion",
    "TxnOffsetCommit",
    "WriteResult",
]

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
"""Special timestamps of ``Broker.list_offset`` (KIP-79, KIP-734, KIP-405)."""


class Acks(enum.IntEnum):
    """When a produce is answered."""

    NONE = 0
    """Never."""
    WRITTEN = 1
    """After the write to the operating system."""
    DURABLE = -1
    """After fdatasync."""


class Isolation(enum.IntEnum):
    """What a fetch may see of transactions."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


# --- data ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartitionWrite:
    """Record batches for one partition.

    ``records`` may be written to (offsets are stamped in place) and must stay untouched until the
    call returns.
    """

    topic: str
    partition: int
    records: memoryview


@dataclass(slots=True)
class WriteResult:
    """Where the batches went, or why not. Offsets are -1 where ``error`` is set."""

    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error: TidemillError | None = None


@dataclass(slots=True)
class PartitionRead:
    """One partition of a fetch."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1


@dataclass(slots=True)
class ReadResult:
    """Stored bytes from the batch that holds the asked offset on; the last batch may be cut."""

    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: bytes | bytearray | memoryview = b""
    aborted: tuple[tuple[int, int], ...] = ()
    """(producer id, first offset) of aborted transactions that touch the bytes (read_committed)."""
    error: TidemillError | None = None


@dataclass(slots=True)
class FetchQuery:
    """A fetch over many partitions; waits until ``min_bytes`` are there or ``max_wait_ms``."""

    partitions: list[PartitionRead]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: Isolation = Isolation.READ_UNCOMMITTED


@dataclass(slots=True)
class OffsetAt:
    """Answer of ``list_offset``; -1 where nothing matches."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


# --- disk ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """What one partition takes on disk."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int = 0


@dataclass(frozen=True, slots=True)
class LogDir:
    """The data folder and the file system below it."""

    path: str
    total_bytes: int
    usable_bytes: int
    partitions: tuple[PartitionSize, ...]


@dataclass(frozen=True, slots=True)
class MetadataLog:
    """The log of the broker's own metadata (KIP-595 calls its replicas a quorum)."""

    leader_epoch: int
    high_watermark: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """State of one idempotent producer on a partition (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int = -1
    current_txn_start_offset: int = -1
