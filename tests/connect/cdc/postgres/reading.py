"""Reads a PostgreSQL source as the worker does, without Kafka."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

from tidemill.connect.cdc.contract import Batch, Capture, Change, Position
from tidemill.connect.cdc.postgres import PostgresSource


class Reading:
    """A source, and everything that it has delivered.

    Args:
        dsn: of the database.
        capture: the fields of ``Capture``.
        database: more keys of the section ``[database]``.
    """

    def __init__(self, dsn: str, *, name: str = "", **options: Any) -> None:
        fields = {
            key: options.pop(key) for key in ("include", "exclude", "keyless") if key in options
        }
        self.capture = Capture(
            name or f"t{uuid.uuid4().hex[:10]}", **fields, database={"dsn": dsn, **options}
        )
        self.source = PostgresSource(self.capture)
        self.batches: list[Batch] = []
        self.position: Position = {}
        self.notes: dict[str, str] = {}

    def start(self, position: Position | None = None) -> Position:
        """Start the source; the default is now."""
        self.position = self.source.start(position)
        return self.position

    def again(self, position: Position | None = None) -> Reading:
        """Make another reading of the same slot, and start it where this one is."""
        self.source.close()
        other = Reading.__new__(Reading)
        other.capture, other.batches = self.capture, []
        other.notes = dict(self.notes)
        other.source = PostgresSource(replace(self.capture, notes=other.notes))
        deadline = time.monotonic() + 60
        while True:
            try:
                other.start(position or self.position)
            except Exception as error:
                if "another program" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return other

    def changes(self, count: int, timeout_s: float = 60) -> list[Change]:
        """Poll until so many changes came since the start of this call, and return them."""
        found: list[Change] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} changes: {found[-3:]}"
            batch = self.source.poll(0.2)
            if batch is not None:
                self.take(batch)
                found += batch.changes
        return found

    def nothing(self, timeout_s: float = 0.3) -> None:
        """Check that no change comes."""
        batch = self.source.poll(timeout_s)
        assert batch is None or batch.changes == [], batch

    def look(self) -> Batch:
        """Look for new and changed tables now, and return the batch that comes next."""
        self.source._due["refresh"] = 0.0
        batch = self.source.poll(60)
        assert batch is not None
        self.remember(batch)
        return batch

    def take(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.position = batch.position
        self.remember(batch)

    def remember(self, batch: Batch) -> None:
        """Store the notes of a batch."""
        for name, note in batch.notes.items():
            if note is None:
                self.notes.pop(name, None)
            else:
                self.notes[name] = note

    def confirm(self) -> None:
        self.source.confirm(self.position)


def plain(changes: list[Change]) -> list[tuple[str, Any, Any]]:
    """Return operation, old row and new row of changes."""
    return [(each.op, each.before, each.after) for each in changes]
