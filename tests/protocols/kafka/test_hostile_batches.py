"""A broker process that gets hostile batches: it refuses them, and others don't notice."""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.log.format.test_records import new_records
from tests.log.format.test_validate import batch, with_deltas
from tests.protocols.kafka.keys import CREATE_TOPICS, PRODUCE
from tests.protocols.kafka.trees import Tree, create_topics, picked, produce, written
from tests.protocols.kafka.wire import Client, request
from tests.support import effort
from tests.support.broker_process import BrokerProcess
from tests.support.effort import examples
from tests.support.librdkafka import connected
from tidemill.log.format.batch import HEADER_SIZE
from tidemill.log.format.compression import Codec, compress
from tidemill.log.format.crc import crc32c
from tidemill.log.format.records import NewRecord, decode_records, encode_batch

LIST_OFFSETS = 2
INVALID_RECORD = 87
MIB = 1 << 20

_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("hostile")) as process:
        yield process
        assert process.terminate() == 0
        assert "Traceback" not in process.log(10_000_000), process.log(10_000_000)


def tiny_records(count: int) -> bytes:
    """Return encoded records of 7 to 10 bytes, without two neighbours of the same length."""
    body = bytearray()
    for index in range(count):
        number, rest = bytearray(), 2 * index
        while rest > 127:
            number.append(rest & 127 | 128)
            rest >>= 7
        number.append(rest)
        value = b"\1" if index % 2 else b"\2x"
        body += (
            bytes([2 * (len(number) + len(value) + 4)]) + b"\0\0" + number + b"\1" + value + b"\0"
        )
    return bytes(body)


def bomb(codec: int, size: int) -> bytearray:
    return batch(compress(codec, bytes(size)), 1, codec)


async def connect(broker: BrokerProcess) -> Client:
    return await Client.connect(("127.0.0.1", broker.port), limit=1 << 24)


async def new_topic(client: Client, partitions: int = 1, **configs: str) -> str:
    name = f"hostile-{next(_names)}"
    asked = create_topics(name, partitions=partitions, **configs)
    answer = await client.call(CREATE_TOPICS, 7, asked)
    assert answer["topics"][0]["error_code"] == 0
    return name


@asynccontextmanager
async def writing(
    broker: BrokerProcess, partitions: int = 1, **configs: str
) -> AsyncIterator[tuple[Client, str]]:
    """Connect a client, and create a topic for it."""
    client = await connect(broker)
    yield client, await new_topic(client, partitions, **configs)
    client.close()


async def send(
    client: Client, topic: str, *batches: bytes | bytearray, acks: int = -1, version: int = 9
) -> list[Tree]:
    """Produce; return the answer about each partition."""
    answer = await client.call(PRODUCE, version, produce(topic, *batches, acks=acks))
    return list(answer["responses"][0]["partition_responses"])


async def end_offset(client: Client, topic: str) -> int:
    partition = {"partition_index": 0, "timestamp": -1}
    tree = {"topics": [{"name": topic, "partitions": [partition]}]}
    answer = await client.call(LIST_OFFSETS, 6, tree)
    return int(answer["topics"][0]["partitions"][0]["offset"])


def consume(broker: BrokerProcess, topic: str, count: int) -> list[tuple[Any, ...]]:
    """Read records with librdkafka, which must not meet an error."""
    settings = {"enable.auto.commit": False, "check.crcs": True, "fetch.wait.max.ms": 20}
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", **settings})
    found: list[tuple[Any, ...]] = []
    try:
        connected(client).assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        deadline = time.monotonic() + 90
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records"
            for message in client.consume(500, timeout=1):
                assert message.error() is None, message.error()
                # Not the headers: this client raises an error if a name is not UTF-8.
                found.append((message.offset(), message.key(), message.value()))
    finally:
        client.close()
    return found


GOOD = encode_batch([NewRecord(b"k", b"good")] * 2, timestamp_ms=0)

HOSTILE = {
    "random bytes with a valid CRC": batch(bytes(range(256)) * 4, 100),
    "one record that counts 2**31 - 1": batch(with_deltas(0), 2**31 - 1),
    "three records at one offset": batch(with_deltas(0, 0, 0), 3),
    "records that skip an offset": batch(with_deltas(0, 2), 2),
    "a million records in no bytes": batch(b"", 1_000_000),
    "random bytes as zstd": batch(bytes(range(256)), 1, Codec.ZSTD),
    "3 KB of zstd that become 100 MB": bomb(Codec.ZSTD, 100 * MIB),
    "gzip that becomes 100 MB": bomb(Codec.GZIP, 100 * MIB),
    "lz4 that becomes 100 MB": bomb(Codec.LZ4, 100 * MIB),
    "zeros as uncompressed records": batch(bytes(MIB - 1000), 100_000),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_an_invalid_batch_is_refused_and_readers_are_not_affected(
    broker: BrokerProcess, data: bytearray
) -> None:
    async def attack() -> str:
        async with writing(broker) as (client, topic):
            assert (await send(client, topic, GOOD))[0]["error_code"] == 0
            for acks in (1, -1):
                (refused,) = await send(client, topic, data, acks=acks)
                assert refused["error_code"] == INVALID_RECORD
                assert refused["error_message"]
                assert await end_offset(client, topic) == 2
            assert (await send(client, topic, GOOD))[0]["base_offset"] == 2
        return topic

    topic = asyncio.run(attack())
    assert [record[0] for record in consume(broker, topic, 4)] == [0, 1, 2, 3]


async def test_acks_0_closes_the_connection_after_an_invalid_batch(broker: BrokerProcess) -> None:
    for data in (HOSTILE["three records at one offset"], bomb(Codec.ZSTD, 100 * MIB)):
        async with writing(broker) as (client, topic):
            client.send(PRODUCE, 9, produce(topic, data, acks=0))
            assert await client.is_closed()


async def test_every_bad_record_is_named_by_its_index(broker: BrokerProcess) -> None:
    bad = [3, 4, 50, 99]
    records = [NewRecord(None if index in bad else b"k", b"v") for index in range(100)]
    async with writing(broker, cleanup_policy="compact") as (client, topic):
        for codec, version in itertools.product(Codec, (7, 8, 9, 12)):
            data = encode_batch(records, timestamp_ms=0, codec=codec)
            (refused,) = await send(client, topic, data, version=version)
            assert refused["error_code"] == INVALID_RECORD
            if version >= 8:
                why = "it has no key: a compacted topic needs one"
                errors = picked(
                    refused["record_errors"], "batch_index", "batch_index_error_message"
                )
                assert errors == [(index, why) for index in bad]
                assert refused["error_message"].startswith("4 of 100 records are invalid")
        assert await end_offset(client, topic) == 0


async def test_a_response_names_at_most_ten_thousand_records(broker: BrokerProcess) -> None:
    data = encode_batch([NewRecord(None, b"")] * 4000, timestamp_ms=0, codec=Codec.ZSTD)
    async with writing(broker, 4, cleanup_policy="compact") as (client, topic):
        parts = await send(client, topic, data, data, data, data)
    assert [len(part["record_errors"]) for part in parts] == [4000, 4000, 2000, 0]
    assert {part["error_code"] for part in parts} == {INVALID_RECORD}


async def test_long_batches_and_short_ones_of_one_connection_are_appended_in_order(
    broker: BrokerProcess,
) -> None:
    counts = [60_000, 1, 2, 30_000, 3, 100_000, 1]
    async with writing(broker) as (client, topic):
        for index, count in enumerate(counts):
            codec = Codec.ZSTD if index % 3 == 0 else Codec.NONE
            data = batch(compress(codec, tiny_records(count)), count, codec)
            client.send(PRODUCE, 9, produce(topic, data))
        for index in range(len(counts)):
            _, answer = await client.response(PRODUCE, 9)
            assert written(answer) == [(0, sum(counts[:index]))]


DELAY_S = effort.bound(0.05, normal=10)
SECONDS, LEAST_ANSWERS = effort.bound(3, normal=1), 31


@pytest.mark.slow
@pytest.mark.timing
def test_other_clients_stay_fast_and_memory_stays_bounded_during_an_attack(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """A second broker that nobody attacks shows how much of the time is the machine's."""
    attacks = [
        bomb(Codec.ZSTD, 100 * MIB),
        bomb(Codec.ZSTD, 500 * MIB),
        bomb(Codec.GZIP, 400 * MIB),
        bomb(Codec.LZ4, 200 * MIB),
        batch(compress(Codec.ZSTD, tiny_records(400_000)), 400_000, Codec.ZSTD),
        batch(tiny_records(100_000), 100_000),
    ]
    process = psutil.Process(broker.pid)

    async def attack(topic: str, data: bytearray) -> None:
        client = await connect(broker)
        frame = request(PRODUCE, 9, produce(topic, data))
        try:
            while True:
                client.writer.write(frame)
                await client.raw_response()
        finally:
            client.close()

    async def seconds_of_one(client: Client, topic: str) -> float:
        begun = time.perf_counter()
        await send(client, topic, GOOD, acks=1)
        return time.perf_counter() - begun

    async def play(calm: BrokerProcess) -> None:
        client, calm_client = await connect(broker), await connect(calm)
        topic, other = await new_topic(client), await new_topic(client)
        calm_topic = await new_topic(calm_client)
        await seconds_of_one(client, topic)
        memory = before = process.memory_info().rss

        async def p99s() -> tuple[float, float]:
            nonlocal memory
            took: tuple[list[float], list[float]] = ([], [])
            ends = time.monotonic() + SECONDS
            while time.monotonic() < ends or len(took[0]) < LEAST_ANSWERS:
                took[0].append(await seconds_of_one(client, topic))
                took[1].append(await seconds_of_one(calm_client, calm_topic))
                memory = max(memory, process.memory_info().rss)
                await asyncio.sleep(0.005)
            attacked, left_alone = (sorted(each)[int(len(each) * 0.99)] for each in took)
            return attacked, left_alone

        running = [asyncio.ensure_future(attack(other, data)) for data in attacks * 2]
        try:
            for _ in range(4):  # a busy machine can spoil one measurement
                p99, p99_calm = await p99s()
                if p99 < p99_calm + DELAY_S:
                    break
        finally:
            assert not any(each.done() for each in running)
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            client.close()
            calm_client.close()
        assert p99 < p99_calm + DELAY_S, f"p99 {p99:.3f} s, without an attack {p99_calm:.3f} s"
        assert memory - before < 300 * MIB

    with BrokerProcess(tmp_path / "calm") as calm:
        asyncio.run(play(calm))


@pytest.mark.slow
@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.tuples(new_records, st.sampled_from(Codec), st.randoms()), min_size=10, max_size=10)
)
def test_what_is_accepted_can_be_read_by_librdkafka(broker: BrokerProcess, samples: Any) -> None:
    async def attack() -> tuple[str, list[tuple[Any, ...]]]:
        accepted: list[tuple[Any, ...]] = []
        async with writing(broker, message_timestamp_after_max_ms=str(2**62)) as (client, topic):
            for records, codec, random in samples:
                data = encode_batch(records, timestamp_ms=0, codec=codec)
                if random.random() < 0.8:
                    data[random.randrange(HEADER_SIZE, len(data))] = random.randrange(256)
                    data[random.randrange(21, len(data))] ^= 1 << random.randrange(8)
                struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
                (part,) = await send(client, topic, data)
                assert part["error_code"] != -1
                if part["error_code"] == 0:
                    accepted += [
                        (part["base_offset"] + each.offset, each.key, each.value)
                        for each in decode_records(data)
                    ]
        return topic, accepted

    topic, accepted = asyncio.run(attack())
    assert consume(broker, topic, len(accepted)) == accepted
