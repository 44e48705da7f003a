"""The log of one partition, composed of its parts.

A partition has a chain of segments (``chain``), producers and their transactions
(``lazy_producers``), a sync state (``sync``), a recovery point (``recovery_point``), an appender
(``append``) and a retention (``retention``). This module connects them. The engine and the store
use nothing else. Knows no topics, no waiting and no protocol.

One thread changes a partition. ``SyncTicket.run`` and ``Slice.load`` can run in other threads.

Offsets, in ascending order: ``log_start_offset``; ``recovery_point`` (all records below it are
synced, and there is a snapshot of the producers); ``stored_offset`` (all records below it are in
synced segments); ``high_watermark`` (all records below it are there or in the journal, readers see
nothing above it); ``log_end_offset``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tidemill.errors import TidemillError
from tidemill.log.config.topic import LogConfig
from tidemill.log.disk.segment import Segment
from tidemill.log.disk.slice import Slice
from tidemill.log.errors import OffsetOutOfRangeError, StorageError
from tidemill.log.format.batch import HEADER_SIZE, Buffer, parse_header
from tidemill.log.format.markers import Marker
from tidemill.log.format.validate import Checked, check_client_batch
from tidemill.log.partition import reading
from tidemill.log.partition.append import Appender, AppendInfo
from tidemill.log.partition.chain import SegmentChain
from tidemill.log.partition.lazy_producers import LazyProducers
from tidemill.log.partition.producers import ProducerStates
from tidemill.log.partition.recovery_point import RecoveryPoint, SnapshotSync
from tidemill.log.partition.retention import Retention
from tidemill.log.partition.sync import SyncState, SyncTicket
from tidemill.log.partition.transactions import OpenTransaction, find_aborted
from tidemill.log.steps import Steps


@dataclass(slots=True)
class OpenedPartition:
    """A partition that was opened.

    Attributes:
        chain: the segments. All that they hold is synced.
        recovery_point: recovery reads the log from this offset.
        topic_id: the id of the topic; None if the file with it was lost.
        producers: the producers; None to load them from their snapshot at first use. Then no
            transaction is open.
        snapshot_offset: offset of that snapshot; -1 if there are no producers.
        new_folder: whether the folder, or its entry in the data folder, is perhaps not synced.
    """

    chain: SegmentChain
    config: LogConfig
    recovery_point: int
    topic_id: UUID | None
    producers: ProducerStates | None = None
    snapshot_offset: int = -1
    new_folder: bool = False


class PartitionLog:
    """The log of one partition. ``store.LogStore`` creates and opens it.

    Attributes:
        topic_id: the id of the topic that it was created for; None if the file with it was lost.
        refused: batches that were refused with a retriable error.
        appender: what appends to the log; for native code, which calls its hooks.
        head: what native code knows of the partition: its offsets, its active segment and others.
        first_dirty_offset: compaction has cleaned the log up to here. Can be outside of the log.
    """

    __slots__ = (
        "_point",
        "_producers",
        "_retention",
        "_sync",
        "appender",
        "chain",
        "first_dirty_offset",
        "head",
        "refused",
        "topic_id",
        "tp",
    )

    def __init__(self, opened: OpenedPartition) -> None:
        chain = self.chain = opened.chain
        self.head = chain.head
        chain.closed_bytes = -chain.active.size
        self.tp = chain.tp
        self.topic_id: UUID | None = opened.topic_id
        self.first_dirty_offset = 0
        self._producers = LazyProducers(chain, opened.producers, opened.snapshot_offset)
        topic_id = b"" if opened.topic_id is None else opened.topic_id.bytes
        self._sync = SyncState(chain, topic_id, opened.new_folder)
        self._point = RecoveryPoint(opened.recovery_point, chain, self._producers, self._sync)
        self.appender = Appender(chain, self._producers, self._sync, self._point)
        self.appender.use_config(opened.config)
        self._retention = Retention(chain, self._producers, self._sync, self.appender)
        self.refused = self.appender.refused
        if opened.config.compact:
            chain.become_sparse()

    def __repr__(self) -> str:
        return f"PartitionLog({self.tp}, {self.log_start_offset}..{self.log_end_offset})"

    # --- attributes of the parts -----------------------------------------------------------------

    @property
    def snapshot_offset(self) -> int:
        """The offset of the last clean stop's snapshot; -1 if there were no producers."""
        return self._producers.snapshot_offset

    @property
    def segments(self) -> list[Segment]:
        """The segments, oldest first; the last one is active."""
        return self.chain.segments

    @property
    def size_bytes(self) -> int:
        """The size of all segments in bytes."""
        return self.chain.size_bytes

    @property
    def appended_bytes(self) -> int:
        """The bytes of batches that were appended since the partition was opened."""
        return self.chain.closed_bytes + self.chain.active.size

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self.head.start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.head.end_offset

    @property
    def high_watermark(self) -> int:
        """The offset below which all records survive a power cut. Readers see nothing above it."""
        return self.head.high_watermark

    @property
    def stored_offset(self) -> int:
        """The offset below which all records are in synced segments."""
        return self._sync.stored_offset

    @property
    def recovery_point(self) -> int:
        """The offset from which recovery reads the log."""
        return self._point.offset

    @property
    def failure(self) -> StorageError | None:
        """The reason why the partition is offline, or None."""
        return self.chain.failure

    @property
    def config(self) -> LogConfig:
        """The configs of the topic. They can be replaced at any time."""
        config: LogConfig = self.head.config
        return config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.appender.use_config(config)
        if config.compact and not self.chain.sparse:
            self.flush()  # after a power cut, only the last segment of a compacted log is restored
            self.chain.become_sparse()

    @property
    def leader_epoch(self) -> int:
        """The epoch that is stamped into batches."""
        return self.head.leader_epoch

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, min_one: bool = True
    ) -> Slice | None:
        """Find stored bytes in one segment, beginning with the batch that holds ``offset``.

        Batches that compaction has emptied are skipped while others follow. librdkafka takes an
        answer without records for a batch that was cut, and fails after ten of them.

        Args:
            max_bytes: most bytes; the last batch can be cut.
            limit_offset: no record at or above it is returned; for consumers the high watermark.
            min_one: return at least the first batch completely, however large it is.

        Returns:
            None if there are no records below ``limit_offset`` yet. A slice of size 0 if the first
            batch is larger than ``max_bytes`` and ``min_one`` is False.

        Raises:
            OffsetOutOfRangeError: ``offset`` is below the log's start or above its end.
            CorruptLogError, StorageError: the stored data can't be used.
        """
        chain = self.chain
        if chain.failure is not None:
            raise chain.failure.with_traceback(None)
        head = self.head
        if not head.start_offset <= offset <= head.end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.tp} is out of range: it holds offsets "
                f"{head.start_offset} to {head.end_offset - 1}"
            )
        if offset >= limit_offset:
            return None
        return reading.find_slice(chain, offset, max_bytes, limit_offset, min_one)

    def distance(self, offset: int) -> reading.Distance:
        """Return how far ``offset`` is behind the high watermark; see ``reading.distance``."""
        return reading.distance(self.chain, offset, self.high_watermark)

    def holds(self, segment: Segment) -> bool:
        """Return whether the segment is in the log: not deleted and not compacted away."""
        return self.chain.holds(segment)

    def find_timestamp(self, timestamp_ms: int) -> Steps[tuple[int, int] | None]:
        """Return offset and timestamp of the first readable record that is not older, or None.

        The result is exact to the record, because the batch is decoded. This is a generator: its
        steps block while they read.

        Raises:
            CorruptLogError, StorageError: the stored data can't be used.
        """
        start, end = self.log_start_offset, self.high_watermark
        return reading.search(
            self.chain, lambda each: reading.find_timestamp(each, timestamp_ms, start, end)
        )

    def find_max_timestamp(self) -> Steps[tuple[int, int] | None]:
        """Return offset and timestamp of the first record with the latest timestamp (KIP-734).

        This is a generator, as ``find_timestamp``.

        Raises:
            CorruptLogError, StorageError: the stored data can't be used.
        """
        start, end = self.log_start_offset, self.high_watermark
        return reading.search(self.chain, lambda each: reading.find_max_timestamp(each, start, end))

    # --- appending -------------------------------------------------------------------------------

    def check(self, records: Buffer, *, now_ms: int) -> Steps[Checked]:
        """Check a batch of a client, for ``append``; see ``validate.check_client_batch``."""
        return check_client_batch(records, self.config, now_ms)

    def append(
        self,
        records: Buffer | Checked,
        *,
        now_ms: int,
        from_client: bool = True,
        from_zero: bool = False,
    ) -> AppendInfo:
        """Append the batch of a client, or all of several batches of the broker, or none.

        Args:
            records: complete batches, to be stamped in place; or what ``check`` returned.
            from_client: verify the batches first. False for batches that the broker built itself.
            from_zero: see ``ProducerStates.check``.

        Raises:
            TidemillError: see ``validate.check_client_batch``, ``ProducerStates.check`` and
                ``RefusedBatches.check``.
            DiskFullError: the disk is full. No part of the batches is readable.
            StorageError: the partition is offline.
        """
        return self.appender.append(records, now_ms, from_client, from_zero)

    def append_marker(self, marker: Marker, *, now_ms: int) -> AppendInfo | None:
        """End a producer's transaction with a marker.

        The last stable offset rises when the marker is synced. None is returned, and nothing is
        appended, if the producer has no open transaction here.

        Raises:
            InvalidProducerEpochError, TransactionCoordinatorFencedError: see
                ``ProducerStates.check_marker``.
            DiskFullError: the disk is full. The transaction stays open.
            StorageError: the partition is offline.
        """
        return self.appender.append_marker(marker, now_ms)

    def remember_refusal(self, records: Buffer, error: TidemillError, now_ms: int) -> None:
        """Record that a client got ``error`` instead of an append of ``records``.

        The batches that the client has sent behind these must not overtake them.
        """
        if len(records) >= HEADER_SIZE:
            self.refused.remember(parse_header(records), error, now_ms)

    def roll(self, now_ms: int) -> Segment:
        """Close the active segment and start a new one; see ``Appender.roll``."""
        return self.appender.roll(now_ms)

    # --- producers and transactions --------------------------------------------------------------

    @property
    def producers(self) -> ProducerStates:
        """The idempotent producers, read from their snapshot at first use.

        Raises:
            CorruptLogError, StorageError: they can't be read.
        """
        return self._producers.states

    def expire_producers(self, now_ms: int, expiry_ms: int) -> int:
        """Remove producers without an append for ``expiry_ms``; return how many were removed."""
        self.refused.expire(now_ms)
        return self._producers.expire(now_ms, expiry_ms)

    @property
    def last_stable_offset(self) -> int:
        """The offset that ``read_committed`` readers must not reach."""
        producers = self._producers
        if producers.loaded is None:
            return self.head.high_watermark
        return producers.stable_offset(self.head.high_watermark)

    @property
    def has_open_transactions(self) -> bool:
        """Whether a transaction has no marker yet. Reads nothing."""
        return self._producers.has_open_transactions

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions without a marker, oldest first."""
        return self._producers.open_transactions()

    def last_offset_of(self, producer_id: int) -> int:
        """Return the offset of a producer's last record here, or -1 if it is unknown.

        Raises:
            CorruptLogError, StorageError: the producers can't be read.
        """
        entry = self.producers.get(producer_id)
        return -1 if entry is None else entry.last_offset

    @property
    def has_aborted_transactions(self) -> bool:
        """Whether ``aborted_transactions`` could find any."""
        return bool(self.chain.with_aborted())

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions that overlap a range.

        See ``find_aborted``.

        Raises:
            StorageError: an index can't be read.
        """
        entries = find_aborted(self.chain, first_offset, end_offset)
        return [(entry.producer_id, entry.first_offset) for entry in entries]

    # --- syncing ---------------------------------------------------------------------------------

    def begin_sync(
        self, *, in_background: bool = False, is_awaited: bool = True
    ) -> SyncTicket | None:
        """Return a ticket for all unsynced files, or None; see ``SyncState.begin``."""
        return self._sync.begin(in_background=in_background, is_awaited=is_awaited)

    @property
    def fits_journal(self) -> bool:
        """Whether the journal can take what is unsynced; see ``Head.fits_journal``."""
        return self.head.fits_journal()

    def withdraw_piece(self) -> None:
        """Note that a piece is not in the journal. None can follow before the next ticket."""
        self.head.drop_copies()

    def finish_sync(self, ticket: SyncTicket) -> None:
        """Raise the high watermark to the end of a ticket; see ``SyncState.finish``."""
        if self._sync.finish(ticket):
            self._producers.settle(self.head.high_watermark)

    def flush(self) -> None:
        """Sync everything; blocks.

        Raises:
            SyncFailedError: the broker must stop.
        """
        ticket = self.begin_sync()
        if ticket is not None:
            ticket.run()
            self.finish_sync(ticket)

    def advance_recovery_point(self) -> None:
        """Advance the recovery point if that is due; see ``RecoveryPoint.advance``.

        If the partition is offline, remove what a refused append has left; see
        ``SegmentChain.cut_back``.
        """
        if self.chain.failure is None:
            self._point.advance()
        else:
            self.chain.cut_back()

    def snapshot_sync(self) -> SnapshotSync | None:
        """Return the sync of the recovery point's snapshot; None if there is nothing to sync."""
        return self._point.snapshot_sync()

    # --- removing and replacing segments ---------------------------------------------------------

    def delete_records_before(self, offset: int) -> int:
        """Raise the log's start to ``offset``, and remove the segments below it.

        The new start, which is returned, is durable after the next ``LogStore.checkpoint``.

        Raises:
            OffsetOutOfRangeError: ``offset`` is negative or above the high watermark.
            StorageError: a file can't be renamed.
        """
        return self._retention.delete_before(offset)

    def delete_old_segments(self, now_ms: int) -> list[Segment]:
        """Remove and return the segments that the topic's retention does not keep, oldest first.

        If even the active segment is too old, it is closed first. So an idle partition becomes
        empty too.

        Raises:
            SyncFailedError: the broker must stop.
            DiskFullError: there is no space for the files of a new active segment.
            StorageError: a file can't be renamed.
        """
        return self._retention.delete_old(now_ms)

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Replace closed segments by cleaned ones in memory; see ``SegmentChain.replace``."""
        self.chain.replace(old, new)
        self._sync.forget(old)

    # --- the end ---------------------------------------------------------------------------------

    def go_offline(self, error: StorageError) -> None:
        """Refuse all further use: the content of a file is uncertain."""
        self.chain.go_offline(error)

    def stop(self) -> None:
        """Sync everything, and write the files that let the next start skip recovery.

        Raises:
            SyncFailedError, DiskFullError, StorageError: this is not a clean stop.
        """
        self.flush()
        chain = self.chain
        if chain.head.changed and chain.head.end_offset:
            chain.active.write_index(seal=True)
            self._point.prepare()
            self._point.take()
            self._producers.snapshot_offset = chain.head.end_offset if len(self.producers) else -1
        chain.head.changed = False

    def close(self) -> None:
        """Close all files."""
        self.chain.close()

    def moved(self, folder: str) -> None:
        """Use the new path of the renamed folder."""
        self.chain.moved(folder)
        self._sync.drop()
