"""The recovery point of a partition: where recovery begins to read, and when it moves on.

All below it is synced, and on disk is what recovery from there needs: index entries and a snapshot
of the producers. It is written to its checkpoint file by ``offset_checkpoints``, which syncs the
snapshot before; older ones go after that, for they may be all that tells of a producer whose
records were deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.log import maintenance

if TYPE_CHECKING:
    from tidemill.log.partition import PartitionLog

CHECKPOINT_BYTES = 16 << 20
"""Bytes after which the recovery point moves on even while the partition is written to."""


class SnapshotSync:
    """What makes a partition's snapshot at its recovery point durable, before the checkpoint file
    names the point. Both methods may be called in any thread.
    """

    __slots__ = ("_log", "_offset", "_point")

    def __init__(self, log: PartitionLog, point: RecoveryPoint) -> None:
        self._log = log
        self._point = point
        self._offset = point.snapshot

    def run(self) -> None:
        """Sync it; blocks.

        Raises:
            SyncFailedError: the broker must stop.
        """
        maintenance.sync_snapshot(self._log, self._offset)

    def named(self) -> None:
        """The checkpoint file names this point or a later one: older snapshots may go."""
        self._point.kept_snapshot = max(self._point.kept_snapshot, self._offset)


class RecoveryPoint:
    """One partition's. It is prepared first, and taken once the log is synced up to it.

    Attributes:
        offset: the point.
        pending: the one that was prepared and not taken yet, or -1.
        bytes_since: bytes that were appended since the last one was prepared.
        snapshot: offset of the snapshot that was taken last, or -1 where there is none to keep.
        kept_snapshot: of the last one that was synced, and whose recovery point is on disk, or -1;
            set by the thread that wrote it.
    """

    __slots__ = (
        "_droppable",
        "_seen_end",
        "bytes_since",
        "kept_snapshot",
        "offset",
        "pending",
        "snapshot",
    )

    def __init__(self, offset: int, log_end_offset: int) -> None:
        self.offset = offset
        self.pending = -1
        self.bytes_since = 0
        self.snapshot = -1
        self.kept_snapshot = -1
        self._droppable = -1
        self._seen_end = log_end_offset

    def advance(self, log: PartitionLog) -> None:
        """Move on where that is due: to the end of a log that has come to rest, or that has grown
        by ``CHECKPOINT_BYTES``. It never passes unsynced data.

        Raises:
            DiskFullError, StorageError: the snapshot or index can't be written; nothing changes.
        """
        self.take(log)
        end = log.log_end_offset
        if self.pending < 0 and end > self.offset:
            idle = end == self._seen_end
            if idle or self.bytes_since >= CHECKPOINT_BYTES:
                self.prepare(log)
                self.take(log)
        self._seen_end = end

    def prepare(self, log: PartitionLog) -> None:
        """Write what recovery from the log's end on needs.

        Raises:
            DiskFullError, StorageError: it can't be written.
        """
        log.active.write_index(seal=False)
        maintenance.write_snapshot(log)
        self.pending = log.log_end_offset
        self.bytes_since = 0

    def take(self, log: PartitionLog) -> None:
        """Move to the prepared point if the log is synced up to it; drop what is of no more use.

        Raises:
            StorageError: snapshots that are of no more use can't be removed.
        """
        if 0 <= self.pending <= log.high_watermark:
            self._droppable = self.offset
            self.snapshot = self.pending if len(log.producers) else -1
            self.offset = max(self.offset, self.pending)
            self.pending = -1
        if self._droppable >= 0 and self.kept_snapshot >= self.snapshot:
            maintenance.drop_old_snapshots(log, self._droppable)
            self._droppable = -1
