"""The thread that writes the journal's entries: native, or of Python."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.support import closed, entered
from tests.engine.threads.support import NoThread
from tidemill.clock import ManualClock
from tidemill.engine.threads.entries import EntryWriter
from tidemill.engine.threads.worker import Worker
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import RealFile, RealFileSystem
from tidemill.log.disk.index import MapCache
from tidemill.log.disk.log_file import HandlePool
from tidemill.log.errors import SyncFailedError
from tidemill.log.journal.entry import (
    BLOCK,
    HEADER_BYTES,
    PIECE_BYTES,
    Piece,
    decode_entry,
    encode_entry,
    entry_bytes,
    padding,
    read_place,
)
from tidemill.log.journal.journal import JournalWrite
from tidemill.log.journal.ring import RingFile
from tidemill.native import extension

ID = bytes(range(16))


@pytest.fixture
def env() -> Environment:
    fs = RealFileSystem()
    return Environment(fs, HandlePool(fs, 4), MapCache(fs), ManualClock())


def piece(size: int, partition: int = 0) -> Piece:
    data = bytes(n % 251 for n in range(size))
    return Piece(ID, partition, 0, 0, 0, 1, size, (data[: size // 3], data[size // 3 :]))


def entry(env: Environment, raw: RealFile, pieces: list[Piece], position: int = 0) -> JournalWrite:
    file = RingFile("the journal", raw)
    file.used = position
    header, buffers = encode_entry(ID, 5, 2, pieces)
    buffers.append(padding(HEADER_BYTES + sum(PIECE_BYTES + each.size for each in pieces)))
    return JournalWrite(env, file, 5, 2, header, buffers, entry_bytes(pieces))


class Running:
    """A writer on the running loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.worker = Worker(loop, "test")
        self.writer = EntryWriter(loop, self.worker)

    async def write(self, write: JournalWrite) -> JournalWrite:
        """Write an entry, and return it."""
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.writer.run(write, done.set_result)
        if error := await asyncio.wait_for(done, 600):
            raise error
        return write

    @property
    def is_native(self) -> bool:
        return self.writer._thread is not None

    def close(self) -> None:
        self.writer.close()
        self.worker.close()


@pytest.fixture
def running(threads: str, loop_runner: asyncio.Runner) -> Iterator[Running]:
    """One with native threads, and one with Python's."""
    yield from entered(loop_runner, closed(Running))


@pytest.fixture
def native(linux: None, loop_runner: asyncio.Runner) -> Iterator[Running]:
    yield from entered(loop_runner, closed(Running))


def new_file(path: Path, size: int) -> RealFile:
    path.write_bytes(bytes(size))
    return RealFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[RealFile]:
    """A file with zeros for all entries of a test."""
    raw = new_file(tmp_path / "file", 2000 * BLOCK)
    yield raw
    raw.close()


async def test_entries_are_on_disk_as_they_are_encoded(
    threads: str, env: Environment, raw: RealFile, tmp_path: Path, running: Running
) -> None:
    position = 0
    shapes = [[], [piece(1)], [piece(100, n) for n in range(600)], [piece(3 << 20)], [piece(9)]]
    for pieces in shapes:
        write = await running.write(entry(env, raw, pieces, position))
        assert write.done
        data = memoryview((tmp_path / "file").read_bytes())
        place = read_place(data, position, ID)
        assert place is not None
        found = decode_entry(data, position, place)
        assert found is not None
        content = [b"".join(map(bytes, each.buffers)) for each in found.pieces]
        assert content == [b"".join(each.buffers) for each in pieces]
        position += found.size
    assert running.is_native == (threads == "native")


async def test_a_full_disk_refuses_the_entry(env: Environment, running: Running) -> None:
    raw = RealFile(os.open("/dev/full", os.O_RDWR))
    write = await running.write(entry(env, raw, [piece(10)]))
    assert not write.done
    assert write.refused is not None
    assert write.refused.errno == 28
    assert env.pool.sync_failure is None
    raw.close()


async def test_a_file_that_ends_within_the_entry_refuses_it(
    env: Environment, tmp_path: Path, running: Running
) -> None:
    raw = new_file(tmp_path / "file", BLOCK)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * BLOCK + 100, before[1]))
        write = await running.write(entry(env, raw, [piece(3 * BLOCK)]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not write.done
    assert write.refused is not None
    again = await running.write(entry(env, raw, [piece(3 * BLOCK)]))  # there is space now
    assert again.done
    raw.close()


async def test_a_failed_sync_stops_everything(env: Environment, running: Running) -> None:
    raw = RealFile(os.open("/dev/null", os.O_RDWR))  # takes all bytes, and refuses syncs
    for _ in range(2):
        write = entry(env, raw, [piece(10)])
        with pytest.raises(SyncFailedError):
            await running.write(write)
        assert not write.done
    raw.close()


async def test_a_closed_file_refuses_the_entry(
    env: Environment, tmp_path: Path, running: Running
) -> None:
    raw = new_file(tmp_path / "file", BLOCK)
    raw.close()
    write = await running.write(entry(env, raw, [piece(10)]))
    assert write.refused is not None


async def test_a_stop_waits_for_the_entry_on_its_way(
    threads: str, env: Environment, raw: RealFile, tmp_path: Path, running: Running
) -> None:
    write = entry(env, raw, [piece(3 << 20)])
    reports: list[BaseException | None] = []
    running.writer.run(write, reports.append)
    if threads == "python":  # work that has not begun is dropped
        running.worker.run(lambda: None, lambda _: None)
    running.close()
    if threads == "native":
        data = memoryview((tmp_path / "file").read_bytes())
        place = read_place(data, 0, ID)
        assert place is not None
        assert decode_entry(data, 0, place) is not None
        assert reports == []


async def test_without_a_thread_python_writes(
    env: Environment, raw: RealFile, native: Running
) -> None:
    native.writer._make = NoThread  # type: ignore[assignment]
    for n in range(3):
        write = await native.write(entry(env, raw, [piece(10)], n * BLOCK))
        assert write.done


# --- the native thread itself ---------------------------------------------------------------------


def test_a_thread_takes_one_entry_at_a_time_and_none_when_closed(
    signal: int, raw: RealFile, tmp_path: Path
) -> None:
    thread = extension.EntryThread(signal)
    assert thread.result() is None
    with pytest.raises(ValueError, match="an entry has"):
        thread.start(raw.fileno(), bytearray(56), [], 0)
    with pytest.raises(ValueError, match="an entry has"):
        thread.start(raw.fileno(), bytearray(7), [b""], 0)
    with pytest.raises(TypeError):
        thread.start(raw.fileno(), bytearray(56), [b"x", 5], 0)  # type: ignore[list-item]
    thread.start(raw.fileno(), bytearray(56), [b"x" * 5000, bytes(100)], 3)
    with pytest.raises(RuntimeError):
        thread.start(raw.fileno(), bytearray(56), [b""], 0)
    os.eventfd_read(signal)
    with pytest.raises(RuntimeError):  # its result was not taken
        thread.start(raw.fileno(), bytearray(56), [b""], 0)
    assert thread.result() == (0, 0)
    assert thread.result() is None
    assert (tmp_path / "file").read_bytes()[3 + 56 : 3 + 56 + 5000] == b"x" * 5000
    thread.close()
    thread.close()
    with pytest.raises(RuntimeError):
        thread.start(raw.fileno(), bytearray(56), [b""], 0)


def test_a_thread_keeps_no_buffer_of_a_finished_entry(signal: int, raw: RealFile) -> None:
    thread = extension.EntryThread(signal)
    data = bytearray(100)
    for _ in range(3):
        thread.start(raw.fileno(), bytearray(56), [data, b""], 0)
        os.eventfd_read(signal)
        assert thread.result() == (0, 0)
        data.append(1)  # BufferError while someone has the buffer
    thread.start(raw.fileno(), bytearray(56), [data, b""], 0)
    del thread  # waits for the entry
    gc.collect()
    data.append(1)
