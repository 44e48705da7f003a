"""Sinks as data: what they write to, by which columns, in which modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.spark.sinks import (
    ChangelogSink,
    DuckDBSink,
    ForeachBatchSink,
    ParquetSink,
    PostgresSink,
    Sink,
    SqliteSink,
    TopicSink,
)

ALL = ("append", "update", "complete")


@pytest.mark.parametrize(
    ("sink", "target", "key", "modes"),
    [
        (TopicSink("t"), "topic t", (), ALL),
        (TopicSink("t", key="id"), "topic t", ("id",), ALL),
        (ChangelogSink("t", key=["a", "b"]), "topic t", ("a", "b"), ALL),
        (SqliteSink("delays", "id", "x.db"), "table delays in x.db", ("id",), ALL),
        (DuckDBSink("delays", ("a", "b"), "x.duck"), "table delays in x.duck", ("a", "b"), ALL),
        (ParquetSink("out"), "folder out", (), ("append",)),
        (ParquetSink(Path("out"), partition_by="day"), "folder out", ("day",), ("append",)),
        (ForeachBatchSink(print), "function print", (), ALL),
    ],
)
def test_a_sink_says_what_it_is(
    sink: Sink, target: str, key: tuple[str, ...], modes: tuple[str, ...]
) -> None:
    assert sink.target == target
    assert sink.key_columns == key
    assert sink.modes == modes


def test_a_password_is_not_shown() -> None:
    sink = PostgresSink("delays", "id", "postgresql://etl:secret@db/flights")

    assert sink.target == "table delays in PostgreSQL"
    assert "secret" not in sink.target


def test_two_queries_that_write_to_the_same_place_are_found_by_it() -> None:
    assert TopicSink("t").target == ChangelogSink("t", key="id").target
    assert SqliteSink("a", "id", "x.db").target != SqliteSink("b", "id", "x.db").target
