"""The data source in Spark: one session, with each of the brokers."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import uuid
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.support.processes import poll_until
from tidemill.spark import spark_session
from tidemill.spark.datasource.data_source import SET_BY_EACH_QUERY
from tidemill.spark.source.planning.admission import FIRST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.spark.conftest import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RUNNER = "org/apache/spark/sql/execution/python/streaming/PythonStreamingSourceRunner.class"
QUERIES = 8

# Where the broker's answers decide nothing, one broker is enough: a micro-batch takes its time.
on_tidemill = pytest.mark.parametrize("broker", ["tidemill"], indirect=True)


class Streams:
    """Reads and writes topics of a broker, and stops what it started."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.folder = folder
        self.queries: list[StreamingQuery] = []

    def options(self, reader: Any, **options: str) -> Any:
        return (
            reader.format("tidemill")
            .option("kafka.bootstrap.servers", self.broker.bootstrap)
            .options(**options)
        )

    def batch(self, **options: str) -> DataFrame:
        found: DataFrame = self.options(self.spark.read, **options).load()
        return found

    def stream(self, **options: str) -> DataFrame:
        found: DataFrame = self.options(self.spark.readStream, **options).load()
        return found

    def start(self, writer: Any) -> StreamingQuery:
        query: StreamingQuery = writer.start()
        self.queries.append(query)
        return query

    def into_memory(self, frame: DataFrame) -> StreamingQuery:
        """Start a query into an in-memory table named as the query."""
        name = f"m{uuid.uuid4().hex}"
        return self.start(frame.writeStream.format("memory").queryName(name))

    def offsets(self, query: StreamingQuery) -> list[tuple[str, int, int]]:
        """(topic, partition, offset) of all that an in-memory table holds."""
        query.processAllAvailable()
        rows = self.spark.table(query.name).select("topic", "partition", "offset").collect()
        return sorted(tuple(row) for row in rows)

    def copy(self, source: str, target: str, checkpoint: str, **options: str) -> StreamingQuery:
        """Copy all there is now from topic to topic, and return the ended query."""
        frame = self.stream(subscribe=source, startingOffsets="earliest", **options)
        query = self.start(
            self.options(frame.select("key", "value").writeStream, topic=target)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
        )
        query.awaitTermination()
        return query


@pytest.fixture
def streams(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(spark, broker, tmp_path)
    yield made
    for query in made.queries:
        query.stop()


def failure(query: StreamingQuery) -> str:
    """Wait for a query's error."""
    poll_until(lambda: query.exception() is not None, 60, "the query fails")
    return str(query.exception())


def test_a_batch_query_reads_the_columns_of_sparks_source(streams: Streams, broker: Broker) -> None:
    topic = broker.topic(2)
    broker.produce(topic, [{"value": b"v", "key": b"k", "headers": [("h", b"1")]}] * 4)
    broker.produce(topic, [b"w"] * 3, partition=1)
    everything = streams.batch(subscribe=topic, includeHeaders="true")
    assert [f"{f.name} {f.dataType.simpleString()}" for f in everything.schema] == [
        "key binary",
        "value binary",
        "topic string",
        "partition int",
        "offset bigint",
        "timestamp timestamp",
        "timestampType int",
        "headers array<struct<key:string,value:binary>>",
    ]
    rows = everything.orderBy("partition", "offset").collect()
    assert [(r.partition, r.offset) for r in rows] == [(0, i) for i in range(4)] + [
        (1, i) for i in range(3)
    ]
    assert (rows[0].key, rows[0].value, rows[0].topic) == (b"k", b"v", topic)
    assert rows[0].headers[0].asDict() == {"key": "h", "value": b"1"}
    assert rows[4].headers is None
    part = streams.batch(
        subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": 1, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": 3, "1": 1}}),
        minPartitions="4",
    )
    assert sorted((r.partition, r.offset) for r in part.collect()) == [(0, 1), (0, 2), (1, 0)]
    assert streams.batch(subscribe=broker.topic()).count() == 0


@on_tidemill
def test_a_new_session_needs_no_registration(streams: Streams, broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, [b"v"])
    other = Streams(streams.spark.newSession(), broker, streams.folder)
    assert other.batch(subscribe=topic).count() == 1


def test_starting_queries_leave_the_structure_of_their_shared_variables_alone(
    streams: Streams,
) -> None:
    """Tasks of other queries are sent this map meanwhile, and can't read one that grows."""

    def variables() -> set[str]:
        state: Any = streams.spark._jsparkSession.sessionState()
        registered = state.dataSourceManager().lookupDataSource("tidemill")
        return set(registered.dataSourceCls().envVars().keySet())

    before = variables()
    topic = streams.broker.topic()
    streams.broker.produce(topic, [b"1"])
    queries = [
        streams.into_memory(streams.stream(subscribe=topic, startingOffsets="earliest"))
        for _ in range(2)
    ]
    for query in queries:
        assert streams.offsets(query) == [(topic, 0, 0)]
    assert "SPARK_BUFFER_SIZE" in before
    assert variables() == before


def test_the_map_has_all_variables_that_spark_adds() -> None:
    import pyspark

    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-sql_*.jar")
    constants = zipfile.ZipFile(jar).read(RUNNER)
    # A string constant of a class: its kind (1), its length in two bytes, its text.
    found = {
        text.decode()
        for length, text in re.findall(rb"\x01\x00(.)([A-Z]+_[A-Z_]+)", constants, re.DOTALL)
        if length[0] == len(text)
    }
    assert {name for name in found if name.startswith("SPARK_")} == set(SET_BY_EACH_QUERY)


@on_tidemill
def test_many_queries_start_at_the_same_time(streams: Streams) -> None:
    """A map that grows while it is sent is unreadable; then every task fails."""
    topic = streams.broker.topic()
    streams.broker.produce(topic, ["value"])

    def start(number: int) -> StreamingQuery:
        frame = streams.stream(subscribe=topic, startingOffsets="earliest")
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        checkpoint = str(streams.folder / str(number))
        return streams.start(writer.option("checkpointLocation", checkpoint))

    with ThreadPoolExecutor(QUERIES) as threads:
        queries = list(threads.map(start, range(QUERIES)))
    for each in queries:
        each.awaitTermination(120)
    assert [each.exception() for each in queries] == [None] * QUERIES
    read = [sum(p["numInputRows"] for p in each.recentProgress) for each in queries]
    assert read == [1] * QUERIES


def test_a_stream_goes_on_from_its_checkpoint_in_limited_batches(streams: Streams) -> None:
    source, target = streams.broker.topic(2), streams.broker.topic()
    streams.broker.produce(source, [b"%d" % i for i in range(40)])
    streams.broker.produce(source, [b"%d" % i for i in range(40, 60)], partition=1)
    first = streams.copy(source, target, "checkpoint", maxOffsetsPerTrigger="30")
    taken = [progress["numInputRows"] for progress in first.recentProgress]
    assert [rows for rows in taken if rows] == [30, 30]
    end = json.loads(first.recentProgress[-1]["sources"][0]["endOffset"])
    assert end[source] == {"0": 40, "1": 20}

    streams.broker.produce(source, [b"%d" % i for i in range(60, 65)])
    streams.copy(source, target, "checkpoint")
    copied = [int(row.value) for row in streams.batch(subscribe=target).collect()]
    assert sorted(copied) == list(range(65))


@on_tidemill
def test_a_backlog_is_read_in_bounded_batches_unless_one_batch_is_asked_for(
    streams: Streams,
) -> None:
    topic = streams.broker.topic(2)
    queue = {"queue.buffering.max.messages": str(FIRST)}
    for partition in (0, 1):
        streams.broker.produce(
            topic, [b"v"] * (FIRST // 2 + 5), partition=partition, settings=queue
        )

    def sizes(**trigger: Any) -> list[int]:
        frame = streams.stream(subscribe=topic, startingOffsets="earliest")
        writer = frame.writeStream.format("noop").trigger(**trigger)
        checkpoint = str(streams.folder / f"checkpoint-{next(iter(trigger))}")
        query = streams.start(writer.option("checkpointLocation", checkpoint))
        query.awaitTermination()
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    assert sizes(availableNow=True) == [FIRST, 10]
    assert sizes(once=True) == [FIRST + 10]


@on_tidemill
def test_real_time_mode_does_not_take_a_source_in_python(streams: Streams, broker: Broker) -> None:
    """If this fails, a pipeline's trigger may be "realtime" (see ``pipelines.check``)."""
    writer: Any = streams.stream(subscribe=broker.topic()).writeStream.format("console")
    query = writer.outputMode("update").trigger(realTime="5 minutes").start()
    with pytest.raises(Exception, match=r"STREAMING_REAL_TIME_MODE\.\w*NOT_SUPPORTED"):
        query.awaitTermination(60)


@on_tidemill
def test_a_stream_that_starts_at_latest_misses_nothing_from_then_on(streams: Streams) -> None:
    topic = streams.broker.topic()
    streams.broker.produce(topic, [b"before"] * 3)
    query = streams.into_memory(streams.stream(subscribe=topic))
    assert streams.offsets(query) == []
    for expected in ([(topic, 0, 3)], [(topic, 0, 3), (topic, 0, 4)]):
        streams.broker.produce(topic, [b"after"])
        assert streams.offsets(query) == expected


def test_partitions_and_topics_that_appear_are_read_from_their_start(streams: Streams) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}"
    one = streams.broker.topic(name=f"{prefix}.one")
    query = streams.into_memory(streams.stream(subscribePattern=rf"{prefix}\..*"))
    assert streams.offsets(query) == []
    streams.broker.admin.create_partitions([NewPartitions(one, 2)])[one].result(60)
    two = streams.broker.topic(name=f"{prefix}.two")
    streams.broker.produce(one, [b"x"], partition=1)
    streams.broker.produce(two, [b"x"])
    poll_until(lambda: len(streams.offsets(query)) == 2, 30, "both are seen")
    assert streams.offsets(query) == [(one, 1, 0), (two, 0, 0)]


def test_removed_records_fail_a_restarted_query_unless_told_otherwise(streams: Streams) -> None:
    source, target = streams.broker.topic(), streams.broker.topic()
    streams.broker.produce(source, [b"x"] * 5)
    streams.copy(source, target, "checkpoint")
    streams.broker.produce(source, [b"x"] * 5)
    for future in streams.broker.admin.delete_records([TopicPartition(source, 0, 8)]).values():
        future.result(60)
    frame = streams.stream(subscribe=source)
    checkpoint = str(streams.folder / "checkpoint")
    writer = streams.options(frame.select("key", "value").writeStream, topic=target)
    query = streams.start(writer.option("checkpointLocation", checkpoint))
    text = failure(query)
    assert "DataLossError" in text
    assert "starts at offset 8, but the query is at offset 5: 3 offsets were removed" in text
    assert "hint: Set failOnDataLoss to false" in text
    streams.copy(source, target, "checkpoint", failOnDataLoss="false")
    assert streams.batch(subscribe=target).count() == 7


def test_a_topic_made_again_fails_the_query(streams: Streams, broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, [b"old"] * 2)
    streams.copy(topic, broker.topic(), "checkpoint")
    broker.admin.delete_topics([topic])[topic].result(60)
    poll_until(lambda: topic not in broker.admin.list_topics(timeout=60).topics, 20, "it is gone")
    broker.topic(name=topic)
    broker.produce(topic, [b"new"] * 9)
    with pytest.raises(Exception, match="deleted and created again"):
        streams.copy(topic, broker.topic(), "checkpoint")


def test_a_windowed_count_over_a_topic_into_a_topic(streams: Streams, broker: Broker) -> None:
    from pyspark.sql import functions as f

    source, target = broker.topic(2), broker.topic()
    hour = 3_600_000
    for partition in range(2):
        rows = [{"value": b"x", "timestamp": i * hour // 2 + 1} for i in range(10)]
        broker.produce(source, rows, partition=partition)
    counted = (
        streams.stream(subscribe=source, startingOffsets="earliest")
        .withWatermark("timestamp", "1 minute")
        .groupBy(f.window("timestamp", "1 hour"))
        .count()
        .select(
            f.unix_seconds("window.start").cast("string").alias("key"),
            f.col("count").cast("string").alias("value"),
        )
    )
    query = streams.start(
        streams.options(counted.writeStream, topic=target)
        .option("checkpointLocation", str(streams.folder / "windows"))
        .outputMode("append")
        .trigger(availableNow=True)
    )
    query.awaitTermination()
    result = {int(r.key): int(r.value) for r in streams.batch(subscribe=target).collect()}
    assert result == {i * 3600: 4 for i in range(4)}


@on_tidemill
def test_a_batch_may_be_written_and_only_appended(streams: Streams, broker: Broker) -> None:
    topic = broker.topic()
    frame = streams.spark.range(100).selectExpr("cast(id as string) as value")
    streams.options(frame.write, topic=topic).mode("append").save()
    values = streams.batch(subscribe=topic).selectExpr("cast(value as string)").collect()
    assert sorted(int(row.value) for row in values) == list(range(100))
    with pytest.raises(Exception, match="mode overwrite is not supported"):
        streams.options(frame.write, topic=topic).mode("overwrite").save()


@on_tidemill
def test_a_refused_record_fails_the_write(streams: Streams, broker: Broker) -> None:
    topic = broker.topic(max_message_bytes="1000")
    frame = streams.spark.range(1).selectExpr("repeat('x', 5000) as value")
    with pytest.raises(Exception, match=f"not accepted, the first for topic {topic}"):
        streams.options(frame.write, topic=topic).mode("append").save()


@on_tidemill
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t", "startingOffset": "x"}, "Did you mean startingOffsets?"),
        ({"subscribe": "t", "kafka.auto.offset.reset": "earliest"}, "Use startingOffsets"),
        ({}, "no topic is named"),
    ],
)
def test_a_wrong_option_is_refused_when_the_source_is_loaded(
    streams: Streams, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match="OptionError") as refusal:
        streams.stream(**options)
    assert message in str(refusal.value)


@on_tidemill
def test_a_stream_that_can_not_be_fails_before_its_first_batch(streams: Streams) -> None:
    assert "has no end" in failure(
        streams.into_memory(streams.stream(subscribe="t", endingOffsets="latest"))
    )
    text = failure(streams.into_memory(streams.stream(subscribe="no-such-topic")))
    assert "there is no no-such-topic on the cluster" in text
    assert "hint: Create it" in text


@on_tidemill
def test_an_interrupt_ends_the_wait_for_a_query_and_leaves_the_session_whole(
    streams: Streams, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.topic()
    query = streams.into_memory(streams.stream(subscribe=topic, startingOffsets="earliest"))
    # A process that a shell started in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            query.awaitTermination(60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not caplog.records
    broker.produce(topic, ["a"])
    assert streams.offsets(query) == [(topic, 0, 0)]
    assert spark_session("tests") is streams.spark
    streams.copy(topic, broker.topic(), "after the interrupt")


@on_tidemill
def test_columns_can_not_be_chosen(streams: Streams) -> None:
    reader = streams.options(streams.spark.readStream, subscribe="t").schema("value string")
    with pytest.raises(Exception, match="the columns are fixed"):
        streams.into_memory(reader.load()).processAllAvailable()
