"""Append exported events to a store, with their ids and in their order.

What is there already is left out, so an import that was interrupted can be repeated. Must not know:
files, brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from tidemill.eventstore.errors import ConflictError
from tidemill.eventstore.event_json import Exported
from tidemill.eventstore.events import Events, NewEvent, StreamAppend, surely

COMMIT_EVENTS = 100
COMMIT_BYTES = 200_000
"""The most events and bytes of one commit, unless one event is larger."""


class Imported(NamedTuple):
    """Numbers of events."""

    stored: int
    known: int


class ImportConflictError(ConflictError):
    """The store has other events in a stream than the file."""


def import_events(store: Events, events: Iterable[Exported]) -> Imported:
    """Store exported events. They get new positions, and the time of the import.

    Raises:
        ImportConflictError: a stream of the store has another event where the file has one, or
            lacks the event before.
    """
    stored = known = 0
    pending: list[Exported] = []
    versions: dict[str, int] = {}
    size = 0
    for each in events:
        version = versions.get(each.stream)
        if version is None:
            version = store.version(each.stream)
        if each.version <= version:
            stored += _store(store, pending)  # the file can have it twice
            pending, size = [], 0
            _check_same(store, each)
            versions[each.stream] = version
            known += 1
            continue
        if each.version != version + 1:
            raise ImportConflictError(
                f"stream {each.stream!r} has {version} events, the file continues with event "
                f"{each.version}",
                hint="Import a file that has the events before, too.",
            )
        versions[each.stream] = each.version
        if pending and (len(pending) >= COMMIT_EVENTS or size >= COMMIT_BYTES):
            stored += _store(store, pending)
            pending, size = [], 0
        pending.append(each)
        size += len(each.event.data) + len(each.event.metadata)
    return Imported(stored + _store(store, pending), known)


def _check_same(store: Events, given: Exported) -> None:
    found = next(store.read(given.stream, after=given.version - 1, limit=1), None)
    # An event that was truncated can't be compared.
    if found is not None and found.version == given.version and found.id != given.event.id:
        raise ImportConflictError(
            f"stream {given.stream!r} has another event {given.version} than the file",
            hint="Import into a store without these streams.",
        )


def _store(store: Events, events: list[Exported]) -> int:
    for appends in _commits(events):
        surely(partial(store.commit, appends))
    return len(events)


def _commits(events: list[Exported]) -> Iterator[list[StreamAppend]]:
    """Yield commits: a commit has each stream once, and keeps the order of positions."""
    parts: list[tuple[str, int, list[NewEvent]]] = []
    for each in events:
        if parts and parts[-1][0] == each.stream:
            parts[-1][2].append(each.event)
            continue
        if any(stream == each.stream for stream, _, _ in parts):
            yield [StreamAppend(name, tuple(new), before) for name, before, new in parts]
            parts = []
        parts.append((each.stream, each.version - 1, [each.event]))
    if parts:
        yield [StreamAppend(name, tuple(new), before) for name, before, new in parts]
