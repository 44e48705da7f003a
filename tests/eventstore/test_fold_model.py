"""The fold against a model that is a list, in memory."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.eventstore.model import Model, check_reads
from tests.eventstore.strategies import commits, queries
from tests.support.effort import examples
from tidemill.eventstore import wire
from tidemill.eventstore.errors import (
    CommitTooLargeError,
    ConflictError,
    ForgottenKeyError,
    IdConflictError,
    InvalidCommitError,
    NewerFoldError,
    VersionConflictError,
)
from tidemill.eventstore.events import ANY, NONE, NewEvent, Query, StreamAppend
from tidemill.eventstore.fold import FOLD_VERSION, Accepted, Void
from tidemill.eventstore.memory_store import MemoryStore
from tidemill.eventstore.state import GENESIS, State


@settings(max_examples=examples(80))
@given(st.lists(commits(), max_size=25), queries, st.integers(0, 12))
def test_a_store_in_memory_is_as_the_model(
    history: list[tuple[list[StreamAppend], list[object]]], query: Query, after: int
) -> None:
    model, store = Model(), MemoryStore(clock=lambda: 7)
    for appends, conditions in history:
        expected = model.commit(appends, conditions)  # type: ignore[arg-type]
        if isinstance(expected, type):
            with pytest.raises(expected):
                store.commit(appends, conditions=conditions)  # type: ignore[arg-type]
        else:
            appended = store.commit(appends, conditions=conditions)  # type: ignore[arg-type]
            assert (list(appended.positions), dict(appended.versions)) == expected
    check_reads(store, model, query, after)


def folded(*commits: wire.Commit) -> tuple[State, list[object]]:
    """Fold commits, as bytes; return the state and the outcomes."""
    state = State()
    outcomes: list[object] = []
    for offset, commit in enumerate(commits):
        value = wire.encode(commit)
        outcomes.append(state.step(offset, value, wire.decode(value), 0))
    return state, outcomes


def commit(stream: str = "s", *, count: int = 1, **more: object) -> wire.Commit:
    events = tuple(NewEvent("e") for _ in range(count))
    return wire.propose(bytes(16), [StreamAppend(stream, events)], **more)  # type: ignore[arg-type]


def test_void_commits_and_foreign_records_take_no_position_and_no_hash() -> None:
    state, _ = folded(commit())
    position, chain = state.position, state.hash
    void = wire.propose(bytes(16), [StreamAppend("s", (NewEvent("e"),), NONE)])
    value = wire.encode(void)
    assert isinstance(state.step(1, value, wire.decode(value), 0), Void)
    assert state.step(2, b"anything", wire.decode(b"anything"), 0) is None
    assert (state.position, state.hash) == (position, chain)
    assert state.offset == 2
    assert chain != GENESIS


def test_an_expected_version_above_that_of_the_stream_is_a_conflict() -> None:
    store = MemoryStore()
    with pytest.raises(VersionConflictError) as raised:
        store.append("s", [NewEvent("e")], expected=3)
    assert (raised.value.stream, raised.value.actual) == ("s", 0)


def test_a_commit_is_repeated_without_limit_and_whatever_it_expects() -> None:
    store = MemoryStore()
    events = [NewEvent("e", b"1"), NewEvent("e", b"2")]
    first = store.append("s", events, expected=0)
    for number in range(100):
        store.append("s", [NewEvent("e")], expected=2 + number)
    again = store.append("s", events, expected=0)
    assert again == first._replace(repeated=True)
    assert store.version("s") == 102
    assert store.append("s", events[:1], expected=ANY).repeated


def test_a_part_of_a_commit_or_other_content_under_its_ids_is_a_conflict() -> None:
    store = MemoryStore()
    event = NewEvent("e", b"1")
    store.append("s", [event])
    other = NewEvent("e", b"2", event.id)
    for stream, events in [
        ("s", [event, NewEvent("e")]),
        ("s", [NewEvent("e"), event]),
        ("s", [other]),
        ("t", [event]),
        ("s", [event, event]),
    ]:
        with pytest.raises(IdConflictError):
            store.append(stream, events)
    assert store.version("s") == 1


def test_a_newer_version_of_the_fold_stops_and_changes_nothing() -> None:
    state, _ = folded(commit(), commit(fold=FOLD_VERSION))
    newer = commit(fold=FOLD_VERSION + 1)
    before = (state.position, state.hash, state.offset)
    with pytest.raises(NewerFoldError):
        state.step(2, wire.encode(newer), newer, 0)
    assert (state.position, state.hash, state.offset) == before


def test_commits_sealed_with_a_forgotten_key_are_void() -> None:
    state, outcomes = folded(
        commit(keys=("k1",)), commit(forget=("k1",)), commit(keys=("k1",)), commit(keys=("k2",))
    )
    assert [type(each) for each in outcomes] == [Accepted, Accepted, Void, Accepted]
    assert isinstance(outcomes[2], Void)
    assert isinstance(outcomes[2].error, ForgottenKeyError)
    assert state.position == 3


def test_truncated_events_are_not_read_and_still_count() -> None:
    state, outcomes = folded(
        commit(count=5),
        commit(count=0, truncate=(("s", 4),)),
        commit(count=0, truncate=(("s", 9),)),
    )
    assert [type(each) for each in outcomes] == [Accepted, Accepted, Void]
    assert state.truncated("s") == 4
    assert state.version("s") == 5


@pytest.mark.parametrize(
    "invalid",
    [
        [StreamAppend("", (NewEvent("e"),))],
        [StreamAppend("s", (NewEvent(""),))],
        [StreamAppend("s" * 1025, (NewEvent("e"),))],
        [StreamAppend("ä" * 600, (NewEvent("e"),))],
        [StreamAppend("a\0b", (NewEvent("e"),))],
        [StreamAppend("\ud800", (NewEvent("e"),))],
        [StreamAppend("\ud800", ())],
        [StreamAppend("s", (NewEvent("e", tags=frozenset(map(str, range(101)))),))],
        [StreamAppend("s", (NewEvent("e", schema=-1),))],
        [StreamAppend("s", (NewEvent("e", schema=2**70),))],
        [StreamAppend("s", (NewEvent("e", "text"),))],  # type: ignore[arg-type]
        [StreamAppend("s", (NewEvent("e"),)), StreamAppend("s", ())],
        [StreamAppend("s", (NewEvent("e"),), -1)],
        [StreamAppend("s", (NewEvent("e"),) * 100_001)],
    ],
)
def test_a_commit_that_breaks_a_rule_is_refused_by_its_writer(invalid: list[StreamAppend]) -> None:
    store = MemoryStore()
    with pytest.raises(InvalidCommitError):
        store.commit(invalid)
    assert store.log == []


def test_a_commit_that_is_too_large_is_refused() -> None:
    store = MemoryStore(max_bytes=1000)
    with pytest.raises(CommitTooLargeError):
        store.append("s", [NewEvent("e", bytes(1000))])
    with contextlib.suppress(ConflictError):
        store.append("s", [NewEvent("e", bytes(100))])
    assert store.version("s") == 1
