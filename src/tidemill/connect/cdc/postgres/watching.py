"""Looks for tables whose rows changed without a row in the stream, at the start and now and then.

New tables, ALTER TABLE, partitions that come, go or are truncated, renamed labels of enums, another
publication: what must be read again goes to the news of ``Shapes``. Must not know: messages, Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tidemill.connect.cdc.contract import Capture, Position
from tidemill.connect.cdc.postgres import publication
from tidemill.connect.cdc.postgres.catalog import Catalog, CatalogTable, described
from tidemill.connect.cdc.postgres.decoding.facts import KEY_TOUCHED, announced, note_of, noted
from tidemill.connect.cdc.postgres.decoding.shapes import Shapes
from tidemill.connect.cdc.postgres.tables import Tables

_TYPES = "types"
_FORMAT, _PRESENT = "format", "1"
"""The note that says that each captured table has a note."""


class Watch:
    """The looks at the catalog of one source.

    Args:
        catalog: Returns the catalog: its connection can be replaced.
        tables: The captured tables.
        capture: The patterns, and the notes of earlier sources.
        name: The name of the publication.

    Attributes:
        horizon: Changes of the catalog by older transactions were delivered. Positions have it for
            tables without a note.
    """

    def __init__(
        self, catalog: Callable[[], Catalog], tables: Tables, capture: Capture, name: str
    ) -> None:
        self._catalog = catalog
        self._tables = tables
        self._capture = capture
        self._name = name
        self._notes: dict[str, str] = dict(capture.notes)
        self._types: dict[str, dict[str, str]] = {}  # the forms that are known, by OID
        self._listed: set[int] = set()  # OIDs of the tables that are captured
        self._roots: set[int] = set()  # those of them that can have partitions
        self._names: dict[int, str] = {}
        self._published: set[tuple[int, str]] = set()
        self._is_own = False  # whether we have created the publication
        self._is_complete = True  # whether it has all tables that it should have
        self._looked = 0
        self.horizon = 0

    def prepare(self) -> None:
        """Create or complete the publication. What changes later is found by the next look."""
        catalog = self._catalog()
        self._is_complete = publication.reconcile(catalog, self._name, self._capture)
        self._looked = catalog.horizon()
        self._is_own = publication.is_own(catalog, self._name, self._capture)
        self._tables.refresh()

    def start(self, database: str, position: Position | None) -> Shapes:
        """Return the shapes of the captured tables, with news of what changed since a position.

        Positions keep their horizon until the batch that names these tables. The worker can store
        one before, and a worker after a crash must find them again.
        """
        catalog = self._catalog()
        known = noted(self._notes) if position is not None else {}
        covered = announced(self._notes) if position is not None else {}
        selects, part = self._tables.selects, self._tables.part
        shapes = Shapes(self._catalog, database, selects, part, known, covered)
        horizon = position.get("horizon") if position is not None else None
        self.horizon = horizon if isinstance(horizon, int) else self._looked
        captured = self._tables.in_catalog()
        unknown = [each for each in captured if each.oid not in known]
        changed = self._changed_before(unknown, position)
        for each in captured:
            if each.oid in known:
                shapes.learn(each, self._described(each), catalog.log_end)
            else:
                shapes.expect(each)
            if each.oid in changed:
                shapes.news.resync[each.id] = changed[each.oid]
        self._listed, self._roots, self._names = set(), set(), {}
        self._note(shapes, captured, noted(self._notes).keys() - {each.oid for each in captured})
        self._read_roots_again(shapes)
        self._look_at_types(shapes, has_lost_types=position is not None and not self._knows_types())
        if self._notes.get(_FORMAT) != _PRESENT:
            shapes.news.notes[_FORMAT] = _PRESENT
        return shapes

    def look(self, shapes: Shapes) -> None:
        """Add what changed since the last look to the news."""
        catalog = self._catalog()
        publication.verify(catalog, self._name, self._capture)
        if self._is_own:
            publication.protect(catalog, self._name)
        horizon = catalog.horizon()
        changed = catalog.changed_since(self._looked, self._name)
        has_changed_types = bool(changed) or catalog.has_changed_labels(self._looked)
        if changed or not self._is_complete:
            self._is_complete = publication.reconcile(catalog, self._name, self._capture)
        self._tables.refresh()
        published = self._tables.published()
        changed |= {oid for oid, _ in published - self._published}
        if self._roots:
            trees = catalog.trees(list(self._roots))
            changed |= {oid for oid, tree in trees.items() if tree != shapes.tree_of(oid)}
        here = {each.oid: each for each in self._tables.in_catalog(changed)} if changed else {}
        for each in here.values():
            if each.oid in self._listed:
                shapes.learn(each, self._described(each), catalog.log_end)
            else:
                shapes.expect(each)
                shapes.news.schemas.append(self._described(each))
                shapes.news.resync[each.id] = "it is new"
        left = (changed - here.keys()) | (self._listed - {oid for oid, _ in published})
        self._note(shapes, here.values(), self._listed & left)
        self._read_roots_again(shapes)
        if has_changed_types:
            self._look_at_types(shapes)
        self._looked = horizon

    def took(self, notes: Mapping[str, str | None]) -> None:
        """Take note that the news are in a batch: its position says so."""
        self.horizon = self._looked
        for name, note in notes.items():
            if note is None:
                self._notes.pop(name, None)
            else:
                self._notes[name] = note

    def _changed_before(
        self, unknown: list[CatalogTable], position: Position | None
    ) -> dict[int, str]:
        """Return which tables without a note must be read again, and why."""
        if position is None or not unknown:
            return {}
        if self._notes.get(_FORMAT) == _PRESENT:
            return {each.oid: "it is new" for each in unknown}
        # An earlier version has stored the position, or a source that crashed at its start.
        changed = self._catalog().changed_since(self.horizon, self._name)
        return {
            each.oid: "it was possibly changed"
            for each in unknown
            if each.oid in changed or each.is_partitioned
        }

    def _knows_types(self) -> bool:
        """Take the noted types as known, and return whether those without a note did not change."""
        note = self._notes.get(_TYPES)
        if note is not None:
            self._types = json.loads(note)
            return True
        catalog = self._catalog()
        changed = catalog.changed_since(self.horizon, self._name)
        return not changed and not catalog.has_changed_labels(self.horizon)

    def _look_at_types(self, shapes: Shapes, *, has_lost_types: bool = False) -> None:
        """Read tables again whose values have another text, because a type was changed.

        Args:
            has_lost_types: Whether types that are not known were possibly changed.
        """
        used = self._catalog().used_types(list(self._listed))
        now = {str(each.oid): each.form for each in used}
        for each in used:
            known = self._types.get(str(each.oid))
            is_other = has_lost_types
            if known is not None:
                is_other = any(known.get(part, form) != form for part, form in each.form.items())
                is_other |= each.is_composite and known.keys() != each.form.keys()
            if is_other:
                for oid in each.relations & self._listed:
                    why = f"the type {each.name} was changed"
                    shapes.news.resync.setdefault(self._names[oid], why)
        if now != self._types:
            shapes.news.notes[_TYPES] = json.dumps(now)
        self._types = now

    def _note(self, shapes: Shapes, here: Collection[CatalogTable], left: Collection[int]) -> None:
        """Take note of tables that are captured, and of those that are not any more."""
        for oid in left:
            shapes.leave(oid)
            shapes.news.notes[note_of(oid)] = None
            self._listed.discard(oid)
            self._roots.discard(oid)
        for each in here:
            self._listed.add(each.oid)
            self._names[each.oid] = each.id
            if each.is_partitioned:
                self._roots.add(each.oid)
        self._published = self._tables.published()

    def _read_roots_again(self, shapes: Shapes) -> None:
        """Read partitioned tables again if a table was possibly their partition for a time.

        Their own partitions are the same as before, so nothing else shows it.
        """
        resync = shapes.news.resync
        if KEY_TOUCHED in resync.values():
            for oid in self._roots:
                resync.setdefault(self._names[oid], "a partition was possibly attached for a time")

    def _described(self, found: CatalogTable) -> Any:
        catalog = self._catalog()
        return described(found, catalog.connection.info.dbname, catalog.types)
