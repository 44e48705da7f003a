"""Projections in a SQLite file. Knows no event."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemill.eventstore.write_ahead import roll_back, write_ahead


class SQLite:
    """A SQLite file (``Database``). Its tables can be read by other processes meanwhile.

    Args:
        path: the file. It is created if it is missing, and gets a write-ahead log.
        timeout_s: how long a transaction waits for another one.
    """

    def __init__(self, path: Path | str, *, timeout_s: float = 30) -> None:
        self._db = sqlite3.connect(str(path), timeout=timeout_s, isolation_level=None)
        write_ahead(self._db, timeout_s)
        self._db.execute("PRAGMA synchronous = NORMAL")

    @contextmanager
    def transaction(self) -> Iterator[SQLite]:
        """Run a transaction that excludes other writers from its start."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self
            self._db.execute("COMMIT")
        except BaseException:
            roll_back(self._db)
            raise

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        return self._db.execute(sql, tuple(values)).fetchall()

    def lock(self, projection: str) -> None:
        """Do nothing: the transaction excludes other writers already."""

    def close(self) -> None:
        """Close the file."""
        self._db.close()
