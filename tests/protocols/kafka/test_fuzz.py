"""Random and damaged bytes: the server survives, memory is limited, other connections continue.

In memory: a session on a fake link, so that thousands of inputs are tried in seconds.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterable
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kafka_codec.test_parity import ADVERTISED
from tests.protocols.kafka.fake_engine import FakeEngine, one_batch
from tests.protocols.kafka.messages import full_tree, kio_bytes, null_tree
from tests.protocols.kafka.wire import request_bytes
from tests.support.effort import examples
from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError
from tidemill.kafka_codec.schema import request_type
from tidemill.net.link import Link
from tidemill.net.responses import ResponseMemory
from tidemill.net.room import ResponseRoom
from tidemill.net.turns import Turns
from tidemill.protocols.kafka.apis import load_handlers
from tidemill.protocols.kafka.connection import FIRST_BYTES, GROWTH, SCRATCH_BYTES
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.protocols.kafka.session import KafkaSession
from tidemill.settings import Settings

DATA_APIS = {0, 1, 2, 3, 10, 18, 21, 22, 23, 60, 61, 75} | {24, 25, 26, 27, 28, 65, 66}
SAMPLES = [
    request_bytes(
        key, version, kio_bytes(request_type(key, version), shape(request_type(key, version)))
    )
    for key, version in ADVERTISED
    if key in DATA_APIS
    for shape in (full_tree, null_tree)
]


class FakeLink:
    """Collects responses, and the error that closed it."""

    peer, host = "fuzz:1", "fuzz"
    is_congested = False
    sends_files = False

    def __init__(self) -> None:
        self.room = ResponseRoom(ResponseMemory(1 << 30))
        self.is_closing = False
        self.error: BaseException | None = None
        self.held = 0
        self.sent = bytearray()

    def write(self, buffers: Iterable[bytes]) -> None:
        self.sent += b"".join(buffers)

    def hold_request(self, size: int) -> None:
        self.held += size

    def release_request(self, size: int) -> None:
        self.held -= size

    def gather(self) -> None: ...

    def send(self) -> None: ...

    def limit_window(self) -> None: ...

    def hold(self, why: Any) -> None: ...

    def unhold(self, why: Any) -> None: ...

    def close(self) -> None:
        self.is_closing = True

    def fail(self, error: BaseException, **about: object) -> None:
        self.is_closing, self.error = True, error


@pytest.fixture(scope="module")
def server() -> KafkaServer:
    broker = FakeEngine()
    broker.make_topic("t")
    return KafkaServer(cast(Engine, broker), Settings())


async def deliver(server: KafkaServer, stream: bytes) -> FakeLink:
    """Let a stream arrive on a new connection; return when nothing more happens."""
    link = FakeLink()
    server.shared.turns = Turns()  # of this loop
    session = KafkaSession(server.shared, cast(Link, link))
    position = 0
    while position < len(stream) and not link.is_closing:
        buffer = session.get_buffer()
        count = min(len(buffer), len(stream) - position)
        buffer[:count] = stream[position : position + count]
        position += count
        try:
            session.received(count)
        except TidemillError as error:
            link.fail(error)
        allowed = max(FIRST_BYTES, 2 * GROWTH * len(stream))
        assert session._reader.partial_bytes <= allowed
    async with asyncio.timeout(300):
        while session.is_busy and not link.is_closing:
            cast(FakeEngine, server.engine).tell_news()  # a fetch may be told to wait for weeks
            await asyncio.sleep(0)
    session.closed()
    assert link.error is None or isinstance(link.error, TidemillError), repr(link.error)
    return link


def test_samples_are_answered_or_refused(server: KafkaServer) -> None:
    async def run() -> None:
        for sample in SAMPLES:
            link = await deliver(server, sample)
            assert link.sent or link.error

    asyncio.run(run())


@given(stream=st.binary(max_size=2000))
@settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_random_bytes(server: KafkaServer, stream: bytes) -> None:
    asyncio.run(deliver(server, stream))


@given(
    key=st.sampled_from(sorted(DATA_APIS)),
    version=st.integers(-1, 20),
    body=st.binary(max_size=300),
)
@settings(max_examples=examples(150), deadline=None)
def test_random_bodies_behind_valid_headers(
    server: KafkaServer, key: int, version: int, body: bytes
) -> None:
    header = struct.pack(">hhih", key, version, 1, -1)
    for start in (header, header + b"\0"):
        stream = struct.pack(">i", len(start) + len(body)) + start + body
        asyncio.run(deliver(server, stream))


@given(sample=st.sampled_from(SAMPLES), data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_mutated_requests(server: KafkaServer, sample: bytes, data: st.DataObject) -> None:
    stream = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(4, len(stream) - 1))
        kind = data.draw(st.sampled_from(["byte", "length32", "varint", "cut", "insert"]))
        if kind == "byte":
            stream[position] = data.draw(st.integers(0, 255))
        elif kind == "length32":
            value = data.draw(st.sampled_from([-1, -2, 0, 2**31 - 1, -(2**31), 65536]))
            stream[position : position + 4] = struct.pack(">i", value)
        elif kind == "varint":
            stream[position : position + 5] = b"\xff\xff\xff\xff\x0f"
        elif kind == "cut":
            del stream[position : position + data.draw(st.integers(1, 8))]
        else:
            stream[position:position] = data.draw(st.binary(min_size=1, max_size=8))
        if len(stream) < 6:
            break
    stream[:4] = struct.pack(">i", len(stream) - 4)
    asyncio.run(deliver(server, bytes(stream)))


def test_every_sample_with_every_byte_blown_up(server: KafkaServer) -> None:
    """Some positions in turn hold the largest varint: if a length is expected, it is absurd."""

    async def run() -> None:
        chance = random.Random(7)
        for sample in SAMPLES:
            positions = range(12, len(sample))
            for position in chance.sample(positions, min(len(positions), 15)):
                stream = sample[:position] + b"\xff\xff\xff\xff\x0f" + sample[position + 5 :]
                stream = struct.pack(">i", len(stream) - 4) + stream[4:]
                await deliver(server, stream)

    asyncio.run(run())


def test_a_valid_request_is_answered_after_all_the_others(server: KafkaServer) -> None:
    body = kio_bytes(
        request_type(0, 9),
        {
            "acks": 1,
            "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": one_batch()}]}],
        },
    )
    link = asyncio.run(deliver(server, request_bytes(0, 9, body)))
    assert link.error is None
    assert link.sent
    assert set(load_handlers()) >= DATA_APIS
    assert len(server.shared.scratch) == SCRATCH_BYTES
