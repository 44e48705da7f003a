"""Reading the topics of streams: what Spark is asked to do for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tidemill.spark import Pipeline, TopicSink, tumbling
from tidemill.spark.pipelines.fingerprint import fingerprint_of
from tidemill.spark.pipelines.inputs import Builder
from tidemill.spark.pipelines.reading.stream_source import row_plan
from tidemill.spark.pipelines.resolve import all_queries
from tidemill.spark.source.planning.parsing import RowPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id STRING NOT NULL COMMENT 'unique', `the n` INT, at TIMESTAMP"


def pipeline(**stream: Any) -> Pipeline:
    p = Pipeline("p")
    declared = {"schema": SCHEMA, "event_time": "at", "watermark": "1 hour", **stream}
    p.stream("orders", **declared)

    @p.query(sink=TopicSink("hourly"))
    def hourly(orders: Any) -> Any:
        return orders.df.groupBy(tumbling("at", "1 hour"), "id").count()

    return p


def test_the_plan_of_a_stream_has_nullable_columns_and_the_time_of_the_record() -> None:
    stream = pipeline(dead_letters=None, timestamp_format="epoch_ms").streams[0]

    assert row_plan(stream) == RowPlan(
        "`id` STRING, `the n` INT, `at` TIMESTAMP, _timestamp TIMESTAMP",
        event_time="at",
        timestamp_format="epoch_ms",
    )


def test_a_column_of_the_record_is_declared_once() -> None:
    p = Pipeline("p")
    stream = p.stream("a", schema="id STRING, _timestamp TIMESTAMP", event_time="_timestamp")

    assert row_plan(stream).schema == "`id` STRING, `_timestamp` TIMESTAMP"
    assert row_plan(stream).drop_malformed
    assert row_plan(stream, refused=True).refused


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("dead_letters", ["", None])
def test_spark_parses_no_json(spark: SparkSession, dead_letters: str | None) -> None:
    p = pipeline(dead_letters=dead_letters)
    builder = Builder(spark.newSession(), p, {"bootstrap.servers": "localhost:1"})
    queries = all_queries(p)

    assert len(queries) == (1 if dead_letters is None else 2)
    for query in queries:
        df = builder.build(query).df
        # That of earlier releases, so their checkpoints continue, those of dead letters as well.
        assert fingerprint_of(df, "append").sources == ("topic orders",)
        plan = df._jdf.queryExecution().analyzed().toString()
        assert "StreamingRelation" in plan
        assert "from_json" not in plan


@pytest.mark.spark
@pytest.mark.slow
def test_another_format_of_timestamps_is_another_query(spark: SparkSession) -> None:
    """Its state was computed from other times. Earlier releases took numbers for seconds."""

    def fingerprint(**stream: Any) -> Any:
        p = pipeline(**stream)
        builder = Builder(spark.newSession(), p, {"bootstrap.servers": "localhost:1"})
        return fingerprint_of(builder.build(p.queries[0]).df, "append")

    assert fingerprint() == fingerprint(timestamp_format="iso")
    assert fingerprint() == fingerprint(timestamp_format="epoch_s")
    changed = fingerprint(timestamp_format="epoch_ms")
    assert changed.state != fingerprint().state
    assert "topic orders with epoch_ms timestamps" in " ".join(changed.state)
