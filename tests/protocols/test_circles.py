"""What clients leave behind is freed without the garbage collector, whose full runs are rare."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.net.test_slow_senders import AMQP_LOGIN
from tests.protocols.amqp.codec.test_frames import begun, part
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.wire import Client, Serving, eventually, serving
from tests.support.garbage import circles
from tidemill.engine.api import NewTopic
from tidemill.engine.engine import Engine
from tidemill.protocols.amqp.codec import methods
from tidemill.protocols.amqp.server import AmqpServer
from tidemill.protocols.amqp.settings import AmqpListener
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.settings import Settings

PRODUCE, FETCH, METADATA, API_VERSIONS, CREATE, DELETE = 0, 1, 3, 18, 19, 20
JOIN, LEAVE, SYNC, DELETE_GROUPS, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = (
    11,
    13,
    14,
    42,
    22,
    24,
    26,
)


class Amqp(NamedTuple):
    """A server, and where it listens."""

    server: AmqpServer
    address: tuple[str, int]


@asynccontextmanager
async def amqp(s: Serving) -> AsyncIterator[Amqp]:
    server = AmqpServer(s.engine, Settings(sections=(AmqpListener(port=0),)))
    address = await server.start()
    yield Amqp(server, address)
    await server.stop(grace_seconds=1)


async def leave(s: Serving, client: Client) -> None:
    client.close()
    await eventually(lambda: s.server.listener.connections == 0)


async def metadata(s: Serving) -> None:
    client = await s.client()
    await client.call(API_VERSIONS, 0, {})
    await client.call(METADATA, 9, {"topics": None})
    await leave(s, client)


async def produce_and_fetch(s: Serving) -> None:
    client = await s.client()
    await client.call(PRODUCE, 7, produced("t"))
    await client.call(FETCH, 11, fetch(0, 0))
    await leave(s, client)


def produced(topic: str, value: bytes = b"v") -> dict[str, object]:
    part = {"index": 0, "records": one_batch(value)}
    data = [{"name": topic, "partition_data": [part]}]
    return {"acks": -1, "timeout": 5000, "topic_data": data}


def fetch(wait_ms: int, offset: int, topic: str = "t") -> dict[str, object]:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    return {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1000,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [part]}],
    }


async def leave_in_the_middle_of_a_request(s: Serving) -> None:
    client = await s.client()
    client.writer.write(b"\0\1\0\0" + bytes(1000))
    await eventually(lambda: s.server.listener.connections == 1)
    await leave(s, client)


async def leave_while_a_fetch_waits(s: Serving) -> None:
    client = await s.client()
    reads = len(s.reads)
    client.send(FETCH, 11, fetch(60_000, s.log("t").log_end_offset))
    await eventually(lambda: len(s.reads) > reads)
    await leave(s, client)


async def a_topic_comes_and_goes(s: Serving) -> None:
    client = await s.client()
    configs = [{"name": "file.delete.delay.ms", "value": "0"}]
    topic = {"name": "new", "num_partitions": 2, "replication_factor": 1, "configs": configs}
    await client.call(CREATE, 4, {"topics": [topic], "timeout": 5000})
    await client.call(PRODUCE, 7, produced("new"))
    await client.call(FETCH, 11, fetch(0, 0, "new"))
    await client.call(DELETE, 1, {"topic_names": ["new"], "timeout": 5000})
    await leave(s, client)


async def a_group_comes_and_goes(s: Serving) -> None:
    client = await s.client()
    join = {
        "group_id": "g",
        "session_timeout": 60_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    joined = await client.call(JOIN, 2, join)
    member = {"group_id": "g", "member_id": joined["member_id"]}
    await client.call(SYNC, 2, {**member, "generation_id": 1, "assignments": []})
    await client.call(LEAVE, 2, member)
    await client.call(DELETE_GROUPS, 1, {"groups_names": ["g"]})
    await leave(s, client)


async def a_transaction(s: Serving) -> None:
    client = await s.client()
    init = {"transactional_id": "x", "transaction_timeout": 60_000}
    producer = await client.call(INIT_PRODUCER_ID, 1, init)
    who = {
        "transactional_id": "x",
        "producer_id": producer["producer_id"],
        "producer_epoch": producer["producer_epoch"],
    }
    topics = [{"name": "t", "partitions": [0]}]
    names = {f"v3_and_below_{key}": value for key, value in who.items()}
    await client.call(ADD_PARTITIONS, 1, {**names, "v3_and_below_topics": topics})
    await client.call(END_TXN, 1, {**who, "committed": True})
    await leave(s, client)


Play = Callable[[Serving], Awaitable[None]]
KINDS: list[Play] = [
    metadata,
    produce_and_fetch,
    leave_in_the_middle_of_a_request,
    leave_while_a_fetch_waits,
    a_topic_comes_and_goes,
    a_group_comes_and_goes,
    a_transaction,
]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_kafka_client_leaves_is_freed(kind: Play) -> None:
    async with serving() as s:
        await s.make_topic("t")
        await kind(s)  # what is kept for all connections
        with circles() as found:
            for _ in range(3):
                await kind(s)
            await asyncio.sleep(0)
        assert found == {}


async def test_a_connection_that_was_sent_a_range_of_a_file_is_freed(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, sections=(KafkaListener(port=0),))
    engine = Engine(settings)
    await engine.start()
    server = KafkaServer(engine, settings)
    address = await server.start()

    async def once() -> None:
        client = await Client.connect(address)
        await client.call(PRODUCE, 7, produced("t", bytes(200_000)))
        answer = await client.call(FETCH, 11, fetch(0, 0) | {"max_bytes": 1 << 20})
        assert len(answer["responses"][0]["partitions"][0]["records"]) > 200_000
        client.close()
        await eventually(lambda: server.listener.connections == 0)

    try:
        await engine.topics.create([NewTopic("t")])
        await once()
        with circles() as found:
            await once()
            await asyncio.sleep(0)
        assert found == {}
    finally:
        await server.stop(grace_seconds=1)
        await engine.stop()


# --- AMQP ----------------------------------------------------------------------------------------


class Queues:
    """One connection, and what the server sends is waited for by its name."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.received = b""

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def wait_for(self, name: str) -> None:
        """Wait for a method."""
        wanted = methods.BY_NAME[name].number.to_bytes(4, "big")
        async with asyncio.timeout(60):
            while wanted not in self.received:
                data = await self.reader.read(65_536)
                assert data, self.received
                self.received += data
        self.received = b""


async def log_in(server: Amqp) -> Queues:
    client = Queues(*await asyncio.open_connection(*server.address))
    client.send(AMQP_LOGIN)
    await client.wait_for("connection.open-ok")
    return client


async def only_log_in(server: Amqp) -> None:
    client = await log_in(server)
    client.writer.close()


async def leave_during_the_handshake(server: Amqp) -> None:
    client = Queues(*await asyncio.open_connection(*server.address))
    client.send(AMQP_LOGIN[:20])
    await client.wait_for("connection.start")
    client.writer.close()


async def use_a_queue(server: Amqp) -> None:
    client = await log_in(server)
    message = begun(1, 1) + part(1, b"m")
    client.send(methods.encode(1, "channel.open"), methods.encode(1, "confirm.select"))
    client.send(methods.encode(1, "queue.declare", queue="q", durable=True))
    await client.wait_for("queue.declare-ok")
    client.send(message)
    await client.wait_for("basic.ack")
    client.send(methods.encode(1, "basic.consume", queue="q", consumer_tag="c"))
    await client.wait_for("basic.deliver")
    client.send(methods.encode(1, "basic.ack", delivery_tag=1))
    client.send(methods.encode(1, "queue.delete", queue="q"))
    await client.wait_for("queue.delete-ok")
    client.writer.close()


Use = Callable[[Amqp], Awaitable[None]]


@pytest.mark.parametrize("use", [only_log_in, leave_during_the_handshake, use_a_queue])
async def test_what_an_amqp_client_leaves_is_freed(use: Use) -> None:
    async with serving() as s, amqp(s) as server:

        async def once() -> None:
            await use(server)
            await eventually(lambda: server.server.listener.connections == 0)

        await once()
        with circles() as found:
            for _ in range(3):
                await once()
            await asyncio.sleep(0)
        assert found == {}
