"""Produce requests as bytes, a broker in memory that gets them, and its answers."""

from __future__ import annotations

import random
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from tests.protocols.kafka.in_memory import Connection, running
from tests.support.faultyfs import FaultyFileSystem
from tidemill.clock import ManualClock
from tidemill.engine.api import NewTopic
from tidemill.engine.engine import Engine
from tidemill.engine.records.records import Records
from tidemill.kafka_codec.messages import decode_response
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.protocols.kafka.server import KafkaServer

NOW_MS = 1_700_000_000_000
ALL, LEADER, NONE = -1, 1, 0


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


Topics = Sequence[tuple[str | UUID, Sequence[tuple[int, bytes | None]]]]
"""Name or id, and index and batch of each partition."""


def request_to(
    topics: Topics,
    *,
    acks: int = ALL,
    version: int = 9,
    number: int = 0,
    client: bytes | None = b"me",
    transactional: bytes | None = None,
    tags: bytes = b"\0",
) -> bytes:
    """A Produce request, with its length."""
    compact = version >= 9
    ends = tags if compact else b""

    def sized(data: bytes | None, layout: str) -> bytes:
        if compact:
            return b"\0" if data is None else varint(len(data) + 1) + data
        return struct.pack(layout, -1) if data is None else struct.pack(layout, len(data)) + data

    def count(number: int) -> bytes:
        return varint(number + 1) if compact else struct.pack(">i", number)

    head = struct.pack(">hhi", 0, version, number)
    head += struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client
    body = sized(transactional, ">h") + struct.pack(">hi", acks, 30_000) + count(len(topics))
    for topic, partitions in topics:
        body += topic.bytes if isinstance(topic, UUID) else sized(topic.encode(), ">h")
        body += count(len(partitions))
        for index, records in partitions:
            body += struct.pack(">i", index) + sized(records, ">i") + ends
        body += ends
    frame = head + (b"\0" if compact else b"") + body + ends
    return struct.pack(">i", len(frame)) + frame


def request(
    batch: bytes, *, topic: str | UUID = "t", partition: int = 0, **fields: int | bytes | None
) -> bytes:
    """A Produce request with one partition, with its length."""
    return request_to([(topic, [(partition, batch)])], **fields)  # type: ignore[arg-type]


def batch(value: bytes = b"v", records: int = 1, key: bytes | None = None, **fields: int) -> bytes:
    fields.setdefault("timestamp_ms", NOW_MS)
    return bytes(encode_batch([NewRecord(key, value)] * records, **fields))  # type: ignore[arg-type]


Started = tuple[Engine, KafkaServer, FaultyFileSystem]


@asynccontextmanager
async def started() -> AsyncIterator[Started]:
    """Run a broker in memory with topics of all kinds."""
    fs, clock = FaultyFileSystem(), ManualClock(NOW_MS)
    topics = [
        NewTopic("t", 4),
        NewTopic("u", 1),
        NewTopic("compacted", 1, configs={"cleanup.policy": "compact"}),
        NewTopic("stamped", 1, configs={"message.timestamp.type": "LogAppendTime"}),
        NewTopic("zipped", 1, configs={"compression.type": "gzip"}),
        NewTopic("short", 1, configs={"max.message.bytes": "100"}),
        NewTopic("small", 1, configs={"segment.bytes": "1048576"}),
    ]
    async with running(Path("/data"), *topics, fs=fs, clock=clock) as server:
        yield server.engine, server, fs


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Engine, Connection, FaultyFileSystem]]:
    """Run a broker in memory, and connect a client."""
    async with started() as (engine, server, fs):
        connection = Connection(server)
        yield engine, connection, fs
        connection.close()


def answers(sent: bytes) -> list[tuple[int, bytes]]:
    """Return correlation id and rest of each response."""
    found, position = [], 0
    while position < len(sent):
        size, number = struct.unpack_from(">ii", sent, position)
        found.append((number, sent[position + 8 : position + 4 + size]))
        position += 4 + size
    return found


def error_codes(sent: bytes, version: int = 9) -> list[int]:
    """Return the error codes of all partitions in responses of one version."""
    start = 1 if version >= 9 else 0
    decoded = [decode_response(0, version, rest, start) for _, rest in answers(sent)]
    return [
        part.error_code
        for answer in decoded
        for topic in answer.responses
        for part in topic.partition_responses
    ]


Outcome = tuple[list[tuple[int, bytes]], dict[str, bytes]]
"""The answers, and the logs of all partitions."""


async def check_equal_outcomes(
    frames: Sequence[bytes], seed: int, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that requests get the same answers, and leave the same logs, where none is a run.

    Args:
        taken: the fixture.
    """
    ours = await outcome(frames, seed)
    monkeypatch.setattr(Records, "takes_runs", False)
    before = len(taken)
    theirs = await outcome(frames, seed)
    assert len(taken) == before
    assert [number for number, _ in ours[0]] == list(range(len(frames)))
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1]


async def outcome(frames: Sequence[bytes], seed: int) -> Outcome:
    """Send requests to a new broker, in pieces; return what it answers and stores."""
    rng = random.Random(seed)
    async with started() as (engine, server, fs):
        connection = Connection(server)
        sent, position = b"", 0
        while position < len(frames):
            cut = rng.randrange(1, 30)
            await connection.deliver(b"".join(frames[position : position + cut]))
            position += cut
            if rng.random() < 0.5:
                sent += await connection.answered()
        sent += await connection.answered()
        logs = {
            str(tp): b"".join(fs.read_bytes(segment.path()) for segment in log.segments)
            for tp, log in engine._store.partitions.items()
            if not tp.topic.startswith("__")
        }
        connection.close()
        return answers(sent), logs
