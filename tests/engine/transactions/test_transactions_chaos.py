"""Producers that fence each other, on a disk that fills up, until a power cut.

The model: a transaction that was answered as committed is visible, one that was answered as aborted
is not, and none is visible in part or twice.
"""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.engine.support import start
from tests.engine.transactions.support import V1, V2, Producer, committed, cut_power, read, settled
from tests.support.effort import rounds
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine.api import CommittedOffset, NewTopic
from tidemill.engine.engine import Engine
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

    async def work(self, engine: Engine, worker: int) -> None:
        while True:
            version = self.random.choice((V1, V2))
            timeout_ms = self.random.choice((5, 60_000))
            producer = Producer(engine, f"{worker % IDS}", version, timeout_ms)
            try:
                await producer.init()
                for _ in range(self.random.randrange(1, 5)):
                    await self.transaction(producer)
            except TidemillError:
                # Without a pause, two workers with the same id can fence each other for a minute.
                await asyncio.sleep(self.random.choice((0, self.random.random() / 10)))

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
            return  # the outcome is unknown
        self.answers[number] = commit

    async def fill_disk(self) -> None:
        """Let the writes to a file fail now and then, after the first transaction has an outcome.

        A failed partition can stay failed for the rest of a round. On a busy machine no transaction
        would end before that.
        """
        while not self.answers:
            await asyncio.sleep(0.001)
        while True:
            await asyncio.sleep(self.random.random() / 50)
            name = self.random.choice(("t-0", "t-2", "__transaction_state-0", "__consumer_offsets"))
            self.fs.fail("write", 28, times=self.random.randrange(1, 4), path=f"/{name}")

    async def disturb(self, engine: Engine) -> None:
        tasks = [asyncio.ensure_future(self.work(engine, number)) for number in range(WORKERS)]
        tasks.append(asyncio.ensure_future(self.fill_disk()))
        await asyncio.wait(tasks, timeout=0.3)
        deadline = time.monotonic() + 60
        while not self.answers and time.monotonic() < deadline:  # on a busy machine
            await asyncio.wait(tasks, timeout=0.05)
        for task in tasks:
            task.cancel()
        await cut_power(engine, self.fs, self.random)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in ended} <= {asyncio.CancelledError}

    async def check(self, engine: Engine) -> None:
        for number in range(IDS):  # whatever is open is aborted, whatever was decided is finished
            await Producer(engine, f"{number}").init()
        seen = [await committed(engine, "t", number) for number in range(PARTITIONS)]
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
            offset = engine.groups.committed(f"g{number}", None).get(("t", 0))
            assert offset is None or (
                isinstance(offset, CommittedOffset) and offset.offset in found
            )
        for number in range(PARTITIONS):
            result = await read(engine, "t", number)
            assert result.last_stable_offset == result.high_watermark


@pytest.mark.parametrize("seed", range(rounds("TRANSACTION_CHAOS", 2, 40)))
async def test_each_transaction_is_complete_or_absent_under_random_faults(seed: int) -> None:
    chaos = Chaos(seed)
    engine = await start(fs=chaos.fs)
    await engine.topics.create([NewTopic("t", PARTITIONS)])
    for _ in range(3):
        await chaos.disturb(engine)
        engine = await start(fs=chaos.fs)
        await settled(engine)
        await chaos.check(engine)
    await engine.stop()
    assert chaos.answers
