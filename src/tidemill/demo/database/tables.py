"""Write and read the demo's tables with SQL, as any application would.

Each edit is a transaction of its own. The statements are the same for all databases; what differs
is in ``Dialect``. This module must not know brokers, captures or events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from tidemill.demo.database.registry import (
    AIRCRAFT,
    AIRLINES,
    CHANGED_AT,
    COLUMNS,
    KEYS,
    Edit,
    Registry,
    Row,
)
from tidemill.demo.events import iso
from tidemill.errors import TidemillError

_WHOLE = ("seats", "built")


class DatabaseError(TidemillError):
    """The demo's database can't be used."""


class Connection(Protocol):
    """A connection of Python's DB-API, with ``execute`` as sqlite3 and psycopg have it."""

    def execute(self, statement: str, parameters: Any = ...) -> Any: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """The details in which databases differ: how to write a parameter, types, and the schema."""

    parameter: str
    whole: str
    time: str
    schema: str

    def table(self, name: str) -> str:
        """Return a table as statements name it."""
        return f'"{self.schema}".{name}'


class Tables:
    """The tables of a database, through one connection. One thread uses it."""

    def __init__(self, connection: Connection, dialect: Dialect) -> None:
        self._connection = connection
        self._dialect = dialect

    def create(self, registry: Registry) -> None:
        """Create both tables with their first rows, in one transaction."""
        dialect = self._dialect
        for table in (AIRLINES, AIRCRAFT):
            columns = [
                f"{name} {dialect.whole if name in _WHOLE else 'TEXT'}"
                f"{' NOT NULL PRIMARY KEY' if name == KEYS[table] else ''}"
                for name in COLUMNS[table]
            ]
            columns.append(f"{CHANGED_AT} {dialect.time} NOT NULL")
            self._connection.execute(f"CREATE TABLE {dialect.table(table)} ({', '.join(columns)})")
            self._insert(table, registry.first_rows(table).values())
        self._connection.commit()

    def make(self, edit: Edit) -> None:
        """Make an edit, and commit it."""
        values = {**edit.values, CHANGED_AT: edit.time}
        table, key = self._dialect.table(edit.table), KEYS[edit.table]
        place = self._dialect.parameter
        if edit.kind == "insert":
            self._insert(edit.table, [values])
            changed = 1
        elif edit.kind == "update":
            settings = ", ".join(f"{name} = {place}" for name in values)
            found = self._connection.execute(
                f"UPDATE {table} SET {settings} WHERE {key} = {place}",
                (*map(_stored, values, values.values()), edit.key),
            )
            changed = found.rowcount
        else:
            found = self._connection.execute(
                f"DELETE FROM {table} WHERE {key} = {place}", (edit.key,)
            )
            changed = found.rowcount
        self._connection.commit()
        if changed != 1:
            raise DatabaseError(f"{edit.kind} of {edit.table} {edit.key} changed {changed} rows")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table, with times in Unix seconds."""
        names = (*COLUMNS[table], CHANGED_AT)
        found = self._connection.execute(
            f"SELECT {', '.join(names)} FROM {self._dialect.table(table)}"
        ).fetchall()
        self._connection.commit()  # ends the transaction of the read
        rows = (dict(zip(names, row, strict=True)) for row in found)
        return [{**row, CHANGED_AT: seconds(row[CHANGED_AT])} for row in rows]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _insert(self, table: str, rows: Iterable[Row]) -> None:
        names = (*COLUMNS[table], CHANGED_AT)
        places = ", ".join([self._dialect.parameter] * len(names))
        statement = (
            f"INSERT INTO {self._dialect.table(table)} ({', '.join(names)}) VALUES ({places})"
        )
        for row in rows:
            self._connection.execute(statement, [_stored(name, row[name]) for name in names])


def seconds(time: datetime | str) -> int:
    """Return a time of the database, or of a captured row, in Unix seconds."""
    made = datetime.fromisoformat(time) if isinstance(time, str) else time
    return int((made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp())


def _stored(name: str, value: Any) -> Any:
    return iso(value) if name == CHANGED_AT else value
