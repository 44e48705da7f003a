"""Cuts received bytes into events: methods, acknowledgements, and publishes with their content.

A publish is three frames: the method, the header with the properties, and the body. If all three
have arrived, as they do in almost every case, they are read in one pass. Otherwise the content is
assembled, frame by frame.

- All connections of a thread receive into one scratch buffer. What is kept is copied.
- A client announces lengths, and never gets memory for more than has arrived.
- Unfinished messages count with what they take, however small their frames are. A connection that
  has several of them, and more than its limit, is closed: nothing but its own bytes could end them.

Sans-IO: knows no sockets, no channel's state and no engine.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from tidemill.protocols.amqp.codec.methods import method_name
from tidemill.protocols.amqp.errors import (
    FrameError,
    MalformedError,
    UnexpectedFrameError,
    UnfinishedError,
)

SCRATCH_BYTES = 262_144
"""Receive buffer that the connections of a thread share."""
FRAME_MAX = 131_072
"""Largest frame that the broker accepts and sends, with its 8 bytes of overhead."""

LOGIN_FRAME_MAX = 65_536
"""Largest frame before the limits are negotiated: a login fits in it."""
FRAME_MIN = 4096
"""Smallest limit of frames that a client can ask for. Any connection accepts such a frame."""

PUBLISH, ACK, METHOD, TOO_LARGE, NOTHING = range(5)
"""Kinds of events."""
FRAMES_WITHOUT_EVENT = 32
"""Frames that have no effect yet, after which the reader yields ``NOTHING``."""

Event = tuple[Any, ...]
"""An event begins with its kind and the channel. Then:

- PUBLISH: the method's arguments, the properties (flags and values), the body.
- ACK: the delivery tag, and whether it means all up to this one.
- METHOD: the method's number, and the payload of its frame.
- TOO_LARGE: the size of a body that is over the limit. Its bytes are skipped.
- NOTHING: no more. Frames without an effect were read: heartbeats and parts of bodies. So the
  caller can stop for a while, whatever a client sends.
"""

_HEAD = struct.Struct(">BHII").unpack_from
_FRAME = struct.Struct(">BHI").unpack_from
_CONTENT = struct.Struct(">BHIIQ").unpack_from
_ACK = struct.Struct(">QB").unpack_from

_PUBLISH_NUMBER = 60 << 16 | 40
_ACK_NUMBER = 60 << 16 | 80
_BASIC = 60 << 16
"""The class of a content header, with a weight of 0."""
CONTENT_BYTES = 1024
"""What an unfinished message takes besides its properties and its body."""
SHORT_BYTES = 4096
"""Parts of a body below this size are joined as they arrive."""
_CACHED_BYTES = 160
_CACHED_HEADS = 1024


class PublishHead(NamedTuple):
    """The arguments of basic.publish."""

    exchange: str
    routing_key: str
    key: bytes
    """The bytes of the routing key."""
    mandatory: bool
    immediate: bool


class _Content:
    """A message of which only a part has arrived.

    Attributes:
        held: bytes of memory that it takes.
    """

    __slots__ = ("arrived", "chunks", "head", "held", "properties", "size", "skipped")

    def __init__(self, head: PublishHead) -> None:
        self.head = head
        self.properties: bytes | None = None
        self.size = 0
        self.arrived = 0
        self.chunks: list[bytes | bytearray] = []
        self.held = CONTENT_BYTES
        self.skipped = False

    def add(self, payload: bytes) -> None:
        """Keep a part of the body. Short parts are joined: each object costs 50 bytes."""
        if len(payload) >= SHORT_BYTES:
            self.chunks.append(payload)
            return
        last = self.chunks[-1] if self.chunks else None
        if isinstance(last, bytearray) and len(last) < FRAME_MAX:
            last += payload
        else:
            self.chunks.append(bytearray(payload))


class FrameReader:
    """Reads the frames of one connection.

    Args:
        scratch: receive buffer shared with the other connections of this thread.
        max_message: largest body of a message, in bytes.
        max_unfinished: bytes that several unfinished messages can take together.

    Attributes:
        frame_max: largest frame, as negotiated.
        takes_messages: whether a publish has a content that is assembled. Otherwise it is a METHOD
            as any other: before the login, a client gets no memory for a message.
    """

    __slots__ = (
        "_contents",
        "_data",
        "_heads",
        "_later",
        "_max_message",
        "_max_unfinished",
        "_scanned",
        "_scratch",
        "_unfinished",
        "frame_max",
        "takes_messages",
    )

    def __init__(self, scratch: memoryview, max_message: int, max_unfinished: int) -> None:
        self._scratch = scratch
        self._max_message = max_message
        self._max_unfinished = max_unfinished
        self._data = b""
        self._scanned = 0
        self._later: list[bytes] = []
        self._contents: dict[int, _Content] = {}
        self._heads: dict[bytes, PublishHead] = {}
        self._unfinished = 0
        self.frame_max = FRAME_MAX
        self.takes_messages = True

    @property
    def partial_bytes(self) -> int:
        """Bytes of memory that frames and messages take which are not events yet."""
        held = len(self._data) + self._scanned + self._unfinished
        return held + sum(map(len, self._later)) if self._later else held

    @property
    def is_partial(self) -> bool:
        """Whether a part of a frame or of a message has arrived."""
        return bool(self._data or self._contents)

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into; it is never empty."""
        return self._scratch

    def received(self, count: int) -> None:
        """Keep ``count`` bytes in the last buffer for ``events``."""
        self._later.append(bytes(self._scratch[:count]))

    def take(self, count: int) -> bytes:
        """Remove and return the first ``count`` bytes, or fewer: the protocol header."""
        self._join()
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def untake(self, data: bytes) -> None:
        """Return bytes that ``take`` removed."""
        self._data = data + self._data

    def close(self) -> None:
        """Drop everything."""
        self._contents.clear()
        self._data, self._scanned, self._unfinished = b"", 0, 0
        self._later.clear()

    def _join(self) -> None:
        if self._later:
            parts = [self._data, *self._later] if self._data else self._later
            self._data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._later = []

    def events(self) -> Iterator[Event]:
        """Yield what has arrived completely. One iterator must end before the next one begins.

        Raises:
            FrameError: bytes are not a frame, or a frame is too large.
            UnexpectedFrameError: a frame has no place here.
            MalformedError: a header or a publish can't be decoded.
        """
        try:
            yield from self._scan()
            while self._later:
                yield from self._scan()
        finally:
            self._scanned = 0

    def _scan(self) -> Iterator[Event]:
        self._join()
        data, at = self._data, 0
        self._data, self._scanned = b"", len(data)
        # RabbitMQ takes eight bytes more than the maximum, because clients count them differently.
        end, largest, contents = len(data), self.frame_max, self._contents
        largest_body = min(largest, self._max_message)
        quiet = 0
        while at + 8 <= end:
            if at + 11 <= end:
                kind, channel, size, number = _HEAD(data, at)
            else:
                (kind, channel, size), number = _FRAME(data, at), 0
            if size > largest:
                raise _too_large(data, at, size, self.frame_max)
            after = at + size + 8
            if after > end:
                break
            if data[after - 1] != 0xCE:
                raise FrameError(f"invalid frame end marker {data[after - 1]:#x}")
            if kind == 1:
                if size < 4:
                    raise MalformedError("a method frame is shorter than the number of a method")
                if contents and channel in contents:
                    raise UnexpectedFrameError(
                        "expected content header for class 60, got non content header frame "
                        f"{method_name(number)} instead"
                    )
                if number == _PUBLISH_NUMBER and self.takes_messages:
                    head = self._heads.get(data[at + 7 : after - 1])
                    if head is None:
                        head = self._parse_head(data[at + 7 : after - 1])
                    found = _whole_content(data, after, end, channel, largest_body)
                    if found is not None:
                        properties, body, at = found
                        yield (PUBLISH, channel, head, properties, body)
                        continue
                    contents[channel] = _Content(head)
                    self._hold(CONTENT_BYTES)
                    quiet += 1
                elif number == _ACK_NUMBER and size == 13:
                    tag, multiple = _ACK(data, at + 11)
                    at = after
                    yield (ACK, channel, tag, bool(multiple & 1))
                    continue
                else:
                    yield (METHOD, channel, number, data[at + 7 : after - 1])
                    largest = self.frame_max  # connection.tune-ok changes it
            else:
                event = self._other_frame(kind, channel, data[at + 7 : after - 1])
                if event is not None:
                    yield event
                else:
                    quiet += 1
            at = after
            if quiet >= FRAMES_WITHOUT_EVENT:
                quiet = 0
                yield (NOTHING, 0)
        self._data = data[at:]

    def _parse_head(self, payload: bytes) -> PublishHead:
        try:
            exchange_end = 7 + payload[6]
            key_at = exchange_end + 1
            key_end = key_at + payload[exchange_end]
            flags = payload[key_end]
        except IndexError:
            raise MalformedError(
                "the arguments of basic.publish are longer than its frame"
            ) from None
        key = payload[key_at:key_end]
        head = PublishHead(
            payload[7:exchange_end].decode("utf-8", "surrogateescape"),
            key.decode("utf-8", "surrogateescape"),
            key,
            bool(flags & 1),
            bool(flags & 2),
        )
        if len(payload) <= _CACHED_BYTES:
            if len(self._heads) >= _CACHED_HEADS:
                self._heads.clear()
            self._heads[payload] = head
        return head

    def _other_frame(self, kind: int, channel: int, payload: bytes) -> Event | None:
        """Add content to the message of its channel; return an event if that is complete."""
        if kind == 8:  # a heartbeat
            return None
        if kind != 2 and kind != 3:
            raise FrameError(f"unknown frame type {kind}")
        content = self._contents.get(channel)
        if content is None:
            what = "header" if kind == 2 else "body"
            raise UnexpectedFrameError(f"expected method frame, got content {what} frame instead")
        if kind == 2:
            return self._content_header(content, channel, payload)
        if content.properties is None:
            raise UnexpectedFrameError("expected content header, got content body frame instead")
        content.arrived += len(payload)
        if content.arrived > content.size:
            raise FrameError(
                f"the body of a message has more bytes than its header announces: {content.size}"
            )
        if payload and not content.skipped and content.arrived < content.size:
            content.add(payload)
            content.held += len(payload)
            self._hold(len(payload))
        elif payload and not content.skipped:  # the last part
            content.chunks.append(payload)
        return self._complete(content, channel)

    def _hold(self, size: int) -> None:
        """Count ``size`` more bytes of unfinished messages."""
        self._unfinished += size
        if self._unfinished > self._max_unfinished and len(self._contents) > 1:
            raise UnfinishedError(len(self._contents), self._unfinished)

    def _content_header(self, content: _Content, channel: int, payload: bytes) -> Event | None:
        if content.properties is not None:
            raise UnexpectedFrameError("expected content body, got content header frame instead")
        if len(payload) < 14:
            raise MalformedError("a content header is shorter than 14 bytes")
        if int.from_bytes(payload[:2], "big") != 60:
            raise UnexpectedFrameError("expected content header for class 60, got another class")
        content.size = int.from_bytes(payload[4:12], "big")
        content.properties = payload[12:]
        if content.size > self._max_message:
            content.skipped, content.properties = True, b""
            return (TOO_LARGE, channel, content.size)
        if content.size:
            content.held += len(content.properties)
            self._hold(len(content.properties))
        return self._complete(content, channel)

    def _complete(self, content: _Content, channel: int) -> Event | None:
        if content.arrived < content.size:
            return None
        del self._contents[channel]
        self._unfinished -= content.held
        if content.skipped:
            return None
        assert content.properties is not None
        return (PUBLISH, channel, content.head, content.properties, b"".join(content.chunks))


def _whole_content(
    data: bytes, at: int, end: int, channel: int, largest_body: int
) -> tuple[bytes, bytes, int] | None:
    """Read a header and a body of one frame that follow a publish.

    Returns:
        Properties, body and the position behind; None if they have not arrived, or are not what
        was expected. Then they are read frame by frame, which finds what is wrong.
    """
    if at + 22 > end:
        return None
    kind, number, size, basic, body_size = _CONTENT(data, at)
    body_at = at + size + 8
    if (
        kind != 2
        or number != channel
        or basic != _BASIC
        or size < 14
        or body_at > end
        or data[body_at - 1] != 0xCE
        or body_size > largest_body
        or size > FRAME_MIN
    ):
        return None
    if not body_size:
        return data[at + 19 : body_at - 1], b"", body_at
    after = body_at + body_size + 8
    if after > end or _FRAME(data, body_at) != (3, channel, body_size) or data[after - 1] != 0xCE:
        return None
    return data[at + 19 : body_at - 1], data[body_at + 7 : after - 1], after


def _too_large(data: bytes, at: int, size: int, frame_max: int) -> FrameError:
    octets = ",".join(str(octet) for octet in data[at + 7 : at + 23])
    problem = f"{{frame_too_large,{size},{frame_max - 8}}}"
    return FrameError(f"type {data[at]}, first 16 octets = <<{octets}>>: {problem}")
