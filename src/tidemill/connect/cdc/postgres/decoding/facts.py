"""Facts of a table, by which a later look decides whether its delivered rows are still its rows.

ALTER TABLE can give all rows other values, and a partition can come or go with its rows, without a
row in the stream. The facts of a table are stored as a note with the position, so that a difference
is found whenever the source looks again, also after a crash. Must not know: a connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tidemill.connect.cdc.postgres.catalog import CatalogTable

_NOTE = "table/"
_ANNOUNCED = "announced/"
KEY_CHANGED = "its primary key was changed"
KEY_TOUCHED = "its primary key was made again, or it was a partition for a time"
"""Attaching and detaching a table changes the constraint of its primary key, and nothing else that
stays. What was written meanwhile is in the stream as a change of the partitioned table."""


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """The facts of a column.

    Attributes:
        number: ``attnum``: a column that is dropped and added again gets another one.
        version: The transaction that last changed the column.
    """

    type_oid: int
    number: int
    collation: int
    version: int


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a table. The attributes are those of ``CatalogTable``."""

    id: str
    key: tuple[str, ...]
    columns: Mapping[str, ColumnFacts]
    constraint: int
    filenode: int
    last_number: int
    last_dropped: int
    tree: str
    row_filter: str | None
    membership: str

    @classmethod
    def of(cls, found: CatalogTable) -> Facts:
        """Return the facts of a table with the columns that are captured."""
        columns = {
            each.name: ColumnFacts(each.type_oid, each.number, each.collation, each.version)
            for each in found.columns
        }
        key = found.key if set(found.key) <= columns.keys() else ()
        return cls(
            found.id, key, columns, found.constraint, found.filenode, found.last_number,
            found.last_dropped,
            found.tree, found.row_filter, found.membership,
        )  # fmt: skip

    def encode(self) -> str:
        """Return the facts as a note."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, note: str) -> Facts | None:
        """Return the facts of a note; None if it is not one of this version."""
        try:
            values = json.loads(note)
            values["columns"] = {
                name: ColumnFacts(**each) for name, each in values["columns"].items()
            }
            values["key"] = tuple(values["key"])
            return cls(**values)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def difference(self, now: Facts, fills: Mapping[str, bool]) -> str:
        """Return why rows that no change touched are others now, or an empty string.

        Args:
            fills: Whether rows from before a column was added have a value in it, by its name.
        """
        added = [name for name in now.columns if name not in self.columns]
        is_rewritten = self.filenode != now.filenode
        gone = {each.number: name for name, each in self.columns.items() if name not in now.columns}
        for name in added:
            if now.columns[name].number in gone:
                return f"column {gone[now.columns[name].number]} was renamed to {name}"
            # A generated column becomes an ordinary one, or the publication's list has one more.
            is_older = now.columns[name].number <= self.last_number
            if is_older or is_rewritten or fills.get(name, True):
                return f"column {name} was added with values"
        for name, column in now.columns.items():
            before = self.columns.get(name, column)
            if before.number != column.number:
                return f"column {name} was dropped and added again"
            if before.type_oid != column.type_oid or before.collation != column.collation:
                return f"the type of column {name} was changed"
            if is_rewritten and before.version != column.version:
                return f"column {name} was altered, and the table was rewritten"
        if (self.key, self.constraint) != (now.key, now.constraint):
            return KEY_CHANGED if self.key != now.key else KEY_TOUCHED
        if now.last_dropped > self.last_number:  # its name can be that of another one now
            return "a column was added and dropped"
        if self.tree != now.tree:
            return "a partition was attached, detached, dropped, truncated or rewritten"
        if self.row_filter != now.row_filter:
            return "the row filter of the publication was changed"
        if self.membership != now.membership:
            return "it was added to the publication again"
        return ""

    def undescribed(self, described: Mapping[str, int], fills: Mapping[str, bool]) -> str:
        """Return why rows of a description in the stream are others now, or an empty string.

        A table can have been altered there and back, so that only the stream shows it.

        Args:
            described: The types of the columns by name.
            fills: See ``difference``.
        """
        has_gone = any(name not in self.columns for name in described)
        for name, column in self.columns.items():
            if name not in described and (has_gone or fills.get(name, True)):
                return f"column {name} was renamed, or added with values"
            if described.get(name, column.type_oid) != column.type_oid:
                return f"the type of column {name} was changed"
        return ""


def note_of(oid: int) -> str:
    """Return the name of the note with the facts of a table."""
    return f"{_NOTE}{oid}"


def noted(notes: Mapping[str, str]) -> dict[int, Facts]:
    """Return the facts in the notes of a source, by the OIDs of the tables."""
    found = {}
    for name, note in notes.items():
        number = name.removeprefix(_NOTE)
        facts = Facts.decode(note) if name != number and number.isdecimal() else None
        if facts is not None:
            found[int(number)] = facts
    return found


def announcement_of(oid: int) -> str:
    """Return the name of the note that says from where on a changed table is read again."""
    return f"{_ANNOUNCED}{oid}"


def announced(notes: Mapping[str, str]) -> dict[int, int]:
    """Return the places of the log in the notes of ``announcement_of``, by the tables' OIDs."""
    found = {}
    for name, note in notes.items():
        number = name.removeprefix(_ANNOUNCED)
        if name != number and number.isdecimal() and note.isdecimal():
            found[int(number)] = int(note)
    return found
