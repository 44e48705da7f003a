"""Read rows of tables in the form in which the binary log delivers them.

Must not know the stream of the binary log, or positions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pymysql

from tidemill.connect.cdc.binlog.catalog import CatalogTable, Field, query, quoted
from tidemill.connect.cdc.binlog.decoding.columns import bits_text, shortest_float
from tidemill.connect.cdc.contract import Row, Table
from tidemill.connect.cdc.errors import SetupError
from tidemill.connect.cdc.values import bytes_of, bytes_value, float_value, int_value

ROWS_PER_PART = 5_000

_NUMERIC = frozenset(
    {"tinyint", "smallint", "mediumint", "int", "bigint", "year", "decimal"}
    | {"enum", "set", "bit"}
)
_DIGITS_BEFORE = re.compile(r"^0+(?=\d)")
"""Zeros that ZEROFILL puts before a number."""


@contextmanager
def read_view(connection: pymysql.Connection[Any]) -> Iterator[None]:
    """Read in a transaction that sees what is committed when it begins, and nothing later."""
    query(connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    try:
        yield
    finally:
        if connection.open:
            query(connection, "ROLLBACK")


class RowReader:
    """Reads rows of one table in the form in which the binary log delivers them."""

    def __init__(self, found: CatalogTable) -> None:
        self._place = f"{quoted(found.database)}.{quoted(found.name)}"
        self._fields = found.fields
        self._convert = [_converter(field) for field in found.fields]
        by_name = {field.name: field for field in found.fields}
        self._key = [by_name[name] for name in found.key]

    def chunk(
        self, connection: pymysql.Connection[Any], after: list[Any] | None, limit: int
    ) -> tuple[list[Row], list[Any] | None]:
        """Return rows in the order of the key, and where the next chunk begins.

        Args:
            after: what the chunk before returned; None: from the first row.
            limit: most rows.
        """
        keys = ", ".join(_order_value(field) for field in self._key)
        order = ", ".join(quoted(field.name) for field in self._key)
        where = self._after(connection, after)
        rows = query(
            connection,
            f"SELECT {self._columns()}, {keys} FROM {self._place} {where} "
            f"ORDER BY {order} LIMIT {int(limit)}",
        )
        width = len(self._fields)
        last = None
        if len(rows) >= limit:
            last = [_stored_key(value) for value in rows[-1][width:]]
        return [self._row(each) for each in rows], last

    def all(self, connection: pymysql.Connection[Any]) -> Iterator[list[Row]]:
        """Yield all rows in parts, without order."""
        with connection.cursor(pymysql.cursors.SSCursor) as cursor:
            cursor.execute(f"SELECT {self._columns()} FROM {self._place}")
            while part := cursor.fetchmany(ROWS_PER_PART):
                yield [self._row(each) for each in part]

    def _columns(self) -> str:
        return ", ".join(_value(field) for field in self._fields)

    def _after(self, connection: pymysql.Connection[Any], after: list[Any] | None) -> str:
        """Return the condition for rows behind a key, as a sequence of comparisons with AND/OR.

        The optimizer uses the index for it, which it does not for a comparison of tuples.
        """
        if after is None:
            return ""
        # Names can contain "%s", so the values are not passed as arguments.
        pairs = zip(after, self._key, strict=True)
        values = [_literal(connection, stored, field) for stored, field in pairs]
        names = [_compared(field) for field in self._key]
        terms = []
        for index, name in enumerate(names):
            equal = [f"{names[each]} = {values[each]}" for each in range(index)]
            terms.append(f"({' AND '.join([*equal, f'{name} > {values[index]}'])})")
        return f"WHERE {' OR '.join(terms)}"

    def _row(self, values: Sequence[Any]) -> Row:
        return {
            field.name: None if value is None else convert(value)
            for field, convert, value in zip(self._fields, self._convert, values, strict=False)
        }


def reader_of(found: CatalogTable | None, table: Table) -> RowReader:
    """Return the reader of a table."""
    if found is None:
        raise SetupError(
            f"table {table.id} does not exist any more, or the user can't read it",
            hint="Restart the source without the table.",
        )
    return RowReader(found)


def _value(field: Field) -> str:
    """Return the expression that reads a column without loss."""
    name = quoted(field.name)
    if field.data_type == "vector":
        return f"CAST({name} AS BINARY)"
    return f"{name} * 1e0" if field.data_type == "float" else name  # keeps the sign of zero


def _order_value(field: Field) -> str:
    """Return the expression for the key's place in the order of the index."""
    name = quoted(field.name)
    if field.data_type in ("enum", "set", "bit"):
        return f"{name} + 0"
    if field.character_set is not None:
        return f"CAST({name} AS BINARY)"
    return f"{name} + 0e0" if field.data_type == "float" else name


def _compared(field: Field) -> str:
    name = quoted(field.name)
    return f"{name} + 0" if field.data_type == "bit" else name


def _stored_key(value: Any) -> Any:
    """Return a key's value for JSON: text, or bytes with a mark."""
    if isinstance(value, bytes):
        return {"base64": bytes_value(value)}
    return value


def _literal(connection: pymysql.Connection[Any], stored: Any, field: Field) -> str:
    """Return a key's value for a statement.

    Text stays in its character set: two keys can be the same text in UTF-8, if one of them has a
    code without a character.
    """
    if isinstance(stored, dict) and field.character_set is not None:
        return f"_{field.character_set} X'{bytes_of(stored['base64']).hex()}'"
    return str(connection.escape(_key_value(stored, field)))


def _key_value(stored: Any, field: Field) -> Any:
    """Return a key's value for a comparison: numbers as numbers, because text compares otherwise.

    ENUM and SET compare with a number by their index, as the order of the rows does.
    """
    if isinstance(stored, dict):
        return bytes_of(stored["base64"])
    if field.kind == "float":
        return float(stored)
    return Decimal(stored) if field.data_type in _NUMERIC else stored


def _converter(field: Field) -> Any:
    """Return the function that converts a value from the server's text."""
    kind = field.kind
    if kind == "int":
        return lambda value: int_value(int(value))
    if kind == "float":
        if field.data_type == "float":
            return lambda value: float_value(shortest_float(float(value)))
        return lambda value: float_value(float(value))
    if kind == "decimal" and "zerofill" in field.column_type:
        return lambda value: _DIGITS_BEFORE.sub("", _text(value))
    if kind == "timestamp":
        return lambda value: _text(value).replace(" ", "T")
    if kind == "timestamptz":
        return lambda value: _text(value).replace(" ", "T") + "Z"
    if kind == "bytes":
        return lambda value: bytes_value(value if isinstance(value, bytes) else value.encode())
    if field.data_type == "bit":
        bits = int(field.column_type[4:-1])
        if bits == 1:
            return lambda value: value != b"\0"
        return lambda value: bits_text(value, bits)
    return _text


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
