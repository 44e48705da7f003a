"""Upserts into a table of PostgreSQL, 9.5 or newer.

Rows are copied into a temporary table, and from there into the real one by few statements. The
connection is kept between batches. Must not know: Spark, Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from tidemill.errors import MissingPackageError
from tidemill.spark.options import noted
from tidemill.spark.upsert import STAGE, Found, UpsertTable, name, quoted, refused
from tidemill.spark.upsert_rows import DELETED, Layout

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

CONNECT_S = 30
"""Longest wait for a connection."""
# Below that, no plan is bad enough to pay for statistics.
_MANY = 10_000


class PostgresTable(UpsertTable["psycopg.Connection[Any]"]):
    """A table in PostgreSQL; the database must be there.

    Args:
        dsn: as libpq wants it, e.g. ``"host=db dbname=flights user=etl"`` or a URL.

    Raises:
        MissingPackageError: psycopg is not installed.
    """

    types: ClassVar[dict[str, str]] = {
        "boolean": "boolean",
        "tinyint": "smallint",
        "smallint": "smallint",
        "int": "integer",
        "bigint": "bigint",
        "float": "real",
        "double": "double precision",
        "decimal": "DECIMAL",
        "string": "text",
        "json": "jsonb",
        "binary": "bytea",
        "date": "date",
        "timestamp": "timestamptz",
        "timestamp_ntz": "timestamp",
    }
    folds_case = False

    def __init__(
        self,
        dsn: str,
        table: str,
        key: str | Sequence[str],
        order_by: str | Sequence[str] = (),
    ) -> None:
        super().__init__(table, key, order_by)
        self._dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None
        self._staged: Layout | None = None  # of its temporary table
        _module()

    @property
    def target(self) -> str:
        return f"table {self.table} in PostgreSQL"

    def close(self) -> None:
        """Close the connection; the next batch opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._staged = None, None

    def _transaction(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        return self._in_transaction()

    @contextmanager
    def _in_transaction(self) -> Iterator[psycopg.Connection[Any]]:
        driver = _module()
        try:
            connection = self._connected()
            with connection.transaction():
                yield connection
        except BaseException as error:
            self.close()
            if isinstance(error, driver.Error):
                raise refused(self.target, error, _hint(driver, error)) from error
            raise

    def _connected(self) -> psycopg.Connection[Any]:
        """The connection of the batch before, if the server still knows it, or a new one."""
        driver = _module()
        if self._connection is not None:
            try:
                self._connection.execute("SELECT 1")
            except driver.OperationalError:
                self.close()
        if self._connection is None:
            self._connection = driver.connect(
                self._dsn,
                autocommit=True,
                connect_timeout=CONNECT_S,
                application_name="tidemill",
            )
        return self._connection

    def _execute(self, connection: psycopg.Connection[Any], statement: str) -> None:
        connection.execute(statement.encode())

    def _find(self, connection: psycopg.Connection[Any], table: str) -> Found | None:
        found = connection.execute(
            "SELECT a.attname, coalesce(a.attnum = ANY(i.indkey), false) FROM pg_attribute a "
            "LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary "
            "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped "
            "ORDER BY a.attnum",
            [name(table)],
        ).fetchall()
        if not found:
            return None
        return Found(tuple(each[0] for each in found), tuple(each[0] for each in found if each[1]))

    def _number(self, connection: psycopg.Connection[Any], query: str) -> int | None:
        found = connection.execute(query.encode()).fetchone()
        return None if found is None else found[0]

    def _stage(self, connection: psycopg.Connection[Any], rows: pa.Table, layout: Layout) -> None:
        names = [column.name for column in layout.columns]
        if self._staged != layout:
            declared = ", ".join(self.column(column) for column in layout.columns)
            connection.execute(f"DROP TABLE IF EXISTS pg_temp.{STAGE}".encode())
            connection.execute(
                f"CREATE TEMP TABLE {STAGE} ({declared}, {DELETED} boolean) "
                "ON COMMIT DELETE ROWS".encode()
            )
            self._staged = layout
        into = ", ".join(map(quoted, [*names, DELETED]))
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY {STAGE} ({into}) FROM STDIN".encode()) as copy,
        ):
            for batch in rows.to_batches(max_chunksize=10_000):
                columns = [batch.column(each).to_pylist() for each in (*names, DELETED)]
                for row in zip(*columns, strict=True):
                    copy.write_row(row)
        if rows.num_rows >= _MANY:
            connection.execute(f"ANALYZE {STAGE}".encode())


def _module() -> Any:
    """The package, which is an extra."""
    try:
        import psycopg
    except ImportError:
        raise noted(
            MissingPackageError(
                "the package psycopg is not installed", hint="pip install 'tidemill[postgres]'"
            )
        ) from None
    return psycopg


def _hint(driver: Any, error: Exception) -> str:
    if isinstance(error, driver.errors.InsufficientPrivilege):
        return "Grant the role INSERT, UPDATE, DELETE and SELECT on it, or CREATE on its schema."
    if isinstance(error, driver.OperationalError):
        return "Check the dsn, and that the server runs; the batch is tried again."
    if "NUL" in str(error) or "\\u0000" in str(error):
        return "PostgreSQL's texts hold no NUL characters: replace(column, '\\u0000', '')."
    return ""
