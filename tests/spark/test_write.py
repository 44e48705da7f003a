"""Rows as records: what is written as it is, what becomes JSON, and what no record can hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Broker
from tidemill.errors import PipelineError
from tidemill.spark.inputs import Built
from tidemill.spark.pipeline import Pipeline
from tidemill.spark.pipeline_check import PipelineProblemsError
from tidemill.spark.runner import Runner, RunOptions
from tidemill.spark.sinks import ChangelogSink, ParquetSink, Sink, SqliteSink, TopicSink
from tidemill.spark.write import check_sink, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

HEADERS = "array(struct('trace' AS key, CAST('1' AS BINARY) AS value))"


def built(df: DataFrame, sink: Sink) -> Built:
    p = Pipeline("p")
    p.sql("q", "SELECT 1", sink=sink)
    return Built(p.queries[0], df)


def only(df: DataFrame) -> Any:
    [row] = df.collect()
    return row


@pytest.mark.parametrize("name", ["max((delay * 1.5))", "a.b", "with `quotes`", "Ärger"])
def test_a_column_may_have_any_name(spark: SparkSession, name: str) -> None:
    df = spark.createDataFrame([("JFK", 7)], ["airport", name])

    assert json.loads(only(records(df, ())).value) == {"airport": "JFK", name: 7}
    made = only(records(df, (name,), tombstones=True))
    assert (made.key, json.loads(made.value)) == ("7", {"airport": "JFK", name: 7})
    made = only(records(df, (name, "airport"), tombstones=True))
    assert json.loads(made.key) == {name: 7, "airport": "JFK"}


@pytest.mark.parametrize(
    "columns",
    [
        "'text' AS value",
        "CAST('text' AS BINARY) AS value",
        "'k' AS key, 'text' AS value",
        f"'text' AS value, CAST('k' AS BINARY) AS key, {HEADERS} AS headers",
    ],
)
def test_a_ready_made_record_is_taken_as_it_is(spark: SparkSession, columns: str) -> None:
    df = spark.sql(f"SELECT {columns}")

    assert only(records(df, ())) == only(df)


@pytest.mark.parametrize(
    "columns",
    [
        "'text' AS value, TIMESTAMP '2026-03-01 12:00:00' AS timestamp",  # a sink writes no such
        "'text' AS value, 7 AS partition",  # a column of the user's decides about no partition
        "'text' AS value, 'other' AS topic",
        "'text' AS value, 'x' AS note",
        "'text' AS value, 7 AS key",
        "'text' AS value, map('trace', '1') AS headers",
        "7 AS value",
        "'k' AS key",
        "struct('text' AS text) AS value",
    ],
)
def test_no_column_of_any_other_result_is_lost(spark: SparkSession, columns: str) -> None:
    df = spark.sql(f"SELECT {columns}")

    made = records(df, ())

    assert made.columns == ["value"]
    assert set(json.loads(only(made).value)) == set(df.columns)


def test_with_a_key_of_its_own_a_record_is_made(spark: SparkSession) -> None:
    made = only(records(spark.sql("SELECT 'k' AS key, 'text' AS value"), ("key",)))

    assert (made.key, json.loads(made.value)) == ("k", {"key": "k", "value": "text"})


def test_deleted_rows_are_tombstones_in_a_changelog_only(spark: SparkSession) -> None:
    df = spark.sql("SELECT * FROM VALUES ('a', true), ('b', false), ('c', NULL) AS t(id, _Deleted)")

    made = {row.key: row.value for row in records(df, ("id",), tombstones=True).collect()}
    assert made == {"a": None, "b": '{"id":"b"}', "c": '{"id":"c"}'}
    first = records(df, ("id",)).orderBy("key").first()
    assert first is not None
    assert json.loads(first.value) == {"id": "a", "_Deleted": True}


@pytest.mark.parametrize(
    ("key", "row", "missing"),
    [
        (("airport",), "NULL AS airport, 1 AS n", "airport"),
        (("airport", "n"), "'JFK' AS airport, NULL AS n", "n"),
        (("airport", "the day"), "NULL AS airport, 1 AS `the day`", "airport"),
    ],
)
def test_a_row_of_a_changelog_has_a_whole_key(
    spark: SparkSession, key: tuple[str, ...], row: str, missing: str
) -> None:
    df = spark.sql(f"SELECT {row}")

    with pytest.raises(Exception, match=f"a row has no {missing}, which is of the key"):
        records(df, key, tombstones=True).collect()
    assert only(records(df, key)).value  # a record of a topic needs none


@pytest.mark.parametrize(
    ("columns", "sink", "message"),
    [
        ("1 AS id, 2 AS id", TopicSink("t"), "TopicSink can't write the result: .* `id` is ambig"),
        ("1 AS id, 2 AS _deleted", ChangelogSink("t", "id"), "ChangelogSink can't write the resul"),
        ("1 AS id", TopicSink("t", "idd"), "the result has no column idd"),
    ],
)
def test_what_no_record_can_hold_is_told_before_the_start(
    spark: SparkSession, columns: str, sink: Sink, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        check_sink(built(spark.sql(f"SELECT {columns}"), sink), is_fresh=True)


@pytest.mark.parametrize(
    "sink", [TopicSink("t"), ChangelogSink("t", "id"), SqliteSink("t", "id", path="x")]
)
def test_what_can_be_written_is_let_through(spark: SparkSession, sink: Sink) -> None:
    df = spark.sql("SELECT 1 AS id, max(n * 1.5), true AS _deleted FROM VALUES (1) AS t(n)")

    check_sink(built(df, sink), is_fresh=True)


ADDRESSES = pytest.mark.parametrize("address", ["{}", "file:{}", "file://{}"])


@ADDRESSES
def test_a_folder_with_another_checkpoint_s_batches_is_refused(
    spark: SparkSession, tmp_path: Path, address: str
) -> None:
    df, sink = spark.range(1), ParquetSink(address.format(tmp_path / "a %41+b"))
    check_sink(built(df, sink), is_fresh=True)
    ledger = tmp_path / "a %41+b" / "_spark_metadata"
    ledger.mkdir(parents=True)
    check_sink(built(df, sink), is_fresh=True)  # a query was started, and wrote nothing
    (ledger / "9.compact").touch()

    with pytest.raises(PipelineError, match="holds what another checkpoint wrote"):
        check_sink(built(df, sink), is_fresh=True)
    check_sink(built(df, sink), is_fresh=False)


@ADDRESSES
def test_a_folder_that_lacks_the_checkpoint_s_batches_is_refused(
    spark: SparkSession, tmp_path: Path, address: str
) -> None:
    df, sink = spark.range(1), ParquetSink(address.format(tmp_path / "out"))
    (tmp_path / "out").mkdir()

    with pytest.raises(PipelineError, match="out holds none of the batches") as refusal:
        check_sink(built(df, sink), is_fresh=False, reset="reset it")
    assert refusal.value.hint.endswith("or start the query afresh: reset it")


def test_a_folder_with_a_batch_that_the_checkpoint_has_not_planned_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    df, sink = spark.range(1), ParquetSink(str(tmp_path / "out"))
    ledger = tmp_path / "out" / "_spark_metadata"
    ledger.mkdir(parents=True)
    for number in ("9.compact", "10"):
        (ledger / number).touch()
    for planned in (None, 10, 11):
        check_sink(built(df, sink), is_fresh=False, planned=planned)
    with pytest.raises(PipelineError, match=r"holds batch 10, .* none behind 9: .* from a backup"):
        check_sink(built(df, sink), is_fresh=False, planned=9)


def test_a_folder_that_can_t_be_looked_at_is_told(spark: SparkSession) -> None:
    with pytest.raises(
        PipelineError, match=r"folder nowhere://a/out can't be looked at: .*nowhere"
    ):
        check_sink(built(spark.range(1), ParquetSink("nowhere://a/out")), is_fresh=True)


class Place:
    """A broker, a folder for checkpoints, and a topic with two flights."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self._options = RunOptions(broker.bootstrap, folder / "pipelines", until_caught_up=True)
        self.topic = broker.topic()
        broker.produce(self.topic, ['{"id": "1", "airport": "JFK"}', '{"id": "2"}'])
        self.pipeline = Pipeline(self.topic)
        self.pipeline.stream(
            "flights", topic=self.topic, schema="id STRING, airport STRING", dead_letters=None
        )

    def run(self) -> Any:
        [status] = Runner(self.pipeline, self._options).run()
        return status


@pytest.fixture
def place(spark: SparkSession, tidemill_broker: Broker, tmp_path: Path) -> Place:
    return Place(tidemill_broker, tmp_path)


@pytest.mark.slow
def test_a_row_without_its_key_ends_a_query_that_keeps_a_changelog(place: Place) -> None:
    sink = ChangelogSink(f"{place.topic}.now", key="airport")
    place.pipeline.sql("now", "SELECT * FROM flights", sink=sink)

    status = place.run()

    assert (status.state, status.restarts) == ("failed", 0)
    assert status.error.startswith(
        f"a row for topic {place.topic}.now has no airport, which is of the key"
    )
    assert status.error.endswith('Leave such rows out: filter("`airport` IS NOT NULL").')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SELECT * FROM flights", "1 of 2 rows for table t in {} have no airport, which is of the"),
        (
            "SELECT 'JFK' AS airport FROM flights",
            "more than one row of a batch for table t in {} h",
        ),
    ],
)
def test_rows_that_no_table_can_take_end_a_query(
    place: Place, tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "out.db"
    place.pipeline.sql("now", text, sink=SqliteSink("t", "airport", path), mode="update")

    status = place.run()

    assert (status.state, status.restarts) == ("failed", 0)
    assert status.error.startswith(told.format(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sink", [TopicSink("{}.out"), ChangelogSink("{}.out", "id"), SqliteSink("t", "id", path="x")]
)
def test_a_record_that_is_no_row_ends_a_query_that_has_nowhere_to_put_it(
    place: Place, tmp_path: Path, sink: Any
) -> None:
    if isinstance(sink, SqliteSink):
        sink = replace(sink, path=tmp_path / "out.db")
    else:
        sink = replace(sink, topic=sink.topic.format(place.topic))
    place.broker.produce(place.topic, ["nothing"])
    place.pipeline.sql("all", "SELECT * FROM flights", sink=sink)

    status = place.run()

    assert (status.state, status.restarts) == ("failed", 0)
    assert status.error.startswith(
        "stream flights: the record at offset 2 of partition 0 can't be parsed: the value is no "
    )
    assert 'dead_letters="' in status.error


@pytest.mark.slow
def test_a_result_that_no_record_can_hold_starts_nothing(place: Place) -> None:
    text = "SELECT *, airport AS id FROM flights"
    place.pipeline.sql("twice", text, sink=TopicSink(f"{place.topic}.out"))

    with pytest.raises(PipelineProblemsError, match="query twice: TopicSink can't write the resul"):
        place.run()
