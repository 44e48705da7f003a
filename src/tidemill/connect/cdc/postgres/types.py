"""Turns PostgreSQL's text form of values into the JSON values of ``tidemill.connect.cdc.values``.

The session's settings are part of the rules: ``SESSION`` fixes them, so that the text does not
depend on the server's configuration. Must not know: connections, tables, changes.
"""

from __future__ import annotations

from binascii import Error as HexError
from binascii import a2b_hex, b2a_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

from tidemill.connect.cdc.errors import CaptureError
from tidemill.connect.cdc.values import Kind, int_value

SESSION = {
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "timezone": "UTC",
    "intervalstyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
}
"""Settings of every session that reads values."""

Convert = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Type:
    """A type, as far as its values need it: the neutral kind and the function for its text."""

    kind: Kind
    convert: Convert


@dataclass(frozen=True, slots=True)
class TypeRow:
    """A row of the catalog ``pg_type``.

    Attributes:
        typtype: b base, c composite, d domain, e enum, r range, m multirange, p pseudo.
        element: The OID of an array's elements, or 0.
        base: The OID of a domain's type, or 0.
        category: ``typcategory``: S is for strings.
        delimiter: The character between an array's elements.
        is_array: Whether the text is that of an array, and not of a vector or a point.
    """

    name: str
    typtype: str
    category: str
    element: int
    base: int
    delimiter: str
    is_array: bool


def text(data: bytes) -> str:
    """Return text. Bytes that are not UTF-8 (a database in SQL_ASCII) become ``\\xNN``."""
    return data.decode("utf-8", "backslashreplace")


def integer(data: bytes) -> int | str:
    return int_value(int(data))


def floating(data: bytes) -> float | str:
    """Return a float, or the name of a value that JSON does not have."""
    value = float(data)
    return value if isfinite(value) else data.decode("ascii")


def boolean(data: bytes) -> bool:
    return data == b"t"


def binary(data: bytes) -> str:
    r"""Return the base64 text of a bytea in hex form (``\xdead``)."""
    try:
        return b2a_base64(a2b_hex(data[2:]), newline=False).decode("ascii")
    except HexError:
        raise CaptureError(f"the server sent an invalid bytea of {len(data)} bytes") from None


def timestamp(data: bytes) -> str:
    """Return a timestamp in ISO 8601. Infinity, BC and years above 9999 stay as they are."""
    found = data.decode("ascii")
    if found[10:11] == " " and found[-1] != "C":
        return f"{found[:10]}T{found[11:]}"
    return found


def timestamptz(data: bytes) -> str:
    """Return a timestamp of a session in UTC in ISO 8601 with Z."""
    found = data.decode("ascii")
    if found[10:11] == " " and found[-1] != "C":
        return f"{found[:10]}T{found[11:-3]}Z"
    return found


def timetz(data: bytes) -> str:
    """Return a time with its zone; ``+01`` becomes ``+01:00``."""
    found = data.decode("ascii")
    return f"{found}:00" if found[-3] in "+-" else found


def array(data: bytes, convert: Convert, delimiter: bytes) -> list[Any]:
    """Return an array's values, nested for more dimensions. Lower bounds are not kept."""
    start = data.find(b"{")
    if start < 0 or data[-1:] != b"}":
        raise CaptureError("the server sent an array that is not in braces")
    inner = data[start + 1 : -1]
    if not (b'"' in inner or b"{" in inner or b"}" in inner):  # the usual case
        if not inner:
            return []
        return [None if each == b"NULL" else convert(each) for each in inner.split(delimiter)]
    found, end = _nested(data, start + 1, convert, delimiter[0])
    if end != len(data):
        raise CaptureError("the server sent an array with something behind its last brace")
    return found


_QUOTE, _BACKSLASH, _OPEN, _CLOSE = b'"\\{}'


def _nested(data: bytes, at: int, convert: Convert, delimiter: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    while at < len(data):
        byte = data[at]
        if byte == _CLOSE:
            return found, at + 1
        if byte == delimiter:
            at += 1
        elif byte == _OPEN:
            inner, at = _nested(data, at + 1, convert, delimiter)
            found.append(inner)
        elif byte == _QUOTE:
            value, at = _quoted(data, at + 1)
            found.append(convert(value))
        else:
            start = at
            while at < len(data) and data[at] not in (delimiter, _CLOSE):
                at += 1
            value = data[start:at]
            found.append(None if value == b"NULL" else convert(value))
    raise CaptureError("the server sent an array that does not end")


def _quoted(data: bytes, at: int) -> tuple[bytes, int]:
    value = bytearray()
    while True:
        end = data.find(b'"', at)
        if end < 0:
            raise CaptureError("the server sent an array with a quote that does not end")
        escape = data.find(b"\\", at, end)
        if escape < 0:
            value += data[at:end]
            return bytes(value), end + 1
        value += data[at:escape]
        value += data[escape + 1 : escape + 2]
        at = escape + 2


TEXT = Type("text", text)
OTHER = Type("other", text)

_INT, _FLOAT = Type("int", int), Type("float", floating)

SCALARS: dict[int, Type] = {
    16: Type("bool", boolean),
    17: Type("bytes", binary),
    18: TEXT,  # "char"
    19: TEXT,  # name
    20: _INT,
    21: _INT,
    23: _INT,
    25: TEXT,
    26: _INT,  # oid
    114: Type("json", text),
    142: TEXT,  # xml
    700: _FLOAT,
    701: _FLOAT,
    1042: TEXT,  # char(n)
    1043: TEXT,
    1082: Type("date", text),
    1083: Type("time", text),
    1114: Type("timestamp", timestamp),
    1184: Type("timestamptz", timestamptz),
    1186: Type("interval", text),
    1266: Type("time", timetz),
    1700: Type("decimal", text),
    2950: Type("uuid", text),
    3802: Type("json", text),  # jsonb
}
"""Built-in types by OID; PostgreSQL never changes these numbers."""

RULES: Mapping[Convert, int] = {text: 1, int: 2, boolean: 3, timestamp: 4, timestamptz: 5}
"""The rules of the compiled encoder that give the same JSON as these functions."""

_DEEPEST = 32


class Types:
    """The types of a database, looked up in its catalog the first time that they are met.

    Args:
        look_up: Returns the catalog's row of a type, or None if the type does not exist any more.
    """

    def __init__(self, look_up: Callable[[int], TypeRow | None]) -> None:
        self._look_up = look_up
        self._known = dict(SCALARS)

    def __getitem__(self, oid: int) -> Type:
        found = self._known.get(oid)
        if found is None:
            found = self._known[oid] = self._resolved(oid, 0)
        return found

    def _resolved(self, oid: int, depth: int) -> Type:
        if oid in self._known:
            return self._known[oid]
        row = self._look_up(oid)
        if row is None or depth > _DEEPEST:
            return OTHER
        if row.typtype == "d":
            return self._resolved(row.base, depth + 1)
        if row.typtype == "e":
            return Type("enum", text)
        if row.is_array:
            element = self._resolved(row.element, depth + 1)
            if element.kind == "array":  # of a domain over an array: its text is quoted
                return OTHER
            separator = row.delimiter.encode("ascii", "replace")
            return Type("array", partial(array, convert=element.convert, delimiter=separator))
        return TEXT if row.typtype == "b" and row.category == "S" else OTHER
