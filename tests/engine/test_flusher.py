"""Group commit: who shares an fdatasync, who waits for which, and what a failure does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import cast

import pytest
from structlog.testing import capture_logs

from tests.engine.support import closed, entered, until
from tidemill.engine.api import PendingWrites
from tidemill.engine.errors import BrokerStoppingError
from tidemill.engine.flusher import Flusher
from tidemill.log.errors import StorageError, SyncFailedError, TooManyOpenFilesError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog

Done = Callable[[Exception | None], None]


class FakeTicket:
    def __init__(self, log: FakeLog) -> None:
        self.log = log
        self.end_offset = log.log_end_offset
        self.new_folder = False
        self.done = False

    def begin(self) -> None:
        """Have no file that a native thread could sync."""

    def run(self) -> None:
        assert self.log.gate.wait(60)
        if self.log.error is not None:
            raise self.log.error
        self.log.syncs += 1
        self.done = True


class FakeLog:
    """Counts its syncs; a sync blocks while the gate is closed."""

    def __init__(self, name: str = "t") -> None:
        self.tp = TopicPartition(name, 0)
        self.log_end_offset = 0
        self.high_watermark = 0
        self.syncs = 0
        self.error: Exception | None = None
        self.is_awaited: bool | None = None
        self.withdrawn = 0
        self.gate = threading.Event()
        self.gate.set()

    def begin_sync(self, *, is_awaited: bool) -> FakeTicket | None:
        self.is_awaited = is_awaited
        return FakeTicket(self) if self.high_watermark < self.log_end_offset else None

    def withdraw_piece(self) -> None:
        self.withdrawn += 1

    def finish_sync(self, ticket: FakeTicket) -> None:
        self.high_watermark = max(self.high_watermark, ticket.end_offset)


class Bench:
    """A flusher with the logs it knows, and what it reported."""

    def __init__(self, interval_ms: int = 60_000) -> None:
        self.advanced: list[FakeLog] = []
        self.failures: list[StorageError] = []
        self.flusher = Flusher(
            interval_ms=interval_ms,
            on_advance=lambda logs: self.advanced.extend(cast(list[FakeLog], logs)),
            on_failure=self.failures.append,
        )

    def write(self, log: FakeLog, count: int = 1) -> int:
        log.log_end_offset += count
        self.flusher.written(cast(PartitionLog, log))
        return log.log_end_offset

    def durable(self, log: FakeLog, offset: int) -> asyncio.Future[None]:
        return self.flusher.when_durable(cast(PartitionLog, log), offset)

    def call(self, log: FakeLog, offset: int, done: Done) -> None:
        self.flusher.call_when_durable(cast(PartitionLog, log), offset, done)

    def call_each(self, *awaited: tuple[FakeLog, int, Done]) -> None:
        each = [(cast(PartitionLog, log), offset, done) for log, offset, done in awaited]
        self.flusher.call_when_each_is_durable(each)

    async def begin(self, log: FakeLog) -> asyncio.Future[None]:
        """Begin a sync of a write, which ends when the gate of the log is opened."""
        log.gate.clear()
        wait = self.durable(log, self.write(log))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return wait

    def close(self) -> None:
        self.flusher.close()


@pytest.fixture
def bench(loop_runner: asyncio.Runner) -> Iterator[Bench]:
    yield from entered(loop_runner, closed(Bench))


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


async def test_a_waiter_is_released_when_its_offset_is_synced(bench: Bench, log: FakeLog) -> None:
    end = bench.write(log)
    await bench.durable(log, end)
    assert log.high_watermark == end
    assert bench.advanced == [log]


async def test_appends_of_one_turn_share_a_sync(bench: Bench, log: FakeLog) -> None:
    waits = [bench.durable(log, bench.write(log)) for _ in range(50)]
    await asyncio.gather(*waits)
    assert log.syncs == 1


async def test_appends_during_a_sync_share_the_next_one(bench: Bench, log: FakeLog) -> None:
    first = await bench.begin(log)
    later = [bench.durable(log, bench.write(log)) for _ in range(10)]
    log.gate.set()
    await asyncio.gather(first, *later)
    assert log.syncs == 2


async def test_the_next_sync_has_begun_when_the_requests_of_one_are_released(
    bench: Bench, log: FakeLog
) -> None:
    busy: list[bool] = []
    first = bench.write(log)
    bench.call(log, first, lambda _: busy.append(bench.flusher._runner.is_busy))
    await bench.begin(log)
    second = bench.durable(log, bench.write(log))
    log.gate.set()
    await second
    assert busy == [True]


async def test_a_waiter_for_data_appended_during_a_sync_is_not_released_by_it(
    bench: Bench, log: FakeLog
) -> None:
    first = await bench.begin(log)
    released: list[int] = []
    end = bench.write(log)
    bench.call(log, end, lambda _: released.append(log.high_watermark))
    second = bench.durable(log, end)
    log.gate.set()
    await asyncio.gather(first, second)
    assert released == [2]


async def test_writes_to_several_logs_wait_for_all_of_them(bench: Bench) -> None:
    logs = [FakeLog(f"t{i}") for i in range(9)]
    logs[4].gate.clear()
    pending = PendingWrites([(0, -1, 0)] * 9)
    pending.remaining = 9
    bench.call_each(
        *((log, bench.write(log), partial(pending.count, (at,))) for at, log in enumerate(logs))
    )
    # The other threads continue while one disk is slow.
    await until(lambda: sum(log.syncs for log in logs) >= 6)
    assert pending.remaining >= 1
    logs[4].gate.set()
    assert await pending == [(0, -1, 0)] * 9
    assert all(log.syncs == 1 for log in logs)


async def test_without_a_waiter_data_is_synced_after_the_interval(log: FakeLog) -> None:
    with closing(Bench(interval_ms=5)) as bench:
        bench.write(log)
        await until(lambda: bool(bench.advanced))
        assert log.high_watermark == 1
        assert log.is_awaited is False


async def test_a_sync_knows_whether_a_request_waits_for_it(bench: Bench, log: FakeLog) -> None:
    await bench.durable(log, bench.write(log))
    assert log.is_awaited is True
    bench.write(log)
    await bench.flusher.drain()
    assert log.is_awaited is False


async def test_a_request_starts_a_sync_without_waiters(bench: Bench, log: FakeLog) -> None:
    bench.write(log)
    bench.flusher.request(cast(PartitionLog, log))
    await until(lambda: bool(bench.advanced))
    assert log.syncs == 1


async def test_drain_returns_when_nothing_is_dirty(bench: Bench) -> None:
    logs = [FakeLog(f"t{i}") for i in range(20)]
    for log in logs:
        bench.write(log, 3)
    await bench.flusher.drain()
    assert all(log.high_watermark == 3 for log in logs)


async def test_a_failed_sync_fails_every_waiter_and_reports_once(bench: Bench) -> None:
    bad, good = FakeLog("bad"), FakeLog("good")
    bad.error = SyncFailedError("the disk is gone")
    good.gate.clear()
    waits = [bench.durable(bad, bench.write(bad)), bench.durable(good, bench.write(good))]
    results = await asyncio.gather(*waits, return_exceptions=True)
    good.gate.set()
    assert all(isinstance(result, SyncFailedError) for result in results)
    assert bench.failures == [bad.error]
    with pytest.raises(SyncFailedError):
        await bench.durable(good, bench.write(good))
    assert len(bench.failures) == 1


async def test_a_deleted_log_releases_its_waiters_with_an_error(bench: Bench, log: FakeLog) -> None:
    wait = await bench.begin(log)
    bench.flusher.forget(cast(PartitionLog, log))
    log.gate.set()
    with pytest.raises(StorageError, match="deleted"):
        await wait


async def test_close_fails_waiters_with_a_stopping_error(bench: Bench, log: FakeLog) -> None:
    wait = bench.durable(log, bench.write(log))
    bench.flusher.close()
    with pytest.raises(BrokerStoppingError):
        await wait


async def test_an_exception_in_a_callback_is_reported_and_leaves_no_log_unsynced(
    bench: Bench,
) -> None:
    first, second = FakeLog("first"), FakeLog("second")
    bench.call(first, bench.write(first), faulty)
    with pytest.raises(SyncFailedError, match="a bug"):
        await bench.durable(second, bench.write(second))
    assert len(bench.failures) == 1
    with pytest.raises(SyncFailedError):
        await bench.flusher.drain()


def faulty(error: Exception | None) -> None:
    if error is None:
        raise ValueError("a bug")


@pytest.mark.parametrize("method", ["begin_sync", "finish_sync"])
async def test_a_step_without_memory_leaves_no_request_waiting(
    bench: Bench, log: FakeLog, method: str
) -> None:
    def exhausted(*args: object, **options: object) -> None:
        raise MemoryError

    setattr(log, method, exhausted)
    with pytest.raises(SyncFailedError, match="MemoryError"):
        await asyncio.wait_for(bench.durable(log, bench.write(log)), 60)
    assert len(bench.failures) == 1


async def test_a_waiter_is_called_once_if_one_before_it_fails_the_flusher(
    bench: Bench, log: FakeLog
) -> None:
    calls: list[Exception | None] = []
    end = bench.write(log)
    bench.call(log, end, faulty)
    bench.call(log, end, calls.append)
    await until(lambda: bool(bench.failures))
    assert calls == bench.failures


async def test_a_waiter_is_called_once_if_one_before_it_deletes_the_log(
    bench: Bench, log: FakeLog
) -> None:
    calls: list[Exception | None] = []
    end = bench.write(log)
    bench.call(log, end, lambda _: bench.flusher.forget(cast(PartitionLog, log)))
    bench.call(log, end, calls.append)
    await until(lambda: bool(calls))
    (error,) = calls
    assert isinstance(error, StorageError)


async def test_many_logs_that_a_run_wrote_to_are_awaited_with_one_call(bench: Bench) -> None:
    logs = [FakeLog(str(number)) for number in range(3)]
    called: list[tuple[int, Exception | None]] = []
    bench.write(logs[1])  # known to be dirty before
    awaited: list[tuple[FakeLog, int, Done]] = []
    for number in (0, 1, 2, 0):
        logs[number].log_end_offset += 1
        done = partial(lambda at, error: called.append((at, error)), number)
        awaited.append((logs[number], logs[number].log_end_offset, done))
    bench.call_each(*awaited)
    assert called == []
    await until(lambda: len(called) == 4)
    assert sorted(number for number, _ in called) == [0, 0, 1, 2]
    assert {error for _, error in called} == {None}
    assert all(log.high_watermark == log.log_end_offset for log in logs)
    await bench.flusher.drain()


async def test_logs_that_are_awaited_after_a_failure_get_it(bench: Bench, log: FakeLog) -> None:
    later = FakeLog("later")
    log.error = StorageError("the disk is gone")
    with pytest.raises(StorageError):
        await bench.durable(log, bench.write(log))
    later.log_end_offset = 1
    error: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    bench.call_each((later, 1, error.set_result))
    assert await error == bench.failures[0]


async def test_what_is_written_while_the_flusher_drains_is_synced_too(bench: Bench) -> None:
    first, second = FakeLog("first"), FakeLog("second")
    first.gate.clear()
    bench.write(first)
    drains = [asyncio.ensure_future(bench.flusher.drain()) for _ in range(2)]
    await asyncio.sleep(0)
    end = bench.write(second)
    waits = bench.durable(second, end)
    first.gate.set()
    await asyncio.gather(*drains)
    assert (first.high_watermark, second.high_watermark) == (1, end)
    await waits
    await bench.flusher.drain()  # nothing is left


async def test_a_sync_whose_file_can_not_be_opened_is_retried_and_stops_nothing(
    bench: Bench,
) -> None:
    full, other = FakeLog("full"), FakeLog("other")
    full.error = TooManyOpenFilesError("too many open files")
    waits = [bench.durable(log, bench.write(log)) for log in (other, full)]
    with capture_logs() as logs:
        await waits[0]
        await until(lambda: full.withdrawn > 0)
    assert not waits[1].done()
    assert logs[0]["event"] == "sync.retried"
    full.error = None
    await waits[1]
    assert (full.high_watermark, bench.failures) == (1, [])
