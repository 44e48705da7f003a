"""Append-only files, and the pool that limits how many of them are open.

A ``LogFile`` is a path with a known size. It is opened when it is used. Its handle comes from a
``HandlePool``, which closes the least recently used handles. Handles in use (by a write, or by a
read or sync in another thread) are pinned. A file with unsynced bytes is synced before its handle
is closed, because the kernel reports a failed write-back only to handles that were open at the
time.

Knows no segments and no batches.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, islice

from tidemill import system
from tidemill.log.disk.files import (
    Buffer,
    FileSystem,
    RawFile,
    RealFile,
    storage_error,
    storage_errors,
    write_fully,
)
from tidemill.log.errors import StorageError, SyncFailedError
from tidemill.native import extension

_AGAIN_BYTES = 1 << 20
_CLOSED_TOGETHER = 8
"""Files that are closed together when the system allows no more."""


class HandlePool:
    """At most ``limit`` open handles. All methods are thread-safe."""

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self.fs = fs
        self.limit = max(limit, 4)
        self.sync_failure: SyncFailedError | None = None
        """The error of the first sync that failed. From then on, every sync fails."""
        self.on_sync_failure: Callable[[SyncFailedError], object] | None = None
        """Callback for that error, in the thread of the sync. The broker must stop."""
        self.on_crowded: Callable[[], object] | None = None
        """Callback, in any thread, when only files with unsynced bytes can be closed. It must let
        another thread call ``relieve``. Meanwhile the limit is exceeded by a quarter at most. None:
        the caller that needs the space syncs such a file."""
        self._is_crowded = False
        self.release_lock = threading.Lock()
        """Held while the blocks behind one file are freed; see ``LogFile.begin_release``."""
        self.lent = 0
        """Ranges that are lent. A slow reader keeps their files open, so there is a limit."""
        self.lock = threading.Lock()
        """Held while a handle is opened or closed, and while a file's path changes."""
        self._open: OrderedDict[LogFile, RawFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def pin(self, file: LogFile) -> RawFile:
        """Return the file's handle; open it if necessary, and keep it open until ``unpin``."""
        with self.lock:
            raw = self._open.get(file)
            if raw is None:
                if len(self._open) >= self.limit:
                    self._evict()
                raw = self._open_file(file)
                file.creating = False
                self._open[file] = raw
                if type(raw) is RealFile:
                    file.fd = raw.fileno()
            else:
                self._open.move_to_end(file)
            file.pins += 1
            return raw

    def _open_file(self, file: LogFile) -> RawFile:
        """Open a file. If the system allows no more, close files that are synced and unused."""
        while True:
            try:
                return self.fs.open(file.path, create=file.creating)
            except OSError as error:
                if not (system.is_too_many_open(error) and self._close_some()):
                    raise storage_error(error, "opening", file.path) from error

    def _close_some(self) -> bool:
        """Close a few files without unsynced bytes; return whether there were any."""
        unused = (file for file in self._open if not file.pins and not file.dirty)
        victims = list(islice(unused, _CLOSED_TOGETHER))
        for file in victims:
            self._close(file)
        return bool(victims)

    def _close(self, file: LogFile) -> None:
        file.fd = -1  # first, because another thread can append while this one closes
        raw = self._open.pop(file, None)
        if raw is not None:
            raw.close()

    def pin_open(self, file: LogFile) -> RawFile | None:
        """Return the file's handle as ``pin`` does; None if that would have to open it."""
        with self.lock:
            raw = self._open.get(file)
            if raw is not None:
                file.pins += 1
            return raw

    def unpin(self, file: LogFile) -> None:
        """Allow the pool to close the handle again."""
        with self.lock:
            file.pins -= 1
            if file.retired:
                self.close_unused(file)

    def close_unused(self, file: LogFile) -> None:
        """Close the file's handle without a sync, unless it is in use; ``lock`` is held."""
        if not file.pins:
            self._close(file)

    def close_all(self) -> None:
        """Close every handle."""
        with self.lock:
            for file in list(self._open):
                self._close(file)

    def fail_sync(self, error: OSError, path: str) -> StorageError:
        """Record that a sync failed; return the error to raise.

        A file or folder that could not be opened, because too many are open, was not synced at all.
        That is a ``TooManyOpenFilesError``, and the sync can be retried.
        """
        if system.is_too_many_open(error):
            return storage_error(error, "syncing", path)
        failure = SyncFailedError(f"syncing {path} failed: {error.strerror or error}")
        if self.sync_failure is None:
            self.sync_failure = failure
            if self.on_sync_failure is not None:
                self.on_sync_failure(failure)
        return failure

    @contextmanager
    def sync_errors(self, path: str) -> Iterator[None]:
        """Raise the error of ``fail_sync`` for an OSError within."""
        try:
            yield
        except OSError as error:
            raise self.fail_sync(error, path) from error

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable; blocks.

        Raises:
            SyncFailedError, TooManyOpenFilesError: see ``fail_sync``.
        """
        with self.sync_errors(path):
            self.fs.sync_dir(path)

    def _evict(self) -> None:
        # Prefer files without unsynced bytes. If all files are pinned, exceed the limit.
        if self._is_crowded and len(self._open) < self.limit + self.limit // 4:
            return
        self._pass_used()
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
        try:
            if victim.dirty:
                victim.fd = -1
                self._open[victim].datasync()
                victim.dirty = False
        except OSError as error:
            raise self.fail_sync(error, victim.path) from error
        finally:
            self._close(victim)

    def _pass_used(self) -> None:
        """Give the first files another turn if native code has used them, which moves none."""
        while self._open and (file := next(iter(self._open))).used:
            file.used = False
            self._open.move_to_end(file)

    def relieve(self) -> None:
        """Sync and close the least recently used files, until an eighth of the limit is free.

        Blocks. Can run in any thread while the files are used.
        """
        try:
            with self.lock:
                self._pass_used()
                files = list(self._open)
            for file in files:
                if len(self._open) <= self.limit - self.limit // 8:
                    break
                self._sync_and_close(file)
        finally:
            self._is_crowded = False

    def _sync_and_close(self, file: LogFile) -> None:
        with self.lock:
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
            with self.lock:
                file.pins -= 1
                if not file.dirty or file.retired:
                    self.close_unused(file)


class LogFile(extension.FileFields):
    """An append-only file whose handle is borrowed from a pool.

    Attributes:
        size: bytes of complete appends. The file can have more bytes after a failed write.
        creating: whether the file must be created when it is opened.
        pins: number of uses at the moment, in all threads.
        dirty: whether bytes were written since the last sync.
        releasing: whether the blocks behind the end are being freed. Appends wait for that.
        broken: whether a failed write could not be undone. Then nothing can be appended.
        retired: whether the file will be removed. Then an open handle would keep its space.
        fd: the descriptor of an open file of the system, or -1. Native code appends to it.
        used: whether native code has used the file since the pool looked at it last.
    """

    __slots__ = ("_pool", "creating", "path", "pins")

    def __init__(self, pool: HandlePool, path: str, size: int, *, creating: bool = False) -> None:
        self._pool = pool
        self.path = path
        self.size = size
        self.creating = creating
        self.pins = 0

    def create(self) -> None:
        """Create an empty file. A crash can have left one with this name, which is emptied."""
        with self._pinned("emptying") as raw:
            if raw.size():
                self.dirty = True
                raw.truncate(0)

    @contextmanager
    def _pinned(self, doing: str) -> Iterator[RawFile]:
        """Yield the handle, and raise the StorageError for an OSError within."""
        raw = self._pool.pin(self)
        try:
            with storage_errors(doing, self.path):
                yield raw
        finally:
            self._pool.unpin(self)

    def append(self, *buffers: Buffer) -> None:
        """Append ``buffers`` completely or not at all.

        Raises:
            DiskFullError: the disk is full. The file is unchanged.
            StorageError: the write failed. If ``broken`` is set, it could not be undone.
        """
        if self.broken:
            raise StorageError(f"{self.path} is offline after a write that could not be undone")
        if self.releasing:
            with self._pool.release_lock:
                pass
        raw = self._pool.pin(self)
        try:
            self.size += write_fully(raw, buffers, self.size)
        except OSError as error:
            self._undo(raw, error)
            raise storage_error(error, "writing to", self.path) from error
        finally:
            self.dirty = True  # set last, because a sync that runs now has perhaps missed the bytes
            self._pool.unpin(self)

    def _undo(self, raw: RawFile, error: OSError) -> None:
        try:
            raw.truncate(self.size)
        except OSError as second:
            self.broken = True
            self._blank(raw)
            raise StorageError(
                f"writing to {self.path} failed ({error.strerror or error}) and could not be "
                f"undone ({second.strerror or second}); it is valid up to byte {self.size}"
            ) from error

    def _blank(self, raw: RawFile) -> None:
        """Fill what is behind the end with zeros if the disk allows it.

        Recovery takes zeros for an unfinished write. Otherwise it would find whole batches there,
        which were refused.
        """
        position = self.size
        with suppress(OSError):
            while (left := raw.size() - position) > 0:
                position += raw.pwrite((bytes(min(left, _AGAIN_BYTES)),), position)

    def cut_back(self, size: int) -> None:
        """Remove what a failed append has left behind ``size``. Nothing can be appended then.

        Raises:
            StorageError: the disk refuses that. Call it again later.
        """
        self.broken = True
        self.size = size
        with self._pinned("truncating") as raw:
            try:
                if raw.size() > size:
                    self._blank(raw)
                    raw.truncate(size)
            finally:
                self.dirty = True

    def pread(self, length: int, position: int) -> bytes:
        """Return ``length`` bytes, or fewer at the end of the file. Can run in any thread."""
        raw = self._pool.pin(self)
        try:
            return raw.pread(length, position)
        except OSError as error:
            raise storage_error(error, "reading", self.path) from error
        finally:
            self._pool.unpin(self)

    def pread_nowait(self, length: int, position: int) -> Buffer | None:
        """Return ``length`` bytes, or None if that would wait for the disk."""
        raw = self._pool.pin(self)
        try:
            return raw.pread_nowait(length, position)
        except OSError as error:
            raise storage_error(error, "reading", self.path) from error
        finally:
            self._pool.unpin(self)

    def lend(self, length: int, position: int) -> StoredRange | None:
        """Return a range to send from the page cache; None if it must be read instead."""
        pool = self._pool
        if not self.can_lend():
            return None
        fd = pool.pin(self).fileno()
        if fd is None or not system.is_cached(fd, position, length):
            pool.unpin(self)
            return None
        pool.lent += 1
        return StoredRange(pool, self, fd, position, length)

    def can_lend(self) -> bool:
        """Return whether ranges can be lent: few are, and the system sends files."""
        return self._pool.lent < self._pool.limit // 4 and system.can_send_files()

    def warm(self, length: int, position: int) -> None:
        """Read a range into the page cache; blocks. Can run in any thread."""
        self._on_range(system.fill_cache, position, length, "reading")

    def write_back(self, position: int, length: int) -> None:
        """Ask the system to begin to write a range; can block. Can run in any thread."""
        self._on_range(system.start_writeback, position, length, "writing to")

    def allocate(self, position: int, length: int) -> None:
        """Allocate blocks behind the end if that is possible; can block. Can run in any thread."""
        self._on_range(system.allocate, position, length, "writing to")

    def _on_range(
        self, call: Callable[[int, int, int], None], position: int, length: int, doing: str
    ) -> None:
        """Pass descriptor, position and length to a function of ``system``, if there is one."""
        with self._pinned(doing) as raw:
            fd = raw.fileno()
            if fd is not None:
                call(fd, position, length)

    def begin_release(self) -> Callable[[], None]:
        """Return work that frees the blocks behind the end, to be called in any thread.

        Call this where appends are made. Appends wait for the end of the work, so the file should
        not grow at the time. Only one file can be released at a time. A second call of the work
        does nothing: an executor can keep work that it has refused.
        """
        self._pool.release_lock.acquire()
        self.releasing = True
        calls = count()

        def work() -> None:
            if next(calls):
                return
            try:
                self.truncate(self.size)
            finally:
                self.releasing = False
                self._pool.release_lock.release()

        return work

    def datasync(self) -> None:
        """Make the appended bytes durable; blocks. Can run in any thread during appends."""
        if self._pool.sync_failure is not None:
            raise self._pool.sync_failure
        raw = self._pool.pin(self)
        try:
            self.dirty = False  # set first, because an append can make it dirty again meanwhile
            raw.datasync()
        except OSError as error:
            self.dirty = True
            raise self._pool.fail_sync(error, self.path) from error
        finally:
            self._pool.unpin(self)

    def begin_datasync(self) -> int | None:
        """Return the descriptor for a sync without Python; None if only ``datasync`` can do it.

        The file stays open until ``end_datasync``.
        """
        if self._pool.sync_failure is not None:
            return None
        raw = self._pool.pin_open(self)
        if raw is None:
            return None
        if type(raw) is not RealFile:
            self._pool.unpin(self)
            return None
        self.dirty = False  # set first, because an append can make it dirty again meanwhile
        return raw.fileno()

    def end_datasync(self, failed: int | None) -> None:
        """Take the result of that sync.

        Args:
            failed: the number of the error (errno), or 0. None: the sync was not tried.
        """
        if failed != 0:
            self.dirty = True
        self._pool.unpin(self)
        if failed:
            raise self._pool.fail_sync(OSError(failed, os.strerror(failed)), self.path)

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        with self._pinned("truncating") as raw:
            raw.truncate(size)
            self.size = size
            self.dirty = True

    def write_again(self, position: int) -> None:
        """Write the bytes from ``position`` on once more, so that the next sync stores them."""
        self.dirty = True
        with self._pinned("writing to") as raw:
            while position < self.size:
                data = raw.pread(min(_AGAIN_BYTES, self.size - position), position)
                if not data:
                    raise OSError(errno.EIO, "nothing was read")
                position += write_fully(raw, (data,), position)

    def close(self) -> None:
        """Close the handle without a sync, if it is open and not in use."""
        with self._pool.lock:
            self._pool.close_unused(self)

    def retire(self) -> None:
        """Close the handle when its current users are done, because the file will be removed."""
        with self._pool.lock:
            self.retired = True
            self._pool.close_unused(self)

    def rename(self, path: str) -> None:
        """Rename the file. Open handles and readers stay valid."""
        with self._pool.lock, storage_errors("renaming", self.path):
            self._pool.fs.rename(self.path, path)
            self.path = path

    def moved(self, path: str) -> None:
        """Use a new path, because the folder was renamed."""
        with self._pool.lock:
            self.path = path


class StoredRange:
    """Bytes of a file that is open as long as this object lives. For the event loop's thread."""

    __slots__ = ("_file", "_pool", "_size", "fd", "position")

    def __init__(self, pool: HandlePool, file: LogFile, fd: int, position: int, size: int) -> None:
        self._pool = pool
        self._file = file
        self._size = size
        self.fd = fd
        self.position = position

    def __len__(self) -> int:
        return self._size

    def __del__(self) -> None:
        self._pool.lent -= 1
        self._pool.unpin(self._file)
