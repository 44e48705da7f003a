"""Group commit: who shares an fdatasync, who waits for which, and what a failure does."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from functools import partial
from typing import cast

import pytest
from structlog.testing import capture_logs

from tidemill.engine.api import PendingWrites
from tidemill.engine.errors import BrokerStoppingError
from tidemill.engine.flusher import Awaited, Flusher
from tidemill.log.errors import StorageError, SyncFailedError, TooManyOpenFilesError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.partition.sync import SyncTicket


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

    def close(self) -> None:
        self.flusher.close()


async def test_a_waiter_is_released_when_its_offset_is_synced() -> None:
    with closing(Bench()) as bench:
        log = FakeLog()
        end = bench.write(log)
        await bench.durable(log, end)
        assert log.high_watermark == end
        assert bench.advanced == [log]


async def test_appends_of_one_turn_share_a_sync() -> None:
    with closing(Bench()) as bench:
        log = FakeLog()
        waits = [bench.durable(log, bench.write(log)) for _ in range(50)]
        await asyncio.gather(*waits)
        assert log.syncs == 1


async def test_appends_during_a_sync_share_the_next_one() -> None:
    with closing(Bench()) as bench:
        log = FakeLog()
        log.gate.clear()
        first = bench.durable(log, bench.write(log))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        later = [bench.durable(log, bench.write(log)) for _ in range(10)]
        log.gate.set()
        await first
        await asyncio.gather(*later)
        assert log.syncs == 2


async def test_the_next_sync_has_begun_when_the_requests_of_one_are_released() -> None:
    with closing(Bench()) as bench:
        log = FakeLog()
        log.gate.clear()
        busy: list[bool] = []
        first = bench.write(log)
        bench.flusher.call_when_durable(
            cast(PartitionLog, log), first, lambda _: busy.append(bench.flusher._runner.is_busy)
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = bench.durable(log, bench.write(log))
        log.gate.set()
        await second
        assert busy == [True]


async def test_a_waiter_for_data_appended_during_a_sync_is_not_released_by_it() -> None:
    with closing(Bench()) as bench:
        log = FakeLog()
        log.gate.clear()
        first = bench.durable(log, bench.write(log))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        released: list[int] = []
        end = bench.write(log)
        bench.flusher.call_when_durable(
            cast(PartitionLog, log), end, lambda _: released.append(log.high_watermark)
        )
        second = bench.durable(log, end)
        log.gate.set()
        await first
        await second
        assert released == [2]


async def test_writes_to_several_logs_wait_for_all_of_them() -> None:
    with closing(Bench()) as bench:
        logs = [FakeLog(f"t{i}") for i in range(9)]
        logs[4].gate.clear()
        pending = PendingWrites([(0, -1, 0)] * 9)
        pending.remaining = 9
        bench.flusher.call_when_each_is_durable(
            [
                (cast(PartitionLog, log), bench.write(log), partial(pending.count, (place,)))
                for place, log in enumerate(logs)
            ]
        )
        # The other threads continue while one disk is slow.
        while sum(log.syncs for log in logs) < 6:
            await asyncio.sleep(0)
        assert pending.remaining >= 1
        logs[4].gate.set()
        assert await pending == [(0, -1, 0)] * 9
        assert all(log.syncs == 1 for log in logs)


async def test_without_a_waiter_data_is_synced_after_the_interval() -> None:
    with closing(Bench(interval_ms=5)) as bench:
        log = FakeLog()
        bench.write(log)
        while not bench.advanced:
            await asyncio.sleep(0.001)
        assert log.high_watermark == 1
        assert log.is_awaited is False


async def test_a_sync_knows_whether_a_request_waits_for_it() -> None:
    with closing(Bench()) as bench:
        log = FakeLog()
        await bench.durable(log, bench.write(log))
        assert log.is_awaited is True
        bench.write(log)
        await bench.flusher.drain()
        assert log.is_awaited is False


async def test_a_request_starts_a_sync_without_waiters() -> None:
    with closing(Bench()) as bench:
        log = FakeLog()
        bench.write(log)
        bench.flusher.request(cast(PartitionLog, log))
        while not bench.advanced:
            await asyncio.sleep(0.001)
        assert log.syncs == 1


async def test_drain_returns_when_nothing_is_dirty() -> None:
    with closing(Bench()) as bench:
        logs = [FakeLog(f"t{i}") for i in range(20)]
        for log in logs:
            bench.write(log, 3)
        await bench.flusher.drain()
        assert all(log.high_watermark == 3 for log in logs)


async def test_a_failed_sync_fails_every_waiter_and_reports_once() -> None:
    with closing(Bench()) as bench:
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


async def test_a_deleted_log_releases_its_waiters_with_an_error() -> None:
    with closing(Bench()) as bench:
        log = FakeLog()
        log.gate.clear()
        wait = bench.durable(log, bench.write(log))
        await asyncio.sleep(0)
        bench.flusher.forget(cast(PartitionLog, log))
        log.gate.set()
        with pytest.raises(StorageError, match="deleted"):
            await wait


async def test_close_fails_waiters_with_a_stopping_error() -> None:
    bench = Bench(60_000)
    log = FakeLog()
    wait = bench.durable(log, bench.write(log))
    bench.flusher.close()
    with pytest.raises(BrokerStoppingError):
        await wait


def test_begin_sync_returns_a_ticket() -> None:
    """The fake stands for ``SyncTicket``: it must offer what the flusher uses."""
    assert hasattr(SyncTicket, "run")
    assert "end_offset" in SyncTicket.__slots__


async def test_an_exception_in_a_callback_is_reported_and_leaves_no_log_unsynced() -> None:
    with closing(Bench()) as bench:
        first, second = FakeLog("first"), FakeLog("second")

        def faulty(error: Exception | None) -> None:
            if error is None:
                raise ValueError("a bug")

        bench.flusher.call_when_durable(cast(PartitionLog, first), bench.write(first), faulty)
        waits = bench.durable(second, bench.write(second))
        with pytest.raises(SyncFailedError, match="a bug"):
            await waits
        assert len(bench.failures) == 1
        with pytest.raises(SyncFailedError):
            await bench.flusher.drain()


@pytest.mark.parametrize("method", ["begin_sync", "finish_sync"])
async def test_a_step_without_memory_leaves_no_request_waiting(method: str) -> None:
    with closing(Bench()) as bench:
        log = FakeLog()

        def exhausted(*args: object, **options: object) -> None:
            raise MemoryError

        setattr(log, method, exhausted)
        with pytest.raises(SyncFailedError, match="MemoryError"):
            await asyncio.wait_for(bench.durable(log, bench.write(log)), 60)
        assert len(bench.failures) == 1


async def test_a_waiter_is_called_once_if_one_before_it_fails_the_flusher() -> None:
    with closing(Bench()) as bench:
        log = FakeLog()
        calls: list[Exception | None] = []

        def fail(error: Exception | None) -> None:
            if error is None:
                raise ValueError("a bug")

        end = bench.write(log)
        bench.flusher.call_when_durable(cast(PartitionLog, log), end, fail)
        bench.flusher.call_when_durable(cast(PartitionLog, log), end, calls.append)
        while not bench.failures:
            await asyncio.sleep(0)
        assert calls == bench.failures


async def test_a_waiter_is_called_once_if_one_before_it_deletes_the_log() -> None:
    with closing(Bench()) as bench:
        log = FakeLog()
        calls: list[Exception | None] = []
        deleted = asyncio.Event()

        def delete(_: Exception | None) -> None:
            bench.flusher.forget(cast(PartitionLog, log))
            deleted.set()

        end = bench.write(log)
        bench.flusher.call_when_durable(cast(PartitionLog, log), end, delete)
        bench.flusher.call_when_durable(cast(PartitionLog, log), end, calls.append)
        await deleted.wait()
        (error,) = calls
        assert isinstance(error, StorageError)


async def test_many_logs_that_a_run_wrote_to_are_awaited_with_one_call() -> None:
    with closing(Bench()) as bench:
        logs = [FakeLog(str(number)) for number in range(3)]
        called: list[tuple[int, Exception | None]] = []
        done = asyncio.Event()

        def note(number: int, error: Exception | None) -> None:
            called.append((number, error))
            if len(called) == 4:
                done.set()

        bench.write(logs[1])  # known to be dirty before
        awaited: list[Awaited] = []
        for number in (0, 1, 2, 0):
            logs[number].log_end_offset += 1
            log = cast(PartitionLog, logs[number])
            awaited.append((log, log.log_end_offset, partial(note, number)))
        bench.flusher.call_when_each_is_durable(awaited)
        assert called == []
        await done.wait()
        assert sorted(number for number, _ in called) == [0, 0, 1, 2]
        assert {error for _, error in called} == {None}
        assert all(log.high_watermark == log.log_end_offset for log in logs)
        await bench.flusher.drain()


async def test_logs_that_are_awaited_after_a_failure_get_it() -> None:
    with closing(Bench()) as bench:
        log, later = FakeLog(), FakeLog("later")
        log.error = StorageError("the disk is gone")
        with pytest.raises(StorageError):
            await bench.durable(log, bench.write(log))
        later.log_end_offset = 1
        error: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        awaited = (cast(PartitionLog, later), 1, error.set_result)
        bench.flusher.call_when_each_is_durable([awaited])
        assert await error == bench.failures[0]


async def test_what_is_written_while_the_flusher_drains_is_synced_too() -> None:
    with closing(Bench()) as bench:
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


async def test_a_sync_whose_file_can_not_be_opened_is_retried_and_stops_nothing() -> None:
    with closing(Bench()) as bench:
        full, other = FakeLog("full"), FakeLog("other")
        full.error = TooManyOpenFilesError("too many open files")
        waits = [bench.durable(log, bench.write(log)) for log in (other, full)]
        with capture_logs() as logs:
            await waits[0]
            async with asyncio.timeout(60):
                while not full.withdrawn:
                    await asyncio.sleep(0.001)
        assert not waits[1].done()
        assert logs[0]["event"] == "sync.retried"
        full.error = None
        await waits[1]
        assert (full.high_watermark, bench.failures) == (1, [])
