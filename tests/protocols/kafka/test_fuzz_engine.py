"""Random requests of every API and version against a real engine.

Whatever they contain: no fault of the broker, no error that only a fault explains, no memory left
behind, and a client that behaves well is answered in time.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.kafka_codec.test_parity import ADVERTISED
from tests.protocols.kafka.in_memory import Connection, running
from tests.protocols.kafka.keys import API_VERSIONS, CREATE_TOPICS
from tests.protocols.kafka.requests import Requests
from tests.protocols.kafka.trees import SOFTWARE, create_topics
from tests.protocols.kafka.wire import request
from tests.support import effort
from tidemill.engine.api import NewTopic
from tidemill.kafka_codec.headers import parse_response_header
from tidemill.kafka_codec.messages import decode_response
from tidemill.kafka_codec.reader import Message
from tidemill.protocols.kafka.connection import FIRST_BYTES, GROWTH
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.settings import Groups, Limits

FRAMES = effort.rounds("FUZZ_FRAMES", 2500, 3_000_000)
P99_MS = effort.bound(50, normal=5_000)
WARM_UP = max(min(1000, FRAMES // 2), FRAMES // 8)
LEFT_BEHIND_BYTES = 150_000_000
"""Growth of the process after the first frames, in which its heap gets the holes that it keeps.
What clients make stays within the limits of the settings below: topics, groups, producers."""
TURNS = 30
"""Turns of the event loop that a client waits for an answer before it closes its connection."""
HEARTBEAT = 12


def unexpected(answer: Any) -> Iterator[str]:
    """Yield the fields of an answer that say UNKNOWN_SERVER_ERROR."""
    if isinstance(answer, Message):
        for name in answer.__slots__:
            value = getattr(answer, name)
            if name.endswith("error_code") and value == -1:
                yield name
            yield from unexpected(value)
    elif isinstance(answer, tuple):
        for each in answer:
            yield from unexpected(each)


def check_answer(frame: bytes, sent: bytes) -> None:
    """Check that an answer can be decoded, and that no error in it is a fault of the broker."""
    if not sent:
        return
    key, version = struct.unpack_from(">hh", frame, 4)
    if (key, version) not in ADVERTISED:
        return
    (size,) = struct.unpack_from(">i", sent)
    content = sent[4 : 4 + size]
    _, position = parse_response_header(content, key, version)
    answer = decode_response(key, version, content, position)
    found = list(unexpected(answer))
    assert not found, f"UNKNOWN_SERVER_ERROR in {found} of API {key} v{version}: {frame.hex()}"


def is_fault(line: Any) -> bool:
    return line["log_level"] in ("error", "critical")


async def fuzz(server: KafkaServer, requests: Requests, count: int, logs: list[Any]) -> None:
    for number in range(count):
        if number % 500 == 0:
            logs[:] = filter(is_fault, logs)
        frame = requests.frame()
        connection = Connection(server)
        await connection.deliver(frame)
        allowed = max(FIRST_BYTES, 2 * GROWTH * len(frame))
        assert connection.session._reader.partial_bytes <= allowed
        await connection.settle(TURNS)
        try:
            check_answer(frame, bytes(connection.link.sent))
            connection.close()
        except AssertionError as error:
            raise AssertionError(f"{error}\nrequest: {frame.hex()}") from None


async def behave_well(server: KafkaServer, times: list[float]) -> None:
    """Send a request after the other, and note the processor time until each answer."""
    connection = Connection(server)
    frames = [
        request(API_VERSIONS, 3, SOFTWARE),
        request(HEARTBEAT, 4, {"group_id": "good", "generation_id": 1, "member_id": "m"}),
    ]
    while True:
        for frame in frames:
            started = time.thread_time()
            await connection.deliver(frame)
            sent = await connection.answered()
            assert sent, connection.link.error
            times.append((time.thread_time() - started) * 1000)
        await asyncio.sleep(0.002)


def memory_bytes() -> int:
    """The memory of this process, without what Python keeps for itself."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.usefixtures("tuned_collections")
@pytest.mark.parametrize("seed", [1, 2])
def test_random_requests(tmp_path: Path, seed: int) -> None:
    times: list[float] = []
    topics = NewTopic("t", 3), NewTopic("u", 1)
    limits, groups = Limits(partitions=300), Groups(max_total_bytes=10_000_000)

    async def run(logs: list[Any]) -> None:
        async with running(tmp_path, *topics, limits=limits, groups=groups) as server:
            good = asyncio.ensure_future(behave_well(server, times))
            requests = Requests(seed)
            await fuzz(server, requests, WARM_UP, logs)
            before = memory_bytes()
            await fuzz(server, requests, FRAMES // 2 - WARM_UP, logs)
            if good.done():
                good.result()
            good.cancel()
            async with asyncio.timeout(300):
                while server.shared.tasks - {good}:
                    for task in server.shared.tasks:
                        task.cancel()
                    await asyncio.sleep(0.01)
            # What requests take while they are handled is limited by the budget, see below.
            assert memory_bytes() - before < LEFT_BEHIND_BYTES
            assert not server.engine.failed.done()
            assert server.listener.budget.used == 0
            assert server.engine.topics.get("__consumer_offsets").partitions == 1

    with capture_logs() as logs, asyncio.Runner() as runner:
        runner.run(run(logs))
    assert list(filter(is_fault, logs)) == []
    times.sort()
    assert len(times) > 50
    assert times[int(len(times) * 0.99)] < P99_MS


@pytest.mark.usefixtures("tuned_collections")
async def test_what_clients_asked_for_and_left_is_given_up(tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(1000)]
    frame = request(CREATE_TOPICS, 7, create_topics(*names))
    async with running(tmp_path) as server:
        for _ in range(100):
            connection = Connection(server)
            await connection.deliver(frame)
            connection.close()
        assert server.listener.budget.used > 0
        async with asyncio.timeout(300):
            while server.shared.tasks:
                await asyncio.sleep(0)
        assert server.listener.budget.used == 0
        assert len(server.engine.topics.all()) < len(names)
