"""Random and damaged frames: the server survives, memory is bounded, errors have AMQP's codes.

In memory: a session on a fake link, so that thousands of inputs are tried in seconds.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import frame as pamqp_frame
from pamqp.commands import Basic

from tests.protocols.amqp.client import Broker, publish_bytes
from tests.protocols.amqp.codec.test_methods import arguments
from tests.protocols.mutation import mutated
from tests.support.effort import examples
from tidemill.engine.queues.api import Owner
from tidemill.protocols.amqp.codec import methods
from tidemill.protocols.amqp.codec.frames import FRAME_MAX, SCRATCH_BYTES
from tidemill.protocols.amqp.errors import REPLY_TEXTS

PROPERTIES = Basic.Properties(
    headers={"a": 1, "b": ["x", {"c": None}], "x-delay": 1},
    content_type="text/plain",
    correlation_id="c",
    reply_to="r",
    expiration="1000",
    priority=3,
).marshal()

CLIENT_METHODS = [
    spec
    for spec in methods.METHODS
    if spec.number >> 16 in (20, 40, 50, 60, 85, 90) and not spec.name.endswith("-ok")
]
SAMPLES = [
    publish_bytes(1, "", "q", b"hello", PROPERTIES, mandatory=True),
    publish_bytes(1, "amq.topic", "a.b.c", b"x" * 3000, PROPERTIES),
    publish_bytes(1, "", "q", b"")
    + methods.encode(1, "basic.get", queue="q")
    + methods.encode(1, "basic.ack", delivery_tag=1, multiple=True),
    methods.encode(1, "queue.declare", queue="q", durable=True, arguments={"x-max-length": 5})
    + methods.encode(1, "queue.bind", queue="q", exchange="amq.topic", routing_key="#")
    + methods.encode(1, "basic.consume", queue="q", consumer_tag="c")
    + publish_bytes(1, "amq.topic", "k", b"m")
    + methods.encode(1, "basic.nack", delivery_tag=1, requeue=True)
    + methods.encode(1, "channel.close"),
    methods.encode(1, "tx.select")
    + publish_bytes(1, "", "q", b"t")
    + methods.encode(1, "tx.commit"),
    methods.encode(0, "connection.close", reply_code=200),
    b"\x08\x00\x00\x00\x00\x00\x00\xce",
    *(methods.encode(1, spec.name, **arguments(spec)) for spec in CLIENT_METHODS),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with asyncio.Runner() as runner:
        broker = Broker(runner)
        yield broker
        broker.close()


def deliver(broker: Broker, stream: bytes) -> list[tuple[str, Any]]:
    """Let a stream arrive on a new connection; return what the broker answered."""
    return broker.run(_deliver(broker, stream))


async def _deliver(broker: Broker, stream: bytes) -> list[tuple[str, Any]]:
    client = await broker.client().open(channels=2)
    await client.ask(2, "queue.declare", queue="q")
    client.feed(stream)
    partial = client.session._reader.partial_bytes
    assert partial <= len(stream) + FRAME_MAX
    await client.settle()
    heard = client.heard()
    for name, frame in heard:
        if name in ("Connection.Close", "Channel.Close"):
            assert frame.reply_code in REPLY_TEXTS, frame.reply_code
            assert frame.reply_code != 541, frame.reply_text
    assert client.link.error is None, repr(client.link.error)
    await client.closed()
    assert client.link.held == 0
    assert broker.server.listener.budget.used == 0
    assert not broker.server.shared.tasks
    for name in broker.names():
        await broker.engine.queues.delete_queue(name, Owner("test"))
    return heard


def test_samples_are_answered_or_refused(broker: Broker) -> None:
    for sample in SAMPLES:
        deliver(broker, sample)


@given(stream=st.binary(max_size=2000))
@settings(max_examples=examples(200), deadline=None)
def test_random_bytes(broker: Broker, stream: bytes) -> None:
    deliver(broker, stream)


@given(stream=st.binary(max_size=300))
@settings(max_examples=examples(100), deadline=None)
def test_random_bytes_before_the_connection_is_open(broker: Broker, stream: bytes) -> None:
    async def run() -> None:
        for header in (b"", b"AMQP\x00\x00\x09\x01"):
            client = broker.client()
            client.feed(header + stream)
            await client.closed()
            assert client.link.error is None
            assert broker.server.listener.budget.used == 0

    broker.run(run())


@given(
    kind=st.sampled_from([1, 1, 1, 2, 3]),
    channel=st.integers(0, 3),
    number=st.sampled_from([spec.number for spec in methods.METHODS]),
    payload=st.binary(max_size=200),
)
@settings(max_examples=examples(200), deadline=None)
def test_random_payloads_in_valid_frames(
    broker: Broker, kind: int, channel: int, number: int, payload: bytes
) -> None:
    body = struct.pack(">I", number) + payload if kind == 1 else payload
    stream = struct.pack(">BHI", kind, channel, len(body)) + body + b"\xce"
    deliver(broker, stream)
    start = methods.encode(1, "basic.publish", routing_key="q")
    deliver(broker, start + stream)


@given(sample=st.sampled_from(SAMPLES), data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_mutated_streams(broker: Broker, sample: bytes, data: st.DataObject) -> None:
    deliver(broker, bytes(mutated(data, sample)))


def test_every_sample_with_lengths_blown_up_inside_of_valid_frames(broker: Broker) -> None:
    """The frames stay whole, so that each method's own lengths are reached."""

    chance = random.Random(7)
    for sample in SAMPLES:
        inside = range(11, len(sample) - 1)
        for position in chance.sample(inside, min(len(inside), examples(4))):
            for blown in (b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"):
                end = min(position + len(blown), len(sample) - 1)
                deliver(broker, sample[:position] + blown[: end - position] + sample[end:])


def test_a_valid_message_is_served_after_all_the_others(broker: Broker) -> None:
    stream = methods.encode(1, "confirm.select") + publish_bytes(1, "", "q", b"x")
    heard = deliver(broker, stream)
    assert [name for name, _ in heard] == ["Confirm.SelectOk", "Basic.Ack"]
    assert len(broker.server.shared.scratch) == SCRATCH_BYTES
    assert pamqp_frame.frame_parts(b"")[2] is None
