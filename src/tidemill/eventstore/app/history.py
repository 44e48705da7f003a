"""Look back: how a state changed between two moments, and who changed it.

``Repository.as_of`` returns the states themselves. Knows no store but through a repository.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tidemill.eventstore.app.codec import RESERVED
from tidemill.eventstore.app.context import Context
from tidemill.eventstore.app.handlers import evolve
from tidemill.eventstore.app.repository import Repository, State

MISSING: Any = type("Missing", (), {"__repr__": lambda _: "missing"})()
"""Stands for a value that only the other state has."""


class Change(NamedTuple):
    """A value before and behind a change; ``MISSING`` if there was none."""

    before: Any
    after: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One line of an audit: what happened, when, by whom and why.

    Attributes:
        version: the number of the event in its stream.
        position: its number in the store.
        at: when its writer proposed it, by the writer's clock.
        event: the event.
        context: who and why.
        changes: what it changed of the state, by the path of the value.
    """

    version: int
    position: int
    at: datetime
    event: Any
    context: Context
    changes: Mapping[str, Change]


def diff(before: object, after: object) -> dict[str, Change]:
    """Return the values that differ between two states, by their paths (``owner.name``).

    Dataclasses, mappings and objects are entered; lists and everything else are compared as a
    whole.
    """
    old, new = dict(_leaves("", before)), dict(_leaves("", after))
    paths = [*old, *(path for path in new if path not in old)]
    return {
        path: Change(old.get(path, MISSING), new.get(path, MISSING))
        for path in paths
        if old.get(path, MISSING) != new.get(path, MISSING)
    }


def _leaves(path: str, value: object) -> Iterator[tuple[str, Any]]:
    parts: Mapping[Any, Any] | None = None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        parts = value
    elif hasattr(value, "__dict__"):
        parts = vars(value)
    if parts is None:
        yield path, value
        return
    for name, each in parts.items():
        yield from _leaves(f"{path}.{name}" if path else str(name), each)


def audit(repository: Repository[State], aggregate_id: str) -> Iterator[Entry]:
    """Yield the events of an aggregate with who, when and why, from the first on."""
    state = repository.aggregate()
    # Events change a state in place, so what it was must be kept as values.
    before = dict(_leaves("", state))
    for stored in repository.store.read(repository.stream(aggregate_id)):
        if stored.type.startswith(RESERVED):
            continue
        event = repository.codec.decode(stored)
        state = evolve(state, event)
        after = dict(_leaves("", state))
        yield Entry(
            stored.version,
            stored.position,
            datetime.fromtimestamp(stored.time_ms / 1000, UTC),
            event,
            Context.decode(stored.metadata),
            diff(before, after),
        )
        before = _copied(after)


def _copied(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, with copies of those that an event can change in place."""
    return {
        path: value.copy() if isinstance(value, list | set) else value
        for path, value in leaves.items()
    }
