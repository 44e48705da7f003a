"""Reads and writes the properties of messages: 14 flags, and the values of those that are set.

The bytes of a publisher are kept as they are, so that consumers get what was sent. ``parse`` checks
them, and finds what the broker needs. Knows no engine.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidemill.protocols.amqp.codec.tables import decode_table, encode_entry, entry_spans
from tidemill.protocols.amqp.errors import MalformedError

NONE = b"\x00\x00"
"""The properties of a message that has none."""

_LAYOUT = (
    ("content_type", "short"),
    ("content_encoding", "short"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "short"),
    ("reply_to", "short"),
    ("expiration", "short"),
    ("message_id", "short"),
    ("timestamp", "long"),
    ("type", "short"),
    ("user_id", "short"),
    ("app_id", "short"),
    ("cluster_id", "short"),
)
_BITS = tuple((1 << (15 - index), name, kind) for index, (name, kind) in enumerate(_LAYOUT))
_HEADERS_FLAG = 1 << 13
_UNKNOWN_FLAGS = 0b11
_LONG = struct.Struct(">I")
_FLAGS = struct.Struct(">H")


class Properties(NamedTuple):
    """The checked properties of a message.

    Strings are bytes here: AMQP does not say their encoding.
    """

    data: bytes
    """Flags and values, as they arrived."""
    values: Mapping[str, bytes | int]
    """The properties that are set, without ``headers``."""
    headers: Mapping[str, object]
    """The table of application headers; empty if there is none."""


def parse(data: bytes) -> Properties:
    """Check and decode properties.

    Raises:
        MalformedError: they are longer or shorter than their flags say.
    """
    if len(data) < 2:
        raise MalformedError("the properties have no flags")
    (flags,) = _FLAGS.unpack_from(data)
    if flags & _UNKNOWN_FLAGS:
        raise MalformedError("the properties have flags that AMQP 0-9-1 does not define")
    values: dict[str, bytes | int] = {}
    headers: dict[str, object] = {}
    at, end = 2, len(data)
    for bit, name, kind in _BITS:
        if not flags & bit:
            continue
        if kind == "table":
            headers, at = decode_table(data, at, end)
            continue
        value, at = _value(data, at, end, kind)
        values[name] = value
    if at != end:
        raise MalformedError(f"{end - at} bytes are behind the properties")
    return Properties(data, values, headers)


def _value(data: bytes, at: int, end: int, kind: str) -> tuple[bytes | int, int]:
    size = {"octet": 1, "long": 8}.get(kind)
    if size is None:
        size = data[at] if at < end else 0
        at += 1
    after = at + size
    if after > end:
        raise MalformedError("a property is longer than its header")
    value = data[at:after]
    return (value if kind == "short" else int.from_bytes(value, "big")), after


def with_headers(
    data: bytes, added: Mapping[str, object], removed: Sequence[str] = (), *, expires: bool = True
) -> bytes:
    """Return properties with headers added, replaced and removed; all others stay as they are.

    Args:
        data: properties that ``parse`` accepts.
        expires: False removes ``expiration``.
    """
    (flags,) = _FLAGS.unpack_from(data)
    before, table, behind = _split(data, flags, expires=expires)
    gone = {name.encode() for name in (*added, *removed)}
    kept = [
        table[start:after]
        for name, start, after in entry_spans(table, 0, len(table))
        if name not in gone
    ]
    entries = b"".join([*kept, *(encode_entry(name, value) for name, value in added.items())])
    if not expires:
        flags &= ~(1 << 8)
    return b"".join(
        [_FLAGS.pack(flags | _HEADERS_FLAG), before, _LONG.pack(len(entries)), entries, behind]
    )


def with_value(data: bytes, name: str, value: bytes) -> bytes:
    """Return properties in which a string that is set has another value."""
    (flags,) = _FLAGS.unpack_from(data)
    at, end = 2, len(data)
    for bit, known, kind in _BITS:
        if not flags & bit:
            continue
        if kind == "table":
            after = at + 4 + _LONG.unpack_from(data, at)[0]
        else:
            _, after = _value(data, at, end, kind)
        if known == name:
            return data[:at] + bytes((len(value),)) + value + data[after:]
        at = after
    return data


def _split(data: bytes, flags: int, *, expires: bool) -> tuple[bytes, bytes, bytes]:
    """Return what is before the headers, their entries, and what is behind them."""
    before: list[bytes] = []
    behind: list[bytes] = []
    table, at, end = b"", 2, len(data)
    for bit, name, kind in _BITS:
        if bit & flags and kind == "table":
            size = _LONG.unpack_from(data, at)[0]
            table, at = data[at + 4 : at + 4 + size], at + 4 + size
        elif bit & flags:
            _, after = _value(data, at, end, kind)
            if expires or name != "expiration":
                (before if bit > _HEADERS_FLAG else behind).append(data[at:after])
            at = after
    return b"".join(before), table, b"".join(behind)
