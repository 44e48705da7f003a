"""A sink that upserts into a table of a DuckDB file.

DuckDB reads Arrow tables in place, so no row is copied one by one. Only one process can have a file
open for writing. So the file is opened for each batch and closed after it, and other processes can
use it in between. Must not know: Spark, Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Any, ClassVar

from tidemill.extras import load, not_installed
from tidemill.spark.errors import MissingPackageError
from tidemill.spark.sinks.base import Mistake, QueryContext, as_columns
from tidemill.spark.sinks.database.rows import Layout
from tidemill.spark.sinks.database.sink import FileTableSink
from tidemill.spark.sinks.database.upsert import STAGE, Found, UpsertTable, write_error

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

BUSY_S = 30.0
"""Seconds to wait while another process has the file open."""
_PAUSE_S = 0.05


@dataclass(frozen=True)
class DuckDBSink(FileTableSink):
    """Upserts rows into a table of a DuckDB file. A batch that is run again changes nothing.

    Attributes:
        table: Name of the table. It is created if it is missing.
        key: Columns of its primary key.
        path: The file. It is created if it is missing.
        order_by: If a key occurs more than once in a batch, the row with the greatest values in
            these columns wins. Without ``order_by`` such a batch fails the query.
    """

    def check(self, context: QueryContext) -> Iterable[Mistake]:
        yield from super().check(context)
        if find_spec("duckdb") is None:
            yield Mistake(*not_installed("duckdb"))

    def upsert_table(self) -> UpsertTable[Any]:
        return DuckDBTable(self.path, self.table, self.key_columns, as_columns(self.order_by))


class DuckDBTable(UpsertTable["duckdb.DuckDBPyConnection"]):
    """A table in a DuckDB file. The file is created if it is missing.

    Args:
        table: Name of the table.
        key: Column or columns that identify a row.
        order_by: Columns that decide between rows with the same key.

    Raises:
        MissingPackageError: The package duckdb is not installed.
    """

    types: ClassVar[dict[str, str]] = {
        "boolean": "BOOLEAN",
        "tinyint": "TINYINT",
        "smallint": "SMALLINT",
        "int": "INTEGER",
        "bigint": "BIGINT",
        "float": "FLOAT",
        "double": "DOUBLE",
        "decimal": "DECIMAL",
        "string": "VARCHAR",
        "json": "VARCHAR",
        "binary": "BLOB",
        "date": "DATE",
        "timestamp": "TIMESTAMPTZ",
        "timestamp_ntz": "TIMESTAMP",
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
        _module()

    @property
    def target(self) -> str:
        return f"table {self.table} in {self._path}"

    @contextmanager
    def _transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        duck = _module()
        try:
            with closing(self._connect()) as connection:
                connection.execute("BEGIN")
                yield connection
                connection.execute("COMMIT")
        except duck.Error as error:
            raise write_error(self.target, error, _hint(error)) from error

    def _connect(self) -> duckdb.DuckDBPyConnection:
        duck = _module()
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                connection: duckdb.DuckDBPyConnection = duck.connect(str(self._path))
            except duck.IOException as error:
                if "lock" not in str(error) or time.monotonic() > deadline:
                    raise
            else:
                return connection
            time.sleep(_PAUSE_S)

    def _execute(self, connection: duckdb.DuckDBPyConnection, statement: str) -> None:
        connection.execute(statement)

    def _find(self, connection: duckdb.DuckDBPyConnection, table: str) -> Found | None:
        schema, _, bare = table.rpartition(".")
        # DuckDB ignores the case of names, but its catalog keeps the case in which they were given.
        schema_given = "coalesce(nullif(?, ''), current_schema())"
        where = f"{_same('table_name', '?')} AND {_same('schema_name', schema_given)}"
        columns = connection.execute(
            f"SELECT column_name FROM duckdb_columns() WHERE {where} AND "
            "database_name = current_database() ORDER BY column_index",
            [bare, schema],
        ).fetchall()
        if not columns:
            return None
        keys = connection.execute(
            f"SELECT constraint_column_names FROM duckdb_constraints() WHERE {where} AND "
            "database_name = current_database() AND constraint_type = 'PRIMARY KEY'",
            [bare, schema],
        ).fetchall()
        return Found(tuple(each[0] for each in columns), tuple(keys[0][0]) if keys else ())

    def _number(self, connection: duckdb.DuckDBPyConnection, query: str) -> int | None:
        found = connection.execute(query).fetchall()
        return found[0][0] if found else None

    def _stage(self, connection: duckdb.DuckDBPyConnection, rows: pa.Table, layout: Layout) -> None:
        connection.register(STAGE, rows)


def _module() -> Any:
    """Import the package, which is an optional dependency."""
    return load("duckdb", MissingPackageError)


def _same(one: str, other: str) -> str:
    """Return a condition in SQL: DuckDB treats two names as equal.

    DuckDB ignores the case of ASCII letters only. Its function ``lower`` changes all letters.
    """
    one, other = (
        f"translate({each}, '{ascii_uppercase}', '{ascii_lowercase}')" for each in (one, other)
    )
    return f"{one} = {other}"


def _hint(error: Exception) -> str:
    if "lock" in str(error):
        return f"Another process has had it open for {BUSY_S:.0f} s. The batch will be retried."
    return ""
