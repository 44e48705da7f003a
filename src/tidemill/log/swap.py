"""Putting a cleaned segment in the place of the ones it was made from, safely at every step.

The protocol is Apache Kafka's (``.cleaned``, ``.swap``, ``.deleted``), with each step on disk
before the next one starts:

1. ``X.log.cleaned`` and its indexes are written and synced. A crash: they are dropped.
2. They are renamed to ``.swap``, the log last, and the folder is synced. From here on the new
   segment counts: after a crash the swap is finished.
3. The old segments' files are renamed to ``.deleted``, and the folder is synced.
4. ``X.log.swap`` becomes ``X.log``, then the indexes, and the folder is synced.

A cleaned segment always holds a last batch that ends where the old segments ended, so the ``.swap``
file itself tells which old segments it replaces.

Knows files and segments; what is cleaned, and when, stands in ``compaction``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidemill.errors import CorruptLogError, StorageError
from tidemill.log.batch import BatchHeader, Buffer
from tidemill.log.environment import Environment
from tidemill.log.files import FileSystem, storage_error
from tidemill.log.handles import LogFile
from tidemill.log.index import IndexTable
from tidemill.log.maintenance import doom
from tidemill.log.names import CLEANED, INDEX, LOG, SEGMENT_SUFFIXES, SWAP, TIME_INDEX, file_name
from tidemill.log.partition import PartitionLog
from tidemill.log.scan import BatchScanner
from tidemill.log.segment import Segment

_WRITE_BYTES = 256 * 1024
_INDEXES = (INDEX, TIME_INDEX)


class CleanedSegment:
    """A segment that is being written beside the log.

    Attributes:
        size: bytes so far.
    """

    def __init__(
        self, env: Environment, folder: str, base_offset: int, index_interval: int
    ) -> None:
        """Create its file.

        Raises:
            DiskFullError, StorageError: that is not possible.
        """
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
        self._file = LogFile(env.pool, self._path(LOG, CLEANED), 0, create=True)
        self._file.create()
        self._file.truncate(0)  # a failed attempt may have left one

    def _path(self, kind: str, suffix: str = "") -> str:
        return f"{self._folder}/{file_name(self._base_offset, kind)}{suffix}"

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        """Add a batch; ``header`` needs its offsets and time only.

        Raises:
            DiskFullError, StorageError: it can't be written.
        """
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
        """Write what is left, and the indexes; unsynced.

        Raises:
            DiskFullError, StorageError: it can't be written.
        """
        self._write()
        self._table.seal()
        for kind, entries in ((INDEX, self._table.offsets), (TIME_INDEX, self._table.times)):
            path = self._path(kind, CLEANED)
            try:
                self._env.fs.write_bytes(path, entries)
            except OSError as error:
                raise storage_error(error, "writing", path) from error

    def commit(self) -> None:
        """Steps 1 and 2: sync, and rename to ``.swap``. Blocks; may run in another thread.

        Raises:
            SyncFailedError: the broker must stop.
            StorageError: the file system refuses to rename, or the folder was deleted.
        """
        fs = self._env.fs
        with self._lock:
            if self._discarded:  # by a driver that did not wait
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
        """Steps 3 and 4, but for the last sync of the folder: that is ``settle``.

        Args:
            log: the partition.
            old: neighbours in its chain, whose offsets the new segment covers.

        Raises:
            SyncFailedError: the broker must stop.
            StorageError: the file system refuses; the partition is offline until it is opened
                again, which finishes the swap.
        """
        last = old[-1]
        try:
            for segment in old:
                doom(log, segment)
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
        )
        new.use_file(self._file)
        new.first_timestamp = self._first_timestamp
        new.trusted_from = 0  # this process has written all of it
        log.replace_segments(old, [new])

    def settle(self) -> None:
        """The end of step 4: the new names are on disk. Blocks; may run in another thread.

        Raises:
            SyncFailedError: the broker must stop.
            StorageError: the folder was deleted.
        """
        _sync(self._env, self._folder)

    def discard(self) -> None:
        """Remove its files, after a ``commit`` that is running: the log stays as it is.

        Raises:
            StorageError: the file system refuses.
        """
        with self._lock:
            self._discarded = True
            self._remove_files()

    def _remove_files(self) -> None:
        self._file.close()
        fs = self._env.fs
        for suffix in (SWAP, CLEANED):
            for kind in (LOG, *_INDEXES):
                path = self._path(kind, suffix)
                try:
                    if fs.exists(path):
                        fs.remove(path)
                except OSError as error:
                    raise storage_error(error, "removing", path) from error


def finish_swaps(env: Environment, folder: str) -> list[str]:
    """After a crash: drop what was not committed, and finish what was. Before a folder is opened.

    Returns:
        What was done, for the reports; empty where there was nothing to do.

    Raises:
        CorruptLogError: a ``.swap`` file is damaged; nothing was removed for it.
        SyncFailedError, StorageError: the disk refuses.
    """
    fs = env.fs
    done: list[str] = []
    try:
        names = fs.files(folder)
        for name in names:
            if name.endswith(CLEANED):
                fs.remove(f"{folder}/{name}")
                done.append(f"unfinished {name} dropped")
        for name in sorted(names):
            if name.endswith(LOG + SWAP):
                _finish_swap(env, folder, int(name[:20]), names)
                done.append(f"swap of {name[: -len(SWAP)]} finished")
        for name in names:
            # Left by a crash in the middle of step 4 (or of step 2, if the log is not there): which
            # of the two indexes belongs to the log is not certain, so it is built anew.
            if name.endswith((INDEX + SWAP, TIME_INDEX + SWAP)):
                stem = name[:20]
                for each in (stem + INDEX, stem + TIME_INDEX, name):
                    if fs.exists(f"{folder}/{each}"):
                        fs.remove(f"{folder}/{each}")
                done.append(f"{name} dropped")
    except OSError as error:
        raise storage_error(error, "finishing a compaction in", folder) from error
    if done:
        _sync(env, folder)
    return done


def _finish_swap(env: Environment, folder: str, base: int, names: dict[str, int]) -> None:
    path = f"{folder}/{file_name(base, LOG)}"
    end = _end_offset(env, path + SWAP, base, names[file_name(base, LOG + SWAP)])
    for name in names:
        stem, kind = name[:20], name[20:]
        if kind in SEGMENT_SUFFIXES and stem.isdecimal() and base <= int(stem) < end:
            env.fs.remove(f"{folder}/{name}")
    _sync(env, folder)
    env.fs.rename(path + SWAP, path)


def _end_offset(env: Environment, path: str, base: int, size: int) -> int:
    file = LogFile(env.pool, path, size)
    scanner = BatchScanner(file, 0, size, base)
    for _ in scanner:
        pass
    file.close()
    if scanner.damage is not None or not size:
        raise CorruptLogError(
            f"{path} is damaged at byte {scanner.position}: {scanner.damage or 'it is empty'}",
            path=path,
            position=scanner.position,
            offset=scanner.next_offset,
            hint="The segments that it was made from may still be there, some as .deleted files.",
        )
    return scanner.next_offset


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
    try:
        fs.rename(old, new)
    except OSError as error:
        raise storage_error(error, "renaming", old) from error
