"""Changelog topics as tables: the rows now, their versions, their changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.changelogs import Changelog, rows
from tidemill.errors import DurationError
from tidemill.spark.errors import JoinError, SchemaError
from tidemill.spark.tables.changelog import ChangelogTopic
from tidemill.spark.tables.records import TableSchema
from tidemill.spark.tables.source import TableContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Broker

needs_spark = [pytest.mark.spark, pytest.mark.slow]

HOUR = 3_600_000
SCHEMA = "tail STRING, seats INT, since TIMESTAMP"


def test_a_schema_and_a_key_that_do_not_fit() -> None:
    with pytest.raises(JoinError, match="the key no does not name columns") as refused:
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


def source_of(log: Changelog, spark: SparkSession) -> tuple[ChangelogTopic, TableContext]:
    """Return a changelog as a source of a table, and what is needed to read it."""
    schema = TableSchema(log.schema, log.key, "epoch_s")
    return ChangelogTopic(log.topic), TableContext(spark, schema, log.broker.kafka)


def at(hour: float) -> datetime:
    return datetime.fromtimestamp(hour * 3600, UTC).replace(tzinfo=None)


class TestInSpark:
    pytestmark = needs_spark

    def test_the_table_is_what_the_last_changes_say(
        self, own: SparkSession, broker: Broker
    ) -> None:
        from pyspark.sql import functions as f

        log = Changelog(broker, "no INT, tail STRING, seats INT", ("tail", "no"))
        source, context = source_of(log, own)
        table = source.rows(context)
        changes = source.changes(context, max_offsets_per_trigger=3)
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
            assert found.columns[3:7] == ["_deleted", "_partition", "_offset", "_timestamp"]
            assert found.columns[7:] == ["_version"]
            assert found.filter("_version <> _offset").count() == 0
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
            source, context = source_of(log, own)
            read = source.versions(context, keep=keep, **options)
            hours = "unix_millis({}) / 3600000D"
            return rows(read.selectExpr("tail", "seats", *map(hours.format, read.columns[3:])))

        everything = [("a", 10, 1, 3), ("a", 30, 3, 5), ("a", 50, 5, None), ("b", 1, 2, 4)]
        assert versions("1 day") == everything
        assert versions("1 hour") == everything[1:3]
        minutes = [("a", 10, 1, 3), ("a", 30, 3, 5), ("a", 50, 5, None)]
        by_column = versions("9 hours", valid_from="since")
        assert by_column[:3] == [(t, n, a / 60, b and b / 60) for t, n, a, b in minutes]
        assert by_column[3:] == [("b", 1, 0, 4)]
        with pytest.raises(DurationError):
            versions("1 month")
        for bad in ("seats", "no"):
            with pytest.raises(JoinError, match=f"valid_from {bad} is not a TIMESTAMP"):
                versions("1 day", valid_from=bad)

    def test_a_record_that_is_not_a_row_is_reported(
        self, own: SparkSession, broker: Broker
    ) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            (
                {"key": b"a", "value": b'{"tail": "a", "seats": "many"}'},
                "the record at offset 0 of partition 0 can't be parsed: seats is not INT: many",
            ),
            ({"key": b"a", "value": b"[1]"}, "can't be parsed: the value is not a JSON object"),
            ({"key": b"a", "value": b'{"since": 1}'}, "hint: If the number counts from 1970"),
            (
                {"key": b"x", "value": b'{"seats": 1}', "by": "seats"},
                "has an invalid key: seats is not INT: x",
            ),
            ({"value": b'{"tail": "a"}'}, "has no key of tail"),
        ]
        for record, told in cases:
            topic = broker.topic()
            key = [record.pop("by", "tail")]
            broker.produce(topic, [record])
            context = TableContext(own, TableSchema(SCHEMA, key), broker.kafka)
            table = ChangelogTopic(topic).rows(context)
            with pytest.raises(Exception, match=told):
                table.collect()
            with pytest.raises(Exception, match=told):  # and whatever is asked of it
                table.count()
