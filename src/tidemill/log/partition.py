"""One partition: a chain of segments that is appended to at the end and read anywhere.

Decides where batches go, what readers may see and what must be synced. One thread appends and
changes the chain; ``SyncTicket.run`` and ``Slice.load`` may run in others. Knows no topics, no
waiting and no protocol.

Offsets, in order: ``log_start_offset`` <= ``recovery_point`` (all below is synced and snapshotted)
<= ``high_watermark`` (all below is synced; readers see nothing above) <= ``log_end_offset``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from tidemill.errors import (
    InvalidRecordError,
    OffsetOutOfRangeError,
    StorageError,
)
from tidemill.log import maintenance
from tidemill.log.batch import BatchHeader, Buffer, stamp
from tidemill.log.checkpoints import ManifestEntry
from tidemill.log.config import LogConfig
from tidemill.log.environment import Environment
from tidemill.log.index import MAX_RELATIVE_OFFSET
from tidemill.log.names import SNAPSHOT, TopicPartition, file_name
from tidemill.log.producers import ProducerStates
from tidemill.log.segment import Segment, total_size
from tidemill.log.slice import Slice
from tidemill.log.syncing import SyncTicket
from tidemill.log.timestamps import find_max_timestamp, find_timestamp
from tidemill.log.validate import check_client_batches, trusted_batches

CHECKPOINT_BYTES = 16 << 20
"""Bytes after which the recovery point moves on even while the partition is written to."""

_BASE_OFFSET = attrgetter("base_offset")


class AppendInfo(NamedTuple):
    """Where batches went. With ``duplicate`` they had been appended before."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int = -1
    duplicate: bool = False


class PartitionLog:
    """The log of one partition. Made by ``store.LogStore``.

    Attributes:
        tp: which partition.
        topic_id: of the topic it was created for, or None where its file was lost.
        config: the topic's; may be replaced at any time.
        segments: oldest first; the last one is active.
        log_start_offset: first offset that may be read.
        log_end_offset: offset of the next record.
        high_watermark: readers see offsets below it: they are synced.
        recovery_point: recovery reads the log from here on.
        first_dirty_offset: compaction has gone up to here; may lie outside of the log.
        leader_epoch: stamped into batches.
        failure: why the partition is offline, or None.
    """

    __slots__ = (
        "_bytes_since_point",
        "_env",
        "_hw_position",
        "_hw_segment",
        "_new_folder",
        "_pending_point",
        "_producers",
        "_seen_end",
        "_snapshot_offset",
        "_unsynced",
        "changed",
        "config",
        "failure",
        "first_dirty_offset",
        "folder",
        "high_watermark",
        "leader_epoch",
        "log_end_offset",
        "log_start_offset",
        "recovery_point",
        "removed",
        "segments",
        "topic_id",
        "tp",
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
            producers: or None to read them from the snapshot when they are needed.
            snapshot_offset: offset of that snapshot; -1 where there is none because there are no
                producers.
            new_folder: the folder, or what is in it, may not be synced yet.
        """
        self._env = env
        self.tp = tp
        self.folder = folder
        self.config = config
        self.segments = segments
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_end_offset
        self.recovery_point = recovery_point
        self.first_dirty_offset = 0
        self.leader_epoch = 0
        self.topic_id = topic_id
        self.failure: StorageError | None = None
        self.removed = False
        self.changed = False
        self._hw_segment = segments[-1]
        self._hw_position = segments[-1].size
        self._unsynced: list[Segment] = []
        self._new_folder = new_folder
        self._producers = producers
        self._snapshot_offset = snapshot_offset
        self._pending_point = -1
        self._bytes_since_point = 0
        self._seen_end = log_end_offset

    def __repr__(self) -> str:
        return f"PartitionLog({self.tp}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction; there are none, so the high watermark."""
        return self.high_watermark

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return total_size(self.segments)

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.segments[-1]

    @property
    def environment(self) -> Environment:
        """What the partition shares with the others."""
        return self._env

    @property
    def producers(self) -> ProducerStates:
        """Idempotent producers; read from the snapshot at first use."""
        if self._producers is None:
            self._producers = maintenance.load_producers(self, self._snapshot_offset)
        return self._producers

    def expire_producers(self, now_ms: int, expiry_ms: int) -> int:
        """Forget producers that have been silent for ``expiry_ms``; returns how many.

        Those that were not read from their snapshot yet are looked at when they are.
        """
        return 0 if self._producers is None else self._producers.expire(now_ms, expiry_ms)

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
        if from_client:
            repeated = self._check_producers(headers)
            if repeated is not None:
                return AppendInfo(
                    repeated, repeated + headers[0].last_offset_delta, append_time, duplicate=True
                )
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
        segment = self.segments[-1]
        if segment.size and self._must_roll(segment, position, offset - 1, latest, now_ms):
            segment = self.roll(now_ms)
        try:
            segment.append(data, batches, config.index_interval_bytes)
        except StorageError as error:
            self._after_failure(segment, error)
            raise
        self.log_end_offset = offset
        self._bytes_since_point += position
        self.changed = True
        self._update_producers(headers, first, now_ms)
        return AppendInfo(first, offset - 1, append_time)

    def _check_producers(self, headers: list[BatchHeader]) -> int | None:
        if len(headers) == 1:
            header = headers[0]
            return None if header.producer_id < 0 else self.producers.check(header)
        if any(header.producer_id >= 0 for header in headers):
            raise InvalidRecordError("an idempotent producer sends one batch per request")
        return None

    def _update_producers(self, headers: list[BatchHeader], offset: int, now_ms: int) -> None:
        for header in headers:
            if header.producer_id >= 0:
                self.producers.update(header, offset, now_ms)
            offset += header.last_offset_delta + 1

    def _must_roll(
        self, segment: Segment, size: int, last_offset: int, timestamp: int, now_ms: int
    ) -> bool:
        config = self.config
        if segment.size + size > config.segment_bytes:
            return True
        if last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        table = segment.table or segment.open_table()
        if table.is_full(config.segment_index_bytes):
            return True
        # As Kafka: by record time where there is one, so that replayed history rolls as it would
        # have rolled.
        begin = segment.first_timestamp
        if begin is None:
            begin = segment.read_first_timestamp()
        waited = timestamp - begin if begin >= 0 and timestamp >= 0 else now_ms - segment.created_ms
        limit = config.max_segment_ms
        if config.segment_jitter_ms:
            seed = crc32c(f"{self.tp}/{segment.base_offset}".encode())
            limit -= min(seed % (config.segment_jitter_ms + 1), limit)
        return waited > limit

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
        self._pending_point = self.log_end_offset
        self.changed = True
        return new

    def _after_failure(self, segment: Segment, error: StorageError) -> None:
        if segment.file.broken:
            self.go_offline(error)

    def go_offline(self, error: StorageError) -> None:
        """Refuse everything from now on: what the file holds is not certain."""
        if self.failure is None:
            self.failure = error
            self._env.offline[self.tp] = error
            if self._env.on_offline is not None:
                self._env.on_offline(self.tp, error)

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, min_one: bool = True
    ) -> Slice | None:
        """Find stored bytes from the batch that holds ``offset`` on, in one segment.

        Args:
            offset: first offset that is wanted.
            max_bytes: most bytes; the last batch may be cut by it.
            limit_offset: nothing at or above it is given: the high watermark for consumers.
            min_one: give at least the first batch, whole, however large it is.

        Returns:
            None where there is nothing below ``limit_offset`` yet; a slice of size 0 where the
            first batch is larger than ``max_bytes`` and ``min_one`` is False.

        Raises:
            OffsetOutOfRangeError: below the log's start or above its end.
            CorruptLogError, StorageError: what is stored can't be used.
        """
        if self.failure is not None:
            raise self.failure
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"{self.tp} holds offsets {self.log_start_offset} to {self.log_end_offset - 1}, "
                f"not {offset}"
            )
        if offset >= limit_offset:
            return None
        segments = self.segments
        index = len(segments) - 1
        if offset < segments[index].base_offset:
            index = max(self.segment_index(offset), 0)
        while index < len(segments):
            segment = segments[index]
            place = segment.locate(offset)
            if place is None:
                index += 1  # compaction left nothing from here to the segment's end
                continue
            position, first_size = place
            size = self._readable_end(index, limit_offset) - position
            if size <= 0:
                return None
            if size > max_bytes:
                size = max_bytes
                if size < first_size:
                    size = first_size if min_one else 0
            return Slice(segment, position, size)
        return None

    def segment_index(self, offset: int) -> int:
        """Index of the segment that holds ``offset``; -1 below the first."""
        return bisect_right(self.segments, offset, key=_BASE_OFFSET) - 1

    def _readable_end(self, index: int, limit_offset: int) -> int:
        segment = self.segments[index]
        if limit_offset >= self.log_end_offset:
            return segment.size
        if index + 1 < len(self.segments) and self.segments[index + 1].base_offset <= limit_offset:
            return segment.size
        if limit_offset == self.high_watermark and segment is self._hw_segment:
            return self._hw_position
        return segment.position_before(limit_offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first readable record that is not older, or None.

        Exact to the record: the batch is decoded. Blocks while it reads.

        Raises:
            CorruptLogError, StorageError: what is stored can't be used.
        """
        if self.failure is not None:
            raise self.failure
        return find_timestamp(
            self.segments, timestamp_ms, self.log_start_offset, self.high_watermark
        )

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """Offset and timestamp of the (first) record with the latest timestamp (KIP-734)."""
        if self.failure is not None:
            raise self.failure
        return find_max_timestamp(self.segments, self.log_start_offset, self.high_watermark)

    # --- syncing ---------------------------------------------------------------------------------

    @property
    def unsynced_bytes(self) -> int:
        """Bytes that were appended and not synced."""
        active = self.segments[-1]
        size = active.size - active.synced_size
        for segment in self._unsynced:
            size += segment.size - segment.synced_size
        return size

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
        closed = {id(segment) for segment in ticket.closed}
        if closed:
            self._unsynced = [each for each in self._unsynced if id(each) not in closed]
        if ticket.new_folder:
            self._new_folder = False
        if ticket.end_offset > self.high_watermark:
            self.high_watermark = ticket.end_offset
            self._hw_segment, self._hw_position = ticket.sizes[-1]

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
        names = {id(segment) for segment in old}
        self._unsynced = [each for each in self._unsynced if id(each) not in names]
        self.changed = True

    # --- for the store ---------------------------------------------------------------------------

    def advance_recovery_point(self) -> None:
        """Move the recovery point on where that is due.

        A point is prepared first (producer snapshot and index entries up to the log's end), and
        taken once the log is synced up to it: it never passes unsynced data.

        Raises:
            DiskFullError, StorageError: the snapshot or index can't be written; nothing changes.
        """
        if self.failure is not None:
            return
        self._take_pending_point()
        end = self.log_end_offset
        if self._pending_point < 0 and end > self.recovery_point:
            idle = end == self._seen_end
            if idle or self._bytes_since_point >= CHECKPOINT_BYTES:
                self.prepare_recovery_point()
                self._take_pending_point()
        self._seen_end = end

    def prepare_recovery_point(self) -> None:
        """Write what recovery from the log's end on needs.

        Raises:
            DiskFullError, StorageError: it can't be written.
        """
        self.segments[-1].write_index(seal=False)
        maintenance.write_snapshot(self)
        self._pending_point = self.log_end_offset
        self._bytes_since_point = 0

    def _take_pending_point(self) -> None:
        if 0 <= self._pending_point <= self.high_watermark:
            before = self.recovery_point
            self.recovery_point = max(before, self._pending_point)
            self._pending_point = -1
            maintenance.drop_old_snapshots(self, before)

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
            self.prepare_recovery_point()
            self._take_pending_point()
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
                (each.base_offset, each.size, each.max_timestamp, each.created_ms)
                for each in self.segments
            ],
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

    def snapshot_path(self, offset: int) -> str:
        """Path of the producer snapshot at ``offset``."""
        return f"{self.folder}/{file_name(offset, SNAPSHOT)}"
