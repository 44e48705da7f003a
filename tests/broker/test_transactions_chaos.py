"""Many producers that take ids over from each other, on a disk that fills up, until the power goes.

The model is a few lines: what was answered as committed is seen, what was answered as aborted is
not, nothing is seen in part or twice.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.broker.transactional import (
    V1,
    V2,
    Producer,
    committed,
    cut_power,
    read,
    run,
    start,
    until,
)
from tests.support.faultyfs import FaultyFileSystem
from tidemill.broker.api import CommittedOffset, NewTopic
from tidemill.broker.broker import Broker
from tidemill.errors import TidemillError

PARTITIONS = 4
IDS = 3
WORKERS = 6


class Chaos:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fs = FaultyFileSystem()
        self.numbers = iter(range(1, 1_000_000))
        self.answers: dict[int, bool] = {}
        """Transaction -> whether it was answered as committed."""
        self.places: dict[int, list[int]] = {}
        """Transaction -> partitions that it has written to, all acknowledged."""

    async def work(self, broker: Broker, worker: int) -> None:
        while True:
            version = self.random.choice((V1, V2))
            timeout_ms = self.random.choice((5, 60_000))
            producer = Producer(broker, f"{worker % IDS}", version, timeout_ms)
            try:
                await producer.init()
                for _ in range(self.random.randrange(1, 5)):
                    await self.transaction(producer)
            except TidemillError:
                await asyncio.sleep(0)

    async def transaction(self, producer: Producer) -> None:
        number = next(self.numbers)
        places = self.random.sample(range(PARTITIONS), self.random.randrange(1, PARTITIONS + 1))
        for partition in places:
            await producer.send("t", b"%d" % number, partition=partition)
            await asyncio.sleep(self.random.choice((0, 0, 0.01)))
        await producer.commit_offset(f"g{producer.transactional_id}", "t", number)
        self.places[number] = places
        commit = self.random.random() < 0.7
        try:
            await producer.end(commit)
        except TidemillError:
            return  # nobody knows
        self.answers[number] = commit

    async def spoil(self) -> None:
        """Now and then a file takes no more, for a while."""
        while True:
            await asyncio.sleep(self.random.random() / 50)
            name = self.random.choice(("t-0", "t-2", "__transaction_state-0", "__consumer_offsets"))
            self.fs.fail("write", 28, times=self.random.randrange(1, 4), path=f"/{name}")

    async def disturb(self, broker: Broker) -> None:
        tasks = [asyncio.ensure_future(self.work(broker, number)) for number in range(WORKERS)]
        tasks.append(asyncio.ensure_future(self.spoil()))
        await asyncio.wait(tasks, timeout=0.3)
        for task in tasks:
            task.cancel()
        await cut_power(broker, self.fs, self.random)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in ended} <= {asyncio.CancelledError}

    async def check(self, broker: Broker) -> None:
        for number in range(IDS):  # whatever is open is aborted, whatever was decided is finished
            await Producer(broker, f"{number}").init()
        seen = [await committed(broker, "t", number) for number in range(PARTITIONS)]
        found: dict[int, list[int]] = {}
        for partition, values in enumerate(seen):
            assert len(set(values)) == len(values)
            for value in values:
                found.setdefault(int(value), []).append(partition)
        for number, commit in self.answers.items():
            assert sorted(found.get(number, [])) == (sorted(self.places[number]) if commit else [])
        for number, places in found.items():
            assert places == sorted(self.places[number])
        for number in range(IDS):
            offset = broker.fetch_offsets(f"g{number}", None).get(("t", 0))
            assert offset is None or (
                isinstance(offset, CommittedOffset) and offset.offset in found
            )
        for number in range(PARTITIONS):
            result = await read(broker, "t", number)
            assert result.last_stable_offset == result.high_watermark


@pytest.mark.parametrize("seed", range(4))
def test_each_transaction_is_whole_or_absent_whatever_happens(seed: int) -> None:
    async def test() -> None:
        chaos = Chaos(seed)
        broker = await start(chaos.fs)
        await broker.create_topics([NewTopic("t", PARTITIONS)])
        rounds = 0
        while rounds < 3 or not chaos.answers:  # on a busy machine a round may be over too early
            rounds += 1
            await chaos.disturb(broker)
            broker = await start(chaos.fs)
            await until_done(broker)
            await chaos.check(broker)
        await broker.stop()

    run(test())


async def until_done(broker: Broker) -> None:
    async def done() -> bool:
        return not broker._transactions.machine.all_unfinished()

    await until(done)
