"""Route the rows of an outbox table to topics by their aggregate type, as events.

Source: Debezium's "Outbox Event Router". Only inserted rows are events: an application can delete
them in the same transaction. Must not know: Kafka's client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from tidemill.connect.cdc.contract import Change, Table
from tidemill.connect.cdc.definition import Outbox
from tidemill.connect.cdc.envelope import topic_name
from tidemill.connect.cdc.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class Event:
    """A record of an aggregate's topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    ts_ms: int
    headers: list[tuple[str, bytes]]


class OutboxRouter:
    """Turns rows of one table into events.

    Args:
        outbox: the table, and the names of its columns.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def takes(self, table: Table) -> bool:
        """Return whether this is the outbox table."""
        return self._outbox.table in (table.id, table.name)

    def route(self, change: Change) -> Event | None:
        """Return the event of an inserted row; None for updates and deletes.

        Raises:
            DefinitionError: the table lacks a column of the outbox.
        """
        row = change.after
        if change.op not in ("c", "r") or row is None:
            return None
        outbox = self._outbox
        for column in (outbox.id, outbox.aggregate_type, outbox.aggregate_id, outbox.payload):
            if column not in row:
                raise DefinitionError(
                    f"the outbox table {outbox.table} has no column {column}",
                    hint="Name its columns under [outbox] in the definition.",
                )
        headers = [("id", _text(row[outbox.id]) or b"")]
        kind = _text(row.get(outbox.event_type))
        if kind is not None:
            headers.append(("eventType", kind))
        topic = topic_name(outbox.topic_prefix, str(row[outbox.aggregate_type]))
        return Event(
            topic,
            _text(row[outbox.aggregate_id]),
            _text(row[outbox.payload]),
            change.ts_ms,
            headers,
        )


def _text(value: Any) -> bytes | None:
    """Return a value as bytes: a text as it is, everything else as JSON."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else orjson.dumps(value)
