"""The file-system seam: the few calls that the log makes, and the real implementation of them.

Everything under ``log`` reaches the disk through a ``FileSystem``, so that tests can tear writes,
fill the disk, fail a sync or cut the power. Knows no segments and no batches; handles are bounded
one floor up, in ``handles``.

Durability rules that callers keep: a new or renamed file is certain only after ``sync_dir`` of its
folder; written bytes only after ``datasync`` or ``sync_file``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Sequence
from typing import Protocol

from tidemill.errors import DataDirLockedError, DiskFullError, StorageError, SyncFailedError

Buffer = bytes | bytearray | memoryview

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_NOWAIT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class RawFile(Protocol):
    """An open file. Reads and ``datasync`` may run in another thread than writes."""

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write at ``position``; returns how many bytes were written, perhaps too few."""

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes, fewer only at the end of the file."""

    def pread_nowait(self, length: int, position: int) -> Buffer | None:
        """``length`` bytes if they are in the page cache, else None."""

    def datasync(self) -> None:
        """fdatasync."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock that is held until it is closed or the process ends."""

    def close(self) -> None: ...


class FileSystem(Protocol):
    """What the log asks of a file system. Paths are plain strings.

    All methods raise OSError unless they say otherwise.
    """

    def open(self, path: str, *, create: bool = False) -> RawFile:
        """Open for reading and writing."""

    def read_bytes(self, path: str) -> bytes: ...

    def map_bytes(self, path: str) -> mmap.mmap | bytes:
        """The content without reading it at once; the file must not shrink meanwhile."""

    def write_bytes(self, path: str, data: Buffer) -> None:
        """Create or replace by way of a temporary name, unsynced: whole or absent after a crash of
        the process, anything after a power cut."""

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Create or replace durably: temporary name, sync, rename, sync of the folder."""

    def sync_file(self, path: str) -> None:
        """fdatasync of a file that is not open."""

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a folder durable."""

    def sync_all(self, path: str) -> None:
        """Make all changes in the file system that ``path`` is on durable."""

    def mkdir(self, path: str) -> None: ...

    def makedirs(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def files(self, path: str) -> dict[str, int]:
        """Names and sizes of the files in a folder."""

    def folders(self, path: str) -> list[str]:
        """Names of the folders in a folder."""

    def lock(self, path: str) -> Lock:
        """Lock a file, creating it.

        Raises:
            DataDirLockedError: somebody else holds it.
        """


def storage_error(error: OSError, doing: str, path: str) -> StorageError:
    """The typed error for an OSError."""
    if error.errno in _FULL:
        return DiskFullError(f"no space left while {doing} {path}")
    return StorageError(f"{doing} {path} failed: {error.strerror or error}")


def sync_error(error: OSError, path: str) -> SyncFailedError:
    """The typed error for a sync that failed."""
    return SyncFailedError(f"syncing {path} failed: {error.strerror or error}")


# --- the real one --------------------------------------------------------------------------------


class RealFile:
    """A file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(self._fd, buffers, position)

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]  # a signal or the kernel's limit per call cut it, or the file ends here
        got = len(data)
        while got < length:
            data = os.pread(self._fd, length - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_nowait(self, length: int, position: int) -> Buffer | None:
        out = bytearray(length)
        try:
            got = os.preadv(self._fd, (out,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                raise
            # A file system without RWF_NOWAIT (tmpfs of old kernels): mostly in memory anyhow.
            return self.pread(length, position)
        return out if got == length else None

    def datasync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class RealFileSystem:
    """The machine's own file system (Linux)."""

    def open(self, path: str, *, create: bool = False) -> RawFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, 0o644))

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def map_bytes(self, path: str) -> mmap.mmap | bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size == 0:
                return b""
            return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)

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
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                if sync:
                    os.fdatasync(file.fileno())
        except OSError:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise

    def sync_file(self, path: str) -> None:
        self._sync(path, os.O_RDONLY | os.O_CLOEXEC)

    def sync_dir(self, path: str) -> None:
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_all(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
        finally:
            os.close(fd)

    @staticmethod
    def _sync(path: str, flags: int) -> None:
        fd = os.open(path, flags)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def files(self, path: str) -> dict[str, int]:
        with os.scandir(path) as entries:
            return {each.name: each.stat().st_size for each in entries if each.is_file()}

    def folders(self, path: str) -> list[str]:
        with os.scandir(path) as entries:
            return [each.name for each in entries if each.is_dir()]

    def lock(self, path: str) -> Lock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise DataDirLockedError(
                f"{os.path.dirname(path)} is in use by another process",
                hint="Stop the other broker, or give this one another --data-dir.",
            ) from None
        return RealFile(fd)
