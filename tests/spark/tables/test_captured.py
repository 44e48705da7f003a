"""Captured topics in pipelines: as tables, as versions, as changes and as streams of events."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.changelogs import Capture, rows
from tidemill.spark import ChangelogTopic, ForeachBatchSink, Pipeline, enrich, enrich_as_of
from tidemill.spark.errors import OptionError, PipelineError
from tidemill.spark.pipelines.check import problems
from tidemill.spark.pipelines.inputs import Builder
from tidemill.spark.tables.captured import CapturedTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Broker

SINK = ForeachBatchSink(lambda df, batch: None)


def envelope(op: str, second: int, before: Any = None, after: Any = None) -> dict[str, Any]:
    source = {"connector": "mysql", "name": "d", "file": "b.000001", "pos": second}
    source["ts_ms"] = second * 1000
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 1}


def test_a_pipeline_declares_captured_tables_and_streams() -> None:
    pipeline = Pipeline("p")
    table = pipeline.table(
        "aircraft", topic="d.public.aircraft", format="debezium", key="id", schema="id INT"
    )
    assert table.source == CapturedTopic("d.public.aircraft")
    assert table.topics == ("d.public.aircraft",)
    pipeline.stream(
        "changes", format="debezium", schema="id INT", event_time="commit_time", watermark="1 hour"
    )
    pipeline.sql("q", "SELECT op, after.id, _version FROM changes", sink=SINK)
    assert list(problems(pipeline)) == []
    pipeline.sql("bad", "SELECT id FROM changes", sink=ForeachBatchSink(print, "other"))
    [problem] = problems(pipeline)
    assert problem.message == "query bad: the SQL names an unknown column id"


def test_formats_that_do_not_exist_are_refused() -> None:
    with pytest.raises(PipelineError, match="table t: invalid format 'avro'"):
        Pipeline("p").table("t", format="avro", key="id", schema="id INT")
    with pytest.raises(OptionError, match="unknown timestamp format 'days'"):
        CapturedTopic("t", "days").check()
    table = Pipeline("p").table("t", timestamp_format="epoch_us", key="id", schema="id INT")
    assert table.source == ChangelogTopic("t", "epoch_us")


@pytest.mark.spark
@pytest.mark.slow
def test_a_stream_is_joined_with_a_captured_table(
    spark: SparkSession, tidemill_broker: Broker
) -> None:
    broker = tidemill_broker
    capture, asks = Capture(broker), broker.topic()
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "1")
    pipeline = Pipeline("p")
    schema = "id INT, seats INT, built DATE, price DECIMAL(9,2)"
    pipeline.table(
        "planes", topic=capture.topic, format="debezium", key="id", schema=schema,
        keep_versions="30 days",
    )  # fmt: skip
    pipeline.stream("asks", topic=asks, schema="plane INT, at TIMESTAMP")
    pipeline.stream("events", topic=capture.topic, format="debezium", schema="id INT, seats INT")

    @pipeline.query(sink=SINK)
    def now(asks: Any, planes: Any) -> Any:
        found = enrich(asks.df, planes, {"plane": "id"})
        return found.selectExpr("plane", "second(at)", "seats", "string(built)", "string(price)")

    @pipeline.query(sink=SINK)
    def then(asks: Any, planes: Any) -> Any:
        found = enrich_as_of(asks.df, planes, {"plane": "id"}, "at")
        return found.selectExpr("plane", "second(at)", "seats")

    @pipeline.query(sink=SINK)
    def changed(planes: Any) -> Any:
        return planes.changes.selectExpr(
            "id", "seats", "_deleted", "_version & 255", "second(_commit_time)"
        )

    @pipeline.query(sink=SINK)
    def happened(events: Any) -> Any:
        return events.df.selectExpr(
            "op", "before.seats", "after.seats", "second(commit_time)", "source LIKE '%mysql%'"
        )

    started = datetime.now(UTC).replace(second=0, microsecond=0)
    base = int(started.timestamp()) - 120

    def send(op: str, second: int, number: int, before: Any, after: Any) -> None:
        made = envelope(op, second, before, after)
        made["source"]["ts_ms"] = (base + second) * 1000
        capture.write(number, made)

    def plane(number: int, seats: int) -> dict[str, Any]:
        return {"id": number, "seats": seats, "built": 15706, "price": "1.50"}

    send("r", 1, 1, None, plane(1, 10))
    send("u", 5, 1, plane(1, 10), plane(1, 20))
    send("c", 6, 2, None, plane(2, 99))
    send("d", 8, 2, plane(2, 99), None)
    capture.write(2, None)
    capture.flush()
    builder = Builder(own, pipeline, broker.kafka)
    running = {}
    try:
        for query in pipeline.queries:
            name = f"m{uuid.uuid4().hex}"
            made = builder.build(query).df.writeStream.format("memory").queryName(name)
            running[query.name] = (made.outputMode("append").start(), name)

        def emitted(query: str) -> list[Any]:
            run, name = running[query]
            run.processAllAvailable()
            return rows(own.table(name))

        def ask(plane: int, second: int) -> None:
            at = datetime.fromtimestamp(base + second, UTC).isoformat()
            broker.produce(asks, [json.dumps({"plane": plane, "at": at}).encode()])

        for number, second in ((1, 0), (1, 3), (1, 5), (2, 7), (2, 8)):
            ask(number, second)
        assert emitted("now") == [
            (1, 0, 20, "2013-01-01", "1.50"),
            (1, 3, 20, "2013-01-01", "1.50"),
            (1, 5, 20, "2013-01-01", "1.50"),
            (2, 7, None, None, None),
            (2, 8, None, None, None),
        ]
        assert emitted("then") == [
            (1, 0, None), (1, 3, 10), (1, 5, 20), (2, 7, 99), (2, 8, None),
        ]  # fmt: skip
        assert emitted("changed") == [
            (1, 10, False, 1, 1), (1, 20, False, 5, 5), (2, 99, False, 6, 6), (2, None, True, 8, 8),
        ]  # fmt: skip
        assert emitted("happened") == [
            ("c", None, 99, 6, True),
            ("d", 99, None, 8, True),
            ("r", None, 10, 1, True),
            ("u", 10, 20, 5, True),
        ]
        # A capture that crashed repeats its last changes.
        send("r", 1, 1, None, plane(1, 10))
        send("c", 6, 2, None, plane(2, 99))
        capture.flush()
        ask(1, 59)
        ask(2, 59)
        assert emitted("now")[3:6] == [(1, 59, 20, "2013-01-01", "1.50"), *emitted("now")[4:6]]
        assert (2, 59, None, None, None) in emitted("now")
    finally:
        for run, _ in running.values():
            run.stop()
