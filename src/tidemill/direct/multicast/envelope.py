"""Records as messages: an envelope with key, headers and time.

An empty message stands for an offset without a record, so an envelope is never empty, and a record
with an empty value, or with null, is distinct from it. The format is ours::

    version  1 byte: 1
    flags    1 byte: 1 key, 2 value, 4 the value was left out because it is too large
    time     8 bytes: milliseconds since the epoch, signed
    headers  2 bytes: how many
    key      if there is one: 4 bytes of length, and the key
    headers  each: 2 bytes of length, the name in UTF-8, 4 bytes of length (-1: null), the value
    value    the rest; of one that was left out, 8 bytes with its size

All numbers are big-endian. Must not know: sockets, Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemill.direct.multicast.errors import PacketError

_START = struct.Struct(">BBqH")
_VERSION = 1
_KEY, _VALUE, _LEFT_OUT = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic.

    Attributes:
        key: None if it has none.
        value: None is a tombstone, unless ``left_out`` is set.
        timestamp_ms: milliseconds since the epoch.
        left_out: the size of a value that is too large for a packet; 0 otherwise.
    """

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Sequence[tuple[str, bytes | None]] = field(default=())
    left_out: int = 0


def encode_record(record: Record) -> bytes:
    """Return the envelope of a record.

    Raises:
        PacketError: it has more than 65,535 headers, or a name of one has more bytes.
    """
    try:
        return _encode(record)
    except struct.error as error:
        raise PacketError(f"the record can't be in an envelope: {error}") from error


def _encode(record: Record) -> bytes:
    flags = _KEY * (record.key is not None) | _VALUE * (record.value is not None)
    flags |= _LEFT_OUT * bool(record.left_out)
    parts = [_START.pack(_VERSION, flags, record.timestamp_ms, len(record.headers))]
    if record.key is not None:
        parts += (struct.pack(">I", len(record.key)), record.key)
    for name, value in record.headers:
        raw = name.encode()
        parts += (struct.pack(">H", len(raw)), raw)
        parts += (struct.pack(">i", -1 if value is None else len(value)), value or b"")
    if record.left_out:
        parts.append(struct.pack(">Q", record.left_out))
    parts.append(record.value or b"")
    return b"".join(parts)


def decode_record(message: bytes) -> Record | None:
    """Return the record in a message; None for an offset without one.

    Raises:
        PacketError: the message is not such an envelope.
    """
    if not message:
        return None
    try:
        version, flags, timestamp_ms, count = _START.unpack_from(message)
    except struct.error as error:
        raise PacketError("the envelope of a record ends too early") from error
    if version != _VERSION:
        raise PacketError(f"version {version} of a record's envelope is not known")
    reader = _Reader(message, _START.size)
    key = reader.take(reader.number(4)) if flags & _KEY else None
    headers = []
    for _ in range(count):
        name = reader.take(reader.number(2)).decode(errors="replace")
        size = reader.number(4)
        headers.append((name, None if size == 0xFFFFFFFF else reader.take(size)))
    left_out = reader.number(8) if flags & _LEFT_OUT else 0
    value = reader.rest() if flags & _VALUE else None
    return Record(key, value, timestamp_ms, tuple(headers), left_out)


class _Reader:
    """Reads the parts of a message behind each other."""

    def __init__(self, message: bytes, at: int) -> None:
        self._message, self._at = message, at

    def take(self, size: int) -> bytes:
        found = self._message[self._at : self._at + size]
        if len(found) < size:
            raise PacketError("the envelope of a record ends too early")
        self._at += size
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def rest(self) -> bytes:
        return self._message[self._at :]
