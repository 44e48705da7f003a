"""Events as JSON objects, one a line, for commands and for files of exported events.

In a file, content and metadata are text, or base64 if they are not UTF-8, so that each byte comes
back. For people, content that is JSON is a part of the line. Knows no store and no file.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from tidemill.eventstore.errors import EventStoreError
from tidemill.eventstore.events import NewEvent, StoredEvent

_BYTES = ("data", "metadata")


class EventLineError(EventStoreError):
    """A line is not an exported event."""


class Exported(NamedTuple):
    """An event of a file, and its place in the store that it is from."""

    event: NewEvent
    stream: str
    version: int
    position: int


def to_line(event: StoredEvent, *, exact: bool) -> bytes:
    """Return an event as one line of JSON, with a line feed.

    Args:
        exact: content as text, so that its bytes can be restored; otherwise JSON as JSON.
    """
    time = datetime.fromtimestamp(event.time_ms / 1000, UTC)
    fields: dict[str, Any] = {
        "position": event.position,
        "stream": event.stream,
        "version": event.version,
        "type": event.type,
        "schema": event.schema,
        "id": str(event.id),
        "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "tags": sorted(event.tags),
    }
    for name, content in zip(_BYTES, (event.data, event.metadata), strict=True):
        if not exact and content and (found := _json(content)) is not None:
            fields[name] = orjson.Fragment(found)
            continue
        try:
            fields[name] = content.decode()
        except UnicodeDecodeError:
            fields[name] = base64.b64encode(content).decode()
            fields[f"{name}_encoding"] = "base64"
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def _json(content: bytes) -> bytes | None:
    """Return JSON on one line; None if it is not JSON."""
    try:
        return orjson.dumps(orjson.loads(content)) if b"\n" in content else _checked(content)
    except orjson.JSONDecodeError:
        return None


def _checked(content: bytes) -> bytes:
    orjson.loads(content)
    return content


def from_line(line: bytes) -> Exported:
    """Return the event of an exported line.

    Raises:
        EventLineError: it is not one.
    """
    try:
        fields = orjson.loads(line)
        data, metadata = (_bytes(fields, name) for name in _BYTES)
        event = NewEvent(
            type=_text(fields["type"]),
            data=data,
            id=uuid.UUID(fields["id"]),
            metadata=metadata,
            tags=frozenset(map(_text, fields["tags"])),
            schema=int(fields["schema"]),
        )
        return Exported(event, _text(fields["stream"]), int(fields["version"]), fields["position"])
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error) as error:
        raise EventLineError(
            f"invalid exported event: {error!r}: {line[:120]!r}",
            hint="Each line is an event as 'tidemill events export' writes it.",
        ) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _bytes(fields: dict[str, Any], name: str) -> bytes:
    text = _text(fields[name])
    if fields.get(f"{name}_encoding") == "base64":
        return base64.b64decode(text, validate=True)
    return text.encode()
