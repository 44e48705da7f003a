"""aiokafka: transactions, in the oldest versions (0) of all their requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from tests.interop.common import DEADLINE
from tests.interop.conftest import MakeTopic
from tests.interop.test_aiokafka import consumer, send_numbers, take, values

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


@asynccontextmanager
async def transactional(
    bootstrap: str, name: str, **config: Any
) -> AsyncIterator[AIOKafkaProducer]:
    """A producer that has fenced whoever had its name."""
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, **config)
    await client.start()
    try:
        yield client
    finally:
        # A fenced one says so again when it is stopped.
        with suppress(KafkaError):
            await client.stop()


async def write(client: AIOKafkaProducer, topic: str, numbers: range, partition: int = 0) -> None:
    sent = [await client.send(topic, b"%d" % n, partition=partition) for n in numbers]
    await asyncio.wait_for(asyncio.gather(*sent), DEADLINE)


async def end(client: AIOKafkaProducer, commit: bool) -> None:
    """Commit the open transaction, or abort it."""
    await (client.commit_transaction() if commit else client.abort_transaction())


async def transact(
    client: AIOKafkaProducer, topic: str, numbers: range, commit: bool = True
) -> None:
    """Write numbers in a transaction of their own."""
    await client.begin_transaction()
    await write(client, topic, numbers)
    await end(client, commit)


async def read(
    bootstrap: str, topic: str, isolation: str, count: int, partition: int = 0
) -> list[int]:
    async with consumer(bootstrap, isolation_level=isolation) as client:
        client.assign([TopicPartition(topic, partition)])
        return values(await take(client, count))


async def end_of(client: AIOKafkaConsumer, topic: str) -> int:
    tp = TopicPartition(topic, 0)
    return int((await client.end_offsets([tp]))[tp])


async def stable_end_is(bootstrap: str, topic: str, offset: int) -> None:
    """Wait until readers of committed records may read up to ``offset``."""
    async with consumer(bootstrap, isolation_level=COMMITTED) as client:
        async with asyncio.timeout(DEADLINE):
            while await end_of(client, topic) != offset:
                await asyncio.sleep(0.05)


async def test_committed_is_read_and_aborted_is_not(
    bootstrap: str, txn_id: str, topic: str
) -> None:
    async with transactional(bootstrap, txn_id) as client:
        for start, commit in ((0, True), (100, False), (200, True)):
            await transact(client, topic, range(start, start + 10), commit)
    wanted = [*range(10), *range(200, 210)]
    assert await read(bootstrap, topic, COMMITTED, 20) == wanted
    everything = [*range(10), *range(100, 110), *range(200, 210)]
    assert await read(bootstrap, topic, UNCOMMITTED, 30) == everything


async def test_open_transaction_holds_readers_of_committed_records_back(
    bootstrap: str, txn_id: str, topic: str
) -> None:
    async with transactional(bootstrap, txn_id) as client:
        await client.begin_transaction()
        await write(client, topic, range(5))
        await send_numbers(bootstrap, topic, range(100, 105))
        assert len(await read(bootstrap, topic, UNCOMMITTED, 10)) == 10
        async with consumer(bootstrap, isolation_level=COMMITTED) as reader:
            reader.assign([TopicPartition(topic, 0)])
            assert await end_of(reader, topic) == 0
            assert not await reader.getmany(timeout_ms=500)
            await client.commit_transaction()
            assert values(await take(reader, 10)) == [*range(5), *range(100, 105)]


async def test_large_transaction_over_several_partitions_is_whole(
    bootstrap: str, make_topic: MakeTopic, txn_id: str
) -> None:
    topic = make_topic(partitions=4)
    async with transactional(bootstrap, txn_id, max_batch_size=2000) as client:
        for start, commit in ((10_000, False), (0, True)):
            await client.begin_transaction()
            writes = [
                write(client, topic, range(start, start + 1000), partition)
                for partition in range(4)
            ]
            await asyncio.gather(*writes)
            await end(client, commit)
    for partition in range(4):
        found = await read(bootstrap, topic, COMMITTED, 1000, partition)
        assert found == list(range(1000))


async def test_offsets_and_records_go_together(
    bootstrap: str, make_topic: MakeTopic, group: str, txn_id: str
) -> None:
    source, sink = make_topic(), make_topic()
    tp = TopicPartition(source, 0)

    async def committed() -> int | None:
        async with consumer(bootstrap, group_id=group) as client:
            offset: int | None = await client.committed(tp)
            return offset

    await send_numbers(bootstrap, source, range(10))
    async with (
        transactional(bootstrap, txn_id) as client,
        consumer(bootstrap, source, group_id=group, isolation_level=COMMITTED) as reader,
    ):
        for commit in (False, True):
            records = await take(reader, 10)
            await client.begin_transaction()
            for number in values(records):
                await client.send(sink, b"%d" % (number * 2))
            offsets = {tp: OffsetAndMetadata(records[-1].offset + 1, "here")}
            await client.send_offsets_to_transaction(offsets, group)
            await end(client, commit)
            if not commit:
                assert await committed() is None
                reader.seek(tp, 0)
    assert await committed() == 10
    assert await read(bootstrap, sink, COMMITTED, 10) == [n * 2 for n in range(10)]


async def test_producer_with_the_same_id_takes_over(
    bootstrap: str, topic: str, txn_id: str
) -> None:
    async with transactional(bootstrap, txn_id) as zombie:
        await zombie.begin_transaction()
        await write(zombie, topic, range(5))
        async with transactional(bootstrap, txn_id) as successor:
            with pytest.raises(ProducerFenced):
                await zombie.commit_transaction()
            await transact(successor, topic, range(50, 53))
    assert await read(bootstrap, topic, COMMITTED, 3) == [50, 51, 52]


async def test_transaction_that_takes_too_long_is_aborted(
    bootstrap: str, topic: str, txn_id: str
) -> None:
    async with transactional(bootstrap, txn_id, transaction_timeout_ms=1000) as client:
        await client.begin_transaction()
        await write(client, topic, range(5))
        await stable_end_is(bootstrap, topic, 6)
        with pytest.raises(ProducerFenced):
            await client.commit_transaction()
    async with transactional(bootstrap, txn_id) as client:
        await transact(client, topic, range(20, 23))
    assert await read(bootstrap, topic, COMMITTED, 3) == [20, 21, 22]


async def test_producer_of_the_same_name_goes_on_after_an_abort(
    bootstrap: str, make_topic: MakeTopic, txn_id: str
) -> None:
    """aiokafka knows no KIP-360: after a record was refused it needs a new producer."""
    topic = make_topic(**{"max.message.bytes": "2000"})
    async with transactional(bootstrap, txn_id) as client:
        await client.begin_transaction()
        await write(client, topic, range(3))
        lost = await client.send(topic, b"x" * 5000, partition=0)
        with pytest.raises(MessageSizeTooLargeError):
            await asyncio.wait_for(lost, DEADLINE)
        await client.abort_transaction()
    async with transactional(bootstrap, txn_id) as client:
        await transact(client, topic, range(20, 23))
    assert await read(bootstrap, topic, COMMITTED, 3) == [20, 21, 22]
