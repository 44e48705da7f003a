"""The offset checkpoints of a data folder: keep the offsets of all partitions, and write the files.

Offsets of offline partitions are kept. Offsets of deleted partitions are stale until the files are
written again. The store decides when to write; ``disk.checkpoints`` has the files' format.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from tidemill.log.disk.checkpoints import (
    ABORTED,
    FIRST_DIRTY,
    LOG_STARTS,
    RECOVERY_POINTS,
    StoredIndex,
    decode_checkpoint,
    decode_stored_indexes,
    encode_checkpoint,
    encode_stored_indexes,
)
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import storage_errors
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog

Content = TypeVar("Content")

_LOST = {
    RECOVERY_POINTS: "logs are read from their start",
    LOG_STARTS: "records that were deleted can be visible again, and this start can't notice that "
    "the first segments of a log are missing",
    FIRST_DIRTY: "compacted logs are compacted from their start",
    ABORTED: "this start can't notice that an index of aborted transactions is damaged",
}


class OffsetCheckpoints:
    """Recovery points, log starts and cleaner offsets of one data folder.

    Attributes:
        recovery_points: the offsets from which recovery reads the logs.
        log_starts: the first offsets that can be read.
        first_dirty: the offsets up to which compaction has cleaned. A partition is in it from the
            time when its topic is configured to be compacted, so the batches of all others follow
            each other without gaps.
        stored_starts: the log starts that are on disk.
        stored_points: the recovery points that were written to the disk since the start.
    """

    def __init__(self, env: Environment, data_dir: str) -> None:
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.first_dirty: dict[TopicPartition, int] = {}
        self.stored_starts: dict[TopicPartition, int] = {}
        self.stored_points: dict[TopicPartition, int] = {}
        self._aborted: dict[TopicPartition, list[StoredIndex]] = {}
        self._stored_sparse: set[TopicPartition] = set()
        self._unproven: set[TopicPartition] = set()
        self._knows_starts = False
        self._knows_sparse = False
        self._env = env
        self._data_dir = data_dir
        self._stale: set[TopicPartition] = set()
        self._written: dict[str, bytes] = {}
        self._writing = threading.Lock()
        self._taken = 0
        self._written_number = 0

    # --- reading ---------------------------------------------------------------------------------

    def load(self, found: Collection[TopicPartition]) -> None:
        """Read the files. A damaged file is ignored and reported, and so is a missing one."""
        points = self._read(RECOVERY_POINTS, decode_checkpoint)
        starts = self._read(LOG_STARTS, decode_checkpoint)
        dirty = self._read(FIRST_DIRTY, decode_checkpoint)
        self.recovery_points = {} if points is None else points.offsets
        self.first_dirty = {} if dirty is None else dirty.offsets
        self._knows_sparse = dirty is not None or not found
        self._stored_sparse = set(self.first_dirty)
        self._knows_starts = starts is not None and starts.is_checked
        if starts is not None:
            # ~offset: a log start that an earlier version wrote, perhaps too early.
            self._unproven = {tp for tp, offset in starts.offsets.items() if offset < 0}
            self.log_starts = {tp: max(at, ~at) for tp, at in starts.offsets.items()}
            self.stored_starts = dict(self.log_starts) if starts.is_checked else {}
        if not self._knows_starts:
            self._unproven.update(found)
        self._aborted = self._read(ABORTED, decode_stored_indexes) or {}
        self._report_missing(found)

    def aborted_of(self, tp: TopicPartition) -> dict[int, StoredIndex]:
        """Return the stored indexes of aborted transactions, by the segment's base offset."""
        return {each.base_offset: each for each in self._aborted.get(tp, ())}

    def _report_missing(self, found: Collection[TopicPartition]) -> None:
        """Report that one of the files is missing. All of them are missing in a new folder only."""
        missing = [name for name in _LOST if not self._env.fs.exists(f"{self._data_dir}/{name}")]
        if found and len(missing) < len(_LOST):
            for name in missing:
                if name != ABORTED or self._knows_starts:  # earlier versions had no such file
                    self._report(name, "the file is missing")

    def _read(self, name: str, decode: Callable[[str, bytes], Content]) -> Content | None:
        path = f"{self._data_dir}/{name}"
        if not self._env.fs.exists(path):
            return None
        data = self._env.fs.read_bytes(path)
        try:
            content = decode(name, data)
        except ValueError as error:
            self._report(name, f"damaged checkpoint ignored ({error})")
            return None
        self._written[name] = data
        return content

    def _report(self, name: str, what: str) -> None:
        self._env.report(None, f"{self._data_dir}/{name}", f"{what}: {_LOST[name]}")

    def proven_start(self, tp: TopicPartition) -> int:
        """Return the offset at which the log begins, or -1 if that is not known.

        The first segment must hold it. A partition without an entry begins at 0: its start is
        stored before the files of its first segments are deleted.
        """
        return -1 if tp in self._unproven else self.log_starts.get(tp, 0)

    def is_sparse(self, tp: TopicPartition) -> bool:
        """Return whether compaction has perhaps removed batches from a partition."""
        return tp in self.first_dirty or not self._knows_sparse

    def has_stored_sparse(self, tp: TopicPartition) -> bool:
        """Return whether the file on disk says that batches can be missing."""
        return tp in self._stored_sparse

    @property
    def is_current(self) -> bool:
        """Whether the files on disk are complete and have this version."""
        return self._knows_starts and len(self._written) == len(_LOST)

    # --- changing --------------------------------------------------------------------------------

    def partitions(self) -> set[TopicPartition]:
        """Return the partitions with an offset in any of the files."""
        return {*self.recovery_points, *self.log_starts, *self.first_dirty}

    def forget(self, tp: TopicPartition) -> None:
        """Drop the offsets of a partition that was deleted or set aside.

        The files still have them. A new partition of this name must not inherit them, because
        recovery would then take its records for damaged or deleted.
        """
        self._aborted.pop(tp, None)
        every = (self.recovery_points, self.log_starts, self.first_dirty)
        known = [offsets.pop(tp, None) for offsets in every]
        self._unproven.discard(tp)
        if any(offset is not None for offset in known):
            self._stale.add(tp)

    def is_stale(self, tp: TopicPartition) -> bool:
        """Return whether the files perhaps have offsets of an earlier partition of this name."""
        return tp in self._stale

    def writes(self, live: Mapping[TopicPartition, PartitionLog]) -> Callable[[], None]:
        """Return a function that writes the current offsets durably.

        Args:
            live: the partitions in use. The last known offsets of other partitions are kept.

        Returns:
            A function that blocks and can be called in any thread. It syncs what recovery from the
            points needs before it writes them. A call does nothing if a later function has written
            already. It raises SyncFailedError if the broker must stop, and DiskFullError or
            StorageError if a file can't be written; then the old file is kept.
        """
        for tp, log in live.items():
            self._update(tp, log)
        starts = dict(self.log_starts)
        for tp in self._unproven:
            starts[tp] = ~starts.get(tp, 0)
        dirty = dict(self.first_dirty)
        points = _known(self.recovery_points)
        files = {
            RECOVERY_POINTS: encode_checkpoint(RECOVERY_POINTS, points),
            LOG_STARTS: encode_checkpoint(LOG_STARTS, _known(starts)),
            FIRST_DIRTY: encode_checkpoint(FIRST_DIRTY, dirty),
            ABORTED: encode_stored_indexes(ABORTED, self._aborted),
        }
        syncs = [sync for log in live.values() if (sync := log.snapshot_sync()) is not None]
        stale = set(self._stale)
        self._taken += 1
        number = self._taken

        def write() -> None:
            for sync in syncs:
                sync.run()
            with self._writing:
                if number < self._written_number:
                    return  # newer offsets are written already
                self._written_number = number
                for name, data in files.items():
                    if self._written.get(name) != data:
                        self._write(name, data)
                        self._written[name] = data
                self._stale -= stale
                self.stored_starts = starts
                self.stored_points = points
                self._stored_sparse = set(dirty)
            for sync in syncs:
                sync.checkpoint_written()

        return write

    def _update(self, tp: TopicPartition, log: PartitionLog) -> None:
        self.recovery_points[tp] = log.recovery_point
        self.log_starts[tp] = log.log_start_offset
        self._unproven.discard(tp)
        self._aborted.pop(tp, None)
        if log.has_aborted_transactions:
            self._aborted[tp] = [
                StoredIndex(each.base_offset, each.aborted.synced_size, each.aborted.synced_crc)
                for each in log.chain.with_aborted()
                if each.aborted is not None and each.aborted.synced_size
            ]
        if log.chain.sparse:
            self.first_dirty[tp] = log.first_dirty_offset

    def _write(self, name: str, data: bytes) -> None:
        path = f"{self._data_dir}/{name}"
        with storage_errors("writing", path):
            self._env.fs.write_atomic(path, data)


def _known(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the offsets that a partition without an entry does not have."""
    return {tp: offset for tp, offset in offsets.items() if offset}
