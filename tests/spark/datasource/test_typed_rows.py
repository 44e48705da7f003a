"""Reading typed rows: the source parses the values, and yields rows or refused records."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DDL = "id BIGINT, name STRING, at TIMESTAMP, tags ARRAY<STRING>, of STRUCT<`the city`: STRING>"
AT = datetime(2026, 3, 1, 12, 0, 0, 123_456, UTC)
GOOD = {"id": 1, "name": "a", "at": "2026-03-01T12:00:00.123456Z", "tags": ["x", None]}
EVERYTHING = (
    f"_key BINARY, _topic STRING, {DDL}, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, "
    "_headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


class Topic:
    """A topic with records, and readers of it."""

    def __init__(self, spark: SparkSession, broker: Broker) -> None:
        self.spark = spark
        self.broker = broker
        self.name = broker.topic()

    def write(self, *values: Any) -> None:
        """Write values: bytes as they are, others as JSON, each with a key and a header."""
        self.broker.produce(
            self.name,
            [
                {
                    "value": value if isinstance(value, bytes) else json.dumps(value).encode(),
                    "key": b"k",
                    "headers": [("h", b"1")],
                }
                for value in values
            ],
        )

    def read(self, reader: Any, schema: str | None = DDL, **options: str) -> DataFrame:
        reader = reader.format("tidemill").option("subscribe", self.name)
        reader = reader.option("kafka.bootstrap.servers", self.broker.bootstrap)
        reader = reader.option("startingOffsets", "earliest").option("value.format", "json")
        for name, value in options.items():
            reader = reader.option(name.replace("_", "."), value)
        found: DataFrame = (reader if schema is None else reader.schema(schema)).load()
        return found

    def batch(self, schema: str | None = DDL, **options: str) -> list[Any]:
        return self.read(self.spark.read, schema, **options).collect()


@pytest.fixture
def topic(spark: SparkSession, tidemill_broker: Broker) -> Topic:
    return Topic(spark, tidemill_broker)


@pytest.fixture
def names(spark: SparkSession) -> Iterator[list[str]]:
    """Names of queries that the test starts."""
    made: list[str] = []
    yield made
    for query in spark.streams.active:
        if query.name in made:
            query.stop()


def streamed(frame: DataFrame, names: list[str]) -> list[Any]:
    """Return what a stream yields of all that is there now."""
    names.append(f"m{uuid.uuid4().hex}")
    writer = frame.writeStream.format("memory").queryName(names[-1])
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return frame.sparkSession.table(names[-1]).collect()


def test_rows_have_the_columns_of_the_schema_and_those_of_the_record(
    topic: Topic, names: list[str]
) -> None:
    topic.write(GOOD, {"of": {"the city": "Oslo"}, "unknown": 1})

    for rows in (
        topic.batch(EVERYTHING),
        streamed(topic.read(topic.spark.readStream, EVERYTHING), names),
    ):
        first, second = (
            row.asDict(recursive=True) for row in sorted(rows, key=lambda r: r._offset)
        )
        stamp = first.pop("_timestamp")
        assert abs((datetime.now() - stamp).total_seconds()) < 86_400 + 3600
        assert first == {
            "_key": b"k",
            "_topic": topic.name,
            "id": 1,
            "name": "a",
            "at": AT.replace(tzinfo=None) if first["at"].tzinfo is None else AT,
            "tags": ["x", None],
            "of": None,
            "_partition": 0,
            "_offset": 0,
            "_headers": [{"key": "h", "value": b"1"}],
        }
        assert (second["id"], second["of"], second["_offset"]) == (None, {"the city": "Oslo"}, 1)


def test_a_record_that_cant_be_parsed_fails_the_query_with_its_position(topic: Topic) -> None:
    topic.write(GOOD, b'{"id": "one"}', GOOD)

    with pytest.raises(
        Exception, match="the record at offset 1 of partition 0 can't be parsed"
    ) as e:
        topic.batch()
    assert f"topic {topic.name}: " in str(e.value)
    assert "DROPMALFORMED" in str(e.value)
    with pytest.raises(Exception, match="offset 1 of partition 0"):  # although no column is used
        topic.read(topic.spark.read).count()


def test_dropmalformed_leaves_it_out_and_refused_rows_are_only_those(
    topic: Topic, names: list[str]
) -> None:
    topic.write(b"no json", GOOD, b'{"id": "one"}', {"id": 2}, {"id": 3, "at": None})
    options = {"event_time": "at", "value_schema": DDL}

    assert [row.id for row in topic.batch(mode="dropmalformed", **options)] == [1]
    assert [row.id for row in topic.batch(None, mode="DROPMALFORMED", **options)] == [1]
    refused = topic.read(
        topic.spark.readStream, None, rows="refused", includeHeaders="true", **options
    )
    rows = sorted(streamed(refused, names), key=lambda row: row.offset)
    assert refused.columns[:2] == ["key", "value"]
    assert refused.columns[-2:] == ["headers", "reason"]
    assert [row.offset for row in rows] == [0, 2, 3, 4]
    assert bytes(rows[0].value) == b"no json"
    assert rows[0].headers[0].key == "h"
    assert "not a JSON object" in rows[0].reason
    assert "id is not BIGINT: one" in rows[1].reason
    assert rows[2].reason == rows[3].reason == "the event time at is missing"


def test_a_topic_without_accepted_or_without_refused_records_yields_no_rows(
    topic: Topic, names: list[str]
) -> None:
    topic.write(*[b"no json"] * 100)
    assert topic.batch(mode="DROPMALFORMED") == []
    other = Topic(topic.spark, topic.broker)
    other.write(*[GOOD] * 100)
    assert other.batch(None, rows="refused", value_schema=DDL) == []
    assert streamed(topic.read(topic.spark.readStream, mode="DROPMALFORMED"), names) == []


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (None, {}, "option value.format json needs a schema"),
        (None, {"rows": "refused"}, "needs the option value.schema"),
        (DDL, {"value_format": "xml"}, "invalid option value.format 'xml'"),
        (DDL, {"timestamp_format": "unix"}, "unix"),
        (DDL, {"event_time": "when"}, "when"),
        (f"{DDL}, more INT NOT NULL", {}, "can't be null"),
        (f"{DDL}, more VARIANT", {}, "column more has the type variant"),
        (f"{DDL}, _offset INT", {}, "reserved for a column of the record"),
        (DDL, {"rows": "refused", "value_schema": DDL}, "columns of refused records are fixed"),
    ],
)
def test_what_is_wrong_with_options_and_columns_is_reported(
    topic: Topic, schema: str | None, options: dict[str, str], message: str
) -> None:
    topic.write(GOOD)
    with pytest.raises(Exception, match=re.escape(message)):
        topic.batch(schema, **options)


def test_a_stream_continues_after_a_record_was_refused(topic: Topic, names: list[str]) -> None:
    topic.write(GOOD, b"no json")
    frame = topic.read(topic.spark.readStream, mode="DROPMALFORMED")
    names.append(f"m{uuid.uuid4().hex}")
    query = frame.writeStream.format("memory").queryName(names[-1]).start()
    query.processAllAvailable()
    topic.write(b"no json")
    topic.write({"id": 2})
    query.processAllAvailable()
    assert sorted(row.id for row in topic.spark.table(names[-1]).collect()) == [1, 2]
