"""Produce requests that wait for the disk: answers keep their order, and clients can leave."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.wire import produce_frame

from tests.protocols.kafka.in_memory import Connection
from tidemill.engine.api import NewTopic
from tidemill.engine.engine import Engine
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.settings import Settings

ALL, LEADER = -1, 1


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[tuple[Engine, KafkaServer]]:
    engine = Engine(Settings(data_dir=folder, sections=(KafkaListener(port=0),)))
    await engine.start()
    try:
        await engine.topics.create([NewTopic("t", 2)])
        yield engine, KafkaServer(engine, engine.settings)
    finally:
        await engine.stop()


def request(number: int, partition: int, acks: int) -> bytes:
    batch = bytes(encode_batch([NewRecord(None, b"v")], timestamp_ms=0))
    frame = bytearray(produce_frame("t", partition, batch, acks))
    struct.pack_into(">i", frame, 8, number)
    return bytes(frame)


def numbers(sent: bytes) -> list[int]:
    """Return the correlation ids of responses without an error."""
    found, position = [], 0
    while position < len(sent):
        size, number = struct.unpack_from(">ii", sent, position)
        assert struct.unpack_from(">h", sent, position + 8 + 1 + 1 + 2 + 1 + 4) == (0,)
        found.append(number)
        position += 4 + size
    return found


async def test_answers_that_wait_for_the_disk_keep_the_order_of_their_requests(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as (_, server):
        connection = Connection(server)
        acks = [ALL, LEADER, ALL, ALL, LEADER, ALL]
        await connection.deliver(
            b"".join(request(index, index % 2, each) for index, each in enumerate(acks))
        )
        assert connection.session.is_busy
        assert numbers(await connection.answered()) == list(range(len(acks)))
        connection.close()


async def test_a_client_that_leaves_before_its_answer_leaves_nothing_behind(tmp_path: Path) -> None:
    async with started(tmp_path) as (engine, server):
        connection = Connection(server)
        await connection.deliver(request(1, 0, ALL) + request(2, 1, ALL))
        assert server.listener.budget.used > 0
        connection.close()
        async with asyncio.timeout(300):
            while server.listener.budget.used:
                await asyncio.sleep(0)
        assert await engine.records.find_offset("t", 0, 0) is not None
        assert not engine.failed.done()
