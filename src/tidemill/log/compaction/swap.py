"""Replace segments by a cleaned segment, so that a crash at any step loses nothing.

The protocol is Apache Kafka's (``.cleaned``, ``.swap``, ``.replaced``). Each step is durable before
the next one starts:

1. ``X.log.cleaned`` and its indexes are written and synced. After a crash they are dropped.
2. They are renamed to ``.swap``, the log last, and the folder is synced. After a crash in a later
   step, recovery finishes the swap (see ``recovery.unfinished``).
3. The old segments' files are renamed to ``.replaced``, and the folder is synced.
4. ``X.log.swap`` is renamed to ``X.log``, then the indexes, and the folder is synced.

The last batch of a cleaned segment always ends where the old segments ended, so the ``.swap`` file
itself shows which old segments it replaces.

Knows files and segments; ``cleaning`` and ``run`` decide what is cleaned, and when.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import FileSystem, storage_error, storage_errors
from tidemill.log.disk.index import IndexTable
from tidemill.log.disk.log_file import LogFile
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import StorageError
from tidemill.log.format.batch import BatchHeader, Buffer
from tidemill.log.names import CLEANED, INDEX, LOG, REPLACED, SWAP, TIME_INDEX, file_name
from tidemill.log.partition.partition import PartitionLog

_WRITE_BYTES = 256 * 1024
_INDEXES = (INDEX, TIME_INDEX)


class CleanedSegment:
    """A cleaned segment that is written next to the log's segments."""

    def __init__(
        self, env: Environment, folder: str, base_offset: int, index_interval: int
    ) -> None:
        """Create the file of the segment."""
        self._env = env
        self._folder = folder
        self._base_offset = base_offset
        self._interval = index_interval
        self._table = IndexTable()
        self._pending = bytearray()
        self._first_timestamp: int | None = None
        self._lock = threading.Lock()
        self._discarded = False
        self.size = 0
        self._file = LogFile(env.pool, self._path(LOG, CLEANED), 0, creating=True)
        self._file.create()
        self._file.truncate(0)  # a failed attempt can have left one

    def _path(self, kind: str, suffix: str = "") -> str:
        return f"{self._folder}/{file_name(self._base_offset, kind)}{suffix}"

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        """Add a batch. Of ``header``, only the offsets and the timestamps are used."""
        size = len(batch)
        if self._first_timestamp is None:
            self._first_timestamp = header.max_timestamp
        self._table.add(
            header.last_offset - self._base_offset,
            self.size,
            size,
            header.max_timestamp,
            self._interval,
        )
        self.size += size
        self._pending += batch
        if len(self._pending) >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._pending:
            self._file.append(self._pending)
            self._pending = bytearray()

    def finish(self) -> None:
        """Write the remaining batches and the indexes, without a sync."""
        self._write()
        self._table.seal()
        for kind, entries in ((INDEX, self._table.offsets), (TIME_INDEX, self._table.times)):
            path = self._path(kind, CLEANED)
            with storage_errors("writing", path):
                self._env.fs.write_bytes(path, entries)

    def commit(self) -> None:
        """Do steps 1 and 2: sync, and rename to ``.swap``. Blocks; can run in another thread."""
        fs = self._env.fs
        with self._lock:
            if self._discarded:  # the caller did not wait for this thread
                return
            self._file.datasync()
            for kind in _INDEXES:
                path = self._path(kind, CLEANED)
                try:
                    fs.sync_file(path)
                except OSError as error:
                    raise _sync_failure(self._env, error, path) from error
                _rename(fs, path, self._path(kind, SWAP))
            self._file.rename(self._path(LOG, SWAP))
            _sync(self._env, self._folder)

    def replace(self, log: PartitionLog, old: Sequence[Segment]) -> None:
        """Do steps 3 and 4 without the last sync of the folder, which ``settle`` does.

        Args:
            old: neighbours in its chain. The new segment covers their offsets.

        Raises:
            SyncFailedError: the broker must stop.
            StorageError: a file can't be renamed. The partition is offline until it is opened
                again, which finishes the swap.
        """
        last = old[-1]
        try:
            for segment in old:
                renamed = segment.rename(REPLACED)
                self._env.schedule_deletion(renamed, log.config.file_delete_delay_ms, log.tp)
            _sync(self._env, self._folder)
            self._file.rename(self._path(LOG))
            for kind in _INDEXES:
                _rename(self._env.fs, self._path(kind, SWAP), self._path(kind))
        except StorageError as error:
            log.go_offline(error)
            raise
        new = Segment(
            self._env,
            self._folder,
            self._base_offset,
            self.size,
            self._table.max_timestamp,
            created_ms=last.created_ms,
            end_offset=last.end_offset,
        )
        new.log_file = self._file
        new.first_timestamp = self._first_timestamp
        new.trusted_from = 0  # this process has written the whole segment
        log.replace_segments(old, [new])

    def settle(self) -> None:
        """Finish step 4: sync the folder. Blocks; can run in another thread."""
        _sync(self._env, self._folder)

    def discard(self) -> None:
        """Remove the files. Wait for a running ``commit`` first. The log does not change."""
        with self._lock:
            self._discarded = True
            self._file.close()
            fs = self._env.fs
            for path in [self._path(k, s) for s in (SWAP, CLEANED) for k in (LOG, *_INDEXES)]:
                with storage_errors("removing", path):
                    if fs.exists(path):
                        fs.remove(path)


def _sync(env: Environment, folder: str) -> None:
    try:
        env.fs.sync_dir(folder)
    except OSError as error:
        raise _sync_failure(env, error, folder) from error


def _sync_failure(env: Environment, error: OSError, path: str) -> StorageError:
    if isinstance(error, FileNotFoundError):
        return storage_error(error, "syncing", path)  # the topic was deleted: nothing is lost
    return env.pool.fail_sync(error, path)


def _rename(fs: FileSystem, old: str, new: str) -> None:
    with storage_errors("renaming", old):
        fs.rename(old, new)
