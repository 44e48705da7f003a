"""A sink that upserts into a table of MariaDB 10.5 or MySQL 8 or newer, with InnoDB.

Rows are inserted into a temporary table, and from there into the real table with a few statements.
PyMySQL is the client: it is written in Python and has the licence MIT, unlike MySQL's and MariaDB's
own connectors. Times are stored as DATETIME in UTC, because TIMESTAMP ends in 2038. Text in keys is
compared by its code points. Must not know: Spark, Kafka.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from tidemill.extras import load
from tidemill.spark.errors import MissingPackageError, OptionError, SinkError
from tidemill.spark.sinks.base import DELETED, Mistake, QueryContext, as_columns, mistakes_of
from tidemill.spark.sinks.database.rows import VERSION, Column, Layout
from tidemill.spark.sinks.database.sink import TableSink
from tidemill.spark.sinks.database.upsert import (
    STAGE,
    Found,
    UpsertTable,
    is_older,
    name,
    quoted,
    same_key,
    write_error,
)

if TYPE_CHECKING:
    import pyarrow as pa

CONNECT_S = 30
"""Seconds to wait for a connection."""
BUSY_S = 30
"""Seconds to wait while another batch writes to the table."""
PASSWORD = "MYSQL_PWD"
"""Environment variable with the password, if the URL has none. MySQL's clients use it, too."""
_KEY_LENGTH = 255
_HOW = (
    'Write url="mysql://user@host:3306/database", with %40 for an @ and %2F for a / in a part of '
    f"it; keep the password in the variable {PASSWORD}."
)


@dataclass(frozen=True)
class MySqlSink(TableSink):
    """Upserts rows into a table of MariaDB or MySQL. A batch that is run again changes nothing.

    Attributes:
        table: Name of the table. It is created if it is missing.
        key: Columns of its primary key. Text in it may have 255 characters.
        url: The database: ``mysql://user@host:3306/database``. ``?unix_socket=/path`` connects to a
            socket, ``?ssl=true`` checks the server's certificate. It is never shown. Keep the
            password in the variable ``MYSQL_PWD`` instead.
        order_by: If a key occurs more than once in a batch, the row with the greatest values in
            these columns wins. Without ``order_by`` such a batch fails the query.
    """

    url: str = field(repr=False)

    @property
    def target(self) -> str:
        return f"table {self.table} in MySQL"

    @property
    def place(self) -> Hashable:
        try:
            made = _parsed(self.url)
        except OptionError:  # ``check`` reports it
            return ("mysql", self.url, self.table)
        server = (made.get("unix_socket"), made["host"], made["port"])
        return ("mysql", *server, made["database"], self.table)

    def check(self, context: QueryContext) -> Iterable[Mistake]:
        yield from super().check(context)
        yield from mistakes_of(lambda: _parsed(self.url))

    def upsert_table(self) -> UpsertTable[Any]:
        return MySqlTable(self.url, self.table, self.key_columns, as_columns(self.order_by))


class MySqlTable(UpsertTable[Any]):
    """A table in MariaDB or MySQL. The database must exist.

    Args:
        url: The database, as in ``MySqlSink``.
        table: Name of the table.
        key: Column or columns that identify a row.
        order_by: Columns that decide between rows with the same key.

    Raises:
        MissingPackageError: The package PyMySQL is not installed.
        OptionError: The URL can't be parsed.
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
        "string": "LONGTEXT",
        "json": "JSON",
        "binary": "LONGBLOB",
        "date": "DATE",
        "timestamp": "DATETIME(6)",
        "timestamp_ntz": "DATETIME(6)",
    }

    def __init__(
        self,
        url: str,
        table: str,
        key: str | Sequence[str],
        order_by: str | Sequence[str] = (),
    ) -> None:
        super().__init__(table, key, order_by)
        self._options = _parsed(url)
        self._driver = _module()
        self._connection: Any = None
        self._collation = ""

    @property
    def target(self) -> str:
        return f"table {self.table} in MySQL"

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(self._driver.Error):  # the server may have closed it
                self._connection.close()
        self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        try:
            connection = self._connected()
            lock = self._lock(connection)
            connection.begin()
            yield connection
            connection.commit()
            self._execute(connection, f"SELECT RELEASE_LOCK('{lock}')")
        except BaseException as error:
            self.close()  # rolls back, and gives the lock back
            if isinstance(error, (self._driver.Error, OSError)):
                raise write_error(self.target, _text(error), _hint(error)) from error
            raise

    def _connected(self) -> Any:
        """Return the connection of the previous batch if it still works, or a new one."""
        if self._connection is not None:
            try:
                self._connection.ping(reconnect=False)
            except self._driver.Error:
                self.close()
        if self._connection is None:
            options = dict(self._options)
            options["password"] = options["password"] or os.environ.get(PASSWORD, "")
            connection = self._driver.connect(
                **options,
                charset="utf8mb4",
                connect_timeout=CONNECT_S,
                program_name="tidemill",
                autocommit=True,
                init_command="SET SESSION sql_mode="
                "'ANSI_QUOTES,STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone='+00:00'",
            )
            self._connection = connection
            is_mariadb = "mariadb" in connection.get_server_info().lower()
            # Both compare without padding: 'a' and 'a ' are two keys.
            self._collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
            self._execute(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return self._connection

    def _lock(self, connection: Any) -> str:
        """Wait until no other batch writes to the table. The lock is on its name."""
        place = f"{self._options['database']}.{self.table}".lower().encode()
        lock = f"tidemill {hashlib.sha256(place).hexdigest()[:40]}"
        if self._number(connection, f"SELECT GET_LOCK('{lock}', {BUSY_S})") != 1:
            raise SinkError(
                f"another batch has been writing to {self.target} for {BUSY_S} s",
                hint="This batch will be retried.",
            )
        return lock

    def _execute(self, connection: Any, statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    def _find(self, connection: Any, table: str) -> Found | None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT column_name, column_key FROM information_schema.columns WHERE "
                "table_schema = coalesce(nullif(%s, ''), database()) AND table_name = %s "
                "ORDER BY ordinal_position",
                [table.rpartition(".")[0], table.rpartition(".")[2]],
            )
            found = cursor.fetchall()
        if not found:
            return None
        return Found(tuple(n for n, _ in found), tuple(n for n, key in found if key == "PRI"))

    def _number(self, connection: Any, query: str) -> int | None:
        with connection.cursor() as cursor:
            cursor.execute(query)
            found = cursor.fetchone()
        return None if found is None else found[0]

    def _stage(self, connection: Any, rows: pa.Table, layout: Layout) -> None:
        declared = ", ".join(self._declared(column, layout.key) for column in layout.columns)
        self._execute(connection, f"DROP TEMPORARY TABLE IF EXISTS {STAGE}")
        self._execute(
            connection,
            f"CREATE TEMPORARY TABLE {STAGE} ({declared}, {VERSION} BIGINT, {DELETED} BOOLEAN, "
            f"PRIMARY KEY ({', '.join(map(quoted, layout.key))}))",
        )
        names = [column.name for column in layout.columns]
        names += [VERSION, DELETED] if layout.versioned else [DELETED]
        into = ", ".join(quoted(each).replace("%", "%%") for each in names)
        places = ", ".join(["%s"] * len(names))
        statement = f"INSERT INTO {STAGE} ({into}) VALUES ({places})"
        with connection.cursor() as cursor:
            for batch in rows.to_batches(max_chunksize=10_000):
                columns = [batch.column(each).to_pylist() for each in names]
                cursor.executemany(statement, list(zip(*columns, strict=True)))

    def _create(self, table: str, columns: Sequence[Column], key: Sequence[str]) -> str:
        declared = ", ".join(self._declared(column, key) for column in columns)
        return (
            f"CREATE TABLE IF NOT EXISTS {name(table)} ({declared}, {VERSION} BIGINT NOT NULL, "
            f"PRIMARY KEY ({', '.join(map(quoted, key))})) ENGINE=InnoDB "
            f"CHARACTER SET utf8mb4 COLLATE {self._collation}"
        )

    def _declared(self, column: Column, key: Sequence[str]) -> str:
        kind = self._type(column)
        if column.name in key and column.type in ("string", "binary"):
            kind = f"{'VARCHAR' if column.type == 'string' else 'VARBINARY'}({_KEY_LENGTH})"
        if column.type == "string":
            kind += f" CHARACTER SET utf8mb4 COLLATE {self._collation}"
        return f"{quoted(column.name)} {kind}"

    def _delete(self, table: str, layout: Layout, version: str, which: str) -> str:
        # MySQL runs EXISTS for each row of the table; a join looks each key of the batch up.
        return (
            f"DELETE {table} FROM {STAGE} AS s STRAIGHT_JOIN {table} ON {same_key(table, layout)} "
            f"WHERE {which} AND {is_older(table, layout, version)}"
        )

    def _insert(
        self, table: str, names: Sequence[str], keys: Sequence[str], rows: str, layout: Layout
    ) -> str:
        older = "<=" if layout.versioned else "<"
        older_row = f"coalesce({table}.{VERSION}, -1) {older} VALUES({VERSION})"
        # The assignments are made in their order, so the version comes last.
        changes = [
            f"{column} = IF({older_row}, VALUES({column}), {table}.{column})"
            for column in (*(each for each in names if each not in keys), VERSION)
        ]
        return (
            f"INSERT INTO {table} ({', '.join(names)}, {VERSION}) {rows} "
            f"ON DUPLICATE KEY UPDATE {', '.join(changes)}"
        )

    def _swap(self, connection: Any, other: str) -> None:
        """Rename the tables in one statement, which is atomic; a transaction with DDL is not."""
        pairs = self._pairs(other)
        for mine, _ in pairs:  # a crash may have left it
            self._execute(connection, f"DROP TABLE IF EXISTS {name(mine + _OLD)}")
        moves = []
        for mine, theirs in pairs:
            if self._find(connection, mine) is not None:
                moves.append(f"{name(mine)} TO {name(mine + _OLD)}")
            if self._find(connection, theirs) is not None:
                moves.append(f"{name(theirs)} TO {name(mine)}")
        self._execute(connection, f"RENAME TABLE {', '.join(moves)}")
        for mine, _ in pairs:
            self._execute(connection, f"DROP TABLE IF EXISTS {name(mine + _OLD)}")


_OLD = "__old"


def _parsed(url: str) -> dict[str, Any]:
    """Return the arguments for a connection. No error shows a part of the URL."""
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        port = parts.port or 3306
    except ValueError:
        raise OptionError("can't parse the url of the MySQL database", hint=_HOW) from None
    database = unquote(parts.path.lstrip("/"))
    if parts.scheme not in ("mysql", "mariadb") or not database or "/" in database:
        raise OptionError("the url of the MySQL database has no database or scheme", hint=_HOW)
    unknown = sorted(options.keys() - {"unix_socket", "ssl"})
    if unknown:
        raise OptionError(f"unknown option {unknown[0]!r} in the url of a database", hint=_HOW)
    made: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
    }
    if "unix_socket" in options:
        made["unix_socket"] = options["unix_socket"][0]
    if options.get("ssl", ["false"])[0].lower() in ("true", "1"):
        made["ssl"] = ssl.create_default_context()
    return made


def _module() -> Any:
    """Import the package, which is an optional dependency."""
    return load("mariadb", MissingPackageError)


def _text(error: BaseException) -> Exception:
    """Return an error with the server's text only: PyMySQL's has the number beside it."""
    parts = error.args
    if len(parts) > 1 and isinstance(parts[1], str):
        return Exception(f"{parts[1]} ({parts[0]})")
    return Exception(str(error))


def _hint(error: BaseException) -> str:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if number in (1044, 1045, 1142, 1143):
        return (
            "Check user and password, and grant SELECT, INSERT, UPDATE, DELETE, CREATE and "
            "CREATE TEMPORARY TABLES on the database."
        )
    if number in (1205, 1213, 2002, 2003, 2006, 2013) or isinstance(error, OSError):
        return "Check the url, and that the server runs. The batch will be retried."
    if number == 1406:
        return f"Text in a key may have {_KEY_LENGTH} characters."
    if "nan can not be used" in str(error) or "inf can not be used" in str(error):
        return "MySQL can't store NaN and infinity: replace them with nullif or nanvl."
    return ""
