"""The data types of the engine's public methods.

Protocols import this module for what they pass to the engine and get back: plain data, and waits
for it. No protocol's numbers or field names, and no I/O.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tidemill.errors import TidemillError
from tidemill.log.disk.log_file import StoredRange
from tidemill.log.errors import StorageError
from tidemill.log.format.records import NewRecord as NewRecord
from tidemill.state.catalog.broker_rules import BrokerLayers as BrokerLayers
from tidemill.state.catalog.types import AlterOp as AlterOp
from tidemill.state.catalog.types import ConfigChange as ConfigChange
from tidemill.state.catalog.types import ConfigEntry as ConfigEntry
from tidemill.state.catalog.types import ConfigSource as ConfigSource
from tidemill.state.catalog.types import ConfigType as ConfigType
from tidemill.state.catalog.types import NewTopic as NewTopic
from tidemill.state.catalog.types import TopicInfo as TopicInfo
from tidemill.state.consumer_groups.types import ConsumerGroupInfo as ConsumerGroupInfo
from tidemill.state.consumer_groups.types import ConsumerHeartbeat as ConsumerHeartbeat
from tidemill.state.consumer_groups.types import ConsumerMemberInfo as ConsumerMemberInfo
from tidemill.state.groups.types import GroupDescription as GroupDescription
from tidemill.state.groups.types import GroupListing as GroupListing
from tidemill.state.groups.types import GroupMemberInfo as GroupMemberInfo
from tidemill.state.groups.types import JoinMember as JoinMember
from tidemill.state.groups.types import JoinRequest as JoinRequest
from tidemill.state.groups.types import JoinResult as JoinResult
from tidemill.state.groups.types import LeaveMember as LeaveMember
from tidemill.state.groups.types import SyncRequest as SyncRequest
from tidemill.state.groups.types import SyncResult as SyncResult
from tidemill.state.modern_groups.types import HeartbeatResult as HeartbeatResult
from tidemill.state.modern_groups.types import NamedPartitions as NamedPartitions
from tidemill.state.share_groups.types import ShareGroupInfo as ShareGroupInfo
from tidemill.state.share_groups.types import ShareHeartbeat as ShareHeartbeat
from tidemill.state.share_groups.types import ShareMemberInfo as ShareMemberInfo
from tidemill.state.transactions.types import InitProducer as InitProducer
from tidemill.state.transactions.types import TransactionDescription as TransactionDescription
from tidemill.state.transactions.types import TransactionListing as TransactionListing
from tidemill.state.transactions.types import TransactionState as TransactionState
from tidemill.state.types import NO_PRODUCER as NO_PRODUCER
from tidemill.state.types import CommitRequest as CommitRequest
from tidemill.state.types import CommittedOffset as CommittedOffset
from tidemill.state.types import OffsetToCommit as OffsetToCommit
from tidemill.state.types import ProducerIdentity as ProducerIdentity
from tidemill.state.types import TransactionVersion as TransactionVersion
from tidemill.state.types import TxnOffsetCommit as TxnOffsetCommit

NO_OFFSET = -1
"""In results: the offset or time is not known. It is never a valid offset."""


class Position(enum.Enum):
    """A position in a log that is not given by its offset or time."""

    EARLIEST = enum.auto()
    """The first record."""
    LATEST = enum.auto()
    """The end: the offset of the next record that a reader will see."""
    MAX_TIMESTAMP = enum.auto()
    """The record with the largest timestamp (KIP-734)."""


class Durability(enum.Enum):
    """The state of a write when the call returns."""

    WRITTEN = enum.auto()
    """Written to the operating system. A power cut can lose it."""
    SYNCED = enum.auto()
    """On disk, after fdatasync."""


class Isolation(enum.Enum):
    """The records of transactions that a reader sees."""

    READ_UNCOMMITTED = enum.auto()
    READ_COMMITTED = enum.auto()


# --- records -------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartitionWrite:
    """Encoded record batches for one partition.

    ``records`` can be written to: offsets are stamped in place. The caller must not change it until
    the call has returned.
    """

    topic: str
    partition: int
    records: memoryview


WriteResult: TypeAlias = tuple[int, int, int] | TidemillError
"""What became of a batch: its base offset; the broker's time in milliseconds if its records have
that (LogAppendTime), else ``NO_OFFSET``; and the start of the log. Or the error."""


class PendingWrites(Awaitable[list[WriteResult]]):
    """The results of writes that wait for the disk. They can be awaited, or passed to a callback.

    A request in flight needs no future and no task.

    Attributes:
        results: the results if no sync fails.
        remaining: how many syncs are waited for.
    """

    __slots__ = ("_callback", "remaining", "results")

    def __init__(self, results: list[WriteResult]) -> None:
        self.results = results
        self.remaining = 0
        self._callback: Callable[[list[WriteResult]], None] | None = None

    def call_when_done(self, callback: Callable[[list[WriteResult]], None]) -> None:
        """Call ``callback`` with the results, on the event loop. It must not raise.

        If they are done, it is called now. There can be only one callback.
        """
        if self.remaining:
            self._callback = callback
        else:
            callback(self.results)

    def __await__(self) -> Generator[Any, None, list[WriteResult]]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_when_done(lambda _: None if future.done() else future.set_result(None))
        yield from future
        return self.results

    def count(self, places: Sequence[int], error: Exception | None) -> None:
        """Count one sync, or its failure, for the results at some places."""
        if error is not None:
            if not isinstance(error, TidemillError):
                error = StorageError(f"the sync failed: {error!r}")
            for place in places:
                if not isinstance(self.results[place], TidemillError):
                    self.results[place] = error
        self.remaining -= 1
        if not self.remaining and self._callback is not None:
            callback, self._callback = self._callback, None  # it refers to this object
            callback(self.results)


@dataclass(slots=True)
class PartitionRead:
    """One partition of a read."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int | None = None
    """The leader epoch that the client knows; None skips the comparison (KIP-320)."""


@dataclass(slots=True)
class ReadResult:
    """Stored bytes from the batch with the requested offset on. The last batch may be cut."""

    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    records: bytes | bytearray | memoryview = b""
    lent: StoredRange | None = None
    """The bytes as a range of a file, instead of ``records``, where the query allows it."""
    aborted: tuple[tuple[int, int], ...] = ()
    """(producer id, first offset) of the aborted transactions in the bytes, for a reader of
    committed records."""
    error: TidemillError | None = None


@dataclass(slots=True)
class ReadQuery:
    """A read of many partitions.

    It waits until there are ``min_bytes`` bytes, or until ``max_wait_ms`` milliseconds are over.
    """

    partitions: list[PartitionRead]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    budget: ReadBudget | None = None
    """Memory for what is read; None: as much as ``max_bytes``."""
    breathe: Callable[[], Awaitable[None]] | None = None
    """Awaited after every few partitions, so that a read of many lets other work run."""
    lends: bool = False
    """Whether results may have ranges of files instead of bytes."""


class ReadBudget(Protocol):
    """Memory for the bytes of a read, which the reader asks for before it loads them."""

    def share(self, size: int) -> int | None:
        """Return how many of ``size`` bytes can be loaded now. None: wait for a turn.

        A first batch that is larger than the share can be loaded.
        """

    async def turn(self, size: int) -> None:
        """Wait until ``size`` bytes can be loaded. They are counted when this returns."""

    def hold(self, size: int) -> None:
        """Count ``size`` bytes as held, instead of the number before."""


@dataclass(slots=True)
class OffsetAt:
    """A position in a log."""

    offset: int
    timestamp_ms: int | None
    """Time of the record; None for the start and the end of the log."""
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """The state of one idempotent producer on a partition (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None = None
    """The coordinator epoch of its last transaction marker; None without a marker."""
    transaction_start: int | None = None
    """The first offset of its open transaction; None where none is open."""


# --- storage -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """The size of one partition on disk."""

    topic: str
    partition: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The data folder and its file system."""

    path: str
    total_bytes: int
    usable_bytes: int
    partitions: Iterable[PartitionSize]
    """Computed one after the other, as they are asked for."""


@dataclass(frozen=True, slots=True)
class CatalogExtent:
    """The end of the catalog's log."""

    leader_epoch: int
    high_watermark: int
    end_offset: int
