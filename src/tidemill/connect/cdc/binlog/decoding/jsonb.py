"""JSON of MySQL in its binary form, as the text that the server writes for it.

The text is the same as that of ``SELECT column``: keys in their stored order, ``", "`` and ``": "``
between the parts, decimals with all of their digits, dates and times as strings. Must not know
columns or rows.

Source: MySQL source documentation, "json_binary.h" and "Json_wrapper::to_string".
"""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal
from math import isfinite

from tidemill.connect.cdc.binlog.decoding.scalars import decimal_bytes, decode_decimal

SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY, LITERAL = range(5)
INT16, UINT16, INT32, UINT32, INT64, UINT64, DOUBLE, STRING = range(5, 13)
OPAQUE = 15

_LITERALS = ("null", "true", "false")
_MOST_DEPTH = 110
"""The server allows 100."""

_INTEGERS = {
    INT16: struct.Struct("<h"),
    UINT16: struct.Struct("<H"),
    INT32: struct.Struct("<i"),
    UINT32: struct.Struct("<I"),
    INT64: struct.Struct("<q"),
    UINT64: struct.Struct("<Q"),
}
_DOUBLE = struct.Struct("<d")
_INLINE = {False: (LITERAL, INT16, UINT16), True: (LITERAL, INT16, UINT16, INT32, UINT32)}

_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r"} | {
    "\t": "\\t"
}
_MOST_PLAIN_DIGITS = 15
_DATE, _TIME, _DATETIME, _TIMESTAMP, _DECIMAL = 10, 11, 12, 7, 246


def json_text(data: bytes) -> str:
    """Return the text of a value.

    Raises:
        ValueError: it is damaged. Also IndexError, struct.error or OverflowError.
    """
    if not data:
        return "null"
    return _Document(data).text(data[0], 1, 0)


class _Document:
    """The bytes of one value. It counts elements: damaged places must not read any again."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = len(data)

    def text(self, kind: int, at: int, depth: int) -> str:
        """Return the text of the part at a place."""
        if kind <= LARGE_ARRAY:
            return self._container(kind, at, depth + 1)
        if kind == LITERAL:
            return _LITERALS[self._data[at]]
        if kind in _INTEGERS:
            return str(_INTEGERS[kind].unpack_from(self._data, at)[0])
        if kind == DOUBLE:
            return double_text(_DOUBLE.unpack_from(self._data, at)[0])
        if kind == STRING:
            size, at = self._size(at)
            return quoted(self._bytes(at, size).decode())
        if kind == OPAQUE:
            size, start = self._size(at + 1)
            return _opaque(self._data[at], self._bytes(start, size))
        raise ValueError(f"JSON of the unknown type {kind}")

    def _container(self, kind: int, base: int, depth: int) -> str:
        if depth > _MOST_DEPTH:
            raise ValueError("JSON is nested too deeply")
        is_large, is_object = kind in (LARGE_OBJECT, LARGE_ARRAY), kind <= LARGE_OBJECT
        width = 4 if is_large else 2
        count = self._uint(base, width)
        self._left -= count
        if self._left < 0:
            raise ValueError(f"JSON says that it has {count} elements")
        at = base + 2 * width
        names = []
        if is_object:
            for _ in range(count):
                start, size = self._uint(at, width), self._uint(at + width, 2)
                names.append(quoted(self._bytes(base + start, size).decode()))
                at += width + 2
        values = [self._entry(base, at + n * (width + 1), is_large, depth) for n in range(count)]
        if is_object:
            inner = (f"{name}: {value}" for name, value in zip(names, values, strict=True))
            return "{" + ", ".join(inner) + "}"
        return "[" + ", ".join(values) + "]"

    def _entry(self, base: int, at: int, is_large: bool, depth: int) -> str:
        kind = self._data[at]
        if kind in _INLINE[is_large]:
            return self.text(kind, at + 1, depth)
        return self.text(kind, base + self._uint(at + 1, 4 if is_large else 2), depth)

    def _uint(self, at: int, size: int) -> int:
        return int.from_bytes(self._bytes(at, size), "little")

    def _bytes(self, at: int, size: int) -> bytes:
        if at + size > len(self._data):
            raise IndexError(f"JSON of {len(self._data)} bytes refers to {size} at {at}")
        return self._data[at : at + size]

    def _size(self, at: int) -> tuple[int, int]:
        """Return a size of one to five bytes, and the place behind it."""
        size = 0
        for index in range(5):
            byte = self._data[at + index]
            size |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return size, at + index + 1
        raise ValueError("JSON has a size of more than five bytes")


def quoted(text: str) -> str:
    """Return a string with quotes and escapes."""
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    return _ESCAPES.get(char) or f"\\u{ord(char):04x}"


def double_text(value: float) -> str:
    """Return a number with the fewest digits, in the server's notation."""
    if not isfinite(value):
        raise ValueError("JSON has a number that is not finite")
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    point = len(text) + exponent
    text = text.rstrip("0") or "0"
    if text == "0":
        return "-0.0" if sign else "0.0"
    minus = "-" if sign else ""
    has_fraction = len(text) > point
    if point <= -_MOST_PLAIN_DIGITS or (point > _MOST_PLAIN_DIGITS and not has_fraction):
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{fraction}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    if not has_fraction:
        return f"{minus}{text.ljust(point, '0')}.0"
    return f"{minus}{text[:point]}.{text[point:]}"


# --- values of SQL types ----------------------------------------------------------------------


def _opaque(kind: int, data: bytes) -> str:
    convert = _OPAQUES.get(kind)
    if convert is not None:
        return convert(data)
    return f'"base64:type{kind}:{b64encode(data).decode()}"'


def _decimal(data: bytes) -> str:
    precision, decimals = data[0], data[1]
    if not 1 <= precision <= 81 or decimals > precision:
        raise ValueError("JSON has a damaged decimal")
    if len(data) - 2 != decimal_bytes(precision, decimals):
        raise ValueError("JSON has a decimal of a wrong size")
    return decode_decimal(data[2:], precision, decimals)


def _packed(data: bytes) -> tuple[str, int, int]:
    """Return the sign, the seconds and the microseconds of a packed time."""
    (value,) = _INTEGERS[INT64].unpack(data)
    sign, value = ("-", -value) if value < 0 else ("", value)
    return sign, value >> 24, value & 0xFFFFFF


def _date_text(seconds: int) -> str:
    day = seconds >> 17
    return f"{(day >> 5) // 13:04d}-{(day >> 5) % 13:02d}-{day & 31:02d}"


def _clock(seconds: int, micros: int, hours: int) -> str:
    clock = f"{seconds >> 12 & hours:02d}:{seconds >> 6 & 63:02d}:{seconds & 63:02d}"
    return f"{clock}.{micros:06d}"


def _date(data: bytes) -> str:
    return f'"{_date_text(_packed(data)[1])}"'


def _datetime(data: bytes) -> str:
    _, seconds, micros = _packed(data)
    return f'"{_date_text(seconds)} {_clock(seconds, micros, 31)}"'


def _time(data: bytes) -> str:
    sign, seconds, micros = _packed(data)
    return f'"{sign}{_clock(seconds, micros, 1023)}"'


_OPAQUES: dict[int, Callable[[bytes], str]] = {
    _DECIMAL: _decimal,
    _DATE: _date,
    _TIME: _time,
    _DATETIME: _datetime,
    _TIMESTAMP: _datetime,
}
