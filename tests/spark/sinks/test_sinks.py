"""Sinks as they are declared: targets, key columns, modes, mistakes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tidemill.spark import (
    ChangelogSink,
    DuckDBSink,
    ForeachBatchSink,
    ParquetSink,
    PostgresSink,
    SqliteSink,
    TopicSink,
)
from tidemill.spark.errors import PipelineError
from tidemill.spark.sinks.base import CheckpointState, QueryContext, Sink

ALL = ("append", "update", "complete")
CONTEXT = QueryContext("p", "q", "append")


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
        (":memory:", "table t can't be in memory: the database is opened for each batch"),
        ("./:memory:", "table t can't be in memory"),  # as Path has it
        (":memory:shared", "table t can't be in memory"),
        ("no/such/x.db", "folder no/such for table t in no/such/x.db does not exist"),
        ("", "table t needs a file, but . is a folder"),
        (Path("."), "table t needs a file, but . is a folder"),
    ],
)
def test_a_file_that_can_t_be_made_is_told_before_anything_starts(
    kind: type[SqliteSink] | type[DuckDBSink], path: str | Path, message: str
) -> None:
    [mistake] = kind("t", "id", path).check(CONTEXT)

    assert mistake.message.startswith(message)
    assert mistake.hint


@FILES
def test_a_file_may_be_there_or_not(
    kind: type[SqliteSink] | type[DuckDBSink], tmp_path: Path
) -> None:
    sink = kind("t", "id", tmp_path / "x.db")
    assert list(sink.check(CONTEXT)) == []
    (tmp_path / "x.db").touch()
    assert list(sink.check(CONTEXT)) == []


def test_without_its_package_a_sink_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)

    [mistake] = DuckDBSink("t", "id", "x.duckdb").check(CONTEXT)
    assert mistake.message == "the package duckdb is not installed"
    assert mistake.hint.startswith("Install it: pip install 'tidemill[duckdb]' (")
    assert list(SqliteSink("t", "id", "x.db").check(CONTEXT)) == []


def first(df: Any, number: int) -> None: ...


def second(df: Any, number: int) -> None: ...


def functions() -> list[ForeachBatchSink]:
    """Two functions with the same name."""
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


@dataclass(frozen=True)
class Result:
    """A result as the checks see it."""

    schema: StructType

    @property
    def columns(self) -> list[str]:
        return self.schema.names


RESULT = Result(StructType([StructField("id", StringType()), StructField("n", LongType())]))


@FILES
def test_a_checkpoint_that_has_written_batches_needs_the_file_with_them(
    kind: type[SqliteSink] | type[DuckDBSink],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same command in another folder would continue in an empty table."""
    monkeypatch.chdir(tmp_path)
    sink = kind("t", "id", "out.db")
    for state in (CheckpointState(), CheckpointState(is_fresh=False, last_batch=0)):
        sink.check_result(RESULT, state)  # batch 0 makes the file
    used = CheckpointState(is_fresh=False, last_batch=1, reset="reset it")
    with pytest.raises(PipelineError, match=r"out\.db does not exist, but the check") as refusal:
        sink.check_result(RESULT, used)
    assert str(tmp_path / "out.db") in str(refusal.value)
    assert refusal.value.hint.endswith("start again with a new checkpoint: reset it")
    (tmp_path / "out.db").touch()
    sink.check_result(RESULT, used)
