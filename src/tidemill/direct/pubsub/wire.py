"""The bytes of a published message: a channel, a header with a sequence, and the payload.

ZeroMQ carries them as three frames. nng has no frames: the channel ends with a zero byte, and
header and payload follow. All numbers of the header are big-endian:

======  ====================================================================================
bytes   meaning
======  ====================================================================================
2       ``tm``
1       version: 1
1       0: a message; 1: a state, which has an empty payload
8       publisher: a random number
8       sequence in this channel of this publisher, from 1 on; in a state: the last one used
======  ====================================================================================

Must not know: sockets, either library.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.direct.pubsub.errors import FrameError, PubSubError

MAGIC = b"tm"
VERSION = 1
MESSAGE = 0
STATE = 1
LONGEST_CHANNEL = 255
LAST_SEQUENCE = 2**64 - 1
HEADER = struct.Struct(">2sBBQQ")


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was published.

    Attributes:
        channel: the name that it was published under.
        payload: its bytes.
        publisher: the random number of the publisher, which is new after a restart.
        sequence: its number in this channel of this publisher, from 1 on.
    """

    channel: bytes
    payload: bytes
    publisher: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Messages that were published and did not arrive.

    Attributes:
        channel: their channel.
        publisher: the random number of their publisher.
        first: sequence of the first one.
        count: how many.
    """

    channel: bytes
    publisher: int
    first: int
    count: int


Event = Message | Lost


class Header(NamedTuple):
    """The header of a message. ``kind`` is ``MESSAGE`` or ``STATE``."""

    kind: int
    publisher: int
    sequence: int


def check_channel(channel: bytes) -> None:
    """Check the name of a channel.

    Raises:
        PubSubError: it is too long, or has a zero byte.
    """
    if len(channel) > LONGEST_CHANNEL or b"\0" in channel:
        raise PubSubError(
            f"invalid channel {channel[:40]!r} of {len(channel):,} bytes",
            hint=f"Use at most {LONGEST_CHANNEL} bytes without a zero byte.",
        )


def encode_header(header: Header) -> bytes:
    """Return the bytes of a header."""
    return HEADER.pack(MAGIC, VERSION, *header)


def decode_header(data: bytes) -> Header:
    """Return the header in bytes.

    Raises:
        FrameError: the bytes are not a header of this version.
    """
    if len(data) != HEADER.size:
        raise FrameError(f"a header has {len(data):,} bytes and not {HEADER.size}")
    magic, version, kind, publisher, sequence = HEADER.unpack(data)
    if magic != MAGIC or version != VERSION or kind not in (MESSAGE, STATE):
        raise FrameError(f"invalid header {data[:4]!r}: magic, version or kind is not known")
    if kind == MESSAGE and not sequence:
        raise FrameError("a message has the sequence 0, but sequences start at 1")
    return Header(kind, publisher, sequence)


def decode_frames(frames: list[bytes]) -> tuple[bytes, Header, bytes]:
    """Return channel, header and payload of three frames.

    Raises:
        FrameError: they are not three, or one is invalid.
    """
    if len(frames) != 3:
        raise FrameError(f"a message has {len(frames):,} frames and not 3")
    channel, header, payload = frames
    if len(channel) > LONGEST_CHANNEL or b"\0" in channel:
        raise FrameError(f"invalid channel of {len(channel):,} bytes")
    return channel, decode_header(header), payload


def join(channel: bytes, header: bytes, payload: bytes) -> bytes:
    """Return the three parts as one message, for a library without frames."""
    return b"".join((channel, b"\0", header, payload))


def split(data: bytes) -> list[bytes]:
    """Return channel, header and payload of one message; none if it has no end of a channel."""
    end = data.find(b"\0", 0, LONGEST_CHANNEL + 1)
    if end < 0:
        return []
    start = end + 1
    return [data[:end], data[start : start + HEADER.size], data[start + HEADER.size :]]
