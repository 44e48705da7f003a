"""Random transactions on some tables, and a ledger of what was committed.

Each written row has a stamp of its own, so that each event can be found again.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from dataclasses import dataclass, field
from typing import Any

import psycopg

TABLES = ("orders", "items", "notes", "wide")
_KEYS = 60
_LARGE = "(SELECT string_agg(md5((i * %s)::text), '') FROM generate_series(1, 300) i)"


def create(connection: psycopg.Connection[Any], rows: int) -> None:
    """Create the tables, with rows whose stamps are negative."""
    for number, table in enumerate(TABLES):
        connection.execute(
            f"CREATE TABLE {table}"
            " (id int PRIMARY KEY, stamp bigint, small text, big text)".encode()
        )
        connection.execute(
            f"INSERT INTO {table} SELECT i, -i - {rows * number}, 'old', repeat('x', i % 7)"
            f" FROM generate_series(1, {rows}) i".encode()
        )
    connection.execute(f"ALTER TABLE {TABLES[-1]} REPLICA IDENTITY FULL".encode())


@dataclass
class Ledger:
    """The stamps of committed writes, by table; deletes have none."""

    committed: dict[str, set[int]] = field(default_factory=lambda: {t: set() for t in TABLES})
    transactions: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, stamps: list[tuple[str, int]]) -> None:
        with self.lock:
            self.transactions += 1
            for table, stamp in stamps:
                self.committed[table].add(stamp)


class Writer(threading.Thread):
    """Commits and rolls back random transactions until ``stop`` is set."""

    def __init__(
        self, dsn: str, seed: int, ledger: Ledger, stamps: itertools.count[int], **options: Any
    ) -> None:
        super().__init__(name=f"writer {seed}", daemon=True)
        self._dsn = dsn
        self._random = random.Random(seed)
        self._ledger = ledger
        self._stamps = stamps
        self._has_ddl = bool(options.get("ddl"))
        self._added = 0
        self.stop = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                connection.execute("SET lock_timeout = '2s'")
                while not self.stop.is_set():
                    self._transaction(connection)
                    self.stop.wait(self._random.random() * 0.02)
        except BaseException as error:
            self.error = error

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        stamps: list[tuple[str, int]] = []
        conflicts = (
            psycopg.errors.UniqueViolation,
            psycopg.errors.DeadlockDetected,
            psycopg.errors.LockNotAvailable,
        )
        try:
            with connection.transaction(force_rollback=self._random.random() < 0.1):
                if self._has_ddl and self._random.random() < 0.08:
                    self._change_a_table(connection)
                for _ in range(self._random.choice((1, 1, 2, 5, 12))):
                    self._write(connection, stamps)
                if self._random.random() < 0.3:
                    self._in_savepoint(connection, stamps)
                rolls_back = self._random.random() < 0.05
                if rolls_back:
                    raise psycopg.Rollback
        except conflicts:
            return
        if connection.info.transaction_status == 0 and not rolls_back:
            self._note(connection, stamps)

    def _note(self, connection: psycopg.Connection[Any], stamps: list[tuple[str, int]]) -> None:
        """Add the stamps if the transaction was committed: the marker table says so."""
        marks = [stamp for _, stamp in stamps]
        if not marks:
            return
        found = connection.execute("SELECT 1 FROM marks WHERE stamp = %s", (marks[0],)).fetchone()
        if found:
            self._ledger.add(stamps)

    def _in_savepoint(
        self, connection: psycopg.Connection[Any], stamps: list[tuple[str, int]]
    ) -> None:
        inner: list[tuple[str, int]] = []
        undone = self._random.random() < 0.5
        with connection.transaction(force_rollback=undone):
            for _ in range(3):
                self._write(connection, inner)
        if not undone:
            stamps += inner

    def _write(self, connection: psycopg.Connection[Any], stamps: list[tuple[str, int]]) -> None:
        table = self._random.choice(TABLES)
        key, other = self._random.randrange(_KEYS), self._random.randrange(_KEYS)
        stamp = next(self._stamps)
        large = self._random.random() < 0.2
        big = _LARGE if large else "%s::text"
        statement, values = self._random.choice(
            [
                (f"INSERT INTO {table} (id, stamp, small, big) VALUES (%s, %s, 'new', {big})"
                 " ON CONFLICT DO NOTHING", (key, stamp, stamp)),
                (f"UPDATE {table} SET stamp = %s WHERE id = %s", (stamp, key)),
                (f"UPDATE {table} SET stamp = %s, small = 'u' WHERE id = %s", (stamp, key)),
                (f"UPDATE {table} SET stamp = %s, big = {big} WHERE id = %s", (stamp, stamp, key)),
                (f"UPDATE {table} SET id = %s, stamp = %s WHERE id = %s AND NOT EXISTS"
                 f" (SELECT FROM {table} WHERE id = %s)", (other, stamp, key, other)),
                (f"DELETE FROM {table} WHERE id = %s", (key,)),
            ]
        )  # fmt: skip
        count = connection.execute(statement.encode(), values).rowcount
        if count and "stamp" in statement:
            stamps.append((table, stamp))
            if len(stamps) == 1:
                connection.execute("INSERT INTO marks VALUES (%s)", (stamp,))

    def _change_a_table(self, connection: psycopg.Connection[Any]) -> None:
        table = self._random.choice(TABLES)
        kind = self._random.randrange(4)
        if kind == 0:
            connection.execute(f"TRUNCATE {table}".encode())
        elif kind == 1 and self._added:
            with contextlib.suppress(psycopg.errors.UndefinedColumn):
                dropped = f"ALTER TABLE {table} DROP COLUMN IF EXISTS x{self._added}"
                connection.execute(dropped.encode())
        else:
            self._added += 1
            default = "DEFAULT 7" if kind == 2 else ""
            added = f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS x{self._added} int {default}"
            connection.execute(added.encode())
