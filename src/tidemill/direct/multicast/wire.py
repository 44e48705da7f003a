"""The packets of MoldUDP64: a session, a sequence number, a count, and so many messages.

All numbers are big-endian. Must not know: sockets, what a message means.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tidemill.direct.multicast.errors import PacketError

_HEADER = struct.Struct(">10sQH")
_LENGTH = struct.Struct(">H")
HEADER_SIZE = _HEADER.size
BLOCK_SIZE = _LENGTH.size
SESSION_SIZE = 10
END_OF_SESSION = 0xFFFF
MOST_MESSAGES = 0xFFFE
"""Most messages of a packet, or of a request: 0xFFFF is the end of the session."""
LARGEST_PACKET = 65_507
"""Most bytes of a UDP datagram over IPv4."""
LARGEST_MESSAGE = LARGEST_PACKET - HEADER_SIZE - BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Packet:
    """A downstream packet.

    Attributes:
        session: ten bytes of ASCII, padded with spaces.
        sequence: the number of the first message. Without messages: the next one that is expected.
        messages: a message can be empty. Without messages, it is a heartbeat.
        is_end: whether the session has ended.
    """

    session: bytes
    sequence: int
    messages: Sequence[bytes] = field(default=())
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A request for messages that are missing."""

    session: bytes
    sequence: int
    count: int


def session_of(name: str) -> bytes:
    """Return a session's bytes.

    Raises:
        PacketError: it is empty, longer than ten characters, or not printable ASCII.
    """
    if not 0 < len(name) <= SESSION_SIZE or not name.isascii() or not name.isprintable():
        raise PacketError(f"session {name!r} is not one to ten characters of printable ASCII")
    return name.encode().ljust(SESSION_SIZE)


def encode_packet(packet: Packet) -> bytes:
    """Return the bytes of a packet. The caller keeps to the limits."""
    count = END_OF_SESSION if packet.is_end else len(packet.messages)
    parts = [_HEADER.pack(packet.session, packet.sequence, count)]
    for message in packet.messages:
        parts += (_LENGTH.pack(len(message)), message)
    return b"".join(parts)


def decode_packet(data: bytes) -> Packet:
    """Return the packet in a datagram.

    Raises:
        PacketError: it is shorter or longer than it says, or its numbers overflow.
    """
    session, sequence, count = _header(data)
    if count == END_OF_SESSION:
        if len(data) != HEADER_SIZE:
            raise PacketError("an end of session has messages")
        return Packet(session, sequence, (), is_end=True)
    if sequence + count > 1 << 64:
        raise PacketError(f"{count} messages from sequence {sequence} exceed 64 bits")
    messages, at = [], HEADER_SIZE
    # Each has two bytes at least, so the count is bounded by the size of the datagram.
    if count * BLOCK_SIZE > len(data) - HEADER_SIZE:
        raise PacketError(f"{len(data)} bytes can't have {count} messages")
    for _ in range(count):
        if at + BLOCK_SIZE > len(data):
            raise PacketError("the packet ends within a message")
        size = int.from_bytes(data[at : at + BLOCK_SIZE], "big")
        at += BLOCK_SIZE
        if at + size > len(data):
            raise PacketError("the packet ends within a message")
        messages.append(data[at : at + size])
        at += size
    if at != len(data):
        raise PacketError(f"{len(data) - at} bytes follow the last message")
    return Packet(session, sequence, messages)


def encode_request(request: Request) -> bytes:
    """Return the bytes of a request."""
    return _HEADER.pack(request.session, request.sequence, request.count)


def decode_request(data: bytes) -> Request:
    """Return the request in a datagram.

    Raises:
        PacketError: it has another size, or asks for no message.
    """
    if len(data) != HEADER_SIZE:
        raise PacketError(f"a request has {HEADER_SIZE} bytes and not {len(data)}")
    session, sequence, count = _header(data)
    if not 0 < count <= MOST_MESSAGES or sequence == 0:
        raise PacketError(f"a request for {count} messages from sequence {sequence}")
    return Request(session, sequence, count)


def pack(
    session: bytes, sequence: int, messages: Sequence[bytes], size: int
) -> Iterator[tuple[bytes, int]]:
    """Yield datagrams with messages, each with its number of messages.

    A datagram has as many messages as fit into ``size`` bytes, and one at least.

    Args:
        sequence: of the first message.
    """
    start = 0
    while start < len(messages):
        end, used = start, HEADER_SIZE
        while end < len(messages) and end - start < MOST_MESSAGES:
            used += BLOCK_SIZE + len(messages[end])
            if used > size and end > start:
                break
            end += 1
        yield (
            encode_packet(Packet(session, sequence + start, messages[start:end])),
            end - start,
        )
        start = end


def _header(data: bytes) -> tuple[bytes, int, int]:
    if len(data) < HEADER_SIZE:
        raise PacketError(f"a packet has {HEADER_SIZE} bytes at least, and not {len(data)}")
    session, sequence, count = _HEADER.unpack_from(data)
    return session, sequence, count
