"""Truncation: by hand, and by rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.confluent.clients import Kafka
from tidemill.eventstore.errors import VersionConflictError
from tidemill.eventstore.events import Condition, NewEvent, Query
from tidemill.eventstore.memory_store import MemoryStore
from tidemill.eventstore.retention import Retention, scavenge
from tidemill.eventstore.store import Store


@pytest.fixture(params=["topic", "index", "memory"])
def filled(
    request: pytest.FixtureRequest, kafka: Kafka, topic: str, tmp_path: Path
) -> Iterator[Store | MemoryStore]:
    """A store with the streams a-1 to a-3 of five events each, and b-1."""
    store = MemoryStore() if request.param == "memory" else Store(kafka, topic, folder=tmp_path)
    with store:
        for name in ("a-1", "a-2", "a-3", "b-1"):
            store.append(name, [NewEvent("e", b"data") for _ in range(5)])
        if request.param == "index":
            assert isinstance(store, Store)
            store.wait_indexed()
        yield store


def versions(store: Store | MemoryStore, stream: str) -> list[int]:
    return [each.version for each in store.read(stream)]


def test_truncated_events_are_not_read_anywhere_and_still_count(
    filled: Store | MemoryStore, kafka: Kafka
) -> None:
    first = next(iter(filled.read("a-1")))
    filled.truncate({"a-1": 4})

    def check(checked: Store | MemoryStore) -> None:
        assert versions(checked, "a-1") == [4, 5]
        assert [each.version for each in checked.read("a-1", after=1, limit=1)] == [4]
        assert [each.version for each in checked.read("a-1", backwards=True)] == [5, 4]
        expected = [4, 5, *range(6, 21)]
        assert [each.position for each in checked.read_all()] == expected
        assert [each.position for each in checked.follow(wait_s=0)] == expected
        assert [each.position for each in checked.read_all(backwards=True)] == expected[::-1]
        queries = [Query(frozenset({"e"}))]
        assert [each.position for each in checked.read_all(queries=queries)] == expected
        assert checked.version("a-1") == 5

    check(filled)
    if isinstance(filled, Store):
        with Store(kafka, filled.topic, folder=filled.folder) as other:
            check(other)
        filled.wait_indexed()
        check(filled)
    again = filled.append("a-1", [NewEvent("e", b"data", first.id)])
    assert again.repeated
    with pytest.raises(VersionConflictError):
        filled.truncate({"a-1": 7})
    filled.truncate({"a-1": 2})
    assert versions(filled, "a-1") == [4, 5]
    with pytest.raises(Exception, match="at position 1"):
        filled.append("x", [NewEvent("e")], conditions=[Condition((Query(),))])


def test_a_scavenger_truncates_by_count_and_age(filled: Store | MemoryStore) -> None:
    newest = max(each.time_ms for each in filled.read_all())
    rules = {"a": Retention(max_count=2), "b": Retention(max_age_ms=1000)}
    assert scavenge(filled, rules, newest) == {"a-1": 4, "a-2": 4, "a-3": 4}
    assert scavenge(filled, rules, newest) == {}
    assert scavenge(filled, rules, newest + 10_000) == {"b-1": 5}
    assert versions(filled, "b-1") == [5]
    assert scavenge(filled, rules, newest + 10_000) == {}
    assert list(filled.streams("a")) == ["a-1", "a-2", "a-3"]
    assert list(filled.streams()) == ["a-1", "a-2", "a-3", "b-1"]
    assert list(filled.streams(start="a-2")) == ["a-2", "a-3", "b-1"]
    assert list(filled.streams(start="a-15")) == ["a-2", "a-3", "b-1"]
    assert list(filled.streams("a", start="a-3")) == ["a-3"]
    assert list(filled.streams("b", start="a-3")) == ["b-1"]


def test_limits_that_would_keep_nothing_are_refused() -> None:
    for limit in (0, -1):
        with pytest.raises(ValueError, match="1 or more"):
            Retention(max_count=limit)
