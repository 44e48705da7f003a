"""Decode row images of the binary log into JSON values.

A decoder is prepared once for each version of a table. It reads the columns one after the other,
so that a value with an unexpected size is noticed at the end of the image at the latest.

Must not know a connection or transactions. ``values`` of change capture has the rules for values.
Source: MySQL source documentation, "Rows_event"; MariaDB source, "sql/log_event.cc" and the
``pack`` methods of "sql/field.cc".
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.connect.cdc.mariadb.binlog import table_map as types
from tidemill.connect.cdc.mariadb.binlog.charsets import BINARY, decode_text, python_codec
from tidemill.connect.cdc.mariadb.binlog.decimals import decimal_bytes, decode_decimal
from tidemill.connect.cdc.mariadb.binlog.errors import BinlogError
from tidemill.connect.cdc.mariadb.binlog.events import RowsEvent, RowsKind, uncompress_value
from tidemill.connect.cdc.mariadb.binlog.table_map import ColumnMap, TableMap
from tidemill.connect.cdc.mariadb.binlog.temporal import (
    decode_date,
    decode_datetime,
    decode_old_datetime,
    decode_old_time,
    decode_time,
    decode_timestamp,
    fraction_bytes,
)
from tidemill.connect.cdc.values import bytes_value, float_value, int_value

Read = Callable[[bytes, int], tuple[Any, int]]
Row = dict[str, Any]

_INTEGERS = {
    types.TINY: ("<b", "<B", 1),
    types.SHORT: ("<h", "<H", 2),
    types.LONG: ("<i", "<I", 4),
    types.LONGLONG: ("<q", "<Q", 8),
}
_BLOBS = frozenset({types.TINY_BLOB, types.MEDIUM_BLOB, types.LONG_BLOB, types.BLOB})


class RowDecoder:
    """Decodes the row images of one version of a table.

    Args:
        table: the table as the binary log describes it, with the names of its columns.
        type_names: the types of columns as the server's catalog names them. The binary log does
            not distinguish UUID and INET6 from CHAR.

    Raises:
        BinlogError: the names are missing, or a type is not supported.
    """

    def __init__(self, table: TableMap, type_names: Mapping[str, str]) -> None:
        self._table = table
        self._columns = [
            (column.name, _reader(column, type_names.get(column.name, ""), self._place(column)))
            for column in table.columns
        ]
        self._null_bytes = (len(table.columns) + 7) // 8

    def _place(self, column: ColumnMap) -> str:
        name = f"{self._table.database}.{self._table.name}"
        if not column.name:
            raise BinlogError(
                f"the binary log has no column names of the table {name}",
                hint="Set binlog_row_metadata=FULL on the server, and take a new snapshot: "
                "SET GLOBAL binlog_row_metadata = 'FULL'",
            )
        return f"{name}.{column.name}"

    def decode(self, event: RowsEvent) -> list[tuple[Row | None, Row | None]]:
        """Return (before, after) of each row of an event.

        Raises:
            BinlogError: the images lack columns, or don't fit the table.
        """
        count = len(self._columns)
        if event.column_count != count:
            raise BinlogError(
                f"the binary log has rows with {event.column_count} columns for "
                f"{self._table.database}.{self._table.name}, which has {count}"
            )
        full = (1 << count) - 1
        if any(int.from_bytes(each, "little") & full != full for each in event.present):
            raise BinlogError(
                f"the binary log has only some columns of {self._table.database}."
                f"{self._table.name}",
                hint="Set binlog_row_image=FULL on the server and for all sessions that write, and "
                "take a new snapshot: SET GLOBAL binlog_row_image = 'FULL'",
            )
        try:
            return self._rows(event)
        except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
            raise BinlogError(
                f"rows of {self._table.database}.{self._table.name} can't be decoded: {error}"
            ) from error

    def _rows(self, event: RowsEvent) -> list[tuple[Row | None, Row | None]]:
        data, position, end = event.rows, 0, len(event.rows)
        rows: list[tuple[Row | None, Row | None]] = []
        row: Row
        before: Row | None
        while position < end:
            before = None
            if event.kind is RowsKind.UPDATE:
                before, position = self._row(data, position)
            row, position = self._row(data, position)
            rows.append((row, None) if event.kind is RowsKind.DELETE else (before, row))
        if position != end:
            raise BinlogError(
                f"the last row of {self._table.database}.{self._table.name} is cut off"
            )
        return rows

    def _row(self, data: bytes, position: int) -> tuple[Row, int]:
        nulls = int.from_bytes(data[position : position + self._null_bytes], "little")
        position += self._null_bytes
        row: Row = {}
        for name, read in self._columns:
            if nulls & 1:
                row[name] = None
            else:
                row[name], position = read(data, position)
            nulls >>= 1
        return row, position


def _reader(column: ColumnMap, type_name: str, place: str) -> Read:
    """Return the function that reads a value of a column."""
    code = column.type
    if code in _INTEGERS:
        return _integer(*_INTEGERS[code], is_unsigned=column.is_unsigned)
    if code in _SIMPLE:
        return _SIMPLE[code](column)
    if code in (types.VARCHAR, types.STRING, types.VAR_STRING, types.VARCHAR_COMPRESSED):
        length_bytes = 2 if column.size > 255 else 1
        return _prefixed(length_bytes, _content(column, type_name, place))
    if code in _BLOBS or code in (types.GEOMETRY, types.BLOB_COMPRESSED):
        return _prefixed(column.size, _content(column, type_name, place))
    raise BinlogError(
        f"column {place} has a type that is not supported (number {code} in the binary log)",
        hint="Exclude the table.",
    )


def _integer(signed: str, unsigned: str, size: int, *, is_unsigned: bool) -> Read:
    unpack = struct.Struct(unsigned if is_unsigned else signed).unpack_from
    if size == 8 and is_unsigned:
        return lambda data, at: (int_value(unpack(data, at)[0]), at + 8)
    return lambda data, at: (unpack(data, at)[0], at + size)


def _int24(column: ColumnMap) -> Read:
    signed = not column.is_unsigned

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return int.from_bytes(_take(data, at, 3), "little", signed=signed), at + 3

    return read


def _float(_: ColumnMap) -> Read:
    unpack = struct.Struct("<f").unpack_from
    return lambda data, at: (float_value(shortest_float(unpack(data, at)[0])), at + 4)


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


def _double(_: ColumnMap) -> Read:
    unpack = struct.Struct("<d").unpack_from
    return lambda data, at: (float_value(unpack(data, at)[0]), at + 8)


def _fixed(size: int, decode: Callable[[bytes], Any]) -> Read:
    return lambda data, at: (decode(_take(data, at, size)), at + size)


def _year(_: ColumnMap) -> Read:
    return _fixed(1, lambda raw: raw[0] + 1900 if raw[0] else 0)


def _decimal(column: ColumnMap) -> Read:
    precision, decimals = column.precision, column.decimals
    size = decimal_bytes(precision, decimals)
    return _fixed(size, lambda raw: decode_decimal(raw, precision, decimals))


def _datetime2(column: ColumnMap) -> Read:
    decimals = column.decimals
    return _fixed(5 + fraction_bytes(decimals), lambda raw: decode_datetime(raw, decimals))


def _timestamp2(column: ColumnMap) -> Read:
    decimals = column.decimals
    return _fixed(4 + fraction_bytes(decimals), lambda raw: decode_timestamp(raw, decimals))


def _time2(column: ColumnMap) -> Read:
    decimals = column.decimals
    return _fixed(3 + fraction_bytes(decimals), lambda raw: decode_time(raw, decimals))


def _old_timestamp(_: ColumnMap) -> Read:
    return _fixed(4, lambda raw: decode_timestamp(raw[::-1], 0))


def _bit(column: ColumnMap) -> Read:
    bits = column.precision
    size = (bits + 7) // 8
    if bits == 1:
        return _fixed(size, lambda raw: raw[0] != 0)
    return _fixed(size, lambda raw: bits_text(raw, bits))


def bits_text(raw: bytes, bits: int) -> str:
    """Return a BIT(n) as n binary digits."""
    return f"{int.from_bytes(raw, 'big'):0{bits}b}"


def _enum(column: ColumnMap) -> Read:
    labels, size = ["", *column.labels], column.size
    return _fixed(size, lambda raw: labels[int.from_bytes(raw, "little")])


def _set(column: ColumnMap) -> Read:
    labels, size = column.labels, column.size

    def decode(raw: bytes) -> str:
        bits = int.from_bytes(raw, "little")
        return ",".join(label for index, label in enumerate(labels) if bits >> index & 1)

    return _fixed(size, decode)


_SIMPLE: dict[int, Callable[[ColumnMap], Read]] = {
    types.INT24: _int24,
    types.FLOAT: _float,
    types.DOUBLE: _double,
    types.YEAR: _year,
    types.NEWDECIMAL: _decimal,
    types.DATE: lambda _: _fixed(3, decode_date),
    types.TIME: lambda _: _fixed(3, decode_old_time),
    types.DATETIME: lambda _: _fixed(8, decode_old_datetime),
    types.TIMESTAMP: _old_timestamp,
    types.TIME2: _time2,
    types.DATETIME2: _datetime2,
    types.TIMESTAMP2: _timestamp2,
    types.BIT: _bit,
    types.ENUM: _enum,
    types.SET: _set,
}


def _take(data: bytes, at: int, size: int) -> bytes:
    raw = data[at : at + size]
    if len(raw) != size:
        raise IndexError(f"{size} bytes expected at {at}, {len(raw)} are there")
    return raw


def _prefixed(length_bytes: int, decode: Callable[[bytes], Any]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + length_bytes
        size = int.from_bytes(_take(data, at, length_bytes), "little")
        return decode(_take(data, start, size)), start + size

    return read


def _content(column: ColumnMap, type_name: str, place: str) -> Callable[[bytes], Any]:
    """Return the function that converts the bytes of a string."""
    special = _SPECIAL.get(type_name)
    if special is not None:
        return special
    decode = _text_or_bytes(column, place)
    if column.type in (types.VARCHAR_COMPRESSED, types.BLOB_COMPRESSED):
        return lambda raw: decode(uncompress_value(raw))
    return decode


def _text_or_bytes(column: ColumnMap, place: str) -> Callable[[bytes], Any]:
    name = column.character_set
    if name is None or name == BINARY or column.type == types.GEOMETRY:
        if column.type == types.STRING:
            size = column.size  # the binary log leaves out trailing zero bytes of BINARY(n)
            return lambda raw: bytes_value(raw.ljust(size, b"\0"))
        return bytes_value
    codec = python_codec(name)
    if codec is None:
        raise BinlogError(
            f"column {place} has the character set {name}, which is not supported",
            hint="Exclude the table, or change the column's character set.",
        )
    if codec == "utf-8":
        return lambda raw: raw.decode()
    return lambda raw: decode_text(raw, codec)


def _uuid(raw: bytes) -> str:
    """Return a UUID. MariaDB stores the parts of versions 1 to 5 in reverse order.

    Source: MariaDB source, "plugin/type_uuid/sql_type_uuid.h".
    """
    raw = raw.ljust(16, b"\0")
    if raw[6] & 0x80 and 0 < raw[8] < 0x60:
        raw = raw[12:16] + raw[10:12] + raw[8:10] + raw[6:8] + raw[0:6]
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_SPECIAL: dict[str, Callable[[bytes], Any]] = {
    "uuid": _uuid,
    "inet6": lambda raw: str(ipaddress.IPv6Address(raw.ljust(16, b"\0"))),
    "inet4": lambda raw: str(ipaddress.IPv4Address(raw.ljust(4, b"\0"))),
}
