"""Upserts into a table of a DuckDB file.

DuckDB reads Arrow where it lies, so nothing is copied row by row. Only one process can have a file
open for writing: it is opened for each batch and closed after it, so that others get their turn.
Must not know: Spark, Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Any, ClassVar

from tidemill.errors import MissingPackageError
from tidemill.spark.options import noted
from tidemill.spark.upsert import STAGE, Found, UpsertTable, refused
from tidemill.spark.upsert_rows import Layout

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

BUSY_S = 30.0
"""Longest wait for another process that has the file open."""
_PAUSE_S = 0.05


class DuckDBTable(UpsertTable["duckdb.DuckDBPyConnection"]):
    """A table in a DuckDB file; the file is made where it is missing.

    Args:
        path: of the file.

    Raises:
        MissingPackageError: DuckDB is not installed.
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

    def _transaction(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        return self._in_transaction()

    @contextmanager
    def _in_transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        duck = _module()
        try:
            with closing(self._connect()) as connection:
                connection.execute("BEGIN")
                yield connection
                connection.execute("COMMIT")
        except duck.Error as error:
            raise refused(self.target, error, _hint(error)) from error

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
        # Names are the same in capitals and small letters, but here they stand as they were given.
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
    """The package, which is an extra."""
    try:
        import duckdb
    except ImportError:
        raise noted(
            MissingPackageError(
                "the package duckdb is not installed", hint="pip install 'tidemill[duckdb]'"
            )
        ) from None
    return duckdb


def _same(one: str, other: str) -> str:
    """SQL: whether DuckDB takes two names for the same. Only ASCII's capitals count as their small
    letters there, as they do not for its ``lower``."""
    one, other = (
        f"translate({each}, '{ascii_uppercase}', '{ascii_lowercase}')" for each in (one, other)
    )
    return f"{one} = {other}"


def _hint(error: Exception) -> str:
    if "lock" in str(error):
        return f"Another process has had it open for {BUSY_S:.0f} s; the batch is tried again."
    return ""
