"""The demo's database in a SQLite file, which needs no server.

This module must not know brokers or events.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from tidemill.demo.database.tables import Dialect, Tables

_DIALECT = Dialect(parameter="?", whole="INTEGER", time="TEXT", schema="main")
_BUSY_S = 30.0


class SqliteDatabase:
    """A database in a file."""

    kind = "sqlite"
    schema = _DIALECT.schema

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def description(self) -> str:
        """The database as lines name it."""
        return f"SQLite, {self._path}"

    @property
    def options(self) -> dict[str, Any]:
        """The options of the database in the definition of a source."""
        return {"path": str(self._path)}

    @property
    def environment(self) -> dict[str, str]:
        """The variables that ``options`` refers to."""
        return {}

    def prepare(self, *, reset: bool) -> None:
        """Create the file."""
        with sqlite3.connect(self._path) as db:
            db.execute("PRAGMA journal_mode = WAL")
        db.close()

    def open(self) -> Tables:
        """Connect. Use the result in one thread."""
        db = sqlite3.connect(self._path, timeout=_BUSY_S)
        db.execute("PRAGMA synchronous = NORMAL")
        return Tables(db, _DIALECT)

    def drop(self) -> None:
        """Do nothing: the file is in the folder of the run."""
