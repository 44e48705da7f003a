"""Mutated frames against a broker process: no crash, typed closes, no memory that stays.

``test_fuzz`` does the same in one process, without an engine, and finds the smallest example.
"""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

import psutil
import pytest

from tests.conftest import BrokerFactory
from tests.protocols.amqp.test_fuzz import SAMPLES
from tests.support.broker_process import BrokerProcess
from tests.support.effort import rounds
from tidemill.protocols.amqp.codec import methods
from tidemill.protocols.amqp.errors import REPLY_TEXTS

FRAMES = rounds("FUZZ_AMQP_FRAMES", 600, nightly=100_000)
PER_CONNECTION = 10
TOGETHER = 64
GROWTH_MB = 30
"""Memory that a broker may gain: what it keeps for speed, and queues that frames have declared."""
OPENING = (
    b"AMQP\x00\x00\x09\x01"
    + methods.encode(
        0,
        "connection.start-ok",
        client_properties={},
        mechanism="PLAIN",
        response=b"\x00guest\x00guest",
        locale="en_US",
    )
    + methods.encode(0, "connection.tune-ok", channel_max=10, frame_max=131072, heartbeat=0)
    + methods.encode(0, "connection.open", virtual_host="/")
    + methods.encode(1, "channel.open")
    + methods.encode(2, "channel.open")
    + methods.encode(2, "queue.declare", queue="q")
)


def mutated(sample: bytes, dice: random.Random) -> bytes:
    """Return a sample with a few changes, or none."""
    stream = bytearray(sample)
    for _ in range(dice.randrange(4)):
        position = dice.randrange(len(stream))
        match dice.randrange(5):
            case 0:
                stream[position] = dice.randrange(256)
            case 1:
                length = dice.choice([0, 1, 2**31, 2**32 - 1, 65536])
                stream[position : position + 4] = length.to_bytes(4, "big")
            case 2:
                stream[position] = 0xFF
            case 3 if len(stream) > 16:
                del stream[position : position + dice.randint(1, 8)]
            case _:
                stream[position:position] = dice.randbytes(dice.randint(1, 8))
    return bytes(stream)


async def attack(port: int, seed: int) -> None:
    """Send mutated frames on a new connection, and check what closes it."""
    dice = random.Random(seed)
    frames = [mutated(dice.choice(SAMPLES), dice) for _ in range(PER_CONNECTION)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(OPENING + b"".join(frames))
    writer.write_eof()  # the broker answers, and closes
    data = b""
    try:
        while more := await reader.read(1 << 16):
            data += more
    except ConnectionError:
        pass  # it closed while frames were on their way
    finally:
        writer.close()
    check_answers(data, seed)


CLOSES = (struct.pack(">HH", 10, 50), struct.pack(">HH", 20, 40))
"""connection.close and channel.close."""


def check_answers(data: bytes, seed: int) -> None:
    """Check the codes of all closes. pamqp can't read texts that repeat a client's bytes."""
    while len(data) >= 8:
        kind, _, size = struct.unpack_from(">BHI", data)
        payload, data = data[7 : 7 + size], data[8 + size :]
        if kind == 1 and payload[:4] in CLOSES:
            (code,) = struct.unpack_from(">H", payload, 4)
            assert code in REPLY_TEXTS, (seed, payload)
            assert code != 541, (seed, payload)


async def attack_all(port: int, seeds: range) -> None:
    limit = asyncio.Semaphore(TOGETHER)

    async def one(seed: int) -> None:
        async with limit, asyncio.timeout(120):
            await attack(port, seed)

    async with asyncio.TaskGroup() as group:
        for seed in seeds:
            group.create_task(one(seed))


def memory_mb(broker: BrokerProcess) -> float:
    return float(psutil.Process(broker.pid).memory_info().rss) / 1e6


@pytest.mark.timeout(3600)
def test_mutated_frames_leave_a_broker_as_it_was(
    start_broker: BrokerFactory, tmp_path: Path
) -> None:
    broker = start_broker()
    first = random.SystemRandom().randrange(1 << 40)
    connections = FRAMES // PER_CONNECTION
    warm = connections // 3
    asyncio.run(attack_all(broker.amqp_port, range(first, first + warm)))
    before = memory_mb(broker)
    asyncio.run(attack_all(broker.amqp_port, range(first + warm, first + connections)))
    assert memory_mb(broker) - before < GROWTH_MB, f"seed {first}"
    log = broker.log(10_000_000)
    position = log.find("Traceback")
    assert position < 0, log[max(0, position - 300) : position + 8000]
    assert broker.terminate(60) == 0
