"""The recovery point of a partition: the offset from which recovery reads the log.

All records below the point are synced, and the disk holds what recovery from there needs: index
entries and a snapshot of the producers. ``offset_checkpoints`` writes the point to its checkpoint
file after it has synced the snapshot. Older snapshots are removed only after that: they can be the
only record of a producer whose batches were deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.log.partition.chain import SegmentChain
from tidemill.log.partition.lazy_producers import LazyProducers
from tidemill.log.partition.snapshots import drop_old_snapshots, sync_snapshot, write_snapshot
from tidemill.log.partition.sync import SyncState

CHECKPOINT_BYTES = 16 << 20
"""Bytes after which the recovery point advances even while the partition is written to."""


@dataclass(frozen=True, slots=True)
class SnapshotSync:
    """Makes the snapshot at a recovery point durable, before the checkpoint file holds the point.

    Both methods can be called in any thread.
    """

    _chain: SegmentChain
    _point: RecoveryPoint
    _offset: int

    def run(self) -> None:
        """Sync the snapshot; blocks."""
        sync_snapshot(self._chain.env, self._chain.folder, self._offset)

    def checkpoint_written(self) -> None:
        """Record that the checkpoint file holds this point or a later one.

        From now on, older snapshots can be removed.
        """
        self._point.kept_snapshot = max(self._point.kept_snapshot, self._offset)


@dataclass(slots=True, eq=False, repr=False)
class RecoveryPoint:
    """The recovery point of one partition.

    A point is prepared first: its snapshot and index entries are written. It is taken when the log
    is synced up to it.

    Attributes:
        offset: the current point.
        pending: the point that is prepared and not taken yet, or -1.
        snapshot: offset of the last point's snapshot, or -1 if there is none to keep.
        kept_snapshot: offset of the last snapshot that is synced and whose point is in the
            checkpoint file, or -1. Set by the thread that writes the checkpoint file.
    """

    offset: int
    _chain: SegmentChain
    _producers: LazyProducers
    _sync: SyncState
    pending: int = -1
    snapshot: int = -1
    kept_snapshot: int = -1
    _droppable: int = -1
    _seen_end: int = field(init=False)

    def __post_init__(self) -> None:
        self._seen_end = self._chain.head.end_offset

    def advance(self) -> None:
        """Advance if that is due: the log is idle, or has grown by ``CHECKPOINT_BYTES``.

        The point never passes unsynced records.

        Raises:
            DiskFullError, StorageError: the snapshot or the index can't be written. Nothing
                changes.
        """
        self.take()
        end = self._chain.head.end_offset
        if self.pending < 0 and end > self.offset:
            idle = end == self._seen_end
            if idle or self._chain.head.bytes_since >= CHECKPOINT_BYTES:
                self.prepare()
                self.take()
        self._seen_end = end

    def prepare(self) -> None:
        """Write the index entries and the snapshot for a point at the log's end."""
        self._chain.active.write_index(seal=False)
        self.write_snapshot()
        self.pending = self._chain.head.end_offset
        self._chain.head.bytes_since = 0

    def write_snapshot(self) -> None:
        """Write a snapshot of the producers at the log's end."""
        write_snapshot(self._chain, self._producers.states)

    def take(self) -> None:
        """Move to the prepared point if the log is synced up to it; drop older snapshots."""
        if 0 <= self.pending <= self._sync.stored_offset:
            self._droppable = self.offset
            self.snapshot = self.pending if len(self._producers.states) else -1
            self.offset = max(self.offset, self.pending)
            self.pending = -1
        if self._droppable >= 0 and self.kept_snapshot >= self.snapshot:
            drop_old_snapshots(self._chain.env, self._chain.folder, self._droppable)
            self._droppable = -1

    def snapshot_sync(self) -> SnapshotSync | None:
        """Return the sync of the snapshot at this point.

        None if that snapshot is synced, or if there are no producers.
        """
        if self.snapshot <= self.kept_snapshot:
            return None
        return SnapshotSync(self._chain, self, self.snapshot)
