"""Cuts the bytes of a connection into frames, each one request.

A Kafka frame is a signed 32-bit length and that many bytes. The code that reads the socket asks
for a buffer (``get_buffer``), receives into it, and reports how many bytes arrived (``received``):

- Small frames arrive in a scratch buffer that all connections of a thread share. A frame is a view
  into it, valid until ``received`` is called again on any connection.
- A large frame of which only a part has arrived gets a buffer of its own, and the rest is received
  straight into its place. A client can announce any length, so the buffer has at most four times
  the bytes that have arrived (at least 128 KiB), or the length of the connection's last frame,
  which did arrive (at most 1 MiB, which the largest batches of common clients need).

Sans-IO: knows no sockets, no header of a request, no engine.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tidemill.errors import ProtocolError
from tidemill.net.errors import RequestTooLargeError

SCRATCH_BYTES = 262_144
FIRST_BYTES = 131_072
"""Smallest buffer of a longer frame that has not arrived completely. A batch of 64 KiB, a common
limit of producers, would just not fit into half of it, and cost a copy and a third receive."""
GROWTH = 4
TRUSTED_BYTES = 1_048_576
"""Largest buffer that a client gets immediately because its last frame was as large."""
LARGE_BYTES = 131_072
"""Frames of this size or more are received into their place. Of smaller ones, several arrive
together."""
_MANY_FRAMES = 32
_MANY_BYTES = 16_384
"""Bytes received if so many frames came last: each costs time, and other connections wait."""
_AHEAD_BYTES = 4096
"""Bytes received into scratch if the last frame was large, so that the rest goes into its place."""

SHORT_BYTES = 4096
"""The part of a frame of up to this size waits until the scratch buffer is received into again. If
the scratch buffer was filled, so does the part of a frame below half of it: the rest of the frame
and others are there to be received together."""

_LENGTH = struct.Struct(">i")


class Frame(NamedTuple):
    """One request without its length prefix."""

    view: memoryview
    owner: bytearray | None
    """The buffer to return to the pool when done. None: ``view`` is a view into the scratch buffer;
    copy it to keep it."""


_make_frame: Callable[[tuple[memoryview, bytearray | None]], Frame]
_make_frame = partial(tuple.__new__, Frame)
"""Make a frame without a call of Python code: this is done for each request."""


def kept(frame: Frame) -> Frame:
    """Return a frame that stays valid when more bytes are received."""
    if frame.owner is not None:
        return frame
    return Frame(memoryview(bytearray(frame.view)), None)


class BufferPool:
    """Receive buffers for all connections, reused, with four sizes for each power of two.

    With powers of two only, a batch of 64 KiB and its header would take 128 KiB. Python fills a new
    ``bytearray`` with zeros, which costs as much as receiving into it.
    """

    LARGEST = 8_388_608
    """Larger buffers are not reused."""
    SMALLEST = 16_384

    def __init__(self, keep_bytes: int = 16_777_216) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._keep_bytes = self._left = keep_bytes

    def take(self, size: int) -> bytearray:
        """Return a buffer of at least ``size`` bytes with any content."""
        if size > self.LARGEST:
            return bytearray(size)
        capacity = self._capacity(size)
        free = self._free.get(capacity)
        if free:
            self._left += capacity
            return free.pop()
        return bytearray(capacity)

    def give(self, buffer: bytearray) -> None:
        """Return a buffer for use by others. The caller must not read it any more."""
        capacity = len(buffer)
        if capacity > self.LARGEST or capacity != self._capacity(capacity):
            return
        free = self._free.setdefault(capacity, [])
        if capacity > self._left:
            if free or capacity > self._keep_bytes:
                return
            # The pool is full of sizes that were in use once, and this one has no place.
            self._free, self._left = {capacity: free}, self._keep_bytes
        self._left -= capacity
        free.append(buffer)

    def _capacity(self, size: int) -> int:
        if size <= self.SMALLEST:
            return self.SMALLEST
        step = 1 << (size - 1).bit_length() - 3
        return -(-size // step) * step


class FrameReader:
    """Cuts the bytes of one connection into frames.

    Args:
        max_frame: largest length accepted, in bytes.
        scratch: receive buffer shared with the other connections of this thread.
        pool: where buffers for large frames come from.
    """

    __slots__ = (
        "_buffer",
        "_filled",
        "_head",
        "_last_count",
        "_last_size",
        "_max",
        "_pool",
        "_scratch",
        "_size",
    )

    def __init__(self, max_frame: int, scratch: memoryview, pool: BufferPool) -> None:
        self._max = max_frame
        self._scratch = scratch
        self._pool = pool
        self._head = b""  # the part of a short frame that has arrived
        self._buffer: bytearray | None = None
        self._size = 0
        self._filled = 0
        self._last_size = 0
        self._last_count = 0

    @property
    def partial_bytes(self) -> int:
        """Bytes of memory that a frame takes of which only a part has arrived."""
        return len(self._head) if self._buffer is None else len(self._buffer)

    @property
    def is_partial(self) -> bool:
        """Whether a part of a frame has arrived."""
        return self._buffer is not None or bool(self._head)

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into; it is never empty."""
        if self._buffer is not None:
            if self._filled == len(self._buffer):
                self._grow(self._buffer)
            return memoryview(self._buffer)[self._filled : self._size]
        used = len(self._head)
        if used:
            self._scratch[:used] = self._head
        end = None
        if self._last_size >= LARGE_BYTES:
            end = used + _AHEAD_BYTES
        elif self._last_count >= _MANY_FRAMES:
            end = _MANY_BYTES
        return self._scratch[used:end]

    def _grow(self, full: bytearray) -> None:
        larger = self._pool.take(min(self._size, self._filled * GROWTH))
        # A slice of a bytearray would be set from another copy.
        memoryview(larger)[: self._filled] = memoryview(full)[: self._filled]
        self._buffer = larger
        self._pool.give(full)

    def received(self, count: int) -> list[Frame]:
        """Take ``count`` bytes in the last buffer; return the frames that are complete now.

        Raises:
            RequestTooLargeError: a length is over the limit.
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
        frames = self._cut(end)
        self._last_count = len(frames)
        return frames

    def _cut(self, end: int) -> list[Frame]:
        frames: list[Frame] = []
        position, scratch = 0, self._scratch
        is_full = end == len(scratch)
        while end - position >= 4:
            (size,) = _LENGTH.unpack_from(scratch, position)
            if not 0 <= size <= self._max:
                raise self._invalid_length(size)
            start, position = position + 4, position + 4 + size
            if position > end and (size <= SHORT_BYTES or (is_full and size < end // 2)):
                position = start - 4
                break
            if position > end:
                self._begin(size, scratch[start:end])
                return frames
            frames.append(_make_frame((scratch[start:position], None)))
            self._last_size = size
        if position < end:
            self._head = bytes(scratch[position:end])
        return frames

    def _begin(self, size: int, arrived: memoryview) -> None:
        """Allocate a buffer for a frame of which only ``arrived`` is there."""
        count = len(arrived)
        trusted = min(self._last_size, TRUSTED_BYTES)
        self._buffer = self._pool.take(min(size, max(FIRST_BYTES, count * GROWTH, trusted)))
        self._buffer[:count] = arrived
        self._size, self._filled = size, count

    def _invalid_length(self, size: int) -> ProtocolError:
        if size < 0:
            return ProtocolError(f"invalid length {size} of a request")
        return RequestTooLargeError(
            f"a request of {size} bytes is too large: at most {self._max} are allowed",
            hint="Raise limits.request_bytes, or send smaller batches.",
        )

    def close(self) -> None:
        """Return the buffer of an unfinished frame to the pool."""
        if self._buffer is not None:
            self._pool.give(self._buffer)
            self._buffer = None
