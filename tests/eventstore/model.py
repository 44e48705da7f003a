"""A store as a list of events: slow, obvious, and written without a look at the fold."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence

from tests.eventstore.strategies import STREAMS
from tidemill.eventstore.errors import (
    ConditionFailedError,
    ConflictError,
    IdConflictError,
    VersionConflictError,
)
from tidemill.eventstore.events import (
    ANY,
    EXISTS,
    NONE,
    Condition,
    Events,
    NewEvent,
    Query,
    StreamAppend,
)

Places = tuple[list[int], dict[str, int]]


class Model:
    """Attributes: ``events``, in order, each with its stream; counts and positions, for speed."""

    def __init__(self) -> None:
        self.events: list[tuple[str, NewEvent]] = []
        self.counts: Counter[str] = Counter()
        self.positions: dict[uuid.UUID, int] = {}

    def version(self, stream: str) -> int:
        return self.counts[stream]

    def position_of(self, event_id: uuid.UUID) -> int | None:
        return self.positions.get(event_id)

    def commit(
        self, appends: Sequence[StreamAppend], conditions: Sequence[Condition] = ()
    ) -> Places | type[ConflictError]:
        """Return the positions and the versions behind the commit, or the type of the error."""
        new = [(each.stream, event) for each in appends for event in each.events]
        ids = [event.id for _, event in new]
        if len(set(ids)) < len(ids):
            return IdConflictError
        if any(self.position_of(each) for each in ids):
            first = self.position_of(ids[0])
            if first is None or self.events[first - 1 : first - 1 + len(new)] != new:
                return IdConflictError
            return self._places(
                range(first, first + len(new)), appends, self.events[: first + len(new) - 1]
            )
        for each in appends:
            version = self.version(each.stream)
            if each.expected is NONE and version:
                return VersionConflictError
            if each.expected is EXISTS and not version:
                return VersionConflictError
            if isinstance(each.expected, int) and each.expected != version:
                return VersionConflictError
            assert isinstance(each.expected, int) or each.expected in (ANY, NONE, EXISTS)
        for condition in conditions:
            for query in condition.none_of:
                for _, event in self.events[condition.after :]:
                    if query.matches(event.type, event.tags):
                        return ConditionFailedError
        first = len(self.events) + 1
        for stream, event in new:
            self.events.append((stream, event))
            self.counts[stream] += 1
            self.positions[event.id] = len(self.events)
        return self._places(range(first, first + len(new)), appends, self.events)

    def _places(
        self, positions: range, appends: Sequence[StreamAppend], until: list[tuple[str, NewEvent]]
    ) -> Places:
        """Return places; a stream that got no event has the version of now."""
        return list(positions), {
            each.stream: sum(name == each.stream for name, _ in until)
            if each.events and len(until) < len(self.events)
            else self.version(each.stream)
            for each in appends
        }


def check_reads(store: Events, model: Model, query: Query, after: int) -> None:
    """Compare what each way of reading returns with the model."""
    everything = list(store.read_all())
    assert [(each.stream, each.id) for each in everything] == [
        (stream, event.id) for stream, event in model.events
    ]
    assert [each.position for each in everything] == list(range(1, len(model.events) + 1))
    for stream in STREAMS:
        found = list(store.read(stream))
        assert [each for each in everything if each.stream == stream] == found
        assert [each.version for each in found] == list(range(1, store.version(stream) + 1))
        part = [each for each in found if 1 < each.version <= 4]
        assert list(store.read(stream, after=1, to=4)) == part
        assert list(store.read(stream, after=1, to=4, backwards=True, limit=2)) == part[::-1][:2]
    assert list(store.read_all(queries=[query])) == [
        each for each in everything if query.matches(each.type, each.tags)
    ]
    behind = [each for each in everything if each.position > after]
    assert list(store.read_all(after=after)) == behind
    assert list(store.read_all(after=after, backwards=True, limit=3)) == behind[::-1][:3]
    assert list(store.read_all(category="b")) == [
        each for each in everything if each.stream in ("b", "b-1")
    ]
    assert list(store.follow(after=after, queries=[query], wait_s=0)) == [
        each for each in behind if query.matches(each.type, each.tags)
    ]
