"""What becomes part of a transaction while its commit waits for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import pytest

from tests.broker.transactional import (
    Producer,
    committed,
    cut_power,
    error_of,
    run,
    running,
    start,
)
from tests.support.faultyfs import FaultyFileSystem, Unlucky
from tidemill.broker.api import Acks, NewTopic, TransactionState, TransactionVersion
from tidemill.broker.broker import Broker
from tidemill.broker.markers import Markers
from tidemill.errors import ConcurrentTransactionsError, TidemillError
from tidemill.log.names import TopicPartition
from tidemill.log.partition import PartitionLog
from tidemill.state.outcome import Outcome
from tidemill.state.types import ProducerIdentity

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
LAZY = {"sync_interval_ms": 3_600_000}
"""Nothing is synced for which nobody waits."""

Wanted = Collection[tuple[PartitionLog, int]]
Meanwhile = Callable[[Broker, Producer], Awaitable[None]]


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
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(monkeypatch)


async def begin(broker: Broker, version: TransactionVersion = V2) -> Producer:
    """A transaction with a record in ``a`` that is not on disk yet."""
    await broker.create_topics([NewTopic(name, 1) for name in ("a", "b", "in")])
    producer = await Producer(broker, version=version).init()
    await producer.send("a", b"first", acks=Acks.WRITTEN)
    return producer


def unsynced(broker: Broker, producer: Producer) -> list[str]:
    """Where the producer has written what a power cut may take."""
    return [
        tp.topic
        for tp, log in broker._store.partitions.items()
        if log.last_offset_of(producer.identity.producer_id) >= log.high_watermark
    ]


async def a_new_partition(broker: Broker, producer: Producer) -> None:
    await producer.send("b", b"late", acks=Acks.WRITTEN)


async def the_same_partition(broker: Broker, producer: Producer) -> None:
    assert (await producer.try_send("a", b"late", acks=Acks.WRITTEN)).error is None


async def an_offset(broker: Broker, producer: Producer) -> None:
    commit = asyncio.ensure_future(producer.commit_offset("g", "in", 1))
    log = broker._store.partitions[TopicPartition("__consumer_offsets", 0)]
    while not log.open_transactions():
        await asyncio.sleep(0)
    commit.cancel()


async def a_partition_made_anew(broker: Broker, producer: Producer) -> None:
    await broker.delete_topics(["a"])
    await broker.create_topics([NewTopic("a", 1)])
    producer.sequences.clear()
    await producer.send("a", b"late", acks=Acks.WRITTEN)


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
def test_a_commit_is_decided_when_all_that_was_written_is_on_disk(
    waiting: Waiting,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Meanwhile,
    version: TransactionVersion,
) -> None:
    async def test() -> None:
        async with running(log=LAZY) as broker:
            producer = await begin(broker, version)
            waiting.meanwhile = lambda: meanwhile(broker, producer)
            machine = broker._transactions.machine
            end = machine.end
            seen: list[list[str]] = []

            def decide(*arguments: object) -> Outcome[ProducerIdentity]:
                seen.append(unsynced(broker, producer))
                return end(*arguments)  # type: ignore[arg-type]

            monkeypatch.setattr(machine, "end", decide)
            assert unsynced(broker, producer) == ["a"]
            await producer.commit()
            assert waiting.times == 0
            assert seen == [[]]

    run(test())


def test_a_power_cut_behind_the_decision_takes_nothing_that_joined_late(waiting: Waiting) -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        broker = await start(fs, log=LAZY)
        producer = await begin(broker)
        waiting.meanwhile = lambda: a_new_partition(broker, producer)
        decisions = broker._store.partitions[TopicPartition("__transaction_state", 0)]
        end = asyncio.ensure_future(producer.commit())
        while (
            broker.describe_transaction("x").state is not TransactionState.PREPARE_COMMIT
            or decisions.high_watermark < decisions.log_end_offset
        ):
            await asyncio.sleep(0)
        await cut_power(broker, fs, Unlucky())
        await asyncio.gather(end, return_exceptions=True)
        async with running(fs) as again:
            while again._transactions.machine.all_unfinished():
                await asyncio.sleep(0)
            assert await committed(again, "a") == [b"first"]
            assert await committed(again, "b") == [b"late"]

    run(test())


def test_a_producer_that_goes_on_writing_does_not_hold_its_commit_for_ever(
    waiting: Waiting,
) -> None:
    async def test() -> None:
        async with running(log=LAZY) as broker:
            producer = await begin(broker)
            waiting.times = 1_000_000
            waiting.meanwhile = lambda: the_same_partition(broker, producer)
            assert await error_of(producer.commit()) is ConcurrentTransactionsError
            assert broker.describe_transaction("x").state is TransactionState.ONGOING
            waiting.times = 0
            await producer.commit()
            records = await committed(broker, "a")
            assert records[0] == b"first"
            assert len(records) > 1

    run(test())
