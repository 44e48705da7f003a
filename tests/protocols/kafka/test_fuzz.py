"""Random and damaged bytes: the server survives, memory is limited, other connections continue.

In memory: a session on a fake link, so that thousands of inputs are tried in seconds.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kafka_codec.test_parity import ADVERTISED
from tests.protocols.kafka.in_memory import Connection, running
from tests.protocols.kafka.keys import PRODUCE
from tests.protocols.kafka.messages import full_tree, null_tree, one_batch
from tests.protocols.kafka.trees import produce
from tests.protocols.kafka.wire import request
from tests.protocols.link import MemoryLink
from tests.support.effort import examples
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine.api import NewTopic
from tidemill.kafka_codec.schema import request_type
from tidemill.protocols.kafka.apis import load_handlers
from tidemill.protocols.kafka.connection import FIRST_BYTES, GROWTH, SCRATCH_BYTES
from tidemill.protocols.kafka.server import KafkaServer

TURNS = 20
"""Milliseconds that a client waits for an answer. A fetch may be told to wait for weeks."""
DATA_APIS = {0, 1, 2, 3, 10, 18, 21, 22, 23, 60, 61, 75} | {24, 25, 26, 27, 28, 65, 66}
SAMPLES = [
    request(key, version, shape(request_type(key, version)))
    for key, version in ADVERTISED
    if key in DATA_APIS
    for shape in (full_tree, null_tree)
]


class Served:
    """A server in memory, and the loop that it runs on."""

    def __init__(self, server: KafkaServer, runner: asyncio.Runner) -> None:
        self.server = server
        self._runner = runner

    def deliver(self, *streams: bytes) -> list[MemoryLink]:
        """Let each stream arrive on a new connection; return when nothing more happens."""
        return self._runner.run(self._deliver(streams))

    async def _deliver(self, streams: Iterable[bytes]) -> list[MemoryLink]:
        links = []
        for stream in streams:
            connection = Connection(self.server)
            await connection.deliver(stream)
            allowed = max(FIRST_BYTES, 2 * GROWTH * len(stream))
            assert connection.session._reader.partial_bytes <= allowed
            await connection.settle(TURNS, 0.001)
            connection.close()
            links.append(connection.link)
        return links


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with asyncio.Runner() as runner:
        context = running(Path("/data"), NewTopic("t", 1), fs=FaultyFileSystem())
        yield Served(runner.run(context.__aenter__()), runner)
        runner.run(context.__aexit__(None, None, None))


def test_samples_are_answered_or_refused(served: Served) -> None:
    for link in served.deliver(*SAMPLES):
        assert link.sent or link.error


@given(stream=st.binary(max_size=2000))
@settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_random_bytes(served: Served, stream: bytes) -> None:
    served.deliver(stream)


@given(
    key=st.sampled_from(sorted(DATA_APIS)),
    version=st.integers(-1, 20),
    body=st.binary(max_size=300),
)
@settings(max_examples=examples(150), deadline=None)
def test_random_bodies_behind_valid_headers(
    served: Served, key: int, version: int, body: bytes
) -> None:
    header = struct.pack(">hhih", key, version, 1, -1)
    for start in (header, header + b"\0"):
        stream = struct.pack(">i", len(start) + len(body)) + start + body
        served.deliver(stream)


def test_every_sample_with_every_byte_blown_up(served: Served) -> None:
    """Some positions in turn hold the largest varint: if a length is expected, it is absurd."""

    chance = random.Random(7)
    for sample in SAMPLES:
        positions = range(12, len(sample))
        for position in chance.sample(positions, min(len(positions), 15)):
            stream = sample[:position] + b"\xff\xff\xff\xff\x0f" + sample[position + 5 :]
            served.deliver(struct.pack(">i", len(stream) - 4) + stream[4:])


def test_a_valid_request_is_answered_after_all_the_others(served: Served) -> None:
    (link,) = served.deliver(request(PRODUCE, 9, produce("t", one_batch(), acks=1)))
    assert link.error is None
    assert link.sent
    assert set(load_handlers()) >= DATA_APIS
    assert len(served.server.shared.scratch) == SCRATCH_BYTES
