"""Small commits that collide: few streams, types, tags and ids."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st

from tidemill.eventstore.events import (
    ANY,
    EXISTS,
    NONE,
    Condition,
    NewEvent,
    Query,
    StreamAppend,
)

STREAMS = ["a-1", "a-2", "b-1", "b"]
TYPES = ["opened", "paid"]
TAGS = ["x", "y", "z"]

tags = st.frozensets(st.sampled_from(TAGS), max_size=2)
ids = st.integers(1, 40).map(lambda number: uuid.UUID(int=number))


@st.composite
def events(draw: st.DrawFn) -> NewEvent:
    """An event whose content mostly follows from its id, so that repeats are found."""
    event_id = draw(st.one_of(ids, ids, st.uuids()))
    number = event_id.int
    data = b"other" if draw(st.integers(0, 20)) == 0 else str(number % 100).encode()
    return NewEvent(
        TYPES[number % 2],
        data,
        event_id,
        metadata=b"m" * (number % 3),
        tags=frozenset(TAGS[: number % 4]),
        schema=1 + number % 2,
    )


queries = st.builds(Query, st.frozensets(st.sampled_from(TYPES), max_size=2), tags)
conditions = st.builds(Condition, st.lists(queries, max_size=2).map(tuple), st.integers(0, 30))
versions = st.one_of(st.just(ANY), st.sampled_from([ANY, NONE, EXISTS]), st.integers(0, 6))


@st.composite
def commits(draw: st.DrawFn) -> tuple[list[StreamAppend], list[Condition]]:
    """The arguments of a commit."""
    names = draw(st.lists(st.sampled_from(STREAMS), min_size=1, max_size=3, unique=True))
    appends = [
        StreamAppend(name, tuple(draw(st.lists(events(), max_size=3))), draw(versions))
        for name in names
    ]
    return appends, draw(st.lists(conditions, max_size=2))
