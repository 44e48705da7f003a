"""Sinks as data: what they write to, by which columns, in which modes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tidemill.errors import MissingPackageError, PipelineError
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
    assert "secret" not in f"{sink} {sink!r} {sink.target} {sink.place}"


FILES = pytest.mark.parametrize("kind", [SqliteSink, DuckDBSink])


@FILES
@pytest.mark.parametrize(
    ("path", "message"),
    [
        (":memory:", "table t would be kept in memory, and gone with each batch"),
        ("./:memory:", "table t would be kept in memory"),  # as Path has it
        (":memory:shared", "table t would be kept in memory"),
        ("no/such/x.db", "there is no folder no/such for table t in no/such/x.db"),
        ("", "table t in . can't be a file: there is a folder"),
        (Path("."), "table t in . can't be a file: there is a folder"),
    ],
)
def test_a_file_that_can_t_be_made_is_told_before_anything_starts(
    kind: type[SqliteSink] | type[DuckDBSink], path: str | Path, message: str
) -> None:
    with pytest.raises(PipelineError) as refusal:
        kind("t", "id", path).check()

    assert str(refusal.value).startswith(message)
    assert refusal.value.hint


@FILES
def test_a_file_may_be_there_or_not(
    kind: type[SqliteSink] | type[DuckDBSink], tmp_path: Path
) -> None:
    sink = kind("t", "id", tmp_path / "x.db")
    sink.check()
    (tmp_path / "x.db").touch()
    sink.check()


def test_without_its_package_a_sink_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)

    with pytest.raises(MissingPackageError, match="duckdb is not installed") as refusal:
        DuckDBSink("t", "id", "x.duckdb").check()
    assert refusal.value.hint == "pip install 'tidemill[duckdb]'"
    SqliteSink("t", "id", "x.db").check()


def first(df: Any, number: int) -> None: ...


def second(df: Any, number: int) -> None: ...


def functions() -> list[ForeachBatchSink]:
    """Two of the same name."""
    return [ForeachBatchSink(lambda df, number: None) for _ in range(2)]


class Writer:
    def write(self, df: Any, number: int) -> None: ...


ONE, ANOTHER = Writer(), Writer()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (TopicSink("t"), ChangelogSink("t", key="id")),
        (SqliteSink("t", "id", "x.db"), SqliteSink("T", "id", "./x.db")),
        (SqliteSink("t", "id", "x.db"), SqliteSink("main.t", "id", Path("y/../x.db").absolute())),
        (DuckDBSink("t", "id", "x.duck"), DuckDBSink("T", "id", Path("x.duck").absolute())),
        (
            PostgresSink("t", "id", "host=a dbname=x user=u"),
            PostgresSink("t", "id", "postgresql://v:secret@a/x"),
        ),
        (ParquetSink("out"), ParquetSink(Path("./out/").absolute())),
        (ParquetSink("out"), ParquetSink(f"file://{Path.cwd()}/out/")),
        (ParquetSink("file:/a/x/../out"), ParquetSink("file:///a/out")),
        (ParquetSink("s3a://a/out"), ParquetSink("s3a://a/out/")),
        (ForeachBatchSink(first), ForeachBatchSink(first)),
        (ForeachBatchSink(ONE.write), ForeachBatchSink(ONE.write)),
        (ForeachBatchSink(first, name="x"), ForeachBatchSink(second, name="x")),
    ],
)
def test_two_queries_that_write_to_the_same_place_are_found_by_it(one: Sink, other: Sink) -> None:
    assert one.place == other.place


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (TopicSink("t"), TopicSink("T")),
        (SqliteSink("a", "id", "x.db"), SqliteSink("b", "id", "x.db")),
        (SqliteSink("a", "id", "x.db"), SqliteSink("a", "id", "y.db")),
        (PostgresSink("t", "id", "host=a dbname=x"), PostgresSink("t", "id", "host=b dbname=x")),
        (PostgresSink("t", "id", "host=a dbname=x"), PostgresSink("t", "id", "host=a dbname=y")),
        (PostgresSink("t", "id", "host=a dbname=x"), PostgresSink("T", "id", "host=a dbname=x")),
        (ParquetSink("s3a://a/out"), ParquetSink("s3a://b/out")),
        (ParquetSink("/a/out"), ParquetSink("s3a://a/out")),
        (ForeachBatchSink(first), ForeachBatchSink(second)),
        (ForeachBatchSink(ONE.write), ForeachBatchSink(ANOTHER.write)),
        (ForeachBatchSink(first, name="x"), ForeachBatchSink(first, name="y")),
        tuple(functions()),
    ],
)
def test_others_are_not_taken_for_the_same_place(one: Sink, other: Sink) -> None:
    assert one.place != other.place
