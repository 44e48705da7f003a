"""The captured tables as they were last seen, and what follows from a change of them.

The server changes rows without events when a table is altered. So what is known of a table, its
*shape*, is a note that is stored with the position (``Batch.notes``), from the first start on. A
table is read again if a statement in the stream can have changed its rows, or if the catalog has
another shape than the note: it was altered while no worker ran, or without a trace in the stream.

The catalog can be ahead of the stream. That does no harm: the read of a table begins when the
stream has delivered all that was committed when the change was seen.

Must not know events, positions, or a connection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tidemill.connect.cdc.binlog.catalog import CatalogTable
from tidemill.connect.cdc.binlog.statements import Effect
from tidemill.connect.cdc.contract import Table

_MOST_BYTES = 64 << 10
"""A longer shape is stored as its digest: a table can have types with thousands of labels."""

_WIDTH = re.compile(r"^((?:tiny|small|medium|big)?int|year)\(\d+\)")
"""The width of numbers on a display, which newer servers leave out."""


@dataclass(slots=True)
class News:
    """The consequences of what was seen.

    Attributes:
        schemas: tables that are read again, as they are now.
        resync: why tables have to be read again, by id.
        notes: new notes, by name.
    """

    schemas: list[Table] = field(default_factory=list)
    resync: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str | None] = field(default_factory=dict)


Shape = dict[str, Any]
"""``key``: its columns, in order. ``columns``: by name, the type and all that decides what values
mean. ``gone``: whether the table was dropped, or has another name now. Or only ``digest``."""


def shape_of(table: CatalogTable) -> Shape:
    """Return the shape of a table. The order of the columns does not matter."""
    columns = {
        each.name: [
            _WIDTH.sub(r"\1", each.column_type),
            each.nullable,
            "utf8mb3" if each.character_set == "utf8" else each.character_set or "",
            each.expression,
        ]
        for each in table.fields
    }
    shape: Shape = {"key": list(table.key), "columns": columns}
    text = json.dumps(shape, sort_keys=True)
    return shape if len(text) <= _MOST_BYTES else {"digest": sha256(text.encode()).hexdigest()}


TableName = tuple[str, str]
"""Database and name."""


class KnownTables:
    """The captured tables of one source, as they were last seen.

    Args:
        notes: what earlier sources have stored.
        find: looks a captured table up in the catalog; None if it is not there.

    Attributes:
        news: what the next batch has to say.
    """

    def __init__(
        self, notes: Mapping[str, str], find: Callable[[str, str], CatalogTable | None]
    ) -> None:
        self._shapes = dict(_read(notes))
        self._find = find
        self.news = News()

    def begin(self, tables: Iterable[CatalogTable], *, is_new: bool) -> None:
        """Compare the captured tables of the catalog with what is known.

        Args:
            is_new: the source has no position, so all of its tables are read anyway.
        """
        has_notes = bool(self._shapes)
        found = {(each.database, each.name): each for each in tables}
        for place, table in found.items():
            if is_new or not has_notes:
                self._keep(place, shape_of(table))
            elif place not in self._shapes:
                self.changed(table, "it was not captured before")
            else:
                self.look(table)
        if is_new:
            for place in self._shapes.keys() - found.keys():
                self._gone(place)

    def look(self, table: CatalogTable) -> None:
        """Compare a captured table of the catalog with what is known of it."""
        place, shape = (table.database, table.name), shape_of(table)
        known = self._shapes.get(place)
        if known is None:
            self._keep(place, shape)
        elif known != shape:
            self.changed(table, _difference(known, shape))

    def types(self, database: str, name: str) -> dict[str, str]:
        """Return the types of a table's columns as they were last seen, without their sizes."""
        columns = self._shapes.get((database, name), {}).get("columns", {})
        return {name: re.split(r"[( ]", each[0], maxsplit=1)[0] for name, each in columns.items()}

    def apply(self, effect: Effect, database: str) -> list[str]:
        """Take note of what a statement does with a table.

        Args:
            effect: the effect.
            database: the default database of its session.

        Returns:
            The ids of tables that are read again because of it.
        """
        places = self.places(effect.database or database, effect.name)
        if effect.action == "dropped":
            for each in places:
                self._gone(each)
            return []
        return [".".join(each) for each in places if self._apply(effect, each)]

    def _apply(self, effect: Effect, place: TableName) -> bool:
        known = self._shapes.get(place)
        is_again = effect.action == "changed"
        if effect.action.startswith("created"):
            is_again = known is not None and ("gone" in known or effect.action == "created")
        if known is None and not is_again:
            return False
        table = self._find(*place)
        if table is None:  # dropped since then, which the stream will say
            return False
        if is_again:
            self.changed(table, effect.why)
        else:
            self.look(table)
        return is_again

    def places(self, database: str, name: str) -> list[TableName]:
        """Return the tables that a statement can mean by a name.

        Servers differ in whether upper and lower case are the same, so all known tables count that
        differ in that only. An empty name means all known tables of the database.
        """
        wanted = database.casefold(), name.casefold()
        known = [
            each
            for each in self._shapes
            if each[0].casefold() == wanted[0] and (not name or each[1].casefold() == wanted[1])
        ]
        return known if (database, name) in known or not name else [*known, (database, name)]

    def named_in(self, text: str) -> list[TableName]:
        """Return the known tables whose name is part of a text."""
        folded = text.casefold()
        return [each for each in self._shapes if each[1].casefold() in folded]

    def changed(self, table: CatalogTable, why: str) -> None:
        """Take note of a captured table that has to be read again."""
        self._keep((table.database, table.name), shape_of(table))
        made = table.table()
        self.news.resync[made.id] = why
        self.news.schemas.append(made)

    def _gone(self, place: TableName) -> None:
        known = self._shapes.get(place)
        if known is not None and "gone" not in known:
            self._keep(place, {**known, "gone": True})

    def _keep(self, place: TableName, shape: Shape) -> None:
        if self._shapes.get(place) != shape:
            self._shapes[place] = shape
            self.news.notes[_PREFIX + json.dumps(place)] = json.dumps(shape, sort_keys=True)

    def take(self) -> News:
        """Return the news, and forget them."""
        found, self.news = self.news, News()
        return found


_PREFIX = "shape/"


def _read(notes: Mapping[str, str]) -> Iterator[tuple[TableName, Shape]]:
    for name, note in notes.items():
        if name.startswith(_PREFIX):
            database, table = json.loads(name.removeprefix(_PREFIX))
            yield (database, table), json.loads(note)


def _difference(known: Shape, now: Shape) -> str:
    """Return in which way a shape differs from what was known, for people."""
    if "gone" in known:
        return "it was created again"
    before, after = known.get("columns"), now.get("columns")
    if before is None or after is None:
        return "its columns changed"
    if known.get("key") != now.get("key"):
        return "its primary key changed"
    added, dropped = after.keys() - before.keys(), before.keys() - after.keys()
    for names, what in ((added, "is new"), (dropped, "was dropped")):
        if names:
            return f"column {min(names)} {what}"
    changed = [name for name in after if before[name] != after[name]]
    return f"column {min(changed)} changed" if changed else "it changed"
