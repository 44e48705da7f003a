"""One partition's log: a chain of segments that grows at its end and loses segments at its start.

Decides where batches go, what must be synced and what readers may see; how they find it is
``reading``, and what producers have open is ``producing``. One thread appends and changes the
chain; ``SyncTicket.run`` and ``Slice.load`` may run in others. Knows no topics, no waiting and no
protocol.

Offsets, in order: ``log_start_offset`` <= ``recovery_point`` (all below is synced and snapshotted)
<= ``high_watermark`` (all below is synced; readers see nothing above) <= ``log_end_offset``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from tidemill.errors import InvalidRecordError, OffsetOutOfRangeError, StorageError
from tidemill.log import maintenance
from tidemill.log.aborted import AbortedIndex, AbortedTransaction
from tidemill.log.batch import BatchHeader, Buffer, parse_header, stamp
from tidemill.log.checkpoints import ManifestEntry
from tidemill.log.config import LogConfig
from tidemill.log.environment import Environment
from tidemill.log.names import TXN_INDEX, TopicPartition
from tidemill.log.producers import ProducerStates
from tidemill.log.producing import ProducingLog
from tidemill.log.recovery_point import RecoveryPoint
from tidemill.log.rolling import must_roll
from tidemill.log.segment import Segment
from tidemill.log.syncing import SyncTicket
from tidemill.log.transactions import Marker, encode_marker
from tidemill.log.validate import LOG_APPEND_TIME, check_client_batches, trusted_batches


class AppendInfo(NamedTuple):
    """Where batches went. With ``duplicate`` they had been appended before."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int = -1
    duplicate: bool = False


class PartitionLog(ProducingLog):
    """The log of one partition. Made by ``store.LogStore``.

    Attributes:
        topic_id: of the topic it was created for, or None where its file was lost.
        config: the topic's; may be replaced at any time.
        first_dirty_offset: compaction has gone up to here; may lie outside of the log.
        leader_epoch: stamped into batches.
        removed: its folder was renamed, to be deleted or set aside.
        changed: its files are not as the last clean stop left them.
    """

    __slots__ = (
        "_new_folder",
        "_point",
        "_unsynced",
        "changed",
        "config",
        "first_dirty_offset",
        "leader_epoch",
        "removed",
        "topic_id",
    )

    def __init__(
        self,
        env: Environment,
        tp: TopicPartition,
        folder: str,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        topic_id: UUID | None = None,
        producers: ProducerStates | None = None,
        snapshot_offset: int = -1,
        new_folder: bool = False,
    ) -> None:
        """
        Args:
            segments: at least one; all that they hold is synced.
            producers, snapshot_offset: see ``ProducingLog``.
            new_folder: the folder, or what is in it, may not be synced yet.
        """
        super().__init__(
            env,
            tp,
            folder,
            segments,
            log_start_offset,
            log_end_offset,
            producers,
            snapshot_offset,
        )
        self.config = config
        self.first_dirty_offset = 0
        self.leader_epoch = 0
        self.topic_id = topic_id
        self.removed = False
        self.changed = False
        self._unsynced: list[Segment] = []
        self._new_folder = new_folder
        self._point = RecoveryPoint(recovery_point, log_end_offset)

    def __repr__(self) -> str:
        return f"PartitionLog({self.tp}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.segments[-1]

    @property
    def recovery_point(self) -> int:
        """Recovery reads the log from here on."""
        return self._point.offset

    def advance_recovery_point(self) -> None:
        """Move the recovery point on where that is due: see ``RecoveryPoint.advance``.

        Raises:
            DiskFullError, StorageError: the snapshot or index can't be written; nothing changes.
        """
        if self.failure is None:
            self._point.advance(self)

    # --- appending -------------------------------------------------------------------------------

    def append(self, records: Buffer, *, now_ms: int, from_client: bool = True) -> AppendInfo:
        """Append one batch or more: all of them or none.

        Args:
            records: whole batches, which may be written to; offsets are stamped in place.
            now_ms: the broker's time.
            from_client: prove them first. False for batches that the broker built itself.

        Raises:
            TidemillError: as ``validate.check_client_batches`` and ``ProducerStates.check``.
            DiskFullError: no space; nothing of it is readable.
            StorageError: the partition is offline.
        """
        if self.failure is not None:
            raise self.failure
        config = self.config
        checked = (
            check_client_batches(records, config, now_ms)
            if from_client
            else trusted_batches(records, config)
        )
        data, headers, append_time = checked
        repeated = self._check_producers(headers, from_client)
        if repeated is not None:
            last = repeated + headers[0].last_offset_delta
            return AppendInfo(repeated, last, append_time, duplicate=True)
        first = offset = self.log_end_offset
        batches = []
        position = 0
        latest = -1
        for header in headers:
            stamp(data, position, offset, self.leader_epoch)
            offset += header.last_offset_delta + 1
            size = header.batch_length + 12
            position += size
            batches.append((size, offset - 1, header.max_timestamp))
            if header.max_timestamp > latest:
                latest = header.max_timestamp
        segment = self._segment_for(position, offset - 1, latest, now_ms)
        self._write(segment, data, batches)
        offset = first
        for header in headers:
            if header.producer_id >= 0:
                self.producers.update(header, offset, now_ms)
            offset += header.last_offset_delta + 1
        return AppendInfo(first, offset - 1, append_time)

    def _check_producers(self, headers: list[BatchHeader], from_client: bool) -> int | None:
        if not from_client:
            for header in headers:
                if header.producer_id >= 0:
                    self.producers.check_trusted(header)
            return None
        if len(headers) == 1:
            header = headers[0]
            return None if header.producer_id < 0 else self.producers.check(header)
        if any(header.producer_id >= 0 for header in headers):
            raise InvalidRecordError("an idempotent producer sends one batch per request")
        return None

    def append_marker(
        self, marker: Marker, *, now_ms: int, newer_epoch: bool = False
    ) -> AppendInfo | None:
        """End a producer's transaction.

        The last stable offset stays until the marker is synced.

        Args:
            now_ms: the broker's time.
            newer_epoch: the marker's epoch must be above that of the data (KIP-890).

        Returns:
            None where the producer has no open transaction here: nothing was appended.

        Raises:
            InvalidProducerEpochError, TransactionCoordinatorFencedError: see
                ``ProducerStates.check_marker``.
            DiskFullError: no space; the transaction is as it was.
            StorageError: the partition is offline.
        """
        if self.failure is not None:
            raise self.failure
        if not self.has_open_transactions:
            return None
        producers = self.producers
        if not producers.check_marker(marker, newer_epoch=newer_epoch):
            return None
        stamped = self.config.message_timestamp_type == LOG_APPEND_TIME
        batch = encode_marker(marker, timestamp_ms=now_ms, log_append_time=stamped)
        offset = self.log_end_offset
        stamp(batch, 0, offset, self.leader_epoch)
        size = parse_header(batch).size
        segment = self._segment_for(size, offset, now_ms, now_ms)
        index = None
        if not marker.commit:
            index = self._write_aborted(segment, producers.aborted_by(marker, offset))
        try:
            self._write(segment, batch, [(size, offset, now_ms)])
        except StorageError:
            if index is not None:
                self._retract_aborted(segment, index)
            raise
        if index is not None:
            index.accept()
            if segment.aborted is None:
                segment.aborted = index
                self._aborting = None
        producers.end(marker, offset, now_ms)
        return AppendInfo(offset, offset, now_ms if stamped else -1)

    def _write_aborted(self, segment: Segment, entry: AbortedTransaction) -> AbortedIndex:
        index = segment.aborted or AbortedIndex(named=False)
        index.write(self._env, segment.path(TXN_INDEX), entry)
        return index

    def _retract_aborted(self, segment: Segment, index: AbortedIndex) -> None:
        # Another batch will get the marker's offset: the entry must never be believed.
        try:
            index.retract(self._env, segment.path(TXN_INDEX))
        except StorageError as error:
            self.go_offline(error)

    def _segment_for(self, size: int, last_offset: int, latest: int, now_ms: int) -> Segment:
        """The active segment, after a roll where it has no room for so much."""
        segment = self.segments[-1]
        if segment.size and must_roll(
            segment, size, last_offset, latest, now_ms, self.config, self.tp
        ):
            segment = self.roll(now_ms)
        return segment

    def _write(self, segment: Segment, data: Buffer, batches: list[tuple[int, int, int]]) -> None:
        try:
            segment.append(data, batches, self.config.index_interval_bytes)
        except StorageError as error:
            if segment.file.broken:
                self.go_offline(error)
            raise
        self.log_end_offset = batches[-1][1] + 1
        self._point.bytes_since += len(data)
        self.changed = True

    def roll(self, now_ms: int) -> Segment:
        """Close the active segment and start one at the log's end; returns the active one.

        The closed segment and its indexes are part of the next sync. The order: all that can fail
        for lack of space comes before the chain is changed.

        Raises:
            DiskFullError, StorageError: it can't be created; nothing has changed.
        """
        old = self.segments[-1]
        if not old.size:
            return old
        old.write_index(seal=True)
        maintenance.write_snapshot(self)
        new = Segment.create(self._env, self.folder, self.log_end_offset, now_ms)
        old.close_index()
        self._unsynced.append(old)
        self.segments.append(new)
        self._point.pending = self.log_end_offset
        self.changed = True
        return new

    def go_offline(self, error: StorageError) -> None:
        """Refuse everything from now on: what the file holds is not certain."""
        if self.failure is None:
            self.failure = error
            self._env.offline[self.tp] = error
            if self._env.on_offline is not None:
                self._env.on_offline(self.tp, error)

    # --- syncing ---------------------------------------------------------------------------------

    def begin_sync(self) -> SyncTicket | None:
        """What has to be synced now, or None if nothing has."""
        active = self.segments[-1]
        if active.size == active.synced_size and not self._unsynced and not self._new_folder:
            return None
        return SyncTicket(self, self._env, list(self._unsynced), active, self._new_folder)

    def finish_sync(self, ticket: SyncTicket) -> None:
        """The ticket was run: raise the high watermark to its end.

        Raises:
            RuntimeError: it was not run, or failed.
        """
        if not ticket.done:
            raise RuntimeError(f"{self.tp}: a sync that was not run can't be finished")
        for segment, size in ticket.sizes:
            segment.synced_size = max(segment.synced_size, size)
            segment.named = True
        for index, size in ticket.aborted:
            index.synced_size = max(index.synced_size, size)
            index.named = True
        closed = {id(segment) for segment in ticket.closed}
        if closed:
            self._unsynced = [each for each in self._unsynced if id(each) not in closed]
        if ticket.new_folder:
            self._new_folder = False
        if ticket.end_offset > self.high_watermark:
            self.high_watermark = ticket.end_offset
            self._hw_segment, self._hw_position = ticket.sizes[-1]
            if self._producers is not None:
                self._producers.unstable.settle(self.high_watermark)

    # --- the log's start, and whole segments -----------------------------------------------------

    def delete_records_before(self, offset: int) -> int:
        """Make ``offset`` the log's start, and drop the segments that are wholly below it.

        The new start is on disk after the next ``LogStore.checkpoint``.

        Returns:
            The log's start offset.

        Raises:
            OffsetOutOfRangeError: above the high watermark, or negative.
            StorageError: the file system refuses.
        """
        if self.failure is not None:
            raise self.failure
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(
                f"{self.tp}: records can be deleted up to {self.high_watermark}, not to {offset}"
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.changed = True
            self.remove_oldest(max(self.segment_index(offset), 0))
        return self.log_start_offset

    def remove_oldest(self, count: int) -> list[Segment]:
        """Take the ``count`` oldest segments off the chain; the active one always stays.

        Their files get the suffix ``.deleted`` and are removed after ``file.delete.delay.ms``, by
        ``LogStore.purge_deleted``. Oldest first, so that a crash leaves no hole.

        Raises:
            SyncFailedError: the broker must stop.
            StorageError: the file system refuses.
        """
        count = min(count, len(self.segments) - 1)
        gone: list[Segment] = []
        if count and len(self.producers):
            maintenance.sync_snapshots(self)
        for _ in range(count):
            maintenance.doom(self, self.segments[0])
            gone.append(self.segments.pop(0))
            self.changed = True
            self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        if gone:
            self._aborting = None
            names = {id(segment) for segment in gone}
            self._unsynced = [each for each in self._unsynced if id(each) not in names]
        return gone

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Put cleaned segments in the place of closed ones, in memory; files are the caller's.

        Args:
            old: neighbours in the chain, without the active segment.
            new: cover the same offsets, synced.

        Raises:
            ValueError: they are not neighbours, or the active segment is among them.
        """
        start = self.segments.index(old[0])
        if list(self.segments[start : start + len(old)]) != list(old):
            raise ValueError(f"{self.tp}: the segments to replace are not neighbours")
        if start + len(old) == len(self.segments):
            raise ValueError(f"{self.tp}: the active segment can't be replaced")
        self.segments[start : start + len(old)] = new
        self._aborting = None
        names = {id(segment) for segment in old}
        self._unsynced = [each for each in self._unsynced if id(each) not in names]
        self.changed = True

    def flush(self) -> None:
        """Sync everything, blocking.

        Raises:
            SyncFailedError: the broker must stop.
        """
        ticket = self.begin_sync()
        if ticket is not None:
            ticket.run()
            self.finish_sync(ticket)

    def stop(self) -> None:
        """Sync everything, and write what the next start needs to scan nothing.

        Raises:
            SyncFailedError, DiskFullError, StorageError: no clean stop may be claimed.
        """
        self.flush()
        if self.changed and self.log_end_offset:
            self.segments[-1].write_index(seal=True)
            self._point.prepare(self)
            self._point.take(self)
            self._snapshot_offset = self.log_end_offset if len(self.producers) else -1
        self.changed = False

    def manifest_entry(self) -> ManifestEntry:
        """What the manifest says of a stopped partition."""
        return ManifestEntry(
            self.tp,
            self.topic_id,
            self.log_start_offset,
            self.log_end_offset,
            self._snapshot_offset,
            [
                (
                    each.base_offset,
                    each.size,
                    each.max_timestamp,
                    each.created_ms,
                    0 if each.aborted is None else each.aborted.size,
                )
                for each in self.segments
            ],
            self.has_open_transactions,
        )

    def close(self) -> None:
        """Close all files."""
        for segment in self.segments:
            segment.close()

    def moved(self, folder: str) -> None:
        """The folder was renamed, to be removed."""
        self.removed = True
        self.folder = folder
        for segment in self.segments:
            segment.moved(folder)
