"""Reads and writes field tables, with the types that RabbitMQ and its clients use.

Every length is checked against the bytes that are there, and the nesting is limited. pamqp is not
used here: it copies the rest of a table for each of its values, so that a table of 100 KB takes
seconds, and it turns large timestamps into others. The tests compare with it.

Types: https://www.rabbitmq.com/amqp-0-9-1-errata#section_3
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from decimal import Decimal

from tidemill.protocols.amqp.errors import MalformedError

MOST_NESTED = 32
"""Tables and arrays inside of each other."""
MOST_VALUES = 10_000
"""Values in a table, with those of the tables inside."""


class Timestamp(int):
    """Seconds since the epoch, as AMQP's type T."""


_FIXED: dict[int, tuple[struct.Struct, Callable[..., object]]] = {
    ord("t"): (struct.Struct(">B"), bool),
    ord("b"): (struct.Struct(">b"), int),
    ord("B"): (struct.Struct(">B"), int),
    ord("s"): (struct.Struct(">h"), int),
    ord("U"): (struct.Struct(">h"), int),
    ord("u"): (struct.Struct(">H"), int),
    ord("I"): (struct.Struct(">i"), int),
    ord("i"): (struct.Struct(">I"), int),
    ord("l"): (struct.Struct(">q"), int),
    ord("L"): (struct.Struct(">q"), int),
    ord("f"): (struct.Struct(">f"), float),
    ord("d"): (struct.Struct(">d"), float),
    ord("T"): (struct.Struct(">Q"), Timestamp),
}
_LONG = struct.Struct(">I")


class _Reader:
    """Decodes one table; counts its values."""

    __slots__ = ("_data", "_left")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = MOST_VALUES

    def table(self, at: int, end: int, depth: int) -> dict[str, object]:
        """Decode the entries between two positions."""
        data, entries = self._data, {}
        while at < end:
            name_end = at + 1 + data[at]
            if name_end >= end:
                raise MalformedError("a name in a table is longer than the table")
            name = data[at + 1 : name_end].decode("utf-8", "surrogateescape")
            entries[name], at = self.value(name_end, end, depth)
        return entries

    def value(self, at: int, end: int, depth: int) -> tuple[object, int]:
        """Decode the value whose type is at ``at``; return it and the position behind it."""
        self._left -= 1
        if self._left < 0:
            raise MalformedError(f"a table has more than {MOST_VALUES} values")
        kind = self._data[at]
        at += 1
        fixed = _FIXED.get(kind)
        if fixed is not None:
            layout, convert = fixed
            after = at + layout.size
            if after > end:
                raise MalformedError("a value is longer than its table")
            return convert(layout.unpack_from(self._data, at)[0]), after
        if kind == 0x56:  # V
            return None, at
        if kind == 0x44:  # D
            if at + 5 > end:
                raise MalformedError("a value is longer than its table")
            unscaled = int.from_bytes(self._data[at + 1 : at + 5], "big", signed=True)
            return Decimal(unscaled).scaleb(-self._data[at]), at + 5
        return self._long(kind, at, end, depth)

    def _long(self, kind: int, at: int, end: int, depth: int) -> tuple[object, int]:
        if kind not in b"SxFA":
            raise MalformedError(f"unknown type {chr(kind)!r} of a value in a table")
        if at + 4 > end:
            raise MalformedError("a value is longer than its table")
        start = at + 4
        after = start + _LONG.unpack_from(self._data, at)[0]
        if after > end:
            raise MalformedError("a value is longer than its table")
        if kind == 0x53:  # S
            return _text(self._data[start:after]), after
        if kind == 0x78:  # x
            return self._data[start:after], after
        if depth >= MOST_NESTED:
            raise MalformedError(f"tables are nested more than {MOST_NESTED} deep")
        if kind == 0x46:  # F
            return self.table(start, after, depth + 1), after
        values, at = [], start
        while at < after:
            value, at = self.value(at, after, depth + 1)
            values.append(value)
        return values, after


def _text(value: bytes) -> str | bytes:
    """Return a long string as text if it is UTF-8, otherwise as it is."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def decode_table(data: bytes, at: int, end: int) -> tuple[dict[str, object], int]:
    """Decode a table with its length; return it and the position behind it.

    Args:
        at: the position of its length.
        end: the position that it must not exceed.

    Raises:
        MalformedError: a length exceeds the bytes, a type is unknown, or the table is too large.
    """
    if at + 4 > end:
        raise MalformedError("a table is longer than its frame")
    start = at + 4
    after = start + _LONG.unpack_from(data, at)[0]
    if after > end:
        raise MalformedError("a table is longer than its frame")
    return _Reader(data).table(start, after, 0), after


def entry_spans(data: bytes, start: int, end: int) -> list[tuple[bytes, int, int]]:
    """Return (name, first position, position behind) of the entries of a decoded table."""
    reader, spans, at = _Reader(data), [], start
    while at < end:
        name_end = at + 1 + data[at]
        if name_end >= end:
            raise MalformedError("a name in a table is longer than the table")
        _, after = reader.value(name_end, end, 0)
        spans.append((data[at + 1 : name_end], at, after))
        at = after
    return spans


def encode_table(entries: Mapping[str, object]) -> bytes:
    """Encode a table with its length."""
    return long_string(b"".join([encode_entry(name, value) for name, value in entries.items()]))


def encode_entry(name: str, value: object) -> bytes:
    """Encode one entry of a table: its name, the type of its value, and the value."""
    return short_string(name) + encode_value(value)


def encode_value(value: object) -> bytes:
    """Encode a value with its type. Integers become 64-bit signed, as RabbitMQ sends them."""
    if isinstance(value, str):
        return b"S" + long_string(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, Timestamp):
        return b"T" + struct.pack(">Q", value)
    if isinstance(value, int):
        return b"l" + struct.pack(">q", value)
    if value is None:
        return b"V"
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"S" + long_string(value)
    if isinstance(value, Mapping):
        return b"F" + encode_table(value)
    if isinstance(value, list | tuple):
        return b"A" + long_string(b"".join([encode_value(item) for item in value]))
    raise TypeError(f"no AMQP type for {type(value).__name__}")


def short_string(text: str) -> bytes:
    """Encode a string of at most 255 bytes; a longer one is cut."""
    data = text.encode("utf-8", "surrogateescape")[:255]
    return bytes((len(data),)) + data


def long_string(data: bytes) -> bytes:
    """Encode a string of up to 4 GiB."""
    return _LONG.pack(len(data)) + data
