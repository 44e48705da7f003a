"""Rows as records: what is written unchanged, what becomes JSON, what is rejected."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tidemill.spark import ChangelogSink, ParquetSink, SqliteSink, TopicSink
from tidemill.spark.errors import PipelineError
from tidemill.spark.sinks.base import CheckpointState, Sink
from tidemill.spark.sinks.topic.records import missing_key_column, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

HEADERS = "array(struct('trace' AS key, CAST('1' AS BINARY) AS value))"
FRESH = CheckpointState()


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

    with pytest.raises(Exception, match=f"a row has no {missing}, which is part of") as error:
        records(df, key, tombstones=True).collect()
    assert missing_key_column(str(error.value)) == missing
    assert only(records(df, key)).value  # a record of a topic needs none


@pytest.mark.parametrize(
    ("columns", "sink", "message"),
    [
        ("1 AS id, 2 AS id", TopicSink("t"), "the result has columns with the same name: id, id"),
        (
            "1 AS a, 2 AS b, 3 AS A",
            TopicSink("t"),
            "the result has columns with the same name: a, ",
        ),
        (
            "1 AS a, array(map(1, named_struct('x', 1, 'X', 2))) AS b",
            TopicSink("t"),
            "column b of the result has fields with the same name: x, X",
        ),
        ("1 AS a, 3 AS A", ParquetSink("x"), "the result has columns with the same name: a, A"),
        ("1 AS id, 2 AS _deleted", ChangelogSink("t", "id"), "ChangelogSink can't write the resul"),
        ("1 AS id", TopicSink("t", "idd"), "the result has no column idd"),
    ],
)
def test_what_no_record_can_hold_is_told_before_the_start(
    spark: SparkSession, columns: str, sink: Sink, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        sink.check_result(spark.sql(f"SELECT {columns}"), FRESH)


@pytest.mark.parametrize(
    "sink", [TopicSink("t"), ChangelogSink("t", "id"), SqliteSink("t", "id", path="x")]
)
def test_what_can_be_written_is_let_through(spark: SparkSession, sink: Sink) -> None:
    df = spark.sql(
        "SELECT 1 AS id, max(n * 1.5), true AS _deleted, named_struct('id', 1, 'x', 2) AS other "
        "FROM VALUES (1) AS t(n)"
    )

    sink.check_result(df, FRESH)
