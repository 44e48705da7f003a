"""Writes that become part of a transaction while its commit waits for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator

import pytest

from tests.engine.support import entered, running, start
from tests.engine.transactions.support import Producer, committed, cut_power, error_of, settled
from tests.support.faultyfs import FaultyFileSystem, Unlucky
from tidemill.engine.api import Durability, NewTopic, TransactionState, TransactionVersion
from tidemill.engine.engine import Engine
from tidemill.engine.transactions.markers import Markers
from tidemill.errors import TidemillError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.errors import ConcurrentTransactionsError
from tidemill.state.outcome import Outcome
from tidemill.state.types import ProducerIdentity

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
LAZY = {"sync_interval_ms": 3_600_000}
"""Data is synced only when a request waits for it."""

Wanted = Collection[tuple[PartitionLog, int]]
Meanwhile = Callable[[Engine, Producer], Awaitable[None]]


class Waiting:
    """Does something at the end of each wait of a commit for the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 1
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        durable = Markers._durable

        async def interrupted(
            markers: Markers, wanted: Wanted
        ) -> dict[TopicPartition, TidemillError]:
            failed = await durable(markers, wanted)
            if wanted and self.meanwhile is not None and self.times:
                self.times -= 1
                await self.meanwhile()
            return failed

        monkeypatch.setattr(Markers, "_durable", interrupted)


@pytest.fixture
def engine(loop_runner: asyncio.Runner, fs: FaultyFileSystem) -> Iterator[Engine]:
    yield from entered(loop_runner, running(fs=fs, log=LAZY))


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(monkeypatch)


async def begin(engine: Engine, version: TransactionVersion = V2) -> Producer:
    """A transaction with a record in ``a`` that is not on disk yet."""
    await engine.topics.create([NewTopic(name, 1) for name in ("a", "b", "in")])
    producer = await Producer(engine, version=version).init()
    await producer.send("a", b"first", acks=Durability.WRITTEN)
    return producer


def unsynced(engine: Engine, producer: Producer) -> list[str]:
    """Return the topics with unsynced writes of the producer."""
    return [
        tp.topic
        for tp, log in engine._store.partitions.items()
        if log.last_offset_of(producer.identity.producer_id) >= log.high_watermark
    ]


async def a_new_partition(engine: Engine, producer: Producer) -> None:
    await producer.send("b", b"late", acks=Durability.WRITTEN)


async def the_same_partition(engine: Engine, producer: Producer) -> None:
    assert isinstance(await producer.try_send("a", b"late", acks=Durability.WRITTEN), tuple)


async def an_offset(engine: Engine, producer: Producer) -> None:
    commit = asyncio.ensure_future(producer.commit_offset("g", "in", 1))
    log = engine._store.partitions[TopicPartition("__consumer_offsets", 0)]
    while not log.open_transactions():
        await asyncio.sleep(0)
    commit.cancel()


async def a_partition_made_anew(engine: Engine, producer: Producer) -> None:
    await engine.topics.delete(["a"])
    await engine.topics.create([NewTopic("a", 1)])
    producer.sequences.clear()
    await producer.send("a", b"late", acks=Durability.WRITTEN)


@pytest.mark.parametrize(
    ("meanwhile", "version"),
    [
        (a_new_partition, V2),
        (the_same_partition, V1),
        (the_same_partition, V2),
        (an_offset, V2),
        (a_partition_made_anew, V2),
    ],
)
async def test_a_commit_is_decided_after_all_writes_are_on_disk(
    waiting: Waiting,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Meanwhile,
    version: TransactionVersion,
    engine: Engine,
) -> None:
    producer = await begin(engine, version)
    waiting.meanwhile = lambda: meanwhile(engine, producer)
    machine = engine._transaction_coordinator.machine
    end = machine.end
    seen: list[list[str]] = []

    def decide(*arguments: object) -> Outcome[ProducerIdentity]:
        seen.append(unsynced(engine, producer))
        return end(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(machine, "end", decide)
    assert unsynced(engine, producer) == ["a"]
    await producer.commit()
    assert waiting.times == 0
    assert seen == [[]]


async def test_a_power_cut_after_the_decision_loses_no_late_write(
    fs: FaultyFileSystem, waiting: Waiting
) -> None:
    engine = await start(fs=fs, log=LAZY)
    producer = await begin(engine)
    waiting.meanwhile = lambda: a_new_partition(engine, producer)
    decisions = engine._store.partitions[TopicPartition("__transaction_state", 0)]
    end = asyncio.ensure_future(producer.commit())
    while (
        engine.transactions.describe("x").state is not TransactionState.PREPARE_COMMIT
        or decisions.high_watermark < decisions.log_end_offset
    ):
        await asyncio.sleep(0)
    await cut_power(engine, fs, Unlucky())
    await asyncio.gather(end, return_exceptions=True)
    async with running(fs=fs) as again:
        await settled(again)
        assert await committed(again, "a") == [b"first"]
        assert await committed(again, "b") == [b"late"]


async def test_a_commit_fails_if_the_producer_keeps_writing(
    waiting: Waiting, engine: Engine
) -> None:
    producer = await begin(engine)
    waiting.times = 1_000_000
    waiting.meanwhile = lambda: the_same_partition(engine, producer)
    assert await error_of(producer.commit()) is ConcurrentTransactionsError
    assert engine.transactions.describe("x").state is TransactionState.ONGOING
    waiting.times = 0
    await producer.commit()
    records = await committed(engine, "a")
    assert records[0] == b"first"
    assert len(records) > 1
