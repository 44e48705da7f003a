"""Files that are opened when needed and closed when too many are: a bound on open handles.

A ``LogFile`` is a path with a known size; its handle comes from a ``HandlePool``, which closes the
least recently used ones. Handles in use (by a write here, a read or a sync in another thread) are
pinned. A file with unsynced bytes is synced before its handle is closed, because the kernel may
report a failed write-back only to handles that were open at the time.

Knows no segments and no batches.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from tidemill.errors import StorageError, SyncFailedError
from tidemill.log.files import Buffer, FileSystem, RawFile, storage_error, sync_error


class HandlePool:
    """Open handles of many files, at most ``limit`` of them. Thread-safe."""

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self.fs = fs
        self.limit = max(limit, 4)
        self.sync_failure: SyncFailedError | None = None
        """The first sync that failed: from then on every sync fails."""
        self.on_sync_failure: Callable[[SyncFailedError], None] | None = None
        """Told of it, in the thread where it happened: the broker must stop."""
        self._lock = threading.Lock()
        self._open: OrderedDict[LogFile, RawFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def pin(self, file: LogFile) -> RawFile:
        """The file's handle, opened if need be and kept open until ``unpin``.

        Raises:
            StorageError: it can't be opened.
            SyncFailedError: another file had to be synced to make room, and that failed.
        """
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

    def unpin(self, file: LogFile) -> None:
        """The handle may be closed again."""
        with self._lock:
            file.pins -= 1
            if file.retired:
                self._close_unused(file)

    def retire(self, file: LogFile) -> None:
        """Close the file's handle now, and from now on after each use."""
        with self._lock:
            file.retired = True
            self._close_unused(file)

    def close(self, file: LogFile) -> None:
        """Close the file's handle; unsynced bytes stay the caller's business."""
        with self._lock:
            self._close_unused(file)

    def _close_unused(self, file: LogFile) -> None:
        if not file.pins:
            raw = self._open.pop(file, None)
            if raw is not None:
                raw.close()

    def rename(self, file: LogFile, path: str) -> None:
        """Move the file; its handle stays good.

        Raises:
            StorageError: the file system refuses.
        """
        with self._lock:
            try:
                self.fs.rename(file.path, path)
            except OSError as error:
                raise storage_error(error, "renaming", file.path) from error
            file.path = path

    def moved(self, file: LogFile, path: str) -> None:
        """The file's folder was renamed: only the path changes."""
        with self._lock:
            file.path = path

    def close_all(self) -> None:
        """Close every handle."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def fail_sync(self, error: OSError, path: str) -> SyncFailedError:
        """Remember that a sync failed, and give the error to raise."""
        failure = sync_error(error, path)
        if self.sync_failure is None:
            self.sync_failure = failure
            if self.on_sync_failure is not None:
                self.on_sync_failure(failure)
        return failure

    def _evict(self) -> None:
        # Clean files first; over the limit rather than stuck where all are pinned.
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


class LogFile:
    """An append-only file whose handle is borrowed from a pool.

    Attributes:
        size: bytes that were appended whole; what lies behind them on disk is not ours.
        dirty: bytes were written since the last sync.
        broken: a failed write could not be taken back; nothing may be written any more.
        retired: the file is to be removed, and an open handle would keep its space.
    """

    __slots__ = ("_pool", "broken", "creating", "dirty", "path", "pins", "retired", "size")

    def __init__(self, pool: HandlePool, path: str, size: int, *, create: bool = False) -> None:
        self._pool = pool
        self.path = path
        self.size = size
        self.creating = create
        self.pins = 0
        self.dirty = False
        self.broken = False
        self.retired = False

    def create(self) -> None:
        """Make the file exist, and empty: a crash may have left one of this name.

        Raises:
            DiskFullError, StorageError: the file system refuses.
        """
        raw = self._pool.pin(self)
        try:
            if raw.size():
                self.dirty = True
                raw.truncate(0)
        except OSError as error:
            raise storage_error(error, "emptying", self.path) from error
        finally:
            self._pool.unpin(self)

    def append(self, data: Buffer) -> None:
        """Write all of ``data`` at the end, or nothing.

        Raises:
            DiskFullError: no space is left; the file is as it was.
            StorageError: the write failed, and where ``broken`` is set it could not be undone.
        """
        if self.broken:
            raise StorageError(f"{self.path} is offline after a write that could not be undone")
        raw = self._pool.pin(self)
        try:
            size = len(data)
            written = raw.pwrite((data,), self.size)
            while written < size:  # the disk is nearly full: the next call says so
                more = raw.pwrite((memoryview(data)[written:],), self.size + written)
                if more == 0:
                    raise OSError(5, "nothing was written")  # noqa: TRY301
                written += more
            self.size += size
        except OSError as error:
            self._take_back(raw, error)
            raise storage_error(error, "writing to", self.path) from error
        finally:
            self.dirty = True  # last: a sync that begins meanwhile may not have seen the bytes
            self._pool.unpin(self)

    def _take_back(self, raw: RawFile, error: OSError) -> None:
        try:
            raw.truncate(self.size)
        except OSError as second:
            self.broken = True
            raise StorageError(
                f"writing to {self.path} failed ({error.strerror or error}) and could not be "
                f"undone ({second.strerror or second}); it is good up to byte {self.size}"
            ) from error

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes. May run in any thread.

        Raises:
            StorageError: the disk refuses.
        """
        raw = self._pool.pin(self)
        try:
            return raw.pread(length, position)
        except OSError as error:
            raise storage_error(error, "reading", self.path) from error
        finally:
            self._pool.unpin(self)

    def pread_nowait(self, length: int, position: int) -> Buffer | None:
        """``length`` bytes, or None where that would wait for the disk.

        Raises:
            StorageError: the disk refuses.
        """
        raw = self._pool.pin(self)
        try:
            return raw.pread_nowait(length, position)
        except OSError as error:
            raise storage_error(error, "reading", self.path) from error
        finally:
            self._pool.unpin(self)

    def datasync(self) -> None:
        """fdatasync; blocks. May run in any thread, while appends go on.

        Raises:
            SyncFailedError: it failed, or another one failed before.
        """
        if self._pool.sync_failure is not None:
            raise self._pool.sync_failure
        raw = self._pool.pin(self)
        try:
            self.dirty = False  # first: bytes written meanwhile make it dirty again
            raw.datasync()
        except OSError as error:
            self.dirty = True
            raise self._pool.fail_sync(error, self.path) from error
        finally:
            self._pool.unpin(self)

    def truncate(self, size: int) -> None:
        """Cut the file.

        Raises:
            StorageError: the disk refuses.
        """
        raw = self._pool.pin(self)
        try:
            raw.truncate(size)
            self.size = size
            self.dirty = True
        except OSError as error:
            raise storage_error(error, "truncating", self.path) from error
        finally:
            self._pool.unpin(self)

    def close(self) -> None:
        """Close the handle, if there is one."""
        self._pool.close(self)

    def retire(self) -> None:
        """The file is to be removed: keep it open no longer than those who use it now need it."""
        self._pool.retire(self)

    def rename(self, path: str) -> None:
        """Move the file; open handles and readers stay good."""
        self._pool.rename(self, path)

    def moved(self, path: str) -> None:
        """The folder above was renamed."""
        self._pool.moved(self, path)
