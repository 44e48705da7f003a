"""Changelog topics as tables: as they are now, their versions, their changes; and in memory."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.spark.changelogs import Changelog, rows
from tidemill.errors import JoinError, SchemaError, UnknownTopicOrPartitionError, WindowError
from tidemill.spark import fetch, table_cache
from tidemill.spark.table_cache import Change, Latest, TableCache, TableSpec, Versions, canonical
from tidemill.spark.table_records import TableSchema
from tidemill.spark.tables import read_changes, read_table, read_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Broker

needs_spark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

HOUR = 3_600_000
SCHEMA = "tail STRING, seats INT, since TIMESTAMP"


def change(key: bytes, value: Any, offset: int, at: int = 0, partition: int = 0) -> Change:
    made = None if value is None else json.dumps(value).encode()
    return Change(key, made, partition, offset, at)


# --- in memory -----------------------------------------------------------------------------------


def spec(**fields: Any) -> TableSpec:
    return TableSpec("t", ("id",), (), **fields)


def test_the_last_change_of_a_key_counts_whatever_the_order() -> None:
    table = Latest(spec(foreign_key=(("fk", "id"),)))
    table.apply(change(b"a", {"fk": "x"}, 5))
    table.apply(change(b"a", {"fk": "y"}, 3))
    table.apply(change(b"b", {"fk": "x"}, 6))
    assert json.loads(table.get(b"a") or b"") == {"fk": "x"}
    assert table.referring_to(b"x") == {b"a", b"b"}
    assert not table.referring_to(b"y")
    table.apply(change(b"a", {"fk": 7}, 8))
    assert (table.foreign_key(b"a"), table.referring_to(b"x")) == (b"7", {b"b"})
    table.apply(change(b"a", None, 9))
    table.apply(change(b"b", {"fk": None}, 10))
    assert table.get(b"a") is None
    assert table.foreign_key(b"b") is None
    assert not table.referring_to(b"7")
    assert not table.referring_to(b"x")
    table.apply(change(b"b", None, 11))
    assert table.size == 0


def test_a_row_that_retention_removed_is_gone() -> None:
    latest, versions = Latest(spec()), Versions(spec(keep=10**18))
    for table in (latest, versions):
        table.apply(change(b"a", {}, 4, at=1))
        table.apply(change(b"b", {}, 5, at=1))
        table.apply(change(b"c", {}, 1, at=1, partition=1))
        table.settle({0: 5})
    assert latest.get(b"a") is None
    assert versions.get(b"a", 9) is None
    assert {latest.get(b"b"), latest.get(b"c"), versions.get(b"b", 9)} == {b"{}"}


def test_the_version_that_held_at_an_instant() -> None:
    table = Versions(spec(keep=10**18))
    for offset, at, value in ((1, 20, 2), (2, 10, 1), (3, 30, None), (4, 40, 3), (5, 40, 4)):
        table.apply(change(b"a", value, offset, at))
    table.settle({})
    held = {at: table.get(b"a", at) for at in (9, 10, 19, 20, 29, 30, 39, 40, 99)}
    assert list(held.values()) == [None, b"1", b"1", b"2", b"2", None, None, b"4", b"4"]
    assert table.get(b"b", 10) is None


def test_versions_are_kept_for_a_period_after_they_were_replaced() -> None:
    table = Versions(spec(keep=10))
    for offset, at in enumerate((0, 50, 89, 95)):
        table.apply(change(b"a", at, offset, at))
    table.apply(change(b"gone", 1, 4, 1))
    table.apply(change(b"gone", None, 5, 2))
    table.apply(change(b"b", 100, 6, 100))
    table.settle({})
    assert [table.get(b"a", at) for at in (49, 88, 89, 94, 95)] == [None, None, b"89", b"89", b"95"]
    assert table.get(b"gone", 1) is None
    far = time.time_ns() // 1000 + 10**15
    table.apply(change(b"a", 1, 9, far))  # a version of the future lets none of now go
    table.settle({})
    assert table.get(b"a", 200) == b"95"


def test_a_version_may_begin_by_a_column() -> None:
    table = Versions(spec(keep=10**18, valid_from="since"))
    table.apply(change(b"a", {"since": "1970-01-01T00:00:01.5Z"}, 1, at=99))
    table.apply(change(b"a", {"since": "1970-01-01T02:00:02+02:00"}, 2, at=99))
    table.apply(change(b"a", {"since": 3}, 3, at=99))
    table.apply(change(b"b", {}, 4, at=99))
    found = [table.get(b"a", at) for at in (1_499_999, 1_500_000, 2_000_000, 3_000_000)]
    assert [v and json.loads(v)["since"] for v in found][1:] == [
        "1970-01-01T00:00:01.5Z",
        "1970-01-01T02:00:02+02:00",
        3,
    ]
    assert found[0] is None
    assert table.get(b"b", 99) == b"{}"
    for bad in ({"since": "soon"}, [1], {"since": [1]}):
        with pytest.raises(JoinError, match="offset 7 of partition 0"):
            table.apply(change(b"c", bad, 7))


def test_keys_are_equal_whatever_their_spaces_and_their_order() -> None:
    columns = ("a", "b")
    assert canonical(b'{"b": 1,  "a": "x"}', columns) == canonical(b'{"a":"x","b":1}', columns)
    assert canonical(b"anything", ("a",)) == b"anything"
    assert {canonical(bad, columns) for bad in (b"x", b"[1]", b'{"a":1}')} == {None}


def test_a_cache_reads_on_and_begins_again_where_it_must(
    tidemill_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = tidemill_broker
    log = Changelog(broker, "id STRING", ("id",))
    kafka = (("bootstrap.servers", broker.bootstrap),)
    cache = TableCache(TableSpec(log.topic, ("id",), kafka), Latest)
    read: list[int] = []
    plain = fetch.fetch

    def counted(wanted: Any, plan: Any) -> Any:
        read.append(wanted.size)
        return plain(wanted, plan)

    monkeypatch.setattr(table_cache, "fetch", counted)

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
    cache._looked -= 10**6
    assert (look(), sum(read)) == ({"a", "c"}, 4)
    ends = dict(cache.positions)
    broker.admin.delete_records([TopicPartition(log.topic, 1, ends[1])])[
        TopicPartition(log.topic, 1)
    ].result(30)
    assert look() == {key for key in "ac" if ord(key) % 2 == 0}
    broker.admin.delete_topics([log.topic])[log.topic].result(30)
    with pytest.raises(UnknownTopicOrPartitionError, match=log.topic):
        cache.refresh()
    broker.topic(2, name=log.topic)
    assert look() == set()
    log.put({"id": "d"})
    assert look() == {"d"}


def test_a_table_that_takes_too_much_memory_is_refused(tidemill_broker: Broker) -> None:
    log = Changelog(tidemill_broker, "id STRING", ("id",))
    log.put(*[{"id": str(n)} for n in range(20)])
    log.flush()
    kafka = (("bootstrap.servers", tidemill_broker.bootstrap),)
    made = TableSpec(log.topic, ("id",), kafka, limit=1000)
    with pytest.raises(JoinError, match="more than 0 MiB") as refused:
        TableCache(made, Latest).refresh()
    assert "memory_limit" in refused.value.hint
    two = TableSpec(log.topic, ("id", "no"), kafka)
    with pytest.raises(JoinError, match="no key of id, no"):
        TableCache(two, Latest).refresh()


def test_a_schema_and_a_key_that_do_not_fit() -> None:
    with pytest.raises(JoinError, match="key no names no columns") as refused:
        TableSchema("id STRING", ["no"])
    assert refused.value.hint == "Its columns are id."
    with pytest.raises(JoinError):
        TableSchema("id STRING", [])
    with pytest.raises(SchemaError):
        TableSchema("id NOTYPE_", ["id"])


# --- in Spark ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(spark: SparkSession) -> SparkSession:
    made = spark.newSession()
    made.conf.set("spark.sql.shuffle.partitions", "1")
    return made


def at(hour: float) -> datetime:
    return datetime.fromtimestamp(hour * 3600, UTC).replace(tzinfo=None)


class TestInSpark:
    pytestmark = needs_spark

    def test_the_table_is_what_the_last_changes_say(
        self, own: SparkSession, broker: Broker
    ) -> None:
        from pyspark.sql import functions as f

        log = Changelog(broker, "no INT, tail STRING, seats INT", ("tail", "no"))
        kafka = {"bootstrap.servers": broker.bootstrap}
        table = read_table(own, log.topic, log.schema, log.key, kafka)
        changes = read_changes(
            own, log.topic, log.schema, log.key, kafka, max_offsets_per_trigger=3
        )
        log.put(*[{"tail": t, "no": n, "seats": n} for t in "abc" for n in (1, 2)])
        log.put({"tail": "a", "no": 1, "seats": 10}, {"tail": "a", "no": 2})
        log.delete("b", 1)
        log.delete("b", 2)
        log.put({"tail": "b", "no": 2, "seats": 22})
        log.flush()
        assert table.columns == ["no", "tail", "seats"]
        expected = [(1, "a", 10), (1, "c", 1), (2, "a", None), (2, "b", 22), (2, "c", 2)]
        assert rows(table) == expected
        query = changes.writeStream.format("memory").queryName("changes").start()
        try:
            query.processAllAvailable()
            found = own.table("changes")
            assert found.columns[3:] == ["_deleted", "_partition", "_offset", "_timestamp"]
            deleted = found.filter("_deleted").select("no", "tail", "seats")
            assert rows(deleted) == [(1, "b", None), (2, "b", None)]
            newest = found.groupBy("no", "tail").agg(
                f.expr("max_by(struct(*), struct(_offset, _partition)) AS last")
            )
            current = newest.select("last.*").filter("NOT _deleted").select("no", "tail", "seats")
            assert rows(current) == expected
        finally:
            query.stop()

    def test_versions_and_how_long_they_are_kept(self, own: SparkSession, broker: Broker) -> None:
        log = Changelog(broker, SCHEMA, ("tail",))
        for hour, seats in ((1, 10), (3, 30), (5, 50)):
            log.put({"tail": "a", "seats": seats, "since": 60 * hour}, at=hour * HOUR)
        log.put({"tail": "b", "seats": 1, "since": 0}, at=2 * HOUR)
        log.delete("b", at=4 * HOUR)
        log.flush()

        def versions(keep: str, **options: Any) -> list[tuple[Any, ...]]:
            kafka = {"bootstrap.servers": broker.bootstrap}
            read = read_versions(own, log.topic, SCHEMA, log.key, kafka, keep=keep, **options)
            hours = "unix_millis({}) / 3600000D"
            return rows(read.selectExpr("tail", "seats", *map(hours.format, read.columns[3:])))

        everything = [("a", 10, 1, 3), ("a", 30, 3, 5), ("a", 50, 5, None), ("b", 1, 2, 4)]
        assert versions("1 day") == everything
        assert versions("1 hour") == everything[1:3]
        minutes = [("a", 10, 1, 3), ("a", 30, 3, 5), ("a", 50, 5, None)]
        by_column = versions("9 hours", valid_from="since")
        assert by_column[:3] == [(t, n, a / 60, b and b / 60) for t, n, a, b in minutes]
        assert by_column[3:] == [("b", 1, 0, 4)]
        with pytest.raises(WindowError):
            versions("1 month")
        for bad in ("seats", "no"):
            with pytest.raises(JoinError, match=f"valid_from {bad} is no TIMESTAMP"):
                versions("1 day", valid_from=bad)

    def test_a_record_that_is_no_row_is_told_of(self, own: SparkSession, broker: Broker) -> None:
        kafka = {"bootstrap.servers": broker.bootstrap}
        cases: list[tuple[dict[str, Any], str]] = [
            ({"key": b"a", "value": b'{"tail": "a", "seats": "many"}'}, "the record at offset 0"),
            ({"key": b"a", "value": b"[1]"}, "is no JSON object"),
            ({"key": b"x", "value": b'{"seats": 1}', "by": "seats"}, "has a key without seats"),
            ({"value": b'{"tail": "a"}'}, "has no key of tail"),
        ]
        for record, told in cases:
            topic = broker.topic()
            key = [record.pop("by", "tail")]
            broker.produce(topic, [record])
            table = read_table(own, topic, SCHEMA, key, kafka)
            with pytest.raises(Exception, match=told):
                table.collect()
