"""Framing, sans-IO: received bytes in, whole requests out; bounded, and copied as little as can be.

Kafka frames are a signed 32-bit length and that many bytes. The I/O side asks for a place to
receive into (``get_buffer``) and says how much came (``received``):

- Small frames arrive in a scratch buffer that all connections of a thread share, and are handed
  out as views into it (valid until ``received`` is called on any connection again).
- A frame that does not fit what has arrived gets a buffer of its own, and further bytes are
  received straight into their place. What a client announces is not believed: the buffer is at
  most four times what has arrived (128 KiB at least), or as large as the frame before it was, which
  did arrive (1 MiB at most: what the largest batches of common clients need).

Knows no sockets, no Kafka header, no broker.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidemill.errors import ProtocolError, RequestTooLargeError

SCRATCH_BYTES = 262_144
FIRST_BYTES = 131_072
"""Smallest buffer of a frame that has not arrived whole. Twice a batch of 64 KiB, a common limit of
producers: with its headers it would just not fit, and cost a copy and a third receive."""
GROWTH = 4
BELIEVED_BYTES = 1_048_576
"""Largest buffer that a client gets at once because its frame before was as large."""
LARGE_BYTES = 131_072
"""Frames from here on are received into their place. Of smaller ones several arrive at once."""
_AHEAD_BYTES = 4096
"""Received into scratch at most, where the last frame was large: the rest goes into place."""

_LENGTH = struct.Struct(">i")


class Frame(NamedTuple):
    """One request without its length prefix."""

    view: memoryview
    owner: bytearray | None
    """The buffer to give back to the pool when done; None: a view into the scratch buffer, which
    must be copied to be kept."""


class BufferPool:
    """Receive buffers that are used again, in powers of two, shared by the connections.

    A new ``bytearray`` is filled with zeros, which costs as much as receiving into it.
    """

    LARGEST = 8_388_608
    """Larger ones are not kept."""

    def __init__(self, keep_bytes: int = 16_777_216) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._room = keep_bytes

    def take(self, size: int) -> bytearray:
        """A buffer of at least ``size`` bytes with any content."""
        capacity = max(FIRST_BYTES, 1 << (size - 1).bit_length())
        if capacity > self.LARGEST:
            return bytearray(size)
        free = self._free.get(capacity)
        if free:
            self._room += capacity
            return free.pop()
        return bytearray(capacity)

    def give(self, buffer: bytearray) -> None:
        """Back for use by others: nobody may read it any more."""
        capacity = len(buffer)
        if capacity > self.LARGEST or capacity > self._room or capacity & (capacity - 1):
            return
        self._room -= capacity
        self._free.setdefault(capacity, []).append(buffer)


class FrameReader:
    """Cuts the bytes of one connection into frames.

    Args:
        max_frame: largest length accepted, in bytes.
        scratch: receive buffer shared with the other connections of this thread.
        pool: where buffers for large frames come from.
    """

    __slots__ = ("_buffer", "_filled", "_head", "_last_size", "_max", "_pool", "_scratch", "_size")

    def __init__(self, max_frame: int, scratch: memoryview, pool: BufferPool) -> None:
        self._max = max_frame
        self._scratch = scratch
        self._pool = pool
        self._head = b""  # of a length prefix that has come in part
        self._buffer: bytearray | None = None
        self._size = 0
        self._filled = 0
        self._last_size = 0

    @property
    def partial_bytes(self) -> int:
        """Memory that a frame in the middle of arriving takes."""
        return len(self._head) if self._buffer is None else len(self._buffer)

    @property
    def is_partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._buffer is not None or bool(self._head)

    def get_buffer(self) -> memoryview:
        """Where to receive into; never empty."""
        if self._buffer is not None:
            if self._filled == len(self._buffer):
                self._grow(self._buffer)
            return memoryview(self._buffer)[self._filled : self._size]
        used = len(self._head)
        if used:
            self._scratch[:used] = self._head
        return self._scratch[used : _AHEAD_BYTES if self._last_size >= LARGE_BYTES else None]

    def _grow(self, full: bytearray) -> None:
        larger = self._pool.take(min(self._size, self._filled * GROWTH))
        larger[: self._filled] = memoryview(full)[: self._filled]
        self._buffer = larger
        self._pool.give(full)

    def received(self, count: int) -> list[Frame]:
        """``count`` bytes have been written to the last buffer: the frames that are whole now.

        Raises:
            RequestTooLargeError: a length is above the bound.
            ProtocolError: a length is negative.
        """
        if self._buffer is not None:
            self._filled += count
            if self._filled < self._size:
                return []
            frame = Frame(memoryview(self._buffer)[: self._size], self._buffer)
            self._buffer = None
            self._last_size = self._size
            return [frame]
        end = count + len(self._head)
        self._head = b""
        return self._cut(end)

    def _cut(self, end: int) -> list[Frame]:
        frames: list[Frame] = []
        position, scratch = 0, self._scratch
        while end - position >= 4:
            (size,) = _LENGTH.unpack_from(scratch, position)
            if not 0 <= size <= self._max:
                raise self._refusal(size)
            start, position = position + 4, position + 4 + size
            if position > end:
                self._begin(size, scratch[start:end])
                return frames
            frames.append(Frame(scratch[start:position], None))
            self._last_size = size
        if position < end:
            self._head = bytes(scratch[position:end])
        return frames

    def _begin(self, size: int, arrived: memoryview) -> None:
        """A frame of which only ``arrived`` is there gets a buffer of its own."""
        count = len(arrived)
        believed = min(self._last_size, BELIEVED_BYTES)
        self._buffer = self._pool.take(min(size, max(FIRST_BYTES, count * GROWTH, believed)))
        self._buffer[:count] = arrived
        self._size, self._filled = size, count

    def _refusal(self, size: int) -> ProtocolError:
        if size < 0:
            return ProtocolError(f"a request announces a length of {size}")
        return RequestTooLargeError(
            f"a request announces {size} bytes; at most {self._max} are allowed",
            hint="Raise limits.request_bytes, or send smaller batches.",
        )

    def close(self) -> None:
        """Give the buffer of an unfinished frame back."""
        if self._buffer is not None:
            self._pool.give(self._buffer)
            self._buffer = None
