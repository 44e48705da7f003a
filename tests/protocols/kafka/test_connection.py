"""Framing: in whatever pieces bytes arrive, the frames are the same, and memory is limited."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.errors import ProtocolError
from tidemill.net.errors import RequestTooLargeError
from tidemill.protocols.kafka.connection import FIRST_BYTES, TRUSTED_BYTES, BufferPool, FrameReader

SCRATCH = 8192


def reader(max_frame: int = 10_000_000, scratch: int = SCRATCH) -> FrameReader:
    return FrameReader(max_frame, memoryview(bytearray(scratch)), BufferPool())


def feed(target: FrameReader, stream: bytes, pieces: list[int]) -> list[bytes]:
    """Let a stream arrive in pieces of the given sizes (repeated), as a socket would deliver it."""
    frames: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        buffer = target.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), pieces[turn % len(pieces)], len(stream) - position)
        buffer[:count] = stream[position : position + count]
        frames += [bytes(frame.view) for frame in target.received(count)]
        position, turn = position + count, turn + 1
    return frames


SMALL = [0, 1, 3, 8, 100, 5000, 8188, 8192, 70_000, 300_000]
FILLING = [0, 100, 4096, 4097, 20_000, 32_763, 32_764, 40_000]


@pytest.mark.parametrize(
    ("scratch", "sizes", "pieces"),
    [(SCRATCH, SMALL, [1, 3, 4, 5, 100, 4096, 10**6]), (65_536, FILLING, [4096, 30_000, 10**6])],
    ids=["a small buffer", "frames that fill the buffer"],
)
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_frames_do_not_depend_on_how_bytes_arrive(
    scratch: int, sizes: list[int], pieces: list[int], data: st.DataObject
) -> None:
    most = 8 if scratch == SCRATCH else 16
    lengths = data.draw(st.lists(st.sampled_from(sizes), max_size=most))
    arriving = data.draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=5))
    if max(lengths, default=0) > 10_000:
        arriving = [max(piece, 1000) for piece in arriving]  # else it takes too long
    bodies = [bytes([index % 256]) * size for index, size in enumerate(lengths)]
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    target = reader(scratch=scratch)
    assert feed(target, stream, arriving) == bodies
    assert not target.is_partial
    assert target.partial_bytes == 0


def test_the_rest_of_a_frame_arrives_with_the_frames_behind_it() -> None:
    target = reader(scratch=65_536)
    stream = memoryview(b"".join(struct.pack(">i", 20_000) + bytes(20_000) for _ in range(6)))
    target.get_buffer()[:] = stream[:65_536]
    assert len(target.received(65_536)) == 3
    part = 65_536 - 3 * 20_004
    assert target.partial_bytes == part
    rest = stream[65_536:]
    buffer = target.get_buffer()
    assert len(buffer) == 65_536 - part
    buffer[: len(rest)] = rest
    assert len(target.received(len(rest))) == 3
    # A buffer that is not full has all that is there: the rest goes into a place of its own.
    target = reader(scratch=65_536)
    target.get_buffer()[:30_000] = stream[:30_000]
    assert len(target.received(30_000)) == 1
    assert len(target.get_buffer()) == 2 * 20_004 - 30_000


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (struct.pack(">i", -1), "length"),
        (struct.pack(">i", -(2**31)), "length"),
        (struct.pack(">i", 1001), "1001"),
        (struct.pack(">i1si", 1, b"x", -5), "length"),
    ],
    ids=["negative", "the smallest number", "over the limit", "behind a frame, which is lost"],
)
def test_a_wrong_length_is_refused_before_the_bytes_arrive(start: bytes, why: str) -> None:
    assert feed(reader(1000), struct.pack(">i", 1000) + bytes(1000), [4096]) == [bytes(1000)]
    error = RequestTooLargeError if why == "1001" else ProtocolError
    with pytest.raises(error, match=why):
        feed(reader(1000), start, [4096])


def test_announced_size_is_not_allocated() -> None:
    target = reader(2**31 - 1)
    feed(target, struct.pack(">i", 2**31 - 1) + bytes(1000), [4096])
    assert target.partial_bytes == FIRST_BYTES
    feed(target, bytes(200_000), [4096])
    assert target.partial_bytes <= 4 * 201_000 * 2


def test_large_frame_is_received_into_its_own_buffer() -> None:
    target = reader()
    size = 200_000
    stream = memoryview(struct.pack(">i", size) + bytes(size))
    target.get_buffer()[:4096] = stream[:4096]
    assert target.received(4096) == []
    places = set()
    position = 4096
    while True:
        buffer = target.get_buffer()
        places.add(id(buffer.obj))
        count = min(len(buffer), len(stream) - position)
        buffer[:count] = stream[position : position + count]
        position += count
        frames = target.received(count)
        if frames:
            break
    assert len(places) == 2  # grown once: 64 KiB, then all of it
    assert frames[0].owner is frames[0].view.obj


def test_a_frame_as_large_as_the_one_before_gets_its_whole_buffer_immediately() -> None:
    target = reader()
    body = bytes(900_000)
    assert feed(target, struct.pack(">i", len(body)) + body, [4096]) == [body]
    feed(target, struct.pack(">i", len(body)) + bytes(1000), [4096])
    assert target.partial_bytes >= len(body)


def test_after_a_large_frame_not_every_announced_length_is_trusted() -> None:
    target = reader(2**31 - 1)
    body = bytes(5_000_000)
    feed(target, struct.pack(">i", len(body)) + body, [4096])
    feed(target, struct.pack(">i", 2**31 - 1) + bytes(1000), [4096])
    assert target.partial_bytes <= TRUSTED_BYTES


def test_small_frames_are_views_into_the_shared_buffer() -> None:
    target = reader()
    target.get_buffer()[:10] = struct.pack(">i1si1s", 1, b"a", 1, b"b")
    frames = target.received(10)
    assert [(bytes(frame.view), frame.owner) for frame in frames] == [(b"a", None), (b"b", None)]


def test_part_of_a_length_survives_other_users_of_the_shared_buffer() -> None:
    scratch = memoryview(bytearray(SCRATCH))
    first, second = (FrameReader(1000, scratch, BufferPool()) for _ in range(2))
    message = struct.pack(">i5s", 5, b"hello")
    assert feed(first, message[:3], [3]) == []
    assert feed(second, struct.pack(">i2s", 2, b"no"), [100]) == [b"no"]
    assert feed(first, message[3:], [100]) == [b"hello"]


def test_a_frame_takes_little_more_memory_than_its_length() -> None:
    for size in (5_000, 65_536, 65_700, 120_000):
        target = reader()
        feed(target, struct.pack(">i", size) + bytes(4096), [4100])
        assert size <= target.partial_bytes <= max(BufferPool.SMALLEST, 1.25 * size)


def test_pool_keeps_a_bounded_number_of_bytes() -> None:
    pool = BufferPool(keep_bytes=FIRST_BYTES * 2)
    buffers = [pool.take(FIRST_BYTES) for _ in range(3)]
    for buffer in buffers:
        pool.give(buffer)
    again = [pool.take(FIRST_BYTES) for _ in range(3)]
    assert sum(any(a is b for b in buffers) for a in again) == 2


def test_pool_forgets_sizes_of_the_past_when_there_is_no_place_for_another() -> None:
    pool = BufferPool(keep_bytes=FIRST_BYTES * 2)
    for buffer in [pool.take(FIRST_BYTES) for _ in range(2)]:
        pool.give(buffer)
    other = pool.take(FIRST_BYTES + 1)
    pool.give(other)
    assert pool.take(FIRST_BYTES + 1) is other


def test_pool_returns_buffers_that_are_large_enough() -> None:
    pool = BufferPool()
    for size in (1, FIRST_BYTES, FIRST_BYTES + 1, 3_000_000, 50_000_000):
        buffer = pool.take(size)
        assert len(buffer) >= size
        pool.give(buffer)
