"""The offset checkpoints of a data folder: what was last written of each partition, and writing it.

Kept for partitions that are offline too, and remembered as stale for those that are gone. When to
write is decided by who calls; the files' format is in ``checkpoints``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from tidemill.log.checkpoints import (
    FIRST_DIRTY,
    LOG_STARTS,
    RECOVERY_POINTS,
    decode_checkpoint,
    encode_checkpoint,
)
from tidemill.log.environment import Environment
from tidemill.log.files import storage_error
from tidemill.log.names import TopicPartition
from tidemill.log.partition import PartitionLog


class OffsetCheckpoints:
    """Recovery points, log starts and cleaner offsets of one data folder.

    Attributes:
        recovery_points: below them all is synced.
        log_starts: first offsets that may be read.
        first_dirty: up to where compaction has gone.
    """

    def __init__(self, env: Environment, data_dir: str) -> None:
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.first_dirty: dict[TopicPartition, int] = {}
        self._env = env
        self._data_dir = data_dir
        self._stale: set[TopicPartition] = set()
        self._written: dict[str, bytes] = {}
        self._writing = threading.Lock()
        self._taken = 0
        self._written_number = 0

    def load(self) -> None:
        """Read the files; one that is damaged is dropped and reported.

        Raises:
            OSError: the file system refuses.
        """
        self.recovery_points = self._read(RECOVERY_POINTS)
        self.log_starts = self._read(LOG_STARTS)
        self.first_dirty = self._read(FIRST_DIRTY)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self._data_dir}/{name}"
        if not self._env.fs.exists(path):
            return {}
        data = self._env.fs.read_bytes(path)
        try:
            offsets = decode_checkpoint(data)
        except ValueError as error:
            self._env.report_file(
                path, f"checkpoint dropped, logs are read from their start: {error}"
            )
            return {}
        self._written[name] = data
        return offsets

    def partitions(self) -> set[TopicPartition]:
        """Those that something is known of."""
        return {*self.recovery_points, *self.log_starts, *self.first_dirty}

    def forget(self, tp: TopicPartition) -> None:
        """Drop what is known of a partition that is gone.

        The files still tell of it: a new partition of its name must not inherit that, or recovery
        would take what it holds for damaged, or for deleted.
        """
        every = (self.recovery_points, self.log_starts, self.first_dirty)
        known = [offsets.pop(tp, None) for offsets in every]
        if any(offset is not None for offset in known):
            self._stale.add(tp)

    def is_stale(self, tp: TopicPartition) -> bool:
        """Whether the files may still tell of an earlier partition of this name."""
        return tp in self._stale

    def writes(self, live: Mapping[TopicPartition, PartitionLog]) -> Callable[[], None]:
        """The offsets as they are now, to be written durably by calling the result.

        Args:
            live: partitions in use; of others, what was last known stays.

        Returns:
            Blocks, and may be called in any thread: the latest of them stands. What recovery from
            the points needs is synced before they are written. It raises SyncFailedError where the
            broker must stop, and DiskFullError or StorageError where a file could not be written;
            the old one stays good.
        """
        for tp, log in live.items():
            self.recovery_points[tp] = log.recovery_point
            self.log_starts[tp] = log.log_start_offset
            self.first_dirty[tp] = log.first_dirty_offset
        files = {
            RECOVERY_POINTS: encode_checkpoint(self.recovery_points),
            LOG_STARTS: encode_checkpoint(self.log_starts),
            FIRST_DIRTY: encode_checkpoint(self.first_dirty),
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
                    return  # newer ones are there already
                self._written_number = number
                for name, data in files.items():
                    if self._written.get(name) != data:
                        self._write(name, data)
                        self._written[name] = data
                self._stale -= stale
            for sync in syncs:
                sync.named()

        return write

    def _write(self, name: str, data: bytes) -> None:
        path = f"{self._data_dir}/{name}"
        try:
            self._env.fs.write_atomic(path, data)
        except OSError as error:
            raise storage_error(error, "writing", path) from error
