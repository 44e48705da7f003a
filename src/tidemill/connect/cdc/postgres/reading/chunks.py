"""Reads rows of tables: chunks by key, whole tables, and single values by key.

The server sends the same text as in the stream, and the same functions convert it, so a row that
was read equals the row that the stream would deliver. Must not know: the stream, snapshots.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tidemill.connect.cdc.contract import Row, Table
from tidemill.connect.cdc.packed import VALUE_RULE, ColumnRule, PackedRows
from tidemill.connect.cdc.postgres.catalog import CatalogTable, Published
from tidemill.connect.cdc.postgres.connection import unchecked_texts
from tidemill.connect.cdc.postgres.errors import (
    AlteredError,
    ProtocolError,
    translated,
    translating,
)
from tidemill.connect.cdc.postgres.types import RULES, Convert, Types, array, binary, boolean
from tidemill.connect.cdc.values import bytes_of
from tidemill.native import extension

_INVALID = "22"
"""Class of errors of values, for example of a text where a number is expected."""
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_BYTES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def copied(connection: Any, query: Any, doing: str) -> list[bytes]:
    """Run a COPY to the client in the format text, and return its lines.

    Args:
        doing: What is done, for errors: "can't <what>".
    """
    import psycopg
    from psycopg import pq
    from psycopg.errors import error_from_result

    pg = connection.pgconn
    lines: list[bytes] = []
    get, add = pg.get_copy_data, lines.append
    text = query.as_bytes(connection)
    try:
        with unchecked_texts(connection):
            result = pg.exec_(text)
            if result.status == pq.ExecStatus.COPY_OUT:
                while True:
                    length, data = get(0)
                    if length < 0:
                        break
                    add(bytes(data))
                result = pg.get_result()
                while pg.get_result() is not None:
                    pass
    except psycopg.Error as fault:
        raise translated(fault, doing) from None
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        if result is None:
            raise ProtocolError(f"{doing}: the server did not end a COPY")
        raise translated(error_from_result(result), doing)
    return lines


def copy_fields(line: bytes) -> list[bytes | None]:
    """Return the values of a line; None is NULL."""
    if line[-1:] != b"\n":
        raise ProtocolError(f"a line of COPY with {len(line)} bytes does not end")
    fields = line[:-1].split(b"\t")
    if b"\\" not in line:
        return list(fields)
    return [None if each == b"\\N" else _ESCAPE.sub(_resolved, each) for each in fields]


def _resolved(found: re.Match[bytes]) -> bytes:
    return _BYTES.get(found[1], found[1])


class Reader:
    """Reads one table, as a publication publishes it.

    Args:
        connection: A psycopg connection, possibly within a snapshot.
        found: The table in the catalog.
        table: The table with its captured columns.
        published: Column list and row filter.
        types: The types of the database.

    Attributes:
        columns: The columns' rules for the compiled encoder.
    """

    def __init__(
        self,
        connection: Any,
        found: CatalogTable,
        table: Table,
        published: Published | None,
        types: Types,
    ) -> None:
        from psycopg import sql

        self._connection = connection
        self._table = table
        oids = {each.name: each.type_oid for each in found.columns}
        self._types = {each.name: each.type_name for each in found.columns}
        self._converts: list[tuple[str, Convert]] = [
            (each.name, types[oids[each.name]].convert) for each in table.columns
        ]
        self.columns: tuple[ColumnRule, ...] = tuple(
            (name, RULES.get(convert, VALUE_RULE), convert, False)
            for name, convert in self._converts
        )
        only = sql.SQL("") if found.is_partitioned else sql.SQL("ONLY ")
        # The filter is the server's own text of an expression that it checked.
        row_filter = published.row_filter if published else None
        self._filter = sql.SQL(f"({row_filter})" if row_filter else "true")
        self._from = only + sql.Identifier(found.schema, found.name)

    def chunk(self, after: Sequence[Any] | None, limit: int) -> tuple[PackedRows, list[Any] | None]:
        """Return rows in the order of the key, and the text of the last row's key.

        Args:
            after: The texts of a key; rows behind it are returned. None: from the beginning.
            limit: Largest number of rows. Fewer rows mean the end of the table.

        Returns:
            The rows as the lines of a COPY, and the last key, or None at the end of the table.
        """
        from psycopg import sql

        key = [sql.Identifier(name) for name in self._table.key]
        condition: sql.Composable = self._filter
        if after is not None:
            values = [
                _place(value, self._types[name])
                for name, value in zip(self._table.key, after, strict=True)
            ]
            condition = sql.SQL("{} AND ({}) > ({})").format(
                condition, sql.SQL(", ").join(key), sql.SQL(", ").join(values)
            )
        query = sql.SQL("COPY (SELECT {} FROM {} WHERE {} ORDER BY {} LIMIT {}) TO STDOUT").format(
            self._columns(), self._from, condition, sql.SQL(", ").join(key), sql.Literal(limit)
        )
        lines = copied(self._connection, query, f"can't read {self._table.id}")
        size = sum(map(len, lines)) // len(lines) if lines else 0
        rows = PackedRows(
            lines,
            self.columns,
            extension.encode_copy,
            partial(_copied_rows, lines, self._converts),
            size,
        )
        if len(lines) < limit:
            return rows, None
        places = [[name for name, _ in self._converts].index(name) for name in self._table.key]
        last = copy_fields(lines[-1])
        return rows, [_last(last[at] or b"") for at in places]

    def all(self, limit: int) -> Iterator[list[Row]]:
        """Yield all rows, in parts of at most ``limit``, through a cursor on the server."""
        from psycopg import sql

        query = sql.SQL("DECLARE tidemill_read NO SCROLL CURSOR FOR SELECT {} FROM {} WHERE {}")
        with translating(f"can't read {self._table.id}"):
            self._connection.execute(query.format(self._columns(), self._from, self._filter))
        while rows := self._rows(self._result(sql.SQL(f"FETCH {limit:d} FROM tidemill_read"), [])):
            yield rows
        with translating(f"can't read {self._table.id}"):
            self._connection.execute("CLOSE tidemill_read")

    def by_keys(self, keys: Sequence[Sequence[Any]], columns: Sequence[str]) -> list[Row]:
        """Return the key and some columns of the published rows with these keys, in any order.

        Args:
            keys: Keys as JSON values; only those of types without loss in their text work.
            columns: The names of the columns to return in addition to the key.
        """
        from psycopg import sql

        names = [*self._table.key, *(name for name in columns if name not in self._table.key)]
        converts = dict(self._converts)
        values: list[bytes] = []
        tuples = []
        for key in keys:
            marks = []
            for name, value in zip(self._table.key, key, strict=True):
                values.append(literal(value, converts[name]))
                marks.append(sql.SQL(f"${len(values)}::{self._types[name]}"))
            tuples.append(sql.SQL("({})").format(sql.SQL(", ").join(marks)))
        query = sql.SQL("SELECT {} FROM {} WHERE {} AND ({}) IN ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, names)),
            self._from,
            self._filter,
            sql.SQL(", ").join(map(sql.Identifier, self._table.key)),
            sql.SQL(", ").join(tuples),
        )
        return _rows(self._result(query, values), [(name, converts[name]) for name in names])

    def _columns(self) -> Any:
        from psycopg import sql

        return sql.SQL(", ").join(sql.Identifier(name) for name, _ in self._converts)

    def _rows(self, result: Any) -> list[Row]:
        return _rows(result, self._converts)

    def _result(self, query: Any, values: list[bytes]) -> Any:
        """Run a query and return libpq's result, with all values as text."""
        import psycopg
        from psycopg import pq
        from psycopg.errors import error_from_result

        doing = f"can't read {self._table.id}"
        text = query.as_bytes(self._connection)
        try:
            with unchecked_texts(self._connection):
                result = self._connection.pgconn.exec_params(text, values)
        except psycopg.Error as fault:
            raise translated(fault, doing) from None
        if result.status != pq.ExecStatus.TUPLES_OK:
            refused = error_from_result(result)
            if values and (refused.sqlstate or "").startswith(_INVALID):
                raise AlteredError(f"{doing}: its key has another type now")
            raise translated(refused, doing)
        return result


def _last(text: bytes) -> Any:
    """Return the text of a key as a JSON value, also if it is not UTF-8 (SQL_ASCII)."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return {"bytes": b64encode(text).decode("ascii")}


def _place(value: Any, type_name: str) -> Any:
    """Return a value of ``_last`` as an SQL expression."""
    from psycopg import sql

    if isinstance(value, dict):
        text = "convert_from(decode({}, 'base64'), 'SQL_ASCII')::" + type_name
        return sql.SQL(text).format(sql.Literal(value["bytes"]))
    return sql.SQL("{}::" + type_name).format(sql.Literal(str(value)))


def literal(value: Any, convert: Convert) -> bytes:
    """Return the text that PostgreSQL reads as a key's value.

    Args:
        convert: The function that made the value from PostgreSQL's text.
    """
    if convert is boolean:
        return b"true" if value else b"false"
    if convert is binary:
        return b"\\x" + bytes_of(value).hex().encode()
    if isinstance(convert, partial) and convert.func is array:
        return _array(value, convert.keywords["convert"], convert.keywords["delimiter"])
    return str(value).encode()


def _array(values: list[Any], convert: Convert, delimiter: bytes) -> bytes:
    parts = []
    for value in values:
        if value is None:
            parts.append(b"NULL")
        elif isinstance(value, list):
            parts.append(_array(value, convert, delimiter))
        else:
            text = literal(value, convert).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            parts.append(b'"' + text + b'"')
    return b"{" + delimiter.join(parts) + b"}"


def _copied_rows(lines: Sequence[bytes], converts: Sequence[tuple[str, Convert]]) -> list[Row]:
    return [
        {
            name: None if value is None else convert(value)
            for (name, convert), value in zip(converts, copy_fields(line), strict=True)
        }
        for line in lines
    ]


def _rows(result: Any, converts: Sequence[tuple[str, Convert]]) -> list[Row]:
    """Convert a result column by column, which is faster than row by row."""
    get, count = result.get_value, result.ntuples
    columns = []
    for place, (_, convert) in enumerate(converts):
        texts = [get(row, place) for row in range(count)]
        columns.append([None if each is None else convert(each) for each in texts])
    names = [name for name, _ in converts]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
