"""The interface to the file system, and its implementation.

Everything in ``log`` uses the disk through a ``FileSystem``. So tests can tear writes, fill the
disk, fail a sync or cut the power. Knows no segments and no batches; ``log_file`` limits the number
of open files.

Callers keep these rules: a new or renamed file is durable only after ``sync_dir`` of its folder,
and written bytes only after ``datasync`` or ``sync_file``.

New files and folders are for their owner only: records can be secret.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from tidemill import system
from tidemill.log.errors import (
    DataDirLockedError,
    DiskFullError,
    StorageError,
    SyncFailedError,
    TooManyOpenFilesError,
)

Buffer = bytes | bytearray | memoryview
R = TypeVar("R")

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700


class RawFile(Protocol):
    """An open file. Reads and ``datasync`` can run in another thread than writes."""

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write at ``position``; return the number of written bytes, which can be too small."""

    def pread(self, length: int, position: int) -> bytes:
        """Return ``length`` bytes, or fewer at the end of the file."""

    def pread_nowait(self, length: int, position: int) -> Buffer | None:
        """Return ``length`` bytes if they are in the page cache, else None."""

    def fileno(self) -> int | None:
        """Return the descriptor for sendfile, or None if reads must go through this object."""

    def datasync(self) -> None:
        """Make the written bytes durable (fdatasync)."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock that is held until it is closed or the process ends."""

    def is_in_place(self) -> bool:
        """Return whether the locked file is still at its path.

        Otherwise another process can lock the path, too.
        """

    def close(self) -> None: ...


class FileSystem(Protocol):
    """The file operations that the log needs. Paths are strings.

    All methods raise OSError if they fail.
    """

    def open(self, path: str, *, create: bool = False) -> RawFile:
        """Open for reading and writing."""

    def read_bytes(self, path: str) -> bytes: ...

    def map_bytes(self, path: str) -> mmap.mmap | bytes:
        """Map a file into memory. The file must not shrink while the map is in use."""

    def write_bytes(self, path: str, data: Buffer) -> None:
        """Create or replace a file by renaming a temporary one, without a sync.

        After a crash of the process the file has the old or the new content. After a power cut its
        content is undefined.
        """

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Create or replace a file durably: write a temporary file, sync it, rename it."""

    def sync_file(self, path: str) -> None:
        """Make the content of a file durable that is not open."""

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a folder durable."""

    def sync_all(self, path: str) -> bool:
        """Make all changes in the file system durable that ``path`` belongs to.

        Returns:
            False if the system can't do that. Then the files and folders must be synced.
        """

    def mkdir(self, path: str) -> None: ...

    def makedirs(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def files(self, path: str) -> dict[str, int]:
        """Return the sizes of the files in a folder by name."""

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder."""

    def lock(self, path: str) -> Lock:
        """Create a file if it is missing, and lock it.

        Raises:
            DataDirLockedError: another process has locked it.
        """


def storage_error(error: OSError, doing: str, path: str) -> StorageError:
    """Return the StorageError for an OSError."""
    if system.is_too_many_open(error):
        return TooManyOpenFilesError(f"{doing} {path} failed: too many open files")
    if error.errno in _FULL:
        return DiskFullError(f"no space left on device while {doing} {path}")
    return StorageError(f"{doing} {path} failed: {error.strerror or error}")


@contextmanager
def storage_errors(doing: str, path: str) -> Iterator[None]:
    """Raise the StorageError for an OSError within."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing, path) from error


@contextmanager
def unimportant() -> Iterator[None]:
    """Ignore a StorageError within, but not the one after which the broker must stop."""
    try:
        yield
    except SyncFailedError:
        raise
    except StorageError:
        pass


def write_fully(raw: RawFile, buffers: Sequence[Buffer], position: int) -> int:
    """Write buffers one behind the other; return their bytes.

    Raises:
        OSError: the disk refuses, or is full. A part of them can be written.
    """
    size = sum(map(len, buffers))
    written = raw.pwrite(buffers, position)
    while written < size:  # the disk is nearly full, and the next call fails; or a signal
        rest = memoryview(b"".join(buffers))[written:]
        more = raw.pwrite((rest,), position + written)
        if more == 0:
            raise OSError(errno.EIO, "nothing was written")
        written += more
    return size


# --- the operating system ------------------------------------------------------------------------


class RealFile:
    """A file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> int:
        if len(buffers) == 1:
            return os.pwrite(self._fd, buffers[0], position)
        return system.write_at(self._fd, buffers, position)

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]  # a signal, a limit of the kernel or the end of the file has cut the read
        got = len(data)
        while got < length:
            data = os.pread(self._fd, length - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_nowait(self, length: int, position: int) -> Buffer | None:
        try:
            return system.read_cached(self._fd, length, position)
        except NotImplementedError:
            data = self.pread(length, position)
            return data if len(data) == length else None

    def datasync(self) -> None:
        system.datasync(self._fd)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._fd

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1  # the system can give the number to another file
        os.close(fd)


class RealFileSystem:
    """The file system of this machine."""

    def open(self, path: str, *, create: bool = False) -> RawFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, _FILE_MODE))

    def read_bytes(self, path: str) -> bytes:
        def read() -> bytes:
            with open(path, "rb") as file:
                return file.read()

        return system.with_spare_descriptors(read)

    def map_bytes(self, path: str) -> mmap.mmap | bytes:
        return _with_descriptor(path, 0, _map)

    def write_bytes(self, path: str, data: Buffer) -> None:
        self._write_temporary(path, data, sync=False)
        os.replace(path + ".tmp", path)

    def write_atomic(self, path: str, data: Buffer) -> None:
        self._write_temporary(path, data, sync=True)
        os.replace(path + ".tmp", path)
        self.sync_dir(os.path.dirname(path))

    @staticmethod
    def _write_temporary(path: str, data: Buffer, *, sync: bool) -> None:
        temporary = path + ".tmp"
        try:
            with open(temporary, "wb", opener=_open_private) as file:
                file.write(data)
                file.flush()
                if sync:
                    system.datasync(file.fileno())
        except OSError:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise

    def sync_file(self, path: str) -> None:
        system.with_spare_descriptors(lambda: _with_descriptor(path, 0, system.fullsync))

    def sync_dir(self, path: str) -> None:
        system.with_spare_descriptors(
            lambda: _with_descriptor(path, os.O_DIRECTORY, system.fullsync)
        )

    def sync_all(self, path: str) -> bool:
        return _with_descriptor(path, os.O_DIRECTORY, system.sync_file_system)

    def mkdir(self, path: str) -> None:
        os.mkdir(path, _FOLDER_MODE)

    def makedirs(self, path: str) -> None:
        os.makedirs(path, _FOLDER_MODE, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        system.with_spare_descriptors(lambda: shutil.rmtree(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def files(self, path: str) -> dict[str, int]:
        with os.scandir(path) as entries:
            return {each.name: each.stat().st_size for each in entries if each.is_file()}

    def folders(self, path: str) -> list[str]:
        with os.scandir(path) as entries:
            return [each.name for each in entries if each.is_dir()]

    def lock(self, path: str) -> Lock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise DataDirLockedError(
                f"{os.path.dirname(path)} is in use by another process",
                hint="Stop the other broker, or give this one another --data-dir.",
            ) from None
        return _LockFile(fd, path)


class _LockFile:
    """A file that is locked while it is open."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def is_in_place(self) -> bool:
        try:
            there = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(there, os.fstat(self._fd))

    def close(self) -> None:
        os.close(self._fd)


def _with_descriptor(path: str, flags: int, call: Callable[[int], R]) -> R:
    """Return what a function returns for the descriptor of a file or folder, opened to be read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        return call(fd)
    finally:
        os.close(fd)


def _map(fd: int) -> mmap.mmap | bytes:
    return mmap.mmap(fd, 0, access=mmap.ACCESS_READ) if os.fstat(fd).st_size else b""


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)
