"""aiokafka: produce, positions, groups, admin. It speaks the oldest versions of all clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.structs import OffsetAndMetadata

from tests.interop.common import (
    BASE_TIMESTAMP,
    CODECS,
    CONSUMER_DEFAULTS,
    DEADLINE,
    assert_same,
    sample_records,
)
from tests.interop.conftest import MakeTopic

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 2 * DEADLINE))


@asynccontextmanager
async def consumer(bootstrap: str, *topics: str, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    options = {**CONSUMER_DEFAULTS, **config}
    client = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, **options)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@asynccontextmanager
async def producer(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def take(client: AIOKafkaConsumer, count: int) -> list[Any]:
    return [await asyncio.wait_for(client.getone(), DEADLINE) for _ in range(count)]


def values(records: list[Any]) -> list[int]:
    return [int(record.value) for record in records]


async def send_numbers(bootstrap: str, topic: str, numbers: range) -> None:
    async with producer(bootstrap, acks="all") as client:
        for number in numbers:
            timestamp = BASE_TIMESTAMP + number * 10
            await client.send(topic, b"%d" % number, partition=0, timestamp_ms=timestamp)
        await client.flush()


@pytest.fixture
def hundred(bootstrap: str, make_topic: MakeTopic) -> str:
    topic = make_topic()
    run(send_numbers(bootstrap, topic, range(100)))
    return topic


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_and_acks_comes_back_as_it_was(
    bootstrap: str, topic: str, codec: str, acks: Any
) -> None:
    records = sample_records(30)

    async def work() -> list[Any]:
        compression = None if codec == "none" else codec
        async with producer(
            bootstrap, acks=acks, compression_type=compression, linger_ms=20
        ) as client:
            for rec in records:
                await client.send(
                    topic,
                    rec.value,
                    rec.key,
                    partition=0,
                    timestamp_ms=rec.timestamp,
                    headers=list(rec.headers),
                )
            await client.flush()
        async with consumer(bootstrap) as reader:
            reader.assign([TopicPartition(topic, 0)])
            return await take(reader, len(records))

    assert_same(run(work()), records)


def test_idempotent_produce(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)

    async def work() -> list[Any]:
        async with producer(bootstrap, enable_idempotence=True, max_batch_size=300) as client:
            sent = [
                await client.send(topic, b"%d" % number, partition=number % 2)
                for number in range(500)
            ]
            await asyncio.gather(*sent)
        async with consumer(bootstrap) as reader:
            reader.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
            return await take(reader, 500)

    found = run(work())
    for partition in (0, 1):
        mine = [record for record in found if record.partition == partition]
        assert values(mine) == list(range(partition, 500, 2))


async def test_a_batch_over_the_topics_limit_is_refused(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(**{"max.message.bytes": "2000"})
    async with producer(bootstrap) as client:
        assert (await client.send_and_wait(topic, b"x" * 1000)).offset == 0
        with pytest.raises(MessageSizeTooLargeError):
            await client.send_and_wait(topic, b"x" * 3000)


async def test_every_position(bootstrap: str, hundred: str) -> None:
    partition = TopicPartition(hundred, 0)
    async with consumer(bootstrap) as client:
        client.assign([partition])
        assert values(await take(client, 100)) == list(range(100))
        client.seek(partition, 17)
        assert values(await take(client, 2)) == [17, 18]
        await client.seek_to_beginning(partition)
        assert values(await take(client, 1)) == [0]
        assert await client.beginning_offsets([partition]) == {partition: 0}
        assert await client.end_offsets([partition]) == {partition: 100}
        found = await client.offsets_for_times({partition: BASE_TIMESTAMP + 165})
        assert found[partition] == (17, BASE_TIMESTAMP + 170)
        later = await client.offsets_for_times({partition: BASE_TIMESTAMP + 10**7})
        assert later[partition] is None
        await client.seek_to_end(partition)
        assert await client.position(partition) == 100
        await send_numbers(bootstrap, hundred, range(100, 101))
        assert values(await take(client, 1)) == [100]


async def test_consume_from_the_committed_offset(bootstrap: str, hundred: str, group: str) -> None:
    partition = TopicPartition(hundred, 0)
    async with consumer(bootstrap, group_id=group) as client:
        client.assign([partition])
        await client.commit({partition: OffsetAndMetadata(60, "note ü")})
        assert await client.committed(partition) == 60
    async with consumer(bootstrap, hundred, group_id=group) as client:
        assert values(await take(client, 40)) == list(range(60, 100))


async def settle(clients: list[AIOKafkaConsumer], shares: list[int]) -> None:
    """Fetch with all members until each has its share and no partition has two owners."""

    async def settled() -> bool:
        await asyncio.gather(*(client.getmany(timeout_ms=50) for client in clients))
        sets = [client.assignment() for client in clients]
        every = [partition for one in sets for partition in one]
        return sorted(map(len, sets)) == sorted(shares) and len(every) == len(set(every))

    async with asyncio.timeout(DEADLINE):
        while not await settled():
            pass


@pytest.mark.parametrize(
    "assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]
)
async def test_members_share_partitions_and_take_over_from_who_leaves(
    bootstrap: str, make_topic: MakeTopic, group: str, assignor: Any
) -> None:
    topic = make_topic(partitions=4)
    config = {"group_id": group, "partition_assignment_strategy": [assignor]}
    async with consumer(bootstrap, topic, **config) as first:
        await settle([first], [4])
        async with consumer(bootstrap, topic, **config) as second:
            await settle([first, second], [2, 2])
        await settle([first], [4])


async def test_a_static_member_keeps_its_partitions(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(partitions=4)
    async with consumer(bootstrap, topic, group_id=group, group_instance_id="a") as first:
        async with consumer(bootstrap, topic, group_id=group, group_instance_id="b") as second:
            await settle([first, second], [2, 2])
            before = second.assignment()
        async with consumer(bootstrap, topic, group_id=group, group_instance_id="b") as again:
            await settle([first, again], [2, 2])
            assert again.assignment() == before


async def test_admin(bootstrap: str, hundred: str, unique: Callable[[str], str]) -> None:
    name, group = unique("topic"), unique("group")
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, 2, 1)])
        await admin.create_partitions({name: NewPartitions(3)})
        async with asyncio.timeout(DEADLINE):
            while len((await admin.describe_topics([name]))[0]["partitions"]) != 3:
                pass
        configs = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        assert "604800000" in str(configs)
        async with consumer(bootstrap, hundred, group_id=group) as client:
            await take(client, 1)
            await client.commit()
            assert group in str(await admin.list_consumer_groups())
            assert "Stable" in str(await admin.describe_consumer_groups([group]))
        offsets = await admin.list_consumer_group_offsets(group)
        assert offsets[TopicPartition(hundred, 0)].offset == 1
        await admin.delete_topics([name])
        async with asyncio.timeout(DEADLINE):
            while name in await admin.list_topics():
                pass
    finally:
        await admin.close()
