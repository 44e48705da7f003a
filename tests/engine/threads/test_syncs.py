"""The threads that sync the files of partitions: native, or of Python."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.engine.support import busy_until, closed, entered, until
from tests.engine.threads.support import NoThread
from tests.support.logs import ticket_of, write
from tidemill.clock import ManualClock
from tidemill.engine.threads.syncs import MOST_TOGETHER, TicketRunner
from tidemill.log.config.parse import parse_config
from tidemill.log.disk.files import RealFile
from tidemill.log.errors import SyncFailedError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.partition.sync import SyncTicket
from tidemill.log.store import LogStore
from tidemill.native import extension

NOW = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    opened = LogStore.open(str(tmp_path), clock=ManualClock(NOW))
    yield opened
    opened.close(clean=False)


def new_log(store: LogStore, partition: int = 0) -> PartitionLog:
    """Return a log with a synced record and one that is not synced."""
    log = store.create(TopicPartition("t", partition), parse_config({}), UUID(int=1))
    append(log)
    log.flush()
    append(log)
    return log


def append(log: PartitionLog) -> None:
    write(log, [(b"k", b"v")], NOW, sync=False)


@pytest.fixture
def log(store: LogStore) -> PartitionLog:
    return new_log(store)


def use_refusing_file(log: PartitionLog) -> None:
    """Give a log's open file a descriptor that refuses syncs."""
    file = log.chain.active.file
    pool = file._pool
    pool.pin(file).close()
    pool._open[file] = RealFile(os.open("/dev/null", os.O_RDWR))
    pool.unpin(file)


class Running:
    """A runner on the running loop."""

    def __init__(self) -> None:
        self.runner = TicketRunner(asyncio.get_running_loop(), 2)

    async def run(self, *tickets: SyncTicket) -> BaseException | None:
        done: asyncio.Future[BaseException | None]
        done = asyncio.get_running_loop().create_future()
        self.runner.run(tickets, done.set_result)
        return await asyncio.wait_for(done, 60)

    @property
    def is_native(self) -> bool:
        return bool(self.runner._idle or self.runner._running)

    def close(self) -> None:
        self.runner.close()


@pytest.fixture
def running(threads: str, loop_runner: asyncio.Runner) -> Iterator[Running]:
    """One with native threads, and one with Python's."""
    yield from entered(loop_runner, closed(Running))


@pytest.fixture
def native(linux: None, loop_runner: asyncio.Runner) -> Iterator[Running]:
    yield from entered(loop_runner, closed(Running))


async def test_a_job_syncs_the_files_of_its_tickets(
    threads: str, store: LogStore, running: Running
) -> None:
    logs = [new_log(store, n) for n in range(20)]
    for _ in range(3):
        tickets = [ticket_of(log) for log in logs]
        assert await running.run(*tickets) is None
        for log, ticket in zip(logs, tickets, strict=True):
            log.finish_sync(ticket)
            assert log.high_watermark == log.log_end_offset
            assert log.chain.active.file.pins == 0
            assert not log.chain.active.file.dirty
            append(log)
    assert running.is_native == (threads == "native")
    assert running.runner.free == 2


async def test_a_job_with_many_files_keeps_few_of_them_open(
    store: LogStore, native: Running
) -> None:
    logs = [new_log(store, n) for n in range(MOST_TOGETHER + 1)]
    tickets = [ticket_of(log) for log in logs]
    assert await native.run(*tickets) is None
    assert all(ticket.done for ticket in tickets)
    assert not native.is_native
    append(logs[0])
    assert await native.run(ticket_of(logs[0]), *tickets[2:]) is None
    assert native.is_native


async def test_jobs_run_side_by_side(store: LogStore, running: Running) -> None:
    logs = [new_log(store, n) for n in range(2)]
    jobs = [asyncio.ensure_future(running.run(ticket_of(log))) for log in logs]
    await asyncio.sleep(0)
    assert (running.runner.free, running.runner.is_busy) == (0, True)
    assert await asyncio.gather(*jobs) == [None, None]
    assert (running.runner.free, running.runner.is_busy) == (2, False)


def test_an_append_during_a_sync_leaves_the_file_unsynced(linux: None, log: PartitionLog) -> None:
    ticket = ticket_of(log)
    assert ticket.begin() is not None
    append(log)
    ticket.end(0)
    log.finish_sync(ticket)
    assert log.chain.active.file.dirty
    assert (log.high_watermark, log.log_end_offset) == (2, 3)


async def test_a_failed_sync_stops_everything(store: LogStore, running: Running) -> None:
    logs = [new_log(store, n) for n in range(3)]
    tickets = [ticket_of(log) for log in logs]
    use_refusing_file(logs[1])
    error = await running.run(*tickets)
    assert isinstance(error, SyncFailedError)
    assert [ticket.done for ticket in tickets] == [True, False, False]
    assert [log.chain.active.file.dirty for log in logs] == [False, True, True]
    assert [log.chain.active.file.pins for log in logs] == [0, 0, 0]
    assert isinstance(await running.run(ticket_of(logs[0])), SyncFailedError)


async def test_a_file_that_is_not_open_is_opened(log: PartitionLog, running: Running) -> None:
    ticket = ticket_of(log)
    log.chain.active.file.close()
    assert await running.run(ticket) is None
    assert ticket.done


async def test_a_new_folder_is_synced_too(store: LogStore, running: Running) -> None:
    log = store.create(TopicPartition("new", 0), parse_config({}), UUID(int=2))
    append(log)
    ticket = ticket_of(log)
    old = new_log(store)
    assert await running.run(ticket_of(old), ticket) is None
    log.finish_sync(ticket)
    assert log.begin_sync() is None
    assert old.chain.active.file.pins == 0


async def test_a_bug_in_a_ticket_is_reported(log: PartitionLog, running: Running) -> None:
    class Broken(SyncTicket):
        __slots__ = ()

        def begin(self) -> int | None:
            return None

        def run(self) -> None:
            raise ZeroDivisionError

    ticket = Broken(log.chain, [], False, False)
    assert isinstance(await running.run(ticket), ZeroDivisionError)
    assert await running.run(ticket_of(log)) is None


async def test_without_a_thread_python_syncs(log: PartitionLog, native: Running) -> None:
    native.runner._make = NoThread  # type: ignore[assignment]
    for _ in range(2):
        ticket = ticket_of(log)
        assert await native.run(ticket) is None
        log.finish_sync(ticket)
        assert (log.chain.active.file.pins, log.chain.active.file.dirty) == (0, False)
        append(log)


async def test_a_job_that_is_done_is_found_before_the_event_loop_reports_it(
    log: PartitionLog, native: Running
) -> None:
    ticket = ticket_of(log)
    found: list[BaseException | None] = []

    def is_found() -> bool:
        native.runner.poll()
        return bool(found)

    assert not is_found()
    native.runner.run([ticket], found.append)
    busy_until(is_found)
    assert found == [None]
    assert ticket.done
    await asyncio.sleep(0.01)  # its report comes now, and has nothing to tell
    assert found == [None]
    assert native.runner.free == 2


async def test_a_failed_job_is_left_to_the_event_loop(log: PartitionLog, native: Running) -> None:
    use_refusing_file(log)
    found: list[BaseException | None] = []
    native.runner.run([ticket_of(log)], found.append)
    report = native.runner._reports.descriptor()
    assert select.select([report], [], [], 60)[0]
    native.runner.poll()
    assert found == []
    await until(lambda: bool(found))
    assert isinstance(found[0], SyncFailedError)


async def test_a_stop_waits_for_a_job_without_a_report(
    threads: str, log: PartitionLog, running: Running
) -> None:
    found: list[BaseException | None] = []
    ticket = ticket_of(log)
    running.runner.run([ticket], found.append)
    running.runner.close()
    await asyncio.sleep(0)
    assert ticket.done or threads == "python"  # work that has not begun is dropped there
    assert log.chain.active.file.pins == 0
    assert found == []


# --- the native thread itself ---------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """The descriptor of a file."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


WRONG_FILES: list[object] = [
    (-1, 0, 0),
    (1 << 31, 0, 0),
    (1 << 80, 0, 0),
    (3, -1, 0),
    (3, 0, -1),
    (3, 0, 1 << 63),
    ("1", 0, 0),
    (3, 0),
    (3, 0, 0, 0),
    3,
    None,
]


def test_a_thread_refuses_what_is_no_list_of_descriptors_and_ranges(signal: int) -> None:
    thread = extension.SyncThread(signal)
    for wrong in WRONG_FILES:
        with pytest.raises((ValueError, OverflowError, TypeError)):
            thread.start([wrong])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        thread.start(1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no file"):
        thread.start([])
    assert thread.result() is None


def test_a_thread_takes_one_job_at_a_time_and_none_when_closed(signal: int, tmp_path: Path) -> None:
    thread = extension.SyncThread(signal)
    files = [os.open(tmp_path / str(n), os.O_RDWR | os.O_CREAT) for n in range(2)]
    null = os.open("/dev/null", os.O_RDWR)
    both = [(fd, 0, 0) for fd in files]
    for job, synced, failed in ((both, 2, 0), ([both[0], (null, 0, 0), both[1]], 1, 22)):
        thread.start(job)
        with pytest.raises(RuntimeError):
            thread.start(job)
        os.eventfd_read(signal)
        with pytest.raises(RuntimeError):  # its result was not taken
            thread.start(job)
        assert thread.has_synced() == (not failed)
        assert thread.result() == (synced, failed)
        assert thread.result() is None
        assert not thread.has_synced()
    thread.start(both)
    thread.close()
    thread.close()
    assert thread.result() == (2, 0)
    with pytest.raises(RuntimeError):
        thread.start(both)
    for fd in (*files, null):
        os.close(fd)


def test_a_thread_syncs_a_file_for_which_nothing_can_be_allocated(signal: int, file: int) -> None:
    thread = extension.SyncThread(signal)
    os.write(file, b"12345")
    thread.start([(file, 5, (1 << 63) - 1)])
    os.eventfd_read(signal)
    assert thread.result() == (1, 0)
    assert os.fstat(file).st_size == 5
