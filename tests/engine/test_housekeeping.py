"""Background work: a partition that fails does not stop the others, and slices are short."""

from __future__ import annotations

import asyncio
import threading
from typing import cast
from uuid import UUID

import pytest

from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import open_store, write
from tidemill.clock import ManualClock
from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.engine.housekeeping import Housekeeping
from tidemill.engine.records.slices import SLICE_MS, Slices
from tidemill.engine.transactions.coordinator import TransactionCoordinator
from tidemill.engine.waiters import Waiters
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import StorageError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.settings import Settings
from tidemill.state.errors import CoordinatorNotAvailableError

HOUR = 3_600_000


class Coordination:
    def __init__(self) -> None:
        self.fails = False

    async def expire_offsets(self) -> None:
        if self.fails:
            raise CoordinatorNotAvailableError("no space left")


class Transactions:
    def __init__(self) -> None:
        self.expired = 0

    def expire_ids(self) -> None:
        self.expired += 1


class SlowMachine(ManualClock):
    """Whatever is done takes longer than a slice."""

    def monotonic_ms(self) -> int:
        self.advance(SLICE_MS)
        return super().monotonic_ms()


class Bench:
    def __init__(self) -> None:
        self.clock = SlowMachine()
        self.fs = FaultyFileSystem()
        self.store = open_store("/data", self.clock, self.fs)
        self.coordination = Coordination()
        self.transactions = Transactions()
        self.failures: list[StorageError] = []
        self.work = Housekeeping(
            self.store,
            cast(GroupCoordinator, self.coordination),
            cast(TransactionCoordinator, self.transactions),
            Waiters(),
            Slices(),
            self.do_nothing,
            Settings(),
            self.clock,
            self.failures.append,
            lambda: None,
            self.do_nothing,
        )

    async def do_nothing(self) -> None:
        """Stands for other work."""

    def log(self, number: int, **configs: str) -> PartitionLog:
        parsed = parse_config({name.replace("_", "."): each for name, each in configs.items()})
        return self.store.create(TopicPartition("t", number), parsed, UUID(int=number + 1))

    def written(self, number: int, producer: tuple[int, int, int] = (-1, -1, -1)) -> PartitionLog:
        """Return a new partition with a record."""
        log = self.log(number)
        write(log, [(b"k", b"v")], self.clock.now_ms(), producer=producer)
        return log


@pytest.fixture
def bench() -> Bench:
    return Bench()


def expired(bench: Bench, number: int) -> PartitionLog:
    log = bench.log(number, retention_ms="1000", internal_segment_bytes="300")
    for _ in range(4):
        write(log, [(b"k", bytes(100))], bench.clock.now_ms())
    return log


async def test_retention_continues_after_a_partition_that_fails(bench: Bench) -> None:
    stuck, fine = expired(bench, 0), expired(bench, 1)
    bench.clock.advance(HOUR)
    bench.fs.fail("rename", times=-1, path="t-0")
    await bench.work.retain()
    assert stuck.log_start_offset == 0
    assert fine.log_start_offset > 0


async def test_retention_skips_offline_partitions(bench: Bench) -> None:
    log = expired(bench, 0)
    bench.clock.advance(HOUR)
    log.go_offline(StorageError("broken"))
    await bench.work.retain()
    assert log.log_start_offset == 0


async def test_a_partition_deleted_during_a_round_is_skipped(bench: Bench) -> None:
    expired(bench, 0)
    log = expired(bench, 1)
    bench.clock.advance(HOUR)
    round_ = asyncio.ensure_future(bench.work.retain())
    await asyncio.sleep(0)
    bench.store.delete(log.tp)
    await round_
    assert log.log_start_offset == 0


async def test_compaction_continues_after_a_partition_that_fails(bench: Bench) -> None:
    configs = {
        "cleanup_policy": "compact",
        "internal_segment_bytes": "300",
        "min_cleanable_dirty_ratio": "0.01",
        "max_compaction_lag_ms": "60000",
    }
    sick, fine = bench.log(0, **configs), bench.log(1, **configs)
    for log in (sick, fine):
        for _ in range(6):
            write(log, [(b"k", bytes(100))], bench.clock.now_ms())
    bench.clock.advance(HOUR)
    for segment in sick.segments:
        segment.first_timestamp = None
    bench.fs.fail("read", times=-1, path="t-0")
    await bench.work.clean()
    assert fine.first_dirty_offset > 0


async def test_expiry_does_not_read_the_producers_of_idle_partitions(bench: Bench) -> None:
    bench.written(0, producer=(7, 0, 0))
    bench.store.close()
    bench.store = open_store("/data", bench.clock, bench.fs)
    bench.work._store = bench.store
    bench.fs.fail("read", times=-1)
    await bench.work.expire()


async def test_producers_expire_even_if_offsets_can_not(bench: Bench) -> None:
    log = bench.written(0, producer=(7, 0, 0))
    bench.clock.advance(48 * HOUR)
    bench.coordination.fails = True
    with pytest.raises(CoordinatorNotAvailableError):
        await bench.work.expire()
    assert len(log.producers) == 0
    assert bench.transactions.expired == 1


async def test_space_behind_idle_segments_is_released_in_a_thread(bench: Bench) -> None:
    logs = [bench.written(number) for number in range(3)]
    space = bench.store.environment.preallocation
    space._ends = {log.segments[-1]: 1 << 20 for log in logs}
    truncated: dict[str, threading.Thread] = {}

    def check(operation: str, path: str) -> None:
        if operation == "truncate":
            truncated[path] = threading.current_thread()

    bench.fs.check = check  # type: ignore[method-assign]
    await bench.work.release_preallocated()
    assert not truncated  # none was seen before
    await bench.work.release_preallocated()
    assert list(truncated) == [log.segments[-1].path() for log in logs]
    assert threading.main_thread() not in truncated.values()
    assert not any(space.forget(log.segments[-1]) for log in logs)
    write(logs[0], [(b"k", b"v")], bench.clock.now_ms())


async def test_space_is_released_on_the_event_loop_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    log = bench.written(0)
    space = bench.store.environment.preallocation
    space._ends[log.segments[-1]] = 1 << 20
    await bench.work.release_preallocated()
    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", refuse)
    with pytest.raises(RuntimeError):
        await bench.work.release_preallocated()
    assert not space.forget(log.segments[-1])
    write(log, [(b"k", b"v")], bench.clock.now_ms())


async def test_checkpoints_of_many_partitions_are_taken_in_slices(bench: Bench) -> None:
    logs = [bench.written(number) for number in range(20)]
    await bench.work.checkpoint()
    turns = 0
    round_ = asyncio.ensure_future(bench.work.checkpoint())
    while not round_.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= len(logs)
    assert all(log.recovery_point == 1 for log in logs)


async def test_a_late_checkpoint_does_not_overwrite_a_newer_one(bench: Bench) -> None:
    log = bench.log(0)
    for _ in range(3):
        write(log, [(b"k", b"v")], bench.clock.now_ms())
    older = bench.store.checkpoint_writes()
    log.delete_records_before(2)
    bench.store.checkpoint_writes()()
    older()
    bench.fs.kill()
    again = open_store("/data", bench.clock, bench.fs)
    assert again.partitions[log.tp].log_start_offset == 2
