"""Frames: one pass, byte by byte and any other way of arriving give the same events."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterable

import pytest
from pamqp import body as pamqp_body
from pamqp import commands, header
from pamqp import frame as pamqp_frame

from tests.protocols.amqp.client import publish_bytes
from tidemill.protocols.amqp.codec import hot, methods
from tidemill.protocols.amqp.codec.frames import (
    ACK,
    CONTENT_BYTES,
    FRAMES_WITHOUT_EVENT,
    METHOD,
    NOTHING,
    PUBLISH,
    SCRATCH_BYTES,
    TOO_LARGE,
    Event,
    FrameReader,
    PublishHead,
)
from tidemill.protocols.amqp.errors import (
    FrameError,
    MalformedError,
    UnexpectedFrameError,
    UnfinishedError,
)

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def reader(max_message: int = 1 << 20, max_unfinished: int = 1 << 30) -> FrameReader:
    return FrameReader(memoryview(bytearray(SCRATCH_BYTES)), max_message, max_unfinished)


def read(stream: bytes, sizes: list[int], max_message: int = 1 << 20) -> list[Event]:
    """Let a stream arrive in pieces of these sizes, repeated."""
    frames, events, at, turn = reader(max_message), [], 0, 0
    while at < len(stream):
        size = min(sizes[turn % len(sizes)], len(stream) - at, SCRATCH_BYTES)
        frames.get_buffer()[:size] = stream[at : at + size]
        frames.received(size)
        events += list(frames.events())
        at, turn = at + size, turn + 1
    assert not frames.is_partial
    assert frames.partial_bytes == 0
    return events


PROPERTIES = b"\x10\x00\x02"
LARGE = bytes(range(256)) * 1200
"""It needs three frames."""
LARGE_MESSAGE = publish_bytes(1, "ex", "k" * 255, LARGE, PROPERTIES)
STREAM = (
    publish_bytes(1, "", "q", b"hello world!", PROPERTIES, mandatory=True)
    + HEARTBEAT
    + methods.encode(2, "basic.ack", delivery_tag=7, multiple=True)
    + publish_bytes(3, "ex", "", b"")
    + LARGE_MESSAGE
    + methods.encode(0, "connection.close-ok")
    + methods.encode(2, "basic.ack", delivery_tag=2**63)
)
EVENTS = [
    (PUBLISH, 1, PublishHead("", "q", b"q", True, False), PROPERTIES, b"hello world!"),
    (ACK, 2, 7, True),
    (PUBLISH, 3, PublishHead("ex", "", b"", False, False), b"\0\0", b""),
    (PUBLISH, 1, PublishHead("ex", "k" * 255, b"k" * 255, False, False), PROPERTIES, LARGE),
    (METHOD, 0, 10 << 16 | 51, b"\x00\x0a\x00\x33"),
    (ACK, 2, 2**63, False),
]


@pytest.mark.parametrize("sizes", [[1 << 20], [1000], [7, 1, 100_000, 3], [13, 21, 8]])
def test_events_do_not_depend_on_how_the_bytes_arrive(sizes: list[int]) -> None:
    assert read(STREAM, sizes) == EVENTS


def test_short_frames_byte_by_byte() -> None:
    stream = STREAM.replace(LARGE_MESSAGE, b"")
    assert read(stream, [1]) == [e for e in EVENTS if e[-1] != LARGE]


def test_messages_of_two_channels_can_be_interleaved() -> None:
    one = pieces(publish_bytes(1, "a", "k", b"x" * 200_000))
    two = pieces(publish_bytes(2, "b", "k", b"y" * 200_000))
    stream = b"".join(frame for pair in zip(one, two, strict=True) for frame in pair)
    assert [event[1:3:2] and event[4] for event in read(stream, [5000])] == [
        b"x" * 200_000,
        b"y" * 200_000,
    ]


def pieces(stream: bytes) -> list[bytes]:
    """Return the frames of a stream."""
    found, at = [], 0
    while at < len(stream):
        size = int.from_bytes(stream[at + 3 : at + 7], "big") + 8
        found.append(stream[at : at + size])
        at += size
    return found


def test_the_body_of_a_message_over_the_limit_is_skipped() -> None:
    stream = publish_bytes(1, "", "q", b"x" * 5000) + publish_bytes(1, "", "q", b"y")
    events = read(stream, [1000], max_message=4999)
    assert events[0] == (TOO_LARGE, 1, 5000)
    assert [event[4] for event in events[1:]] == [b"y"]


def test_announced_sizes_take_no_memory() -> None:
    frames = reader(max_message=1 << 40)
    start = methods.encode(1, "basic.publish", routing_key="q")
    head = (
        b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + (1 << 39).to_bytes(8, "big") + b"\0\0\xce"
    )
    data = start + head + b"\x03\x00\x01\x00\x01\x00\x00"
    frames.get_buffer()[: len(data)] = data
    frames.received(len(data))
    assert list(frames.events()) == []
    assert frames.partial_bytes < CONTENT_BYTES + 100
    assert frames.is_partial


START = methods.encode(1, "basic.publish", routing_key="q")
HEAD = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\xce"
BODY = b"\x03\x00\x01\x00\x00\x00\x05hello\xce"


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (START + START, UnexpectedFrameError),
        (START + BODY, UnexpectedFrameError),
        (START + HEAD + HEAD, UnexpectedFrameError),
        (HEAD, UnexpectedFrameError),
        (BODY, UnexpectedFrameError),
        (START + HEAD.replace(b"\x00\x3c", b"\x00\x3d"), UnexpectedFrameError),
        (START + HEAD + BODY[:6] + b"\x06hello!\xce", FrameError),
        (START + HEAD[:-1] + b"\xcd", FrameError),
        (START + HEAD + BODY[:-1] + b"\xcd", FrameError),
        (START[:-1] + b"\xcd", FrameError),
        (b"\x04" + START[1:], FrameError),
        (b"\x01\x00\x01\xff\xff\xff\xff" + b"x" * 20, FrameError),
        (b"\x01\x00\x01\x00\x00\x00\x03abc\xce", MalformedError),
        (b"\x01\x00\x01\x00\x00\x00\x06\x00\x3c\x00\x28\x00\x00\xce", MalformedError),
        (b"\x01\x00\x01\x00\x00\x00\x08\x00\x3c\x00\x28\x00\x00\x09a\xce", MalformedError),
        (START + b"\x02\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x00\xce", MalformedError),
    ],
)
def test_what_is_not_in_order_is_refused(stream: bytes, error: type[Exception]) -> None:
    for sizes in ([1 << 20], [1]):
        with pytest.raises(error):
            read(stream, sizes)


def test_a_frame_over_the_negotiated_size_is_refused() -> None:
    frames = reader()
    frames.frame_max = 4096
    data = hot.content(START, 1, b"\0\0", b"x" * 4097, 131_072)
    stream = b"".join(data)
    frames.get_buffer()[: len(stream)] = stream
    frames.received(len(stream))
    with pytest.raises(FrameError, match=r"frame_too_large,4097,4088"):
        list(frames.events())


def begun(channel: int, size: int, properties: bytes = b"\0\0") -> bytes:
    """Return the method and the header of a message with a body of ``size`` bytes."""
    number = channel.to_bytes(2, "big")
    start = methods.encode(channel, "basic.publish", routing_key="q")
    content = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + properties
    return start + b"\x02" + number + len(content).to_bytes(4, "big") + content + b"\xce"


def part(channel: int, payload: bytes) -> bytes:
    """Return a frame with a part of a body."""
    number = channel.to_bytes(2, "big")
    return b"\x03" + number + len(payload).to_bytes(4, "big") + payload + b"\xce"


def unfinished(channels: int, frames: list[bytes], times: int) -> Iterable[bytes]:
    """Yield what begins a message on each channel and goes on with these parts of its body."""
    for channel in range(1, channels + 1):
        yield begun(channel, 1 << 19)
        for _ in range(times):
            yield from (part(channel, frame) for frame in frames)


def feed(frames: FrameReader, stream: bytes) -> list[Event]:
    """Let a stream arrive, in pieces that fit."""
    events: list[Event] = []
    for at in range(0, len(stream), SCRATCH_BYTES):
        piece = stream[at : at + SCRATCH_BYTES]
        frames.get_buffer()[: len(piece)] = piece
        frames.received(len(piece))
        events += [event for event in frames.events() if event[0] != NOTHING]
    return events


def held_here() -> int:
    """Return the bytes that AMQP and this test hold: other threads of the process don't count."""
    files = [
        tracemalloc.Filter(True, f"*/{name}") for name in ("protocols/amqp/*", "test_frames.py")
    ]
    found = tracemalloc.take_snapshot().filter_traces(files)
    return sum(trace.size for trace in found.traces)


@pytest.mark.parametrize(
    ("channels", "frames", "times"),
    [
        (1, [b"xy"], 100_000),
        (1, [b""], 100_000),
        (1, [b"x", b"", b"x" * 4096], 100),
        (50, [b"x" * 1000], 50),
        (2000, [b"x"], 1),
        (2000, [], 0),
        (4, [b"x" * 100_000], 4),
    ],
    ids=["2-bytes", "empty", "mixed", "50-channels", "2000-channels", "no-body", "large"],
)
def test_unfinished_messages_count_with_what_they_take(
    channels: int, frames: list[bytes], times: int
) -> None:
    target = reader()
    streams = [*unfinished(channels, frames, times)]
    feed(target, streams[0])  # what is made once
    tracemalloc.start()
    before = held_here()
    counted = target.partial_bytes
    for stream in streams[1:]:
        feed(target, stream)
    held = held_here() - before
    tracemalloc.stop()
    counted = target.partial_bytes - counted
    assert held <= 1.25 * counted + 2048, (held, counted)


def test_what_waits_for_the_reader_of_events_counts() -> None:
    frames = reader()
    stream = HEARTBEAT * 10_000
    frames.get_buffer()[: len(stream)] = stream
    frames.received(len(stream))
    assert frames.partial_bytes == len(stream)
    events = frames.events()
    assert next(events) == (NOTHING, 0)
    assert frames.partial_bytes == len(stream)
    assert not frames.is_partial
    for _ in events:
        pass
    assert frames.partial_bytes == 0


def test_messages_with_tiny_parts_arrive_whole() -> None:
    body = random.Random(1).randbytes(30_000)
    parts, at = [], 0
    for size in [2, 0, 5000, 1, 4095, 4096, 3] * 2:
        parts.append(part(1, body[at : at + size]))
        at += size
    target = reader()
    events = feed(target, begun(1, at) + b"".join(parts))
    assert [event[4] for event in events] == [body[:at]]
    assert all(type(event[4]) is bytes for event in events)
    assert target.partial_bytes == 0


@pytest.mark.parametrize("kind", ["bodies", "properties", "methods"])
def test_several_unfinished_messages_over_the_limit_are_refused(kind: str) -> None:
    target = reader(max_unfinished=300_000)
    kinds: dict[str, Callable[[int], bytes]] = {
        "bodies": lambda channel: begun(channel, 1 << 19) + part(channel, b"x" * 90_000),
        "properties": lambda channel: begun(channel, 1, b"\x80\x00" + b"x" * 90_000),
        "methods": lambda channel: methods.encode(channel, "basic.publish", routing_key="q"),
    }
    more, most = kinds[kind], 0

    def feed_all() -> None:
        nonlocal most
        for channel in range(1, 400):
            feed(target, more(channel))
            most = max(most, target.partial_bytes)

    with pytest.raises(UnfinishedError, match="unfinished messages take"):
        feed_all()
    assert 200_000 < most <= 300_000
    target.close()
    assert target.partial_bytes == 0


def test_one_unfinished_message_has_the_limit_of_a_message_only() -> None:
    body = b"x" * (1 << 20)
    events = feed(reader(max_unfinished=300_000), publish_bytes(1, "", "q", body))
    assert [event[4] for event in events] == [body]


@pytest.mark.parametrize(
    "frame",
    [
        HEARTBEAT,
        b"\x03\x00\x01\x00\x00\x00\x00\xce",
        b"\x03\x00\x01\x00\x00\x00\x01x\xce",
    ],
    ids=["heartbeat", "empty-body", "byte-of-a-body"],
)
def test_frames_without_effect_return_to_the_caller_again_and_again(frame: bytes) -> None:
    frames = reader()
    unfinished = START + HEAD[:-8] + (1 << 19).to_bytes(5, "big") + b"\0\0\xce"
    count = 5000
    for stream in (unfinished, frame * count):
        frames.get_buffer()[: len(stream)] = stream
        frames.received(len(stream))
        events = list(frames.events())
    assert events == [(NOTHING, 0)] * (count // FRAMES_WITHOUT_EVENT)


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 131_064, 131_065, 300_000])
@pytest.mark.parametrize("frame_max", [4096, 131_072])
def test_pamqp_reads_deliveries(size: int, frame_max: int) -> None:
    body = random.Random(size).randbytes(size)
    route = hot.route(b"ex", b"key")
    for parts, kind in (
        (
            hot.deliver(9, b"\x03tag", 2**40, True, route, PROPERTIES, body, frame_max),
            commands.Basic.Deliver,
        ),
        (hot.get_ok(9, 5, False, route, 2**40, PROPERTIES, body, frame_max), commands.Basic.GetOk),
        (
            hot.returned(9, 312, b"NO_ROUTE", route, PROPERTIES, body, frame_max),
            commands.Basic.Return,
        ),
    ):
        frames = pieces(b"".join(parts))
        assert all(len(frame) <= frame_max for frame in frames)
        decoded = [pamqp_frame.unmarshal(frame) for frame in frames]
        assert all(channel == 9 for _, channel, _ in decoded)
        method, content = decoded[0][2], decoded[1][2]
        assert isinstance(method, kind)
        assert (method.exchange, method.routing_key) == ("ex", "key")
        assert isinstance(content, header.ContentHeader)
        assert (content.body_size, content.properties.delivery_mode) == (size, 2)
        bodies = [f.value for _, _, f in decoded[2:] if isinstance(f, pamqp_body.ContentBody)]
        assert b"".join(bodies) == body


@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("multiple", [True, False])
def test_pamqp_reads_confirms(ok: bool, multiple: bool) -> None:
    count, channel, frame = pamqp_frame.unmarshal(hot.settled(3, 2**40, ok=ok, multiple=multiple))
    assert (count, channel) == (21, 3)
    assert isinstance(frame, commands.Basic.Ack if ok else commands.Basic.Nack)
    assert (frame.delivery_tag, frame.multiple) == (2**40, multiple)
