"""A sink that upserts into a table of a SQLite file.

SQLite has few types. Times are stored as text that sorts in the order of time and that SQLite's
date functions read, booleans as 0 and 1. Decimals are stored as text too, because SQLite's numbers
would lose digits; they sort correctly with ``CAST(... AS REAL)`` only. Must not know: Spark, Kafka.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tidemill.spark.sinks.base import DELETED, as_columns
from tidemill.spark.sinks.database.rows import VERSION, Column, Layout
from tidemill.spark.sinks.database.sink import FileTableSink
from tidemill.spark.sinks.database.upsert import (
    STAGE,
    Found,
    UpsertTable,
    is_older,
    quoted,
    same_key,
    write_error,
)

if TYPE_CHECKING:
    import pyarrow as pa

BUSY_S = 30.0
"""Seconds to wait while another process writes."""
_AS_TEXT = frozenset({"timestamp", "timestamp_ntz", "date"})


@dataclass(frozen=True)
class SqliteSink(FileTableSink):
    """Upserts rows into a table of a SQLite file. A batch that is run again changes nothing.

    Attributes:
        table: Name of the table. It is created if it is missing.
        key: Columns of its primary key.
        path: The file. It is created if it is missing.
        order_by: If a key occurs more than once in a batch, the row with the greatest values in
            these columns wins. Without ``order_by`` such a batch fails the query.
    """

    def upsert_table(self) -> UpsertTable[Any]:
        return SqliteTable(self.path, self.table, self.key_columns, as_columns(self.order_by))


class SqliteTable(UpsertTable[sqlite3.Connection]):
    """A table in a SQLite file. The file is created if it is missing.

    Args:
        table: Name of the table.
        key: Column or columns that identify a row.
        order_by: Columns that decide between rows with the same key.
    """

    types: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("boolean", "tinyint", "smallint", "int", "bigint"), "INTEGER"),
        **dict.fromkeys(("float", "double"), "REAL"),
        **dict.fromkeys(("string", "json", "decimal", *_AS_TEXT), "TEXT"),
        "binary": "BLOB",
    }

    def __init__(
        self,
        path: str | Path,
        table: str,
        key: str | Sequence[str],
        order_by: str | Sequence[str] = (),
    ) -> None:
        super().__init__(table, key, order_by)
        self._path = Path(path)

    @property
    def target(self) -> str:
        return f"table {self.table} in {self._path}"

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            connected = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
            with closing(connected) as connection:
                # Lock before the first read, so that no other process changes what was read.
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise write_error(self.target, error, _hint(error)) from error

    def _execute(self, connection: sqlite3.Connection, statement: str) -> None:
        connection.execute(statement)

    def _find(self, connection: sqlite3.Connection, table: str) -> Found | None:
        schema, dot, bare = table.rpartition(".")
        of = f"{quoted(schema)}." if dot else ""
        columns = connection.execute(f"PRAGMA {of}table_info({quoted(bare)})").fetchall()
        if not columns:
            return None
        key = sorted((each[5], each[1]) for each in columns if each[5])
        return Found(tuple(each[1] for each in columns), tuple(each[1] for each in key))

    def _number(self, connection: sqlite3.Connection, query: str) -> int | None:
        found = connection.execute(query).fetchone()
        return None if found is None else found[0]

    def _stage(self, connection: sqlite3.Connection, rows: pa.Table, layout: Layout) -> None:
        declared = ", ".join(self.column(column) for column in layout.columns)
        names = [*(column.name for column in layout.columns), VERSION, DELETED]
        more = f"{VERSION} INTEGER, {DELETED} INTEGER"
        connection.execute(f"CREATE TEMP TABLE {STAGE} ({declared}, {more})")
        places = ", ".join("?" * len(names))
        connection.executemany(f"INSERT INTO {STAGE} VALUES ({places})", _values(rows, layout))

    def _delete(self, table: str, layout: Layout, version: str, which: str) -> str:
        # SQLite runs EXISTS for each row of the table; this looks each key of the batch up.
        keys = ", ".join(map(quoted, layout.key))
        of_row = ", ".join(f"s.{quoted(key)}" for key in layout.key)
        return (
            f"DELETE FROM {table} WHERE ({keys}) IN (SELECT {of_row} FROM {STAGE} AS s "
            f"CROSS JOIN {table} AS d WHERE {which} AND {same_key('d', layout)} "
            f"AND {is_older('d', layout, version)})"
        )


def _values(rows: pa.Table, layout: Layout) -> Iterator[tuple[Any, ...]]:
    """Yield the rows as parameters of a statement."""
    for batch in rows.to_batches(max_chunksize=10_000):
        columns = [_column(batch.column(each.name), each) for each in layout.columns]
        versions = batch.column(VERSION).to_pylist() if layout.versioned else [None] * len(batch)
        yield from zip(*columns, versions, batch.column(DELETED).to_pylist(), strict=True)


def _column(values: pa.Array, column: Column) -> list[Any]:
    import pyarrow as pa

    if column.type in _AS_TEXT:
        found: list[Any] = values.cast(pa.string()).to_pylist()
        return found
    plain: list[Any] = values.to_pylist()
    if column.type == "decimal":
        return [None if value is None else format(value, "f") for value in plain]
    return plain


def _hint(error: Exception) -> str:
    if "locked" in str(error) or "busy" in str(error):
        return f"Another process has been writing for {BUSY_S:.0f} s. The batch will be retried."
    if "unable to open" in str(error):
        return "Check that its folder exists and is writable."
    return ""
