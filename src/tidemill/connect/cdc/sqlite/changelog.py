"""The tables that a source adds to a SQLite database, and the triggers that fill them.

``reconcile`` compares the triggers with the tables as they are now, in one transaction, and writes
each difference into the change log too, so that a difference is in the order of the changes and
survives a crash. Must not know: Kafka, or the contract's batches.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tidemill.connect.cdc.contract import Column, Table
from tidemill.connect.cdc.errors import SetupError
from tidemill.connect.cdc.sqlite.schema import SCHEMA, Shape, quoted, read_shape, table_names
from tidemill.connect.cdc.sqlite.triggers import NOW_MS, Names, trigger_sql

FORMAT = "1"
MAX_WIDTH = 1900
"""The most value columns of the change log; SQLite's limit is 2,000 columns. An update needs two
for each column of its table."""

SHAPED = "s"
"""The operation of a change log row that says: from here on the table has this layout."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A version of a table's columns, by which its changes are decoded."""

    number: int
    table: Table
    names: tuple[str, ...]


class ChangeLog:
    """The tables of one source in one database.

    Args:
        db: a connection in autocommit mode.
        database: the database's name, for the contract's tables.
        wants: whether a table is captured.
    """

    def __init__(
        self, db: sqlite3.Connection, names: Names, database: str, wants: Callable[[Shape], bool]
    ) -> None:
        self._db = db
        self.names = names
        self._database = database
        self._wants = wants
        self._layouts: dict[int, Layout] = {}

    # --- state -------------------------------------------------------------------------------

    def identity(self) -> str | None:
        """Return the change log's identity, or None if one of its tables is missing."""
        names = self.names
        tables = (names.meta, names.layouts, names.changes, names.replaced)
        if not all(self._exists(each) for each in tables):
            return None
        row = self._db.execute(
            f"SELECT value FROM {quoted(self.names.meta)} WHERE key = 'identity'"
        ).fetchone()
        return None if row is None else str(row[0])

    def last_id(self) -> int:
        """Return the number of the last change that was ever written."""
        row = self._db.execute(
            "SELECT seq FROM main.sqlite_sequence WHERE name = ?", (self.names.changes,)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def first_id(self) -> int | None:
        """Return the number of the oldest change that is still there."""
        row = self._db.execute(f"SELECT min(id) FROM {quoted(self.names.changes)}").fetchone()
        return None if row[0] is None else int(row[0])

    def stamp(self, number: int) -> int | None:
        """Return the time of a change, or None if it is not there."""
        row = self._db.execute(
            f"SELECT ts FROM {quoted(self.names.changes)} WHERE id = ?", (number,)
        ).fetchone()
        return None if row is None else int(row[0])

    def schema_version(self) -> int:
        """Return SQLite's number of the schema, which each change of the schema increases."""
        return int(self._db.execute("PRAGMA main.schema_version").fetchone()[0])

    def live(self) -> dict[str, Layout]:
        """Return the present layout of each captured table, by the table's name."""
        rows = self._db.execute(
            f"SELECT id FROM {quoted(self.names.layouts)} WHERE live = 1 ORDER BY id"
        ).fetchall()
        return {each.table.name: each for each in (self.layout(row[0]) for row in rows)}

    def layout(self, number: int) -> Layout:
        """Return a layout by its number."""
        known = self._layouts.get(number)
        if known is not None:
            return known
        row = self._db.execute(
            f"SELECT table_name, columns, key FROM {quoted(self.names.layouts)} WHERE id = ?",
            (number,),
        ).fetchone()
        if row is None:
            raise SetupError(
                f"the change log refers to layout {number}, which {self.names.layouts} lacks",
                hint="Another program changed tidemill's tables. Delete and create the source.",
            )
        columns = tuple(Column(*each) for each in json.loads(row[1]))
        table = Table(self._database, SCHEMA, row[0], columns, tuple(json.loads(row[2])))
        found = Layout(number, table, tuple(each.name for each in columns))
        self._layouts[number] = found
        return found

    # --- changes of the database --------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock for a transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def create(self) -> None:
        """Create the tables if they are missing. Call it while ``writing``."""
        names = self.names
        if self.identity() is not None:
            return
        self.drop()  # with a part of the tables, triggers let the statements of writers fail
        self._layouts.clear()
        for statement in (
            f"CREATE TABLE IF NOT EXISTS {quoted(names.meta)} (key TEXT PRIMARY KEY, value TEXT)",
            f"CREATE TABLE IF NOT EXISTS {quoted(names.layouts)} (id INTEGER PRIMARY KEY "
            "AUTOINCREMENT, table_name TEXT, columns TEXT, key TEXT, signature TEXT, live INTEGER)",
            f"CREATE TABLE IF NOT EXISTS {quoted(names.changes)} (id INTEGER PRIMARY KEY "
            "AUTOINCREMENT, layout INTEGER, op TEXT, ts INTEGER)",
            f"CREATE TABLE IF NOT EXISTS {quoted(names.replaced)} (layout INTEGER)",
        ):
            self._db.execute(statement)
        self._db.executemany(
            f"INSERT OR REPLACE INTO {quoted(names.meta)} VALUES (?, ?)",
            [("identity", uuid.uuid4().hex), ("format", FORMAT)],
        )

    def reconcile(self) -> bool:
        """Install what is missing, and note it in the change log. Call it while ``writing``.

        Returns:
            Whether anything was different.
        """
        live = self._live_rows()
        changed = False
        for name in table_names(self._db):
            shape = read_shape(self._db, name)
            if shape is None or not self._wants(shape):
                continue
            number, signature = live.pop(name, (None, ""))
            if number is not None and signature == shape.signature and self._intact(shape, number):
                continue
            self._install(shape)
            changed = True
        for name, (number, _) in live.items():  # dropped, renamed or no longer selected
            self._remove_triggers(name)
            self._db.execute(
                f"UPDATE {quoted(self.names.layouts)} SET live = 0 WHERE id = ?", (number,)
            )
            changed = True
        return changed

    def purge(self, below: int, limit: int) -> int:
        """Remove some changes with numbers below this one, and return how many."""
        cursor = self._db.execute(
            f"DELETE FROM {quoted(self.names.changes)} WHERE id IN (SELECT id FROM "
            f"{quoted(self.names.changes)} WHERE id < ? ORDER BY id LIMIT ?)",
            (below, limit),
        )
        return cursor.rowcount

    def drop(self) -> None:
        """Remove all triggers and tables of this source. Call it while ``writing``."""
        for (name,) in self._db.execute(
            "SELECT name FROM main.sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            if name.startswith(self.names.stem):
                self._db.execute(f"DROP TRIGGER {quoted(name)}")
        names = self.names
        for name in (names.changes, names.layouts, names.replaced, names.meta):
            self._db.execute(f"DROP TABLE IF EXISTS {quoted(name)}")

    # --- parts of reconcile ------------------------------------------------------------------

    def _live_rows(self) -> dict[str, tuple[int, str]]:
        rows = self._db.execute(
            f"SELECT table_name, id, signature FROM {quoted(self.names.layouts)} WHERE live = 1"
        )
        return {name: (number, signature) for name, number, signature in rows.fetchall()}

    def _intact(self, shape: Shape, layout: int) -> bool:
        return self._triggers(shape.name) == trigger_sql(self.names, shape, layout)

    def _triggers(self, table: str) -> dict[str, str]:
        """Return our triggers that belong to a table, or whose names say so."""
        own = {self.names.trigger(table, event) for event in ("bi", "bu", "ai", "au", "ad")}
        rows = self._db.execute(
            "SELECT name, sql, tbl_name FROM main.sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        return {
            name: sql
            for name, sql, on in rows
            if name in own or (on == table and name.startswith(self.names.stem))
        }

    def _remove_triggers(self, table: str) -> None:
        for name in self._triggers(table):
            self._db.execute(f"DROP TRIGGER {quoted(name)}")

    def _install(self, shape: Shape) -> None:
        self._widen(2 * len(shape.columns), shape.name)
        self._remove_triggers(shape.name)
        layouts = quoted(self.names.layouts)
        self._db.execute(f"UPDATE {layouts} SET live = 0 WHERE table_name = ?", (shape.name,))
        columns: list[list[Any]] = [
            [each.name, each.type_name, each.kind, each.nullable] for each in shape.columns
        ]
        number = self._db.execute(
            f"INSERT INTO {layouts} (table_name, columns, key, signature, live) "
            "VALUES (?, ?, ?, ?, 1)",
            (shape.name, json.dumps(columns), json.dumps(shape.key), shape.signature),
        ).lastrowid
        assert number is not None
        for statement in trigger_sql(self.names, shape, number).values():
            self._db.execute(statement)
        self._db.execute(
            f"INSERT INTO {quoted(self.names.changes)} (layout, op, ts) "
            f"VALUES (?, '{SHAPED}', {NOW_MS})",
            (number,),
        )

    def _widen(self, width: int, table: str) -> None:
        if width > MAX_WIDTH:
            raise SetupError(
                f"table {table} has {width // 2} columns, and capture allows {MAX_WIDTH // 2}",
                hint="Leave the table out: exclude = [...]",
            )
        for name, needed in ((self.names.changes, width), (self.names.replaced, width // 2)):
            info = self._db.execute(f"PRAGMA main.table_info({quoted(name)})").fetchall()
            there = sum(row[1][:1] == "v" and row[1][1:].isdigit() for row in info)
            for number in range(there, needed):
                self._db.execute(f"ALTER TABLE {quoted(name)} ADD COLUMN v{number}")

    def _exists(self, table: str) -> bool:
        return (
            self._db.execute(
                "SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = ?", (table,)
            ).fetchone()
            is not None
        )
