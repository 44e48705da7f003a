"""Turn the records of a captured topic into changes of its table.

A delete is the operation ``d`` and a record with a null value behind it, which adds nothing. Where
compaction has removed the first one, the second one deletes. An update that changes the key deletes
the row of the old one. Must not know: Spark, Kafka clients, which changes are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import orjson

from tidemill.spark.errors import JoinError
from tidemill.spark.source.captured.envelope import (
    DELETE,
    MESSAGE,
    TRUNCATE,
    EnvelopeError,
    Envelopes,
    Event,
    Row,
)
from tidemill.spark.tables.changes import Change, TableSpec, key_of

Before = Callable[[bytes], bytes | None]
"""Returns the row that a key has so far, as JSON."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a captured topic; ``at`` is its timestamp in microseconds since 1970."""

    key: bytes | None
    value: bytes | None
    partition: int
    offset: int
    at: int


class Rows(Protocol):
    """The rows of a table that changes are applied to."""

    def apply(self, change: Change) -> None: ...

    def truncate(self, change: Change) -> None: ...

    def before(self, key: bytes) -> bytes | None: ...


class CapturedRecords:
    """Reads the records of one captured topic, each partition in its order."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._envelopes = Envelopes(spec.captured, spec.timestamp_format)
        self._columns = [(name, name) for name in spec.key]
        # The key that the last record of a partition deleted.
        self._deleted: dict[int, bytes] = {}

    def apply(self, record: Record, rows: Rows) -> None:
        """Apply a record to the rows of the table."""
        for change in self.changes(record, rows.before):
            if change.key == b"":
                rows.truncate(change)
            else:
                rows.apply(change)

    def changes(self, record: Record, before: Before | None = None) -> list[Change]:
        """Return the changes that a record makes, at most two. A truncation has an empty key.

        Args:
            record: the record; those of a partition come in its order.
            before: returns rows for updates that leave out large values; None if that is not known.

        Raises:
            JoinError: the record is not a change of the table.
        """
        try:
            return self._changes(record, before)
        except EnvelopeError as error:
            raise self._error(record, str(error)) from None

    def _changes(self, record: Record, before: Before | None) -> list[Change]:
        deleted = self._deleted.pop(record.partition, None)
        if record.value is None:
            key = self._key(self._of_key(record), record)
            if key == deleted:
                return []
            return [Change(key, None, record.partition, record.offset, record.at)]
        event = self._envelopes.event(record.value)
        if event.op == MESSAGE:
            return []
        at = record.at if event.commit_us is None else event.commit_us
        made = Change(b"", None, record.partition, record.offset, at, event.position)
        if event.op == TRUNCATE:
            return [made]
        if event.op == DELETE:
            row = self._of_key(record) or event.before
            key = self._key(row, record)
            self._deleted[record.partition] = key
            return [replace(made, key=key)]
        return self._written(event, made, record, before)

    def _written(
        self, event: Event, made: Change, record: Record, before: Before | None
    ) -> list[Change]:
        """Return the changes of an event with a row after it."""
        assert event.after is not None
        row = {**self._of_key(record), **event.after}
        key = self._key(row, record)
        old = None
        if event.before is not None and all(name in event.before for name in self._spec.key):
            old = key_of(event.before, self._columns, self._spec)
        if event.unavailable:
            known = None if before is None else before(old or key)
            if known is None:
                raise EnvelopeError(
                    f"an update without {', '.join(sorted(event.unavailable))}, which it did not "
                    "change, and no earlier record of the row: set REPLICA IDENTITY FULL on the "
                    "table"
                )
            fields = orjson.loads(known)
            row |= {name: fields.get(name) for name in event.unavailable}
        written = replace(made, key=key, value=orjson.dumps(row))
        return [written] if old in (None, key) else [replace(made, key=old or b""), written]

    def _of_key(self, record: Record) -> Row:
        """Return the columns of the table that a record has in its key."""
        if record.key is None:
            return {}
        found = self._envelopes.key(record.key)
        names = {name for name, _ in self._spec.captured}
        return {name: value for name, value in found.items() if name in names}

    def _key(self, row: Row | None, record: Record) -> bytes:
        key = key_of(row or {}, self._columns, self._spec)
        if key is None:
            raise EnvelopeError(f"no key of {', '.join(self._spec.key)}")
        return key

    def truncated(self, change: Change) -> JoinError:
        """Return the error for a truncation in a stream of changes."""
        return JoinError(
            f"table {self._spec.topic} was truncated at offset {change.offset} of partition "
            f"{change.partition}: a stream of changes does not know which rows that deletes",
            hint="Start the query with a new checkpoint and an empty sink: tidemill pipeline "
            "rebuild. Delete the records up to this one from the topic first.",
        )

    def _error(self, record: Record, reason: str) -> JoinError:
        return JoinError(
            f"table {self._spec.topic}: the record at offset {record.offset} of partition "
            f"{record.partition} can't be read: {reason}",
            hint="The topic must hold the envelopes of one captured table, and the table's key= "
            "must be its primary key.",
        )
