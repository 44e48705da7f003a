"""Exported events and their import."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.eventstore import importing
from tidemill.eventstore.event_json import EventLineError, Exported, from_line, to_line
from tidemill.eventstore.events import NewEvent, StoredEvent
from tidemill.eventstore.importing import ImportConflictError, Imported, import_events
from tidemill.eventstore.memory_store import MemoryStore

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    st.builds(
        StoredEvent,
        type=TEXTS,
        data=st.binary() | TEXTS.map(str.encode),
        id=st.uuids(),
        metadata=st.binary(),
        tags=st.frozensets(TEXTS),
        schema=st.integers(1, 9),
        stream=TEXTS,
        version=st.integers(1, 2**53),
        position=st.integers(1, 2**53),
        time_ms=st.integers(0, 4 * 10**12),
    )
)
def test_an_exported_event_has_all_its_bytes(event: StoredEvent) -> None:
    line = to_line(event, exact=True)
    assert line.count(b"\n") == 1
    back = from_line(line)
    assert (back.stream, back.version, back.position) == (
        event.stream,
        event.version,
        event.position,
    )
    for name in ("type", "data", "id", "metadata", "tags", "schema"):
        assert getattr(back.event, name) == getattr(event, name)
    assert to_line(event, exact=False).count(b"\n") == 1


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{}", b"null", b"\xff", b'{"type": 1}', b'"x"', b"1e999"],
)
def test_a_line_that_is_not_an_event_is_a_typed_error(line: bytes) -> None:
    with pytest.raises(EventLineError, match="invalid exported event"):
        from_line(line)


def filled() -> MemoryStore:
    store = MemoryStore()
    for number in range(40):
        stream = f"a-{number % 3}" if number % 7 else "b-1"
        store.append(stream, [NewEvent("t", b"%d" % number, tags=frozenset({f"n:{number}"}))] * 1)
    return store


def exported(store: MemoryStore) -> list[Exported]:
    return [from_line(to_line(each, exact=True)) for each in store.read_all()]


def content(store: MemoryStore) -> list[tuple[object, ...]]:
    return [(e.position, e.stream, e.version, e.id, e.data, e.tags) for e in store.read_all()]


def test_an_import_into_an_empty_store_gives_equal_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "COMMIT_EVENTS", 7)
    source, target = filled(), MemoryStore()
    assert import_events(target, exported(source)) == Imported(40, 0)
    assert content(target) == content(source)
    assert import_events(target, exported(source)) == Imported(0, 40)


@pytest.mark.parametrize("before", range(0, 40, 3))
def test_an_import_that_was_interrupted_continues(before: int) -> None:
    source, target = filled(), MemoryStore()
    import_events(target, exported(source)[:before])
    assert import_events(target, exported(source)) == Imported(40 - before, before)
    assert content(target) == content(source)


def test_other_events_in_a_stream_and_missing_ones_are_conflicts() -> None:
    source, target = filled(), MemoryStore()
    target.append("a-1", [NewEvent("t", id=uuid.uuid4())])
    with pytest.raises(ImportConflictError, match="another event 1"):
        import_events(target, exported(source))
    with pytest.raises(ImportConflictError, match="has 0 events"):
        import_events(MemoryStore(), exported(source)[20:])


def test_a_file_with_two_different_events_of_one_version_is_a_conflict() -> None:
    first, *_ = lines = exported(filled())
    assert import_events(MemoryStore(), [first, first]) == Imported(1, 1)
    other = first._replace(event=NewEvent("t", b"other"))
    with pytest.raises(ImportConflictError, match="another event 1"):
        import_events(MemoryStore(), [*lines, other])
