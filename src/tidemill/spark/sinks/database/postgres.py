"""A sink that upserts into a table of PostgreSQL 9.5 or newer.

Rows are copied into a temporary table, and from there into the real table with a few statements.
Only one batch at a time writes to a table, so that no batch misses what another one deletes. The
connection is kept between batches. Must not know: Spark, Kafka.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tidemill.spark.sinks.base import DELETED, Mistake, QueryContext, as_columns, mistakes_of
from tidemill.spark.sinks.database import postgres_dsn
from tidemill.spark.sinks.database.postgres_dsn import driver as _module
from tidemill.spark.sinks.database.rows import VERSION, Layout
from tidemill.spark.sinks.database.sink import TableSink
from tidemill.spark.sinks.database.upsert import (
    STAGE,
    Found,
    UpsertTable,
    name,
    quoted,
    write_error,
)

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

CONNECT_S = 30
"""Seconds to wait for a connection."""
BUSY_S = 30.0
"""Seconds to wait while another batch writes to the table."""
# With fewer rows, a bad query plan costs less than collecting statistics.
_MANY = 10_000


@dataclass(frozen=True)
class PostgresSink(TableSink):
    """Upserts rows into a table of PostgreSQL. A batch that is run again changes nothing.

    Attributes:
        table: Name of the table, with its schema if it has one. It is created if it is missing.
        key: Columns of its primary key.
        dsn: The connection string of libpq, e.g. ``"host=db dbname=flights user=etl"``, or a URL.
            Keep the password in ``~/.pgpass`` instead. The dsn is never shown.
        order_by: If a key occurs more than once in a batch, the row with the greatest values in
            these columns wins. Without ``order_by`` such a batch fails the query.
    """

    dsn: str = field(repr=False)

    @property
    def target(self) -> str:
        return f"table {self.table} in PostgreSQL"

    @property
    def place(self) -> Hashable:
        return (postgres_dsn.place_of(self.dsn), self.table)

    def check(self, context: QueryContext) -> Iterable[Mistake]:
        yield from super().check(context)
        yield from mistakes_of(lambda: postgres_dsn.check(self.dsn, self.table))

    def upsert_table(self) -> UpsertTable[Any]:
        return PostgresTable(self.dsn, self.table, self.key_columns, as_columns(self.order_by))


class PostgresTable(UpsertTable["psycopg.Connection[Any]"]):
    """A table in PostgreSQL. The database must exist.

    Args:
        dsn: The connection string of libpq, or a URL.
        table: Name of the table, with its schema if it has one.
        key: Column or columns that identify a row.
        order_by: Columns that decide between rows with the same key.

    Raises:
        MissingPackageError: The package psycopg is not installed.
        OptionError: The dsn can't be parsed.
        SchemaError: The name of the table is longer than PostgreSQL allows.
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
        postgres_dsn.check(dsn, table)
        self._dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None
        self._staged: Layout | None = None  # layout of the temporary table
        self._guard = threading.Lock()  # guards the two flags
        self._is_busy = self._is_to_close = False

    @property
    def target(self) -> str:
        return f"table {self.table} in PostgreSQL"

    def close(self) -> None:
        """Close the connection, after the current batch if there is one."""
        with self._guard:
            self._is_to_close = self._is_busy
            if not self._is_busy:
                self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._staged = None, None

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[Any]]:
        driver = _module()
        with self._guard:
            self._is_busy = True
        try:
            connection = self._connected()
            with connection.transaction():
                self._lock(connection)
                yield connection
        except BaseException as error:
            self._drop()
            if isinstance(error, driver.Error):
                raise write_error(self.target, error, _hint(driver, error)) from error
            raise
        finally:
            with self._guard:
                if self._is_to_close:
                    self._drop()
                self._is_busy = self._is_to_close = False

    def _connected(self) -> psycopg.Connection[Any]:
        """Return the connection of the previous batch if it still works, or a new one."""
        driver = _module()
        if self._connection is not None:
            try:
                self._connection.execute("SELECT 1")
            except driver.OperationalError:
                self._drop()
        if self._connection is None:
            self._connection = driver.connect(
                self._dsn,
                autocommit=True,
                connect_timeout=CONNECT_S,
                application_name="tidemill",
            )
            # Independent of the server's default: each statement must see earlier writes.
            self._connection.isolation_level = driver.IsolationLevel.READ_COMMITTED
        return self._connection

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        """Wait until no other batch writes to the table, and lock it for this transaction.

        The lock is on the name of the table, because the table might not exist yet.
        """
        from psycopg import sql

        _, dot, bare = self.table.rpartition(".")
        made = (
            sql.Literal(self.table)
            if dot
            else sql.SQL("current_schema() || '.' || {}").format(bare)
        )
        statement = sql.SQL(
            "SET LOCAL lock_timeout = {wait_ms}; "
            "SELECT pg_advisory_xact_lock(('x' || substr(md5('tidemill ' || coalesce("
            "(SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE c.oid = to_regclass({table})), {made})), 1, 16))"
            "::bit(64)::bigint); "
            "SET LOCAL lock_timeout = DEFAULT"
        ).format(wait_ms=round(BUSY_S * 1000), table=name(self.table), made=made)
        # Several statements can't be prepared.
        connection.execute(statement, prepare=False)

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
        names += [VERSION] if layout.versioned else []
        if self._staged != layout:
            declared = ", ".join(self.column(column) for column in layout.columns)
            connection.execute(f"DROP TABLE IF EXISTS pg_temp.{STAGE}".encode())
            connection.execute(
                f"CREATE TEMP TABLE {STAGE} ({declared}, {VERSION} bigint, {DELETED} boolean) "
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


def _hint(driver: Any, error: Exception) -> str:
    if isinstance(error, driver.errors.InsufficientPrivilege):
        return "Grant the role INSERT, UPDATE, DELETE and SELECT on it, or CREATE on its schema."
    if isinstance(error, driver.errors.LockNotAvailable):
        return (
            f"Another batch has been writing to it for {BUSY_S:.0f} s. This batch will be retried."
        )
    if isinstance(error, driver.OperationalError):
        return "Check the dsn, and that the server runs. The batch will be retried."
    if any(each in str(error) for each in ("NUL", "\\u0000", 'encoding "UTF8": 0x00')):
        return "PostgreSQL can't store NUL characters in text: use replace(column, '\\u0000', '')."
    return ""
