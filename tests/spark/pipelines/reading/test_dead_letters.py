"""Parsing records: dead letters are separated, with the reason and their position."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tidemill.spark.letters.records import HEADERS, REASON
from tidemill.spark.pipelines.declared import Pipeline, Stream
from tidemill.spark.pipelines.reading.letters import dead_letters
from tidemill.spark.pipelines.reading.stream_source import parsed_in_workers, row_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "flight STRING, delay INT, at TIMESTAMP, gate STRUCT<name: STRING>, tags ARRAY<STRING>"
SOURCE = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key: string, value: binary>>"
)
AT = "2013-01-01T05:00:00Z"
APPENDED = datetime(2013, 1, 1, 6, 0, 0, 123_000, UTC)

GOOD = [
    f'{{"flight": "AA1", "delay": 5, "at": "{AT}"}}',
    f' \n{{"flight": "AA2", "delay": null, "at": "{AT}", "unknown": [1, 2]}}',
    f'{{"at": "{AT}", "gate": {{"name": "B7"}}, "tags": ["x", null]}}',
]
BAD: list[tuple[bytes | None, str]] = [
    (None, "the value is null"),
    (b"not json", "not a JSON object"),
    (f'{{"flight": "AA1", "delay": "soon", "at": "{AT}"}}'.encode(), "delay is not INT: soon"),
    (f'{{"gate": "B7", "at": "{AT}"}}'.encode(), "gate is not STRUCT"),
    (b'{"flight": "AA1", "at": "yesterday"}', "at is not TIMESTAMP: yesterday"),
    (b'{"flight": "AA1", "at": null}', "the event time at is missing"),
    (b'{"flight": "\xff", "at": "' + AT.encode() + b'"}', "not UTF-8"),
    (f'{{"flight": "AA1", "at": "{AT}"}} trailing'.encode(), "more than its JSON object"),
]
"""A value of each kind of reason; all values that are refused: tests/spark/source/parse."""


def stream(*, dead_letters: str | None = "") -> Stream:
    return Pipeline("night").stream(
        "departures", topic="dep", schema=SCHEMA, event_time="at", dead_letters=dead_letters
    )


def source(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    headers = [("trace", b"1")]
    rows = [
        (b"k%d" % i, value, "dep", 3, 100 + i, APPENDED, 0, headers if i % 2 else None)
        for i, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, SOURCE)


def parse(records: DataFrame, declared: Stream) -> tuple[DataFrame, DataFrame]:
    """Return rows and dead letters."""
    refused = parsed_in_workers(records, row_plan(declared, refused=True))
    rows = parsed_in_workers(records, row_plan(declared))
    return rows.drop("_timestamp"), dead_letters(refused, declared.name, "night")


@pytest.fixture(scope="module")
def parsed(spark: SparkSession) -> tuple[list[Any], list[Any]]:
    """Rows and dead letters of all records, good and bad in turn."""
    values = [value for value, _ in BAD] + [value.encode() for value in GOOD]
    good, bad = parse(source(spark, values), stream())
    return good.collect(), bad.collect()


def test_what_fits_the_schema_is_a_row(parsed: tuple[list[Any], list[Any]]) -> None:
    rows = sorted(parsed[0], key=lambda row: str(row.flight))
    assert [row.flight for row in rows] == ["AA1", "AA2", None]
    assert [row.delay for row in rows] == [5, None, None]
    assert rows[2].gate.name == "B7"
    assert rows[2].tags == ["x", None]
    assert set(rows[0].asDict()) == {"flight", "delay", "at", "gate", "tags"}


def test_each_other_record_is_a_dead_letter_as_it_came(
    parsed: tuple[list[Any], list[Any]],
) -> None:
    letters = {bytes(row.key): row for row in parsed[1]}
    assert len(parsed[1]) == len(letters) == len(BAD)
    for i, (value, _) in enumerate(BAD):
        found = letters[b"k%d" % i].value
        assert (None if found is None else bytes(found)) == value


@pytest.mark.parametrize(("number", "reason"), [(i, why) for i, (_, why) in enumerate(BAD)])
def test_a_dead_letter_says_why_and_where_from(
    parsed: tuple[list[Any], list[Any]], number: int, reason: str
) -> None:
    (letter,) = (row for row in parsed[1] if bytes(row.key) == b"k%d" % number)
    headers = [(header.key, bytes(header.value)) for header in letter.headers]
    if number % 2:  # those that it came with are kept
        assert headers.pop(0) == ("trace", b"1")
    assert tuple(name for name, _ in headers) == HEADERS
    told = {name: value.decode() for name, value in headers}
    assert reason in told[REASON]
    assert told[REASON]
    assert told["source.topic"] == "dep"
    assert (told["source.partition"], told["source.offset"]) == ("3", str(100 + number))
    assert told["source.timestamp"] == str(int(APPENDED.timestamp() * 1000))
    assert (told["pipeline"], told["stream"]) == ("night", "departures")


def test_a_field_that_nobody_asks_for_is_still_checked(spark: SparkSession) -> None:
    values: list[bytes | None] = [
        f'{{"flight": "AA1", "delay": "soon", "at": "{AT}"}}'.encode(),
        GOOD[0].encode(),
    ]
    good, bad = parse(source(spark, values), stream())
    assert good.select("flight").count() == 1
    assert bad.count() == 1


def test_without_a_topic_for_them_the_first_fails_the_query(spark: SparkSession) -> None:
    records = source(spark, [GOOD[0].encode(), b"not json"])
    good, _ = parse(records, stream(dead_letters=None))
    used = good.filter("delay > 0").select("flight")

    for frame in (good, used, good.groupBy().count()):  # although rows are merely counted
        with pytest.raises(
            Exception, match="topic dep: the record at offset 101 of partition 3 can't be parsed"
        ):
            frame.collect()
