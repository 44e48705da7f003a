"""Produce and lookups, with a disk that syncs when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast
from uuid import UUID

from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import TP, open_store, write
from tidemill.broker.api import Acks, Isolation, PartitionWrite, WriteResult
from tidemill.broker.data import DataPlane
from tidemill.broker.flusher import Countdown, Flusher
from tidemill.broker.waiters import Waiters
from tidemill.clock import ManualClock
from tidemill.log.config import LogConfig
from tidemill.log.partition import PartitionLog
from tidemill.log.records import NewRecord, encode_batch


class HeldDisk:
    """Stands for the flusher: nothing is durable before ``sync``."""

    def __init__(self) -> None:
        self.waiting: list[tuple[PartitionLog, Countdown]] = []

    def written(self, log: PartitionLog) -> None:
        pass

    def request(self, log: PartitionLog) -> None:
        pass

    def countdown(self) -> Countdown:
        return Countdown(asyncio.get_running_loop())

    def wait(self, log: PartitionLog, offset: int, countdown: Countdown) -> None:
        countdown.remaining += 1
        self.waiting.append((log, countdown))

    def sync(self) -> None:
        waiting, self.waiting = self.waiting, []
        for log, countdown in waiting:
            log.flush()
            countdown.hit()


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = HeldDisk()
        store = open_store("/data", self.clock, FaultyFileSystem())
        self.log = store.create(TP, LogConfig.parse({}), UUID(int=1))
        self.data = DataPlane(
            store, cast(Flusher, self.disk), Waiters(), self.clock, fetch_bytes=1 << 20
        )

    def produce(
        self, acks: Acks, sequence: int
    ) -> list[WriteResult] | Awaitable[list[WriteResult]]:
        batch = encode_batch(
            [NewRecord(b"k", b"v")],
            timestamp_ms=self.clock.now_ms(),
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
        )
        return self.data.produce([PartitionWrite(*TP, memoryview(batch))], acks)


def run(test: Callable[[Bench], Awaitable[None]]) -> None:
    async def body() -> None:
        await asyncio.wait_for(test(Bench()), 20)

    asyncio.run(body())


def test_a_repetition_is_not_acknowledged_before_its_first_copy_is_durable() -> None:
    async def test(bench: Bench) -> None:
        assert isinstance(bench.produce(Acks.WRITTEN, 0), list)
        answer = bench.produce(Acks.DURABLE, 0)
        assert not isinstance(answer, list)
        repeated = asyncio.ensure_future(answer)
        await asyncio.sleep(0)
        assert not repeated.done()
        bench.disk.sync()
        (result,) = await repeated
        assert (result.base_offset, result.error) == (0, None)
        assert bench.log.log_end_offset == 1
        assert isinstance(bench.produce(Acks.DURABLE, 0), list)  # it is on disk: no wait

    run(test)


def test_lookups_by_time_in_many_partitions_leave_the_loop_to_others() -> None:
    async def test(bench: Bench) -> None:
        write(bench.log, [(b"k", b"v")], bench.clock.now_ms())

        async def lookups() -> None:
            for _ in range(50):
                found = await bench.data.list_offset(*TP, 0, Isolation.READ_UNCOMMITTED)
                assert found.offset == 0

        task, turns = asyncio.ensure_future(lookups()), 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 50

    run(test)
