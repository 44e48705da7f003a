"""The history of a table in DuckDB, against a model of a few lines."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from tests.support import effort
from tidemill.spark import DuckDBHistorySink
from tidemill.spark.errors import RowError, SchemaError
from tidemill.spark.sinks.base import CheckpointState, Run
from tidemill.spark.sinks.database.rows import Column, Layout
from tidemill.spark.sinks.history.duckdb import HistoryTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAYOUT = Layout(
    (Column("id", "int"), Column("text", "string"), Column("valid_from", "timestamp")),
    ("id",),
    deletes=True,
    versioned=True,
)
Change = tuple[int, str | None, int | None, int]
"""Key, text (None: deleted), version, time in minutes."""


def at(minute: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "h.duckdb"


def write(path: Path, *changes: Change, table: str = "t") -> None:
    ids, texts, versions, minutes = zip(*changes, strict=True)
    rows = pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "text": pa.array(texts, pa.string()),
            "valid_from": pa.array([at(m) for m in minutes], pa.timestamp("us", tz="UTC")),
            "_version": pa.array(versions, pa.int64()),
            "_deleted": [text is None for text in texts],
        }
    )
    HistoryTable(path, table, "id").apply(rows, LAYOUT)


def history(path: Path) -> list[tuple[Any, ...]]:
    """Return id, text, the first and last minute, and whether the version is the present one."""
    with duckdb.connect(str(path)) as connection:
        found = connection.execute(
            "SELECT id, text, epoch_us(valid_from), epoch_us(valid_to), is_current FROM t "
            "ORDER BY id, _version"
        ).fetchall()
    start = int(at(0).timestamp()) * 1_000_000

    def minute(us: int | None) -> int | None:
        return None if us is None else (us - start) // 60_000_000

    return [(i, text, minute(a), minute(b), now) for i, text, a, b, now in found]


def test_each_version_has_its_period(path: Path) -> None:
    for _ in range(2):
        write(path, (1, "a", 1, 1), (2, "x", 2, 2), (1, "b", 3, 5))
        write(path, (2, None, 4, 7), (1, "c", 6, 9))
        write(path, (2, "again", 7, 11))
        assert history(path) == [
            (1, "a", 1, 5, False),
            (1, "b", 5, 9, False),
            (1, "c", 9, None, True),
            (2, "x", 2, 7, False),
            (2, "again", 11, None, True),
        ]


def test_a_deletion_without_a_version_ends_the_last_period(path: Path) -> None:
    write(path, (1, "a", 5, 1))
    for minute in (3, 4):
        write(path, (1, None, None, minute), (9, None, None, minute))
    assert history(path) == [(1, "a", 1, 3, False)]
    write(path, (2, "b", 6, 4), (2, None, None, 8))
    assert history(path)[1:] == [(2, "b", 4, 8, False)]
    write(path, (1, "b", 9, 10))
    assert history(path)[:2] == [(1, "a", 1, 3, False), (1, "b", 10, None, True)]


@pytest.mark.slow
def test_the_order_and_repetition_of_batches_do_not_matter(tmp_path: Path) -> None:
    seed = effort.chosen_seed(10)
    dice = random.Random(seed)
    for round_ in range(4):
        path = tmp_path / f"{round_}.duckdb"
        log: list[Change] = [
            (dice.randrange(4), None if dice.random() < 0.3 else str(v), v, v // 2 * 2)
            for v in range(40)
        ]
        expected = []
        for key in range(4):
            mine = [each for each in log if each[0] == key]
            for change, after in zip(mine, [*mine[1:], None], strict=True):
                if change[1] is not None:
                    end = None if after is None else after[3]
                    expected.append((key, change[1], change[3], end, end is None))
        batches = [log[i : i + 5] for i in range(0, 40, 5)]
        order = batches * 2
        dice.shuffle(order)
        for batch in order:
            write(path, *batch)
        assert history(path) == expected, f"seed {seed}"


def test_several_changes_in_one_version_leave_the_last(path: Path) -> None:
    write(path, (1, "a", 5, 1), (1, None, 5, 1), (1, "b", 5, 1))
    assert history(path) == [(1, "b", 1, None, True)]
    write(path, (1, "c", 5, 1))
    assert history(path) == [(1, "c", 1, None, True)]


def test_a_rebuild_is_switched(path: Path) -> None:
    sink = DuckDBHistorySink("t", "id", path)
    write(path, (1, "old", 5, 1), (2, None, 6, 2))
    write(path, (1, "new", 5, 1), table="t__rebuild")
    for _ in range(2):
        sink.switch()
        assert history(path) == [(1, "new", 1, None, True)]


def test_rows_and_results_that_do_not_fit_are_refused(path: Path) -> None:
    for bad in ((None, "a", 1, 1), (1, "a", None, 1), (1, "a", -1, 1), (1, "a", 1 << 61, 1)):
        with pytest.raises(RowError, match="a row for table t in"):
            write(path, bad)  # type: ignore[arg-type]
    write(path, (1, "a", 1, 1))
    other = Layout((Column("id", "int"), Column("valid_from", "timestamp"), Column("x", "int")),
                   ("id",), versioned=True)  # fmt: skip
    rows = pa.table({"id": [1], "valid_from": [at(1)], "x": [1], "_version": [1]})
    with pytest.raises(SchemaError, match="has no column x"):
        HistoryTable(path, "t", "id").apply(rows, other)


@pytest.mark.spark
def test_the_changes_of_a_table_become_its_history(spark: SparkSession, path: Path) -> None:
    sink = DuckDBHistorySink("t", "id", path)
    ddl = "id INT, text STRING, _deleted BOOLEAN, _offset BIGINT, _version BIGINT"
    ddl += ", _commit_time TIMESTAMP"
    rows = [
        (1, "a", False, 0, 1, at(1)),
        (1, "b", None, 1, 2, at(4)),
        (2, "x", False, 2, 3, at(5)),
        (2, None, True, 3, 4, at(6)),
    ]
    frame = spark.createDataFrame(rows, ddl)
    sink.check_result(frame, CheckpointState())
    mistakes = {
        "no column _version": frame.drop("_version"),
        "no column _commit_time or _timestamp": frame.drop("_commit_time"),
        "adds the column valid_to": frame.withColumnRenamed("text", "valid_to"),
    }
    for why, bad in mistakes.items():
        with pytest.raises(SchemaError, match=why):
            sink.check_result(bad, CheckpointState())
    writer = sink.open(Run("p", "q", "append", "nowhere", "id", 1))
    for _ in range(2):
        writer.write(frame, 0)
        assert history(path) == [
            (1, "a", 1, 4, False), (1, "b", 4, None, True), (2, "x", 5, 6, False),
        ]  # fmt: skip
    writer.close()
