"""The codec of a column: how many bytes a value has in a row image, and what they mean.

The rules for the compiled extension give the same values as the functions beside them. Must not
know rows or events. ``values`` of change capture has the rules for values. Source: MySQL source
documentation, "Rows_event"; MariaDB source, the ``pack`` methods of "sql/field.cc".
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from tidemill.connect.cdc.binlog.decoding import table_map as types
from tidemill.connect.cdc.binlog.decoding.character_sets import (
    BINARY,
    decode_utf8,
    has_ascii,
    text_decoder,
)
from tidemill.connect.cdc.binlog.decoding.compression import uncompress_value
from tidemill.connect.cdc.binlog.decoding.jsonb import json_text
from tidemill.connect.cdc.binlog.decoding.reader import BinlogError
from tidemill.connect.cdc.binlog.decoding.scalars import (
    decimal_bytes,
    decode_date,
    decode_datetime,
    decode_decimal,
    decode_old_datetime,
    decode_old_time,
    decode_time,
    decode_timestamp,
    fraction_bytes,
    inet6_text,
)
from tidemill.connect.cdc.binlog.decoding.table_map import ColumnMap
from tidemill.connect.cdc.packed import VALUE_RULE
from tidemill.connect.cdc.values import bytes_value, float_value, int_value

Convert = Callable[[bytes], Any]

SIGNED, UNSIGNED, SINGLE, DOUBLE, DECIMAL, DATE, DATETIME, SECONDS, UTF8, ASCII, BYTES = range(
    6, 17
)
"""Rules of ``ChangeEncoder``. Parameters are in the higher bytes."""

_INTEGERS = {types.TINY: 1, types.SHORT: 2, types.INT24: 3, types.LONG: 4, types.LONGLONG: 8}
_STRINGS = frozenset({types.VARCHAR, types.STRING, types.VAR_STRING, types.VARCHAR_COMPRESSED})
_BLOBS = frozenset(
    {types.TINY_BLOB, types.MEDIUM_BLOB, types.LONG_BLOB, types.BLOB}
    | {types.GEOMETRY, types.BLOB_COMPRESSED, types.VECTOR}
)
_BINARY = frozenset({types.GEOMETRY, types.VECTOR})
_COMPRESSED = frozenset({types.VARCHAR_COMPRESSED, types.BLOB_COMPRESSED})
_MOST_DIGITS, _MOST_FRACTION, _MOST_BITS = 65, 6, 64


class Codec(NamedTuple):
    """The way to read the values of a column.

    Attributes:
        size: the bytes of each value, or minus the bytes of the length in front of it.
        convert: returns the JSON value of a value's bytes.
        rule: the rule of the compiled extension for the same conversion.
    """

    size: int
    convert: Convert
    rule: int = VALUE_RULE


def codec_of(column: ColumnMap, type_name: str, place: str) -> Codec:
    """Return the codec of a column.

    Args:
        column: the column as the binary log describes it.
        type_name: its type as the server's catalog names it, if that is known.
        place: the names of its table and of itself, for errors.
    """
    code = column.type
    if code in _STRINGS:
        return _string(column, 2 if column.size > 255 else 1, type_name, place)
    if code in _BLOBS or code == types.JSON:
        _check(1 <= column.size <= 4, column, place)
        if code == types.JSON:
            return Codec(-column.size, json_text)
        return _string(column, column.size, type_name, place)
    if code in _INTEGERS:
        return _integer(_INTEGERS[code], is_unsigned=column.is_unsigned)
    make = _WITH_PARAMETERS.get(code)
    if make is not None:
        found = make(column)
        _check(found is not None, column, place)
        assert found is not None
        return found
    simple = _SIMPLE.get(code)
    if simple is None:
        raise BinlogError(
            f"column {place} has a type that is not supported (number {code} in the binary log)",
            hint="Exclude the table.",
        )
    return simple


def _check(is_valid: bool, column: ColumnMap, place: str) -> None:
    if not is_valid:
        raise BinlogError(
            f"the binary log has invalid parameters of column {place} (type {column.type})"
        )


# --- numbers ----------------------------------------------------------------------------------


def _integer(size: int, *, is_unsigned: bool) -> Codec:
    if not is_unsigned:
        return Codec(size, lambda raw: int.from_bytes(raw, "little", signed=True), SIGNED)
    return Codec(size, lambda raw: int_value(int.from_bytes(raw, "little")), UNSIGNED)


def shortest_float(value: float) -> float:
    """Return the number with the fewest digits that is the same in single precision."""
    for digits in range(6, 10):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", short) == struct.pack("<f", value):
                return short
        except OverflowError:
            continue
    return value


_unpack_single = struct.Struct("<f").unpack
_unpack_double = struct.Struct("<d").unpack


def _decimal(column: ColumnMap) -> Codec | None:
    precision, decimals = column.precision, column.decimals
    if not 1 <= precision <= _MOST_DIGITS or decimals > precision:
        return None
    size = decimal_bytes(precision, decimals)
    rule = DECIMAL | precision << 8 | decimals << 16
    return Codec(size, lambda raw: decode_decimal(raw, precision, decimals), rule)


def _bit(column: ColumnMap) -> Codec | None:
    bits = column.precision
    if not 1 <= bits <= _MOST_BITS:
        return None
    size = (bits + 7) // 8
    if bits == 1:
        return Codec(size, lambda raw: raw[0] != 0)
    return Codec(size, lambda raw: bits_text(raw, bits))


def bits_text(raw: bytes, bits: int) -> str:
    """Return a BIT(n) as n binary digits."""
    return f"{int.from_bytes(raw, 'big'):0{bits}b}"


# --- dates and times --------------------------------------------------------------------------


def _with_fraction(
    size: int, decode: Callable[[bytes, int], str], rule: int
) -> Callable[[ColumnMap], Codec | None]:
    def make(column: ColumnMap) -> Codec | None:
        decimals = column.decimals
        if decimals > _MOST_FRACTION:
            return None
        whole = size + fraction_bytes(decimals)
        return Codec(whole, lambda raw: decode(raw, decimals), rule and rule | decimals << 8)

    return make


# --- labels -----------------------------------------------------------------------------------


def _enum(column: ColumnMap) -> Codec | None:
    if not 1 <= column.size <= 2:
        return None
    labels = ["", *column.labels]
    return Codec(column.size, lambda raw: labels[int.from_bytes(raw, "little")])


def _set(column: ColumnMap) -> Codec | None:
    if not 1 <= column.size <= 8:
        return None
    labels = column.labels

    def convert(raw: bytes) -> str:
        bits = int.from_bytes(raw, "little")
        return ",".join(label for index, label in enumerate(labels) if bits >> index & 1)

    return Codec(column.size, convert)


_SIMPLE: dict[int, Codec] = {
    types.FLOAT: Codec(4, lambda raw: float_value(shortest_float(*_unpack_single(raw))), SINGLE),
    types.DOUBLE: Codec(8, lambda raw: float_value(*_unpack_double(raw)), DOUBLE),
    types.YEAR: Codec(1, lambda raw: raw[0] + 1900 if raw[0] else 0),
    types.DATE: Codec(3, decode_date, DATE),
    types.TIME: Codec(3, decode_old_time),
    types.DATETIME: Codec(8, decode_old_datetime),
    types.TIMESTAMP: Codec(4, lambda raw: decode_timestamp(raw[::-1], 0)),
}
_WITH_PARAMETERS: dict[int, Callable[[ColumnMap], Codec | None]] = {
    types.NEWDECIMAL: _decimal,
    types.BIT: _bit,
    types.TIME2: _with_fraction(3, decode_time, VALUE_RULE),
    types.DATETIME2: _with_fraction(5, decode_datetime, DATETIME),
    types.TIMESTAMP2: _with_fraction(4, decode_timestamp, SECONDS),
    types.ENUM: _enum,
    types.SET: _set,
}


# --- strings ----------------------------------------------------------------------------------


def _string(column: ColumnMap, length_bytes: int, type_name: str, place: str) -> Codec:
    special = _SPECIAL.get(type_name)
    if special is not None:
        return Codec(-length_bytes, special)
    convert, rule = _content(column, place)
    if column.type in _COMPRESSED:
        return Codec(-length_bytes, lambda raw: convert(uncompress_value(raw)))
    return Codec(-length_bytes, convert, rule)


def _content(column: ColumnMap, place: str) -> tuple[Convert, int]:
    """Return the function that converts the bytes of a string, and its rule."""
    name = column.character_set
    if name is None or name == BINARY or column.type in _BINARY:
        if column.type == types.STRING:
            size = column.size  # the binary log leaves out trailing zero bytes of BINARY(n)
            return (lambda raw: bytes_value(raw.ljust(size, b"\0"))), VALUE_RULE
        return bytes_value, BYTES
    decode = text_decoder(name)
    if decode is None:
        raise BinlogError(
            f"column {place} has the character set {name}, which is not supported",
            hint="Exclude the table, or change the column's character set.",
        )
    if decode is decode_utf8:
        return decode, UTF8
    return decode, ASCII if has_ascii(decode) else VALUE_RULE


def _uuid(raw: bytes) -> str:
    """Return a UUID. MariaDB stores the parts of versions 1 to 5 in reverse order.

    Source: MariaDB source, "plugin/type_uuid/sql_type_uuid.h".
    """
    raw = raw.ljust(16, b"\0")
    if raw[6] & 0x80 and 0 < raw[8] < 0x60:
        raw = raw[12:16] + raw[10:12] + raw[8:10] + raw[6:8] + raw[0:6]
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_SPECIAL: dict[str, Convert] = {
    "uuid": _uuid,
    "inet6": lambda raw: inet6_text(raw.ljust(16, b"\0")),
    "inet4": lambda raw: str(ipaddress.IPv4Address(raw.ljust(4, b"\0"))),
}
