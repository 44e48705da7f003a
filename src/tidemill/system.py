"""Hides the differences of operating systems: each function has a fallback.

The broker is built for Linux. Everything that other systems (macOS) lack or do in another way is
here, so that the rest of the code has no branches for systems. Each function looks for what it
needs when it is called, because a test takes it away. This module must not know anything else of
tidemill.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    import asyncio

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")

_NO_NOWAIT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_NO_FULLFSYNC = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY, errno.ENOSYS)
_F_FULLFSYNC = 51
"""The number of this command on macOS. Elsewhere Python's ``fcntl`` does not define it."""
_NO_WRITEBACK = (errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EPERM)
_SYNC_FILE_RANGE_WRITE = 2
"""A constant in fcntl.h. This flag alone takes no error away from a later sync."""
_FALLOC_FL_KEEP_SIZE = 1
"""A constant in falloc.h."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Constants in malloc.h of glibc."""
_FILL_BYTES = 131_072
"""Bytes of the memory that files are read into which only have to be in the page cache."""
_FILL_TIMES = 32
"""How often one call reads into that memory."""
_SOCKET_PATH_BYTES = 103
"""The longest path of a Unix socket that both Linux (107) and macOS accept."""
_MAC_OPEN_FILES = 10_240
"""The most open files that macOS lets a process have (OPEN_MAX), whatever the hard limit says."""
_SPARE_DESCRIPTORS = 8
_spare_descriptors: list[int] = []


_SO_RXQ_OVFL = 40  # Python's socket module has no name for it


def is_linux() -> bool:
    """Return whether this is Linux. Tests replace it, to take away what only Linux has."""
    return sys.platform == "linux"


# --- files ---------------------------------------------------------------------------------------


def datasync(fd: int) -> None:
    """Make the written bytes of a file durable.

    On macOS, fsync does not wait for the disk's own cache; F_FULLFSYNC does. Some file systems
    (network, FAT) refuse it and have fsync only.
    """
    if sys.platform == "darwin":
        fullsync(fd)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def fullsync(fd: int) -> None:
    """Make a file or folder durable, with its metadata."""
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, getattr(fcntl, "F_FULLFSYNC", _F_FULLFSYNC))
        except OSError as error:
            if error.errno not in _NO_FULLFSYNC:
                raise
        else:
            return
    os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder has."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fullsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, text: str) -> None:
    """Write a small file durably. After a crash it has the old text or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        fullsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_file_system(fd: int) -> bool:
    """Make all changes in the file system durable that a file or folder belongs to.

    Returns:
        False if the system has no call that waits for that (syncfs). Nothing was synced then.

    Raises:
        OSError: it failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    syncfs = getattr(libc, "syncfs", None) if is_linux() else None
    if syncfs is None:
        return False
    if syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return True


def start_writeback(fd: int, position: int, length: int) -> None:
    """Ask the kernel to begin to write a range of a file to the disk (sync_file_range, Linux only).

    Nothing is durable by that. A later sync has less to do.

    Raises:
        OSError: it failed.
    """
    if not is_linux():
        return
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is None:
        return
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    if call(fd, position, length, _SYNC_FILE_RANGE_WRITE) != 0:
        code = ctypes.get_errno()
        if code not in _NO_WRITEBACK:
            raise OSError(code, os.strerror(code))


def can_allocate(folder: str) -> bool:
    """Return whether ``allocate`` is useful in a folder: it is on a disk (Linux only).

    File systems without a block device (tmpfs, network, overlays) have the major number 0.
    """
    return is_linux() and os.major(os.stat(folder).st_dev) != 0


def allocate(fd: int, position: int, length: int) -> None:
    """Allocate blocks for a range behind the end of a file, whose size stays the same; can block.

    Where the system, the file system or the free space does not allow it, nothing is allocated.
    """
    call = getattr(ctypes.CDLL(None), "fallocate", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        call(fd, _FALLOC_FL_KEEP_SIZE, position, length)


def write_at(fd: int, buffers: Sequence[Buffer], position: int) -> int:
    """Write at a position; return the number of written bytes, which can be too small."""
    if hasattr(os, "pwritev"):
        return os.pwritev(fd, buffers, position)
    written = 0
    for buffer in buffers:
        count = os.pwrite(fd, buffer, position + written)
        written += count
        if count < len(buffer):
            break
    return written


def read_cached(fd: int, length: int, position: int) -> Buffer | None:
    """Return ``length`` bytes that are in the page cache, or None if that is not known.

    Raises:
        NotImplementedError: the file system can't tell. Its files are in memory (tmpfs).
    """
    if not hasattr(os, "preadv") or not hasattr(os, "RWF_NOWAIT"):
        return None  # a thread reads it
    out = bytearray(length)
    try:
        got = os.preadv(fd, (out,), position, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in _NO_NOWAIT:
            raise NotImplementedError from error
        raise
    return out if got == length else None


def fill_cache(fd: int, position: int, length: int) -> None:
    """Read a range of a file into the page cache. Waits for the disk.

    The kernel reads the whole range together, and begins with as many bytes behind it, which a
    reader in order wants next.

    Raises:
        OSError: the file can't be read.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, position, 2 * length, os.POSIX_FADV_WILLNEED)
    scratch = bytearray(_FILL_BYTES)
    end = position + length
    while position < end:
        # One call reads much, always into the same memory.
        times = min(-(-(end - position) // _FILL_BYTES), _FILL_TIMES)
        got = _read_into([scratch] * times, fd, position)
        if not got:
            return
        position += got


def _read_into(buffers: list[bytearray], fd: int, position: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, buffers, position)
    return len(os.pread(fd, len(buffers[0]), position))


class _CachestatRange(ctypes.Structure):
    _fields_ = [("off", ctypes.c_uint64), ("len", ctypes.c_uint64)]


class _Cachestat(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    ]


_SYS_CACHESTAT = 451
"""The number of cachestat (Linux 6.5), the same on all architectures."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_syscall: Callable[..., int] | None = None


def queued_bytes(fd: int) -> int:
    """Return how many bytes of a socket have arrived and are not read; 0 if unknown."""
    size = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, size)
    except (OSError, ValueError):  # closed, or the system does not tell
        return 0
    return size[0]


def report_drops(fd: int) -> None:
    """Let a datagram socket report how many packets it has dropped, where the system can.

    Linux sends the number with each packet (SO_RXQ_OVFL, socket(7)).
    """
    if sys.platform == "linux":
        with socket.socket(fileno=os.dup(fd)) as same:
            same.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)


def receive_buffer(fd: int, wanted: int) -> int:
    """Ask for a receive buffer of a socket, and return the bytes that the system has given."""
    with socket.socket(fileno=os.dup(fd)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
        given = same.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    # Linux doubles it for its own bookkeeping (socket(7)).
    return given // 2 if sys.platform == "linux" else given


def can_send_files() -> bool:
    """Return whether files can be sent without reading them, and never while a disk is read."""
    return _cachestat() is not None


def is_cached(fd: int, position: int, length: int) -> bool:
    """Return whether all bytes of a range of a file are in the page cache; False if unknown."""
    call = _cachestat()
    if call is None:
        return False
    first = position - position % _PAGE_BYTES
    length += position - first
    counted = _Cachestat()
    wanted = ctypes.byref(_CachestatRange(first, length))
    if call(_SYS_CACHESTAT, fd, wanted, ctypes.byref(counted), 0) != 0:
        return False
    return int(counted.cached) >= -(-length // _PAGE_BYTES)


def _cachestat() -> Callable[..., int] | None:
    """Return libc's ``syscall`` if the kernel has cachestat, else None."""
    global _syscall, _has_cachestat
    if _has_cachestat is None:
        _has_cachestat = False
        if is_linux():
            call = ctypes.CDLL(None, use_errno=True).syscall
            ones = _CachestatRange(0, 1), _Cachestat()
            call(_SYS_CACHESTAT, -1, ctypes.byref(ones[0]), ctypes.byref(ones[1]), 0)
            if ctypes.get_errno() == errno.EBADF:  # and not ENOSYS, or EPERM of a sandbox
                _syscall, _has_cachestat = call, True
    return _syscall if _has_cachestat else None


_has_cachestat: bool | None = None


def new_signal() -> int:
    """Return the descriptor of a new signal (eventfd, Linux only). A loop can watch it.

    Raises:
        OSError: no descriptor is left.
    """
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def take_signal(fd: int) -> None:
    """Reset a signal that was given.

    Raises:
        BlockingIOError: it was not given.
    """
    os.eventfd_read(fd)


@contextlib.contextmanager
def socket_path(path: str) -> Iterator[str]:
    """Yield a path of a Unix socket that is short enough for the kernel, for bind and connect.

    It is the path as it is, or relative to the working folder, or (Linux only) through the open
    folder.

    Raises:
        OSError: all of these are too long, or the folder can't be opened.
    """
    for each in (path, os.path.relpath(path)):
        if len(os.fsencode(each)) <= _SOCKET_PATH_BYTES:
            yield each
            return
    if sys.platform != "linux":
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
    folder, name = os.path.split(path)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


# --- the process ---------------------------------------------------------------------------------


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's where it is installed, else asyncio's."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def keep_freed_memory(size: int) -> None:
    """Make malloc keep up to ``size`` bytes of freed buffers for the next ones.

    By default glibc returns them to the kernel and later gets them again page by page. For a fetch
    of several megabytes, this takes longer than copying its records. Other C libraries have no
    ``mallopt``, and are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, size)
        mallopt(_M_MMAP_THRESHOLD, size)


def return_memory(keep: int) -> None:
    """Return freed memory to the kernel that lies between memory in use, which malloc keeps."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(keep)


def allow_open_files(needed: int) -> int | None:
    """Raise the limit of open files if it is below ``needed``; return it, or None for no limit."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None if soft == resource.RLIM_INFINITY else soft
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if sys.platform == "darwin":
        wanted = min(wanted, _MAC_OPEN_FILES)
    if wanted > soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return soft


def is_too_many_open(error: OSError) -> bool:
    """Return whether a file was not opened, because the process or the system has too many open.

    No other call fails with these numbers: not a write, and not a sync.
    """
    return error.errno in (errno.EMFILE, errno.ENFILE)


def keep_spare_descriptors() -> None:
    """Keep descriptors for ``with_spare_descriptors``, as many as the system allows now."""
    with contextlib.suppress(OSError):
        while len(_spare_descriptors) < _SPARE_DESCRIPTORS:
            _spare_descriptors.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def with_spare_descriptors(work: Callable[[], T]) -> T:
    """Do work that opens files for a moment. If no descriptor is free, use spare ones.

    Args:
        work: it can be done again after it has failed.

    Raises:
        OSError: the work has failed, or there are no spare descriptors either.
    """
    try:
        return work()
    except OSError as error:
        if not is_too_many_open(error) or not _spare_descriptors:
            raise
    for _ in range(-(-len(_spare_descriptors) // 2)):  # another thread can need the others
        os.close(_spare_descriptors.pop())
    try:
        return work()
    finally:
        keep_spare_descriptors()


def has_terminal() -> bool:
    """Return whether the process has a terminal that is still open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def end_with_parent() -> None:
    """Ask the kernel to end this process with its parent (Linux only)."""
    if is_linux():
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None:
            prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM


def set_process_name(name: str) -> None:
    """Set the name of this process in ``ps -o comm`` and ``top`` (Linux only).

    Args:
        name: At most 15 bytes; the kernel cuts off the rest. The command line stays.
    """
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


class ProcessUsage(NamedTuple):
    """The resources that a process uses. None: the system does not say.

    Attributes:
        cpu_seconds: processor time in user and system mode.
        resident_bytes: memory in RAM; where only the highest value is known, that.
        started: when the process was started, in seconds since the epoch.
    """

    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int | None = None
    open_files: int | None = None
    most_files: int | None = None
    started: float | None = None


def process_usage() -> ProcessUsage:
    """Return what this process uses."""
    import resource
    import time

    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu = usage.ru_utime + usage.ru_stime
    most: int | None = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        most = None
    try:
        with open("/proc/self/statm", "rb") as file:
            virtual, resident = map(int, file.read().split()[:2])
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        files = len(os.listdir("/proc/self/fd")) - 1  # without the one that lists them
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, ValueError, AttributeError):
        kilo = 1 if sys.platform == "darwin" else 1024
        return ProcessUsage(cpu, usage.ru_maxrss * kilo, most_files=most)
    page = os.sysconf("SC_PAGE_SIZE")
    started = time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    return ProcessUsage(cpu, resident * page, virtual * page, files, most, started)
