"""Upserts into a table of PostgreSQL, 9.5 or newer.

Rows are copied into a temporary table, and from there into the real one by few statements. One
batch at a time writes to a table: what one deletes, another must not add without seeing it. The
connection is kept between batches. Must not know: Spark, Kafka.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from tidemill.spark import postgres_dsn
from tidemill.spark.postgres_dsn import driver as _module
from tidemill.spark.upsert import STAGE, Found, UpsertTable, name, quoted, refused
from tidemill.spark.upsert_rows import DELETED, Layout

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

CONNECT_S = 30
"""Longest wait for a connection."""
BUSY_S = 30.0
"""Longest wait for another batch that writes to the table."""
# Below that, no plan is bad enough to pay for statistics.
_MANY = 10_000


class PostgresTable(UpsertTable["psycopg.Connection[Any]"]):
    """A table in PostgreSQL; the database must be there.

    Args:
        dsn: as libpq wants it, e.g. ``"host=db dbname=flights user=etl"`` or a URL.

    Raises:
        MissingPackageError: psycopg is not installed.
        OptionError: the dsn can't be read.
        SchemaError: PostgreSQL would cut the table's name.
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
        self._staged: Layout | None = None  # of its temporary table
        self._guard = threading.Lock()  # of what follows
        self._is_busy = self._is_to_close = False

    @property
    def target(self) -> str:
        return f"table {self.table} in PostgreSQL"

    def close(self) -> None:
        """Close the connection, at the end of a batch that is under way; the next opens another."""
        with self._guard:
            self._is_to_close = self._is_busy
            if not self._is_busy:
                self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._staged = None, None

    def _transaction(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        return self._in_transaction()

    @contextmanager
    def _in_transaction(self) -> Iterator[psycopg.Connection[Any]]:
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
                raise refused(self.target, error, _hint(driver, error)) from error
            raise
        finally:
            with self._guard:
                if self._is_to_close:
                    self._drop()
                self._is_busy = self._is_to_close = False

    def _connected(self) -> psycopg.Connection[Any]:
        """The connection of the batch before, if the server still knows it, or a new one."""
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
            # Whatever the server's default: each statement must see what was written before it.
            self._connection.isolation_level = driver.IsolationLevel.READ_COMMITTED
        return self._connection

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        """Wait until no other batch writes to the table; that holds until the transaction's end.

        By the table's name, as it may not be there yet.
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


def _hint(driver: Any, error: Exception) -> str:
    if isinstance(error, driver.errors.InsufficientPrivilege):
        return "Grant the role INSERT, UPDATE, DELETE and SELECT on it, or CREATE on its schema."
    if isinstance(error, driver.errors.LockNotAvailable):
        return f"Another batch has been writing to it for {BUSY_S:.0f} s; this one is tried again."
    if isinstance(error, driver.OperationalError):
        return "Check the dsn, and that the server runs; the batch is tried again."
    if "NUL" in str(error) or "\\u0000" in str(error):
        return "PostgreSQL's texts hold no NUL characters: replace(column, '\\u0000', '')."
    return ""
