"""Upserts into a table of a SQLite file.

SQLite knows few types: times are stored as texts that sort as they should and that its date
functions read, booleans as 0 and 1, and decimals as texts, as any number of SQLite's would lose
digits: they sort by ``CAST(... AS REAL)`` only. Must not know: Spark, Kafka.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tidemill.spark.upsert import STAGE, Found, UpsertTable, quoted, refused
from tidemill.spark.upsert_rows import DELETED, Column, Layout

if TYPE_CHECKING:
    import pyarrow as pa

BUSY_S = 30.0
"""Longest wait for another process that writes."""
_AS_TEXT = frozenset({"timestamp", "timestamp_ntz", "date"})


class SqliteTable(UpsertTable[sqlite3.Connection]):
    """A table in a SQLite file; the file is made where it is missing.

    Args:
        path: of the file.
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

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._in_transaction()

    @contextmanager
    def _in_transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            connected = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
            with closing(connected) as connection:
                # Before anything is read: what was read must not have changed when it is written.
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise refused(self.target, error, _hint(error)) from error

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
        names = [*(column.name for column in layout.columns), DELETED]
        connection.execute(f"CREATE TEMP TABLE {STAGE} ({declared}, {DELETED} INTEGER)")
        places = ", ".join("?" * len(names))
        connection.executemany(f"INSERT INTO {STAGE} VALUES ({places})", _values(rows, layout))


def _values(rows: pa.Table, layout: Layout) -> Iterator[tuple[Any, ...]]:
    """Rows as SQLite takes them."""
    for batch in rows.to_batches(max_chunksize=10_000):
        columns = [_column(batch.column(each.name), each) for each in layout.columns]
        yield from zip(*columns, batch.column(DELETED).to_pylist(), strict=True)


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
        return f"Another process has been writing for {BUSY_S:.0f} s; the batch is tried again."
    if "unable to open" in str(error):
        return "Check that its folder exists and may be written."
    return ""
