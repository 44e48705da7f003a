"""Changelogs in memory, read on from where they were left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.spark.changelogs import Changelog
from tidemill.errors import UnknownTopicOrPartitionError
from tidemill.reading import fetch
from tidemill.spark.errors import JoinError
from tidemill.spark.tables import cache as table_cache
from tidemill.spark.tables.cache import TableCache
from tidemill.spark.tables.changes import TableSpec
from tidemill.spark.tables.rows import Latest, Versions

if TYPE_CHECKING:
    from tests.spark.conftest import Broker


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the ranges that are read."""
    found: list[int] = []
    plain = fetch.fetch

    def counted(wanted: Any, plan: Any) -> Any:
        found.append(wanted.size)
        return plain(wanted, plan)

    monkeypatch.setattr(table_cache, "fetch", counted)
    return found


def spec_of(log: Changelog, *key: str, **fields: Any) -> TableSpec:
    return TableSpec(log.topic, key or ("id",), tuple(log.broker.kafka.items()), **fields)


def test_a_cache_reads_on_and_begins_again_where_it_must(
    tidemill_broker: Broker, read: list[int]
) -> None:
    broker = tidemill_broker
    log = Changelog(broker, "id STRING", ("id",))
    cache = TableCache(spec_of(log), Latest)

    def look() -> set[str]:
        read.clear()
        log.flush()
        cache.refresh()
        return {key for key in ("a", "b", "c", "d") if cache.rows.get(key.encode()) is not None}

    assert look() == set()
    log.put({"id": "a"}, {"id": "b"}, {"id": "c"})
    assert (look(), sum(read)) == ({"a", "b", "c"}, 3)
    assert (look(), sum(read)) == ({"a", "b", "c"}, 0)
    log.delete("b")
    assert (look(), sum(read)) == ({"a", "c"}, 1)
    # Deletions that it was too late for may be gone from the log: it begins again.
    cache._refreshed_at = time.monotonic() - 10**6
    assert (look(), sum(read)) == ({"a", "c"}, 4)
    ends = dict(cache.positions)
    broker.admin.delete_records([TopicPartition(log.topic, 1, ends[1])])[
        TopicPartition(log.topic, 1)
    ].result(60)
    assert look() == {key for key in "ac" if ord(key) % 2 == 0}
    broker.admin.delete_topics([log.topic])[log.topic].result(60)
    with pytest.raises(UnknownTopicOrPartitionError, match=log.topic):
        cache.refresh()
    broker.topic(2, name=log.topic)
    assert look() == set()
    log.put({"id": "d"})
    assert look() == {"d"}


def test_a_cache_that_broke_off_begins_again_however_long_the_machine_is_up(
    tidemill_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Changelog(tidemill_broker, "id STRING", ("id",))
    log.put({"id": "a"}, {"id": "c"})
    log.flush()
    cache = TableCache(spec_of(log, keep=10**18), Versions)
    began = time.monotonic() - 60
    real, plain = time.monotonic, fetch.fetch
    monkeypatch.setattr(time, "monotonic", lambda: real() - began)
    broken = True

    def breaking(wanted: Any, plan: Any) -> Any:
        for batch in plain(wanted, plan):
            yield batch.slice(0, 1) if broken else batch
            if broken:
                raise OSError("the broker is away")

    monkeypatch.setattr(table_cache, "fetch", breaking)
    with pytest.raises(OSError, match="away"):
        cache.refresh()
    broken = False
    log.delete("a")
    log.flush()
    half = cache.rows
    cache.refresh()
    assert cache.rows is not half
    assert cache.rows.get(b"c", 2**62) is not None
    assert cache.rows.get(b"a", 2**62) is None


def test_a_version_that_arrives_after_its_key_was_dropped_has_the_table_read_again(
    tidemill_broker: Broker, read: list[int]
) -> None:
    log = Changelog(tidemill_broker, "id STRING", ("id",), tidemill_broker.topic(1))
    cache = TableCache(spec_of(log, keep=30_000), Versions)

    def look() -> int:
        read.clear()
        log.flush()
        cache.refresh()
        return sum(read)

    log.put({"id": "a"}, at=10, partition=0)
    log.delete("a", at=20, partition=0)
    log.put({"id": "b"}, at=60, partition=0)
    assert look() == 3
    log.put({"id": "a"}, at=15, partition=0)
    assert look() == 1 + 4
    assert cache.rows.get(b"a", 50_000) is None
    assert look() == 0
    log.put({"id": "a"}, at=40, partition=0)
    assert look() == 1
    assert cache.rows.get(b"a", 50_000) is not None


def test_a_table_that_takes_too_much_memory_is_refused(tidemill_broker: Broker) -> None:
    log = Changelog(tidemill_broker, "id STRING", ("id",))
    log.put(*[{"id": str(n)} for n in range(20)])
    log.flush()
    with pytest.raises(JoinError, match="more than 0 MiB") as refused:
        TableCache(spec_of(log, limit=1000), Latest).refresh()
    assert "memory_limit" in refused.value.hint
    # Versions that are no longer kept do not count.
    gone = Changelog(tidemill_broker, "id STRING", ("id",), tidemill_broker.topic(1))
    for hour in range(20):
        gone.put({"id": str(hour)}, at=hour * 3_600_000, partition=0)
        gone.delete(str(hour), at=hour * 3_600_000 + 1, partition=0)
    gone.put({"id": "last"}, at=10**9, partition=0)
    gone.flush()
    kept = TableCache(spec_of(gone, limit=1000), Versions)
    kept.refresh()
    assert kept.rows.get(b"last", 2**62) == b'{"id": "last"}'
    with pytest.raises(JoinError, match="no key of id, no"):
        TableCache(spec_of(log, "id", "no"), Latest).refresh()
