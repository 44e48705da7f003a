"""One partition's log: a chain of segments that grows at its end and loses segments at its start.

Decides what must be synced, what readers may see and where the log begins. How it is appended to is
``appending``, what producers have open ``producing``, how readers find things ``reading``. One
thread changes the chain; ``SyncTicket.run`` and ``Slice.load`` may run in others. Knows no topics,
no waiting and no protocol.

Offsets, in order: ``log_start_offset`` <= ``recovery_point`` (all below is synced and snapshotted)
<= ``high_watermark`` (all below is synced; readers see nothing above) <= ``log_end_offset``.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tidemill.errors import OffsetOutOfRangeError
from tidemill.log import maintenance
from tidemill.log.appending import AppendInfo, AppendingLog
from tidemill.log.checkpoints import ManifestEntry
from tidemill.log.config import LogConfig
from tidemill.log.environment import Environment
from tidemill.log.names import TopicPartition
from tidemill.log.producers import ProducerStates
from tidemill.log.recovery_point import SnapshotSync
from tidemill.log.segment import Segment
from tidemill.log.syncing import SyncTicket

__all__ = ["AppendInfo", "PartitionLog"]


class PartitionLog(AppendingLog):
    """The log of one partition. Made by ``store.LogStore``.

    Attributes:
        topic_id: of the topic it was created for, or None where its file was lost.
        first_dirty_offset: compaction has gone up to here; may lie outside of the log.
        removed: its folder was renamed, to be deleted or set aside.
    """

    __slots__ = ("_new_folder", "first_dirty_offset", "removed", "topic_id")

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
            config,
            segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            recovery_point=recovery_point,
            producers=producers,
            snapshot_offset=snapshot_offset,
        )
        self.first_dirty_offset = 0
        self.topic_id = topic_id
        self.removed = False
        self._new_folder = new_folder

    def __repr__(self) -> str:
        return f"PartitionLog({self.tp}, {self.log_start_offset}..{self.log_end_offset})"

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

    def snapshot_sync(self) -> SnapshotSync | None:
        """What makes the snapshot at the recovery point durable; None where it is, or where there
        are no producers to tell of."""
        point = self._point
        return SnapshotSync(self, point) if point.snapshot > point.kept_snapshot else None

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
