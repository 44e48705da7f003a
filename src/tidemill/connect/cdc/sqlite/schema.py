"""Read the shape of SQLite's tables: columns, keys and unique indexes.

Must not know: triggers, or the change log.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from tidemill.connect.cdc.contract import Column, Table
from tidemill.connect.cdc.values import Kind

OWN_PREFIX = "_tidemill_"
"""All objects that a source adds to the database begin with it."""

SCHEMA = "main"
PRIMARY_KEY = "PRIMARY KEY"
"""The name of the primary key among unique indexes."""


@dataclass(frozen=True, slots=True)
class Unique:
    """A unique index besides the primary key: its columns and their collations.

    Attributes:
        columns: (name, collation) of each column; empty if the index is on an expression.
    """

    name: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a table, as the triggers and the change log need it.

    Attributes:
        uniques: the unique indexes by which REPLACE deletes rows that have another key in the
            topic. The primary key is among them if equal keys can differ: ``a`` and ``A`` with
            NOCASE, 1 and 1.0 in a column without affinity.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    uniques: tuple[Unique, ...]

    @property
    def equal_keys_differ(self) -> bool:
        """Whether two keys can be equal to the database and differ as text."""
        return any(each.name == PRIMARY_KEY for each in self.uniques)

    @property
    def signature(self) -> str:
        """A text that differs if and only if the shape differs."""
        return json.dumps(
            [
                [[each.name, each.type_name, each.nullable] for each in self.columns],
                self.key,
                [[each.name, each.columns] for each in self.uniques],
            ]
        )

    def table(self, database: str) -> Table:
        """Return the table of the contract."""
        return Table(database, SCHEMA, self.name, self.columns, self.key)


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def column_of(table: str, column: str) -> str:
    """Return a column with its table as an SQL expression.

    Without the table, SQLite takes the quoted name of a column that does not exist any more as a
    text, and returns it for each row. Source: sqlite.org/quirks.html, "Double-quoted String
    Literals Are Accepted".
    """
    return f"main.{quoted(table)}.{quoted(column)}"


def table_names(db: sqlite3.Connection) -> list[str]:
    """Return the ordinary tables of the user: no views, virtual tables or internal ones."""
    shadows: set[str] = set()
    if sqlite3.sqlite_version_info >= (3, 37):
        rows = db.execute("PRAGMA main.table_list").fetchall()
        shadows = {row[1] for row in rows if row[2] == "shadow"}
    found = db.execute(
        "SELECT name FROM main.sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY name"
    )
    return [
        name
        for (name,) in found.fetchall()
        if not name.lower().startswith(("sqlite_", OWN_PREFIX)) and name not in shadows
    ]


def read_shape(db: sqlite3.Connection, name: str) -> Shape | None:
    """Return the shape of a table, or None if it does not exist."""
    info = db.execute(f"PRAGMA main.table_xinfo({quoted(name)})").fetchall()
    columns = tuple(
        Column(column, type_name, kind_of(type_name), not notnull)
        for _, column, type_name, notnull, _, _, hidden in info
        if hidden != 1
    )
    if not columns:
        return None
    keyed = sorted((row[5], row[1]) for row in info if row[5])
    key = tuple(column for _, column in keyed)
    types = {each.name: each.type_name for each in columns}
    return Shape(name, columns, key, tuple(_uniques(db, name, types)))


def _uniques(db: sqlite3.Connection, table: str, types: dict[str, str]) -> list[Unique]:
    """Return the unique indexes. An INTEGER PRIMARY KEY has none: its keys are integers."""
    found: list[Unique] = []
    for row in db.execute(f"PRAGMA main.index_list({quoted(table)})").fetchall():
        name, unique, origin = row[1], row[2], row[3]
        if not unique:
            continue
        parts = db.execute(f"PRAGMA main.index_xinfo({quoted(name)})").fetchall()
        keys = [(part[2], part[4]) for part in parts if part[5]]
        columns = () if any(column is None for column, _ in keys) else tuple(keys)
        if origin != "pk":
            found.append(Unique(name, columns))
        elif any(
            collation != "BINARY" or _keeps_reals(types[column]) for column, collation in columns
        ):
            found.append(Unique(PRIMARY_KEY, columns))
    return sorted(found, key=lambda each: each.name)


def _keeps_reals(type_name: str) -> bool:
    """Return whether a column can have both 1 and 1.0, which are equal.

    Other affinities store them as one of the two, or as different texts. ANY does so unless its
    table is STRICT.
    """
    return kind_of(type_name) == "bytes" or type_name.upper() == "ANY"


def kind_of(type_name: str) -> Kind:
    """Return the kind for a declared type, by SQLite's rules of affinity (datatype3, 3.1).

    Values keep their storage class whatever the declared type says: a text in an INTEGER column
    stays a text.
    """
    name = type_name.upper()
    if "INT" in name:
        return "int"
    if any(each in name for each in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in name or not name:
        return "bytes"
    if any(each in name for each in ("REAL", "FLOA", "DOUB")):
        return "float"
    return "other"
