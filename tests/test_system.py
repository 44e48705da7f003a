"""What operating systems do differently: each function with and without the call of Linux."""

from __future__ import annotations

import ast
import asyncio
import ctypes
import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill import system

SOURCE = Path(__file__).parents[1] / "src"
LINUX_ONLY = {
    *("fdatasync", "posix_fallocate", "posix_fadvise", "preadv", "pwritev", "RWF_NOWAIT"),
    *("sendfile", "copy_file_range", "splice", "eventfd", "memfd_create", "pipe2", "pidfd_open"),
    *("sched_getaffinity", "sched_setaffinity", "epoll", "O_DIRECT", "O_TMPFILE", "O_PATH"),
    *("mallopt", "malloc_trim", "syncfs", "prctl", "uvloop", "F_FULLFSYNC", "CDLL", "prlimit"),
    *("SOCK_NONBLOCK", "SOCK_CLOEXEC", "TCP_CORK", "TCP_QUICKACK", "MAP_POPULATE"),
}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_bytes_of_a_socket_that_are_not_read_are_counted() -> None:
    one, other = socket.socketpair()
    assert system.queued_bytes(other.fileno()) == 0
    one.sendall(b"x" * 700)
    assert system.queued_bytes(other.fileno()) == 700
    other.recv(500)
    assert system.queued_bytes(other.fileno()) == 200
    one.close()
    other.close()
    assert system.queued_bytes(other.fileno()) == 0


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Hide what Linux has; return the commands of ``fcntl``, which do nothing."""
    monkeypatch.setattr(sys, "platform", "darwin")
    for name in ("fdatasync", "preadv", "pwritev", "RWF_NOWAIT"):
        monkeypatch.delattr(os, name, raising=False)
    calls: list[int] = []
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: calls.append(command))
    return calls


def test_only_one_module_uses_what_only_linux_has() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path == SOURCE / "tidemill" / "system.py":
            continue
        text = path.read_text()
        if not any(name in text for name in (*LINUX_ONLY, "platform", "/proc/", "/sys/")):
            continue  # it takes long to parse all
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            if isinstance(node, ast.Attribute):
                names = [node.attr]
                if ast.unparse(node) == "sys.platform":
                    names = ["sys.platform"]
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [each.name for each in node.names]
                names.append(getattr(node, "module", None) or "")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = ["/proc"] if node.value.startswith(("/proc/", "/sys/")) else []
            bad = {*names} & {*LINUX_ONLY, "sys.platform", "/proc"}
            found += [f"{path.relative_to(SOURCE)}: {name}" for name in bad]
    assert found == []


def test_synced_bytes_reach_the_disk_on_macos(file: int, mac: list[int]) -> None:
    system.datasync(file)
    system.fullsync(file)
    assert mac == [51, 51]  # F_FULLFSYNC; fsync alone stops at the disk's cache


def test_a_file_system_without_a_full_sync_gets_the_ordinary_one(
    file: int, mac: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)

    def refuse(fd: int, command: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    code = errno.ENOTSUP
    system.datasync(file)
    assert synced == [file]
    code = errno.EIO  # a failed sync is never retried in another way
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        system.datasync(file)
    assert synced == [file]


def test_other_systems_without_fdatasync_use_fsync(
    file: int, mac: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "freebsd14")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    system.datasync(file)
    system.fullsync(file)
    assert (synced, mac) == ([file, file], [])


def test_a_file_system_is_synced_as_a_whole_on_linux_only(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert system.sync_file_system(file) == system.is_linux()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not system.sync_file_system(file)


def test_a_file_is_replaced_durably_and_never_seen_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    path.write_text("old")
    seen: list[tuple[str, str]] = []

    def sync(fd: int) -> None:
        is_folder = Path(f"/dev/fd/{fd}").resolve() == tmp_path.resolve()
        seen.append(("folder" if is_folder else "file", path.read_text()))

    monkeypatch.setattr(system, "fullsync", sync)
    system.replace_file(path, "new")
    assert seen == [("file", "old"), ("folder", "new")]
    assert [*tmp_path.iterdir()] == [path]


def test_buffers_are_written_one_after_the_other_without_pwritev(file: int, mac: list[int]) -> None:
    assert system.write_at(file, [b"abc", bytearray(b"de"), memoryview(b"f")], 2) == 6
    assert os.pread(file, 100, 0) == b"\0\0abcdef"


def test_a_write_that_is_cut_writes_nothing_behind_the_cut(
    file: int, mac: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, bytes(data)[:2], at))
    assert system.write_at(file, [b"abc", b"de"], 0) == 2
    assert os.pread(file, 100, 0) == b"ab"


def test_without_a_read_that_does_not_wait_a_thread_has_to_read(file: int, mac: list[int]) -> None:
    os.write(file, b"abc")
    assert system.read_cached(file, 3, 0) is None


def test_the_event_loop_is_asyncio_s_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = system.new_event_loop()
    try:
        assert isinstance(loop, asyncio.SelectorEventLoop)
    finally:
        loop.close()


def test_calls_that_the_c_library_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        def __init__(self, *_: object, **__: object) -> None: ...

    monkeypatch.setattr("ctypes.CDLL", Empty)
    system.keep_freed_memory(1)
    system.return_memory(1)
    system.end_with_parent()


@pytest.mark.skipif(not system.can_send_files(), reason="cachestat is missing")
@pytest.mark.disk
@pytest.mark.parametrize("has_preadv", [True, False])
def test_a_range_is_read_into_the_page_cache(
    has_preadv: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 9 << 20
    (tmp_path / "file").write_bytes(bytes(size))
    if not has_preadv:
        monkeypatch.delattr(os, "preadv")
    fd = os.open(tmp_path / "file", os.O_RDWR)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if system.is_cached(fd, 0, size):
            pytest.skip("the file system keeps all pages")
        system.fill_cache(fd, 4096, 1000)
        assert system.is_cached(fd, 4096, 1000)
        system.fill_cache(fd, 5000, size)  # beyond the end
        assert system.is_cached(fd, 5000, size - 5000)
    finally:
        os.close(fd)


@pytest.mark.disk
def test_blocks_are_allocated_behind_the_end_of_a_file(tmp_path: Path, file: int) -> None:
    if not system.can_allocate(str(tmp_path)):
        pytest.skip("the temporary folder is not on a disk")
    os.write(file, b"12345")
    system.allocate(file, 5, 1 << 20)
    found = os.fstat(file)
    assert (found.st_size, found.st_blocks * 512 >= 1 << 20) == (5, True)
    system.allocate(file, 5, (1 << 63) - 1)  # larger than any file can be
    assert os.fstat(file).st_blocks == found.st_blocks
    os.ftruncate(file, 5)
    assert os.fstat(file).st_blocks * 512 < 1 << 20


def test_where_the_system_can_not_allocate_nothing_happens(
    tmp_path: Path, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    system.allocate(file, 0, 1 << 20)
    assert os.fstat(file).st_blocks == 0
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not system.can_allocate(str(tmp_path))


@pytest.mark.disk
@pytest.mark.skipif(sys.platform != "linux", reason="sync_file_range is of Linux")
def test_the_kernel_begins_to_write_a_range(tmp_path: Path) -> None:
    call = system._cachestat()
    if call is None:
        pytest.skip("the kernel does not tell which pages are written")

    def dirty() -> int:
        counted = system._Cachestat()
        wanted = ctypes.byref(system._CachestatRange(0, size))
        assert call(system._SYS_CACHESTAT, fd, wanted, ctypes.byref(counted), 0) == 0
        return int(counted.dirty)

    size = 1 << 20
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, bytes(size))
        if not dirty():
            pytest.skip("the file system has no pages that wait for the disk")
        system.start_writeback(fd, 0, size)
        deadline = time.monotonic() + 10  # by itself, the kernel waits for 30
        while dirty():
            assert time.monotonic() < deadline
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        system.start_writeback(-1, 0, size)


def test_where_the_system_can_not_begin_to_write_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    system.start_writeback(writing, 0, 100)  # has no place on a disk
    os.close(reading)
    os.close(writing)
    monkeypatch.setattr(sys, "platform", "darwin")
    system.start_writeback(-1, 0, 100)


def test_work_for_which_no_descriptor_is_free_uses_spare_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "_spare_descriptors", [])
    failing = [OSError(errno.EMFILE, "too many"), OSError(errno.ENFILE, "too many")]
    spare: list[int] = []

    def work() -> str:
        spare.append(len(system._spare_descriptors))
        if failing:
            raise failing.pop()
        return "done"

    with pytest.raises(OSError, match="too many"):  # there are none
        system.with_spare_descriptors(work)
    system.keep_spare_descriptors()
    assert system.with_spare_descriptors(work) == "done"
    assert spare == [0, 8, 4]
    assert len(system._spare_descriptors) == 8
    failing.append(OSError(errno.EIO, "broken disk"))
    with pytest.raises(OSError, match="broken disk"):
        system.with_spare_descriptors(work)
    assert spare == [0, 8, 4, 8]
    for fd in system._spare_descriptors:
        os.close(fd)
