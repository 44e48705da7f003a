"""Limit the number of open files: open them when they are needed, and close the oldest.

The handle of a ``LogFile`` comes from a ``HandlePool``, which closes the least recently used
handles. Handles in use (by a write, or by a read or sync in another thread) are pinned. A file with
unsynced bytes is synced before its handle is closed, because the kernel reports a failed write-back
only to handles that were open at the time.

Knows no segments and no batches.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tidemill.log.disk.files import FileSystem, RawFile, storage_error, sync_error
from tidemill.log.errors import SyncFailedError


class PooledFile(Protocol):
    """Attributes of a ``LogFile`` that the pool reads and sets."""

    path: str
    creating: bool
    pins: int
    dirty: bool
    retired: bool


class HandlePool:
    """At most ``limit`` open handles. All methods are thread-safe."""

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self.fs = fs
        self.limit = max(limit, 4)
        self.sync_failure: SyncFailedError | None = None
        """The error of the first sync that failed. From then on, every sync fails."""
        self.on_sync_failure: Callable[[SyncFailedError], None] | None = None
        """Callback for that error, in the thread of the sync. The broker must stop."""
        self.on_crowded: Callable[[], None] | None = None
        """Callback, in any thread, when only files with unsynced bytes can be closed. It must let
        another thread call ``relieve``. Meanwhile the limit is exceeded by a quarter at most. None:
        the caller that needs the room syncs such a file."""
        self._is_crowded = False
        self.release_lock = threading.Lock()
        """Held while the blocks behind one file are freed; see ``LogFile.begin_release``."""
        self.lent = 0
        """Ranges that are lent. A slow reader keeps their files open, so there is a limit."""
        self._lock = threading.Lock()
        self._open: OrderedDict[PooledFile, RawFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def pin(self, file: PooledFile) -> RawFile:
        """Return the file's handle; open it if necessary, and keep it open until ``unpin``."""
        with self._lock:
            raw = self._open.get(file)
            if raw is None:
                if len(self._open) >= self.limit:
                    self._evict()
                try:
                    raw = self.fs.open(file.path, create=file.creating)
                except OSError as error:
                    raise storage_error(error, "opening", file.path) from error
                file.creating = False
                self._open[file] = raw
            else:
                self._open.move_to_end(file)
            file.pins += 1
            return raw

    def pin_open(self, file: PooledFile) -> RawFile | None:
        """Return the file's handle as ``pin`` does; None if that would have to open it."""
        with self._lock:
            raw = self._open.get(file)
            if raw is not None:
                file.pins += 1
            return raw

    def unpin(self, file: PooledFile) -> None:
        """Allow the pool to close the handle again."""
        with self._lock:
            file.pins -= 1
            if file.retired:
                self._close_unused(file)

    def retire(self, file: PooledFile) -> None:
        """Close the file's handle now, and after each later use."""
        with self._lock:
            file.retired = True
            self._close_unused(file)

    def close(self, file: PooledFile) -> None:
        """Close the file's handle without a sync."""
        with self._lock:
            self._close_unused(file)

    def _close_unused(self, file: PooledFile) -> None:
        if not file.pins:
            raw = self._open.pop(file, None)
            if raw is not None:
                raw.close()

    def rename(self, file: PooledFile, path: str) -> None:
        """Rename the file. Its handle stays valid."""
        with self._lock:
            try:
                self.fs.rename(file.path, path)
            except OSError as error:
                raise storage_error(error, "renaming", file.path) from error
            file.path = path

    def moved(self, file: PooledFile, path: str) -> None:
        """Use a new path, because the file's folder was renamed."""
        with self._lock:
            file.path = path

    def close_all(self) -> None:
        """Close every handle."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def fail_sync(self, error: OSError, path: str) -> SyncFailedError:
        """Record that a sync failed; return the error to raise."""
        failure = sync_error(error, path)
        if self.sync_failure is None:
            self.sync_failure = failure
            if self.on_sync_failure is not None:
                self.on_sync_failure(failure)
        return failure

    @contextmanager
    def sync_errors(self, path: str) -> Iterator[None]:
        """Record and raise the SyncFailedError for an OSError within."""
        try:
            yield
        except OSError as error:
            raise self.fail_sync(error, path) from error

    def _evict(self) -> None:
        # Prefer files without unsynced bytes. If all files are pinned, exceed the limit.
        if self._is_crowded and len(self._open) < self.limit + self.limit // 4:
            return
        victim = None
        for file in self._open:
            if not file.pins:
                if not file.dirty:
                    victim = file
                    break
                if victim is None:
                    victim = file
        if victim is None:
            return
        if victim.dirty and self.on_crowded is not None and not self._is_crowded:
            self._is_crowded = True
            self.on_crowded()
            return
        raw = self._open.pop(victim)
        if victim.dirty:
            try:
                raw.datasync()
            except OSError as error:
                raise self.fail_sync(error, victim.path) from error
            finally:
                raw.close()
            victim.dirty = False
        else:
            raw.close()

    def relieve(self) -> None:
        """Sync and close the least recently used files, until an eighth of the limit is free.

        Blocks. Can run in any thread while the files are used.
        """
        try:
            with self._lock:
                files = list(self._open)
            for file in files:
                if len(self._open) <= self.limit - self.limit // 8:
                    break
                self._sync_and_close(file)
        finally:
            self._is_crowded = False

    def _sync_and_close(self, file: PooledFile) -> None:
        with self._lock:
            raw = self._open.get(file)
            if raw is None or file.pins:
                return
            file.pins += 1
        try:
            if file.dirty:
                if self.sync_failure is not None:
                    raise self.sync_failure
                file.dirty = False  # set first, because an append can make it dirty again
                raw.datasync()
        except OSError as error:
            file.dirty = True
            raise self.fail_sync(error, file.path) from error
        finally:
            with self._lock:
                file.pins -= 1
                if not file.dirty or file.retired:
                    self._close_unused(file)
