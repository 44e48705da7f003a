"""Decode row images of the binary log into JSON values.

A decoder is prepared once for each version of a table. It reads the columns one after the other,
so that a value with an unexpected size is noticed at the end of the image at the latest.

Must not know a connection or transactions. Source: MySQL source documentation, "Rows_event";
MariaDB source, "sql/log_event.cc".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tidemill.connect.cdc.binlog.decoding.columns import Codec, Convert, codec_of
from tidemill.connect.cdc.binlog.decoding.events import RowsEvent, RowsKind
from tidemill.connect.cdc.binlog.decoding.reader import BinlogError
from tidemill.connect.cdc.binlog.decoding.table_map import ColumnMap, TableMap

Read = Callable[[bytes, int], tuple[Any, int]]
Row = dict[str, Any]

UNDECODABLE = (struct.error, IndexError, ValueError, OverflowError)
"""What the conversion of a damaged value can raise."""


class RowDecoder:
    """Decodes the row images of one version of a table.

    Args:
        table: the table as the binary log describes it, with the names of its columns.
        type_names: the types of columns as the server's catalog names them. The binary log does
            not distinguish UUID and INET6 from CHAR.

    Attributes:
        codecs: the name and the codec of each column.
    """

    def __init__(self, table: TableMap, type_names: Mapping[str, str]) -> None:
        self._table = table
        self.codecs = [
            (column.name, codec_of(column, type_names.get(column.name, ""), self._place(column)))
            for column in table.columns
        ]
        if not self.codecs:
            raise BinlogError(f"the binary log says that {table.database}.{table.name} is empty")
        self._columns = [(name, _reader(codec)) for name, codec in self.codecs]
        self._null_bytes = (len(table.columns) + 7) // 8

    def _place(self, column: ColumnMap) -> str:
        name = f"{self._table.database}.{self._table.name}"
        if not column.name:
            raise BinlogError(
                f"the binary log has no column names of the table {name}",
                hint="Changes from before binlog_row_metadata was set to FULL can't be captured. "
                "Run: tidemill source restart NAME --resnapshot",
            )
        return f"{name}.{column.name}"

    def decode(self, event: RowsEvent) -> list[tuple[Row | None, Row | None, str | None]]:
        """Return (before, after, error) of each row of an event.

        The error says which values can't be decoded; the row lacks them.

        Raises:
            BinlogError: the event is damaged, so that it is not known where its rows are.
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
                hint="These changes can't be captured. Let no session set binlog_row_image, and "
                "run: tidemill source restart NAME --resnapshot",
            )
        try:
            return self._rows(event)
        except UNDECODABLE as error:
            raise undecodable(f"{self._table.database}.{self._table.name}", error) from error

    def _rows(self, event: RowsEvent) -> list[tuple[Row | None, Row | None, str | None]]:
        data, position, end = event.rows, 0, len(event.rows)
        rows: list[tuple[Row | None, Row | None, str | None]] = []
        while position < end:
            start = position
            try:
                before, after, position = self._images(self._row, event.kind, data, start)
                error = None
            except UNDECODABLE:
                errors: list[str] = []
                before, after, position = self._images(
                    partial(self._partial_row, errors), event.kind, data, start
                )
                error = ", ".join(dict.fromkeys(errors))
            rows.append((before, after, error))
        if position != end:
            raise BinlogError(
                f"the last row of {self._table.database}.{self._table.name} is cut off"
            )
        return rows

    def _images(
        self, read: Read, kind: RowsKind, data: bytes, position: int
    ) -> tuple[Row | None, Row | None, int]:
        """Return the images before and after a change, and the place behind them."""
        before = None
        if kind is RowsKind.UPDATE:
            before, position = read(data, position)
        row, position = read(data, position)
        return (row, None, position) if kind is RowsKind.DELETE else (before, row, position)

    def _partial_row(self, errors: list[str], data: bytes, position: int) -> tuple[Row, int]:
        """Read a row without the values that can't be decoded, and add their errors."""
        nulls = int.from_bytes(data[position : position + self._null_bytes], "little")
        position += self._null_bytes
        row: Row = {}
        for index, (name, codec) in enumerate(self.codecs):
            if nulls >> index & 1:
                row[name] = None
                continue
            raw, position = _reader(codec._replace(convert=bytes))(data, position)
            try:
                row[name] = codec.convert(raw)
            except UNDECODABLE as error:
                errors.append(f"column {name} can't be decoded: {error}")
        return row, position

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


def undecodable(table: str, error: Exception) -> BinlogError:
    """Return the error for rows with a damaged value."""
    return BinlogError(f"rows of {table} can't be decoded: {error}")


def _reader(codec: Codec) -> Read:
    """Return the function that reads a value and the place behind it."""
    size, convert = codec.size, codec.convert
    if size < 0:
        return _prefixed(-size, convert)
    return lambda data, at: (convert(_take(data, at, size)), at + size)


def _take(data: bytes, at: int, size: int) -> bytes:
    raw = data[at : at + size]
    if len(raw) != size:
        raise IndexError(f"{size} bytes expected at {at}, {len(raw)} are there")
    return raw


def _prefixed(length_bytes: int, decode: Convert) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + length_bytes
        size = int.from_bytes(_take(data, at, length_bytes), "little")
        return decode(_take(data, start, size)), start + size

    return read
