"""The databases of the section ``cdc``: rows, their own stream of changes, and their export.

Must not know: Kafka.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.support.ports import reserve_port
from tests.support.postgres import LOGICAL, postgres
from tests.support.processes import NotInstalledError

from bench.cdc.debezium import PYTHON, DebeziumEngine
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.postgres import slot
from tidemill.connect.cdc.postgres.connection import ReplicationConnection
from tidemill.connect.cdc.postgres.settings import Settings, settings_of

PER_TRANSACTION = 100
COLUMNS = "id, name, price, at, n, ok"
_INSERT_KIND = ord("I")


class Database(Protocol):
    """A database with the tables ``changes`` and ``rows``.

    Attributes:
        name: Its name in the tables.
        kind: The kind of its sources.
        schema: The schema in the topics' names.
        definition: The lines of the section ``[database]``.
        source: The name of the source that was created last.
        debezium: Debezium's engine; None where it is not to hand.
    """

    name: str
    kind: str
    schema: str
    definition: str
    source: str = ""
    debezium: DebeziumEngine | None = None

    def insert(self, count: int) -> None:
        """Insert up to 100 rows into ``changes`` in one transaction."""

    def mark(self) -> None:
        """Take note of the place in the stream of changes."""

    def read_away(self, count: int) -> float:
        """Read the changes since ``mark`` and throw them away; return the seconds."""

    def latencies(self, count: int) -> list[float]:
        """Return the seconds from a commit to a client of the stream; empty if not measured."""
        return []

    def fill(self, count: int) -> None:
        """Fill ``rows``."""

    def export(self, path: Path) -> float:
        """Write ``rows`` into a file and return the seconds."""


def write_rows(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows into a file, as COPY does."""
    with path.open("w") as file:
        for row in rows:
            file.write("\t".join(map(str, row)) + "\n")


class Postgresql(Database):
    """PostgreSQL with its defaults, except for what capture needs and a larger memory."""

    name, kind, schema = "postgresql", "postgres", "public"

    def __init__(self, dsn: str, connection: Any, port: int, folder: Path) -> None:
        self._dsn = dsn
        self.debezium = DebeziumEngine(connection, port, folder) if PYTHON else None
        self._connection = connection
        self._ids = itertools.count()
        self.definition = f'dsn = "{dsn}"'
        for table in ("changes", "rows"):
            connection.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, name text, price numeric(10,2), "
                "at timestamptz, n bigint, ok bool)"
            )

    def insert(self, count: int) -> None:
        start = next(self._ids) * PER_TRANSACTION
        self._connection.execute(
            "INSERT INTO changes SELECT i, 'name ' || i, i * 0.01, now(), i, i % 2 = 0"
            f" FROM generate_series({start}, {start + count - 1}) i"
        )

    def mark(self) -> None:
        self._drop()
        self._connection.execute("SELECT pg_create_logical_replication_slot('away', 'pgoutput')")

    def read_away(self, count: int) -> float:
        with self._stream() as replication:
            seen, began = 0, 0.0
            while seen < count:
                message = replication.receive()
                if message is None:
                    replication.wait(1)
                elif message[25] == _INSERT_KIND:
                    seen += 1
                    began = began or time.perf_counter()
            return time.perf_counter() - began

    def latencies(self, count: int) -> list[float]:
        self.mark()
        seconds = []
        with self._stream() as replication:
            for number in range(count):
                began = time.perf_counter()
                self.insert(1)
                while (message := replication.receive()) is None or message[25] != _INSERT_KIND:
                    if message is None:
                        replication.wait(1)
                seconds.append(time.perf_counter() - began)
                time.sleep(0.002 + number % 17 / 1000)
        self._drop()
        return seconds

    def fill(self, count: int) -> None:
        self._connection.execute(
            "INSERT INTO rows SELECT i, 'name ' || i, i * 0.01, now(), i, i % 2 = 0"
            f" FROM generate_series(1, {count}) i"
        )
        self._connection.execute("ANALYZE rows")

    def export(self, path: Path) -> float:
        began = time.perf_counter()
        copy = self._connection.cursor().copy("COPY rows TO STDOUT")
        with path.open("wb") as file, copy as parts:
            for part in parts:
                file.write(part)
        return time.perf_counter() - began

    @contextlib.contextmanager
    def _stream(self) -> Iterator[ReplicationConnection]:
        settings = settings_of(Capture(self.source, database={"dsn": self._dsn}))
        away = Settings(settings.conninfo, "away", False, settings.publication)
        replication = ReplicationConnection.connect(settings.conninfo)
        try:
            version = self._connection.info.server_version
            slot.start_streaming(replication, version, away, 0)
            yield replication
        finally:
            replication.close()

    def _drop(self) -> None:
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = 'away'"
        while found := self._connection.execute(query).fetchall():
            if not found[0][0]:
                self._connection.execute("SELECT pg_drop_replication_slot('away')")


class Sqlite(Database):
    """SQLite in WAL mode. Its stream of changes is the change log that triggers write.

    Nothing wakes a client of it, so a client's latency would be that of its pauses.
    """

    name, kind, schema = "sqlite", "sqlite", "main"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA busy_timeout = 10000")
        self._ids = itertools.count()
        self._log = ""
        self._marked = 0
        self.definition = f'path = "{path}"'
        for table in ("changes", "rows"):
            self._db.execute(
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT, price TEXT, at TEXT,"
                " n INTEGER, ok INTEGER)"
            )

    def insert(self, count: int) -> None:
        self._insert("changes", count)

    def mark(self) -> None:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%changes'"
        names = [name for (name,) in self._db.execute(query) if name != "changes"]
        self._log = names[0]
        self._marked = self._last()

    def read_away(self, count: int) -> float:
        began = time.perf_counter()
        cursor = self._db.execute(f'SELECT * FROM "{self._log}" WHERE id > ?', (self._marked,))
        seen = 0
        while part := cursor.fetchmany(1000):
            seen += len(part)
        assert seen >= count, f"{seen} of {count} changes"
        return time.perf_counter() - began

    def fill(self, count: int) -> None:
        self._insert("rows", count)

    def _insert(self, table: str, count: int) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        rows = self._rows(count)
        self._db.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._db.execute("COMMIT")

    def export(self, path: Path) -> float:
        began = time.perf_counter()
        write_rows(path, self._db.execute(f"SELECT {COLUMNS} FROM rows"))
        return time.perf_counter() - began

    def close(self) -> None:
        self._db.close()

    def _rows(self, count: int) -> Iterator[tuple[Any, ...]]:
        for number in itertools.islice(self._ids, count):
            price, at = f"{number / 100:.2f}", "2026-11-22T10:00:00.123456Z"
            yield number, f"name {number}", price, at, number, number % 2

    def _last(self) -> int:
        return int(
            self._db.execute(f'SELECT coalesce(max(id), 0) FROM "{self._log}"').fetchone()[0]
        )


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[Database | None]:
    """Make a database in a folder."""
    folder.mkdir()
    made = Sqlite(folder / "shop.db")
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[Database | None]:
    """Start a server; None if it is not installed."""
    folder.mkdir()
    settings = {**LOGICAL, "logical_decoding_work_mem": "64MB", "shared_buffers": "128MB"}
    port = reserve_port()
    if PYTHON:
        settings |= {"listen_addresses": "127.0.0.1", "port": str(port)}
    with contextlib.ExitStack() as stack:
        try:
            dsn = stack.enter_context(postgres(folder / "log", settings))
        except NotInstalledError:
            yield None
            return
        import psycopg

        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        yield Postgresql(dsn, connection, port, folder)
