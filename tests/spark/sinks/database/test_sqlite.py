"""Upserts into SQLite keep the contract."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.contracts.upsert import ALL_VALUES, FIRST, Database, Row, UpsertContract
from tidemill.spark.errors import SinkError
from tidemill.spark.sinks.database import sqlite as upsert_sqlite
from tidemill.spark.sinks.database.rows import Column, Layout
from tidemill.spark.sinks.database.sqlite import SqliteTable
from tidemill.spark.sinks.database.version import version


class TestSqlite(UpsertContract):
    @pytest.fixture
    def database(self, tmp_path: Path) -> Database:
        path = tmp_path / "out.db"

        def query(statement: str) -> list[Row]:
            with closing(sqlite3.connect(path)) as connection:
                found = connection.execute(statement).fetchall()
                connection.commit()
                return found

        def make(*args: Any, **kwargs: Any) -> SqliteTable:
            return SqliteTable(path, *args, **kwargs)

        return Database(make, query, query)

    @pytest.fixture
    def stored(self) -> Row:
        return (
            *ALL_VALUES[:6],
            *("-1234567890.10", 1, "zwölf 'quoted'", b"\x00\xff"),
            *("1969-12-31", "2013-03-10 07:00:00.000001Z", "2013-03-10 02:30:00.000000"),
            *('{"x":1,"y":"a"}', '["x",null]', '{"k":7}'),
        )


LAYOUT = Layout((Column("id", "int"), Column("at", "timestamp")), ("id",))


def rows(*times_us: int) -> pa.Table:
    count = len(times_us)
    return pa.table(
        {
            "id": pa.array(range(count), pa.int32()),
            "at": pa.array(times_us, pa.timestamp("us", tz="UTC")),
            "_deleted": [False] * count,
        }
    )


def test_times_sort_as_texts_and_sqlites_own_functions_read_them(tmp_path: Path) -> None:
    SqliteTable(tmp_path / "x", "t", "id").apply(rows(-1_000_000, 0, 1), LAYOUT, version(FIRST, 0))
    with closing(sqlite3.connect(tmp_path / "x")) as connection:
        found = connection.execute(
            "SELECT at, strftime('%s', at), at > lag(at) OVER (ORDER BY id) FROM t ORDER BY id"
        ).fetchall()
    assert [row[0] for row in found][1] == "1970-01-01 00:00:00.000000Z"
    assert [int(row[1]) for row in found] == [-1, 0, 0]
    assert [row[2] for row in found] == [None, 1, 1]


def test_a_file_that_another_process_writes_is_waited_for_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "busy.db"
    table = SqliteTable(path, "t", "id")
    table.apply(rows(0), LAYOUT, version(FIRST, 0))
    monkeypatch.setattr(upsert_sqlite, "BUSY_S", 0.1)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkError, match="database is locked") as refusal:
            table.apply(rows(1), LAYOUT, version(FIRST, 1))
    assert "retried" in refusal.value.hint
    table.apply(rows(1), LAYOUT, version(FIRST, 1))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such.db"
    with pytest.raises(SinkError, match=r"can't write .*no/such\.db") as refusal:
        SqliteTable(path, "t", "id").apply(rows(0), LAYOUT, version(FIRST, 0))
    assert "folder" in refusal.value.hint


def stored_decimals(path: Path, numbers: pa.Array, order: str) -> list[str | None]:
    """Store decimals, and return them as SQLite has them."""
    count = len(numbers)
    ids = pa.array(range(count), pa.int32())
    given = pa.table({"id": ids, "at": numbers, "_deleted": [False] * count})
    kind = Column("at", "decimal", numbers.type.precision, numbers.type.scale)
    layout = Layout((Column("id", "int"), kind), ("id",))
    SqliteTable(path, "t", "id").apply(given, layout, version(FIRST, 0))
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute(f"SELECT at FROM t ORDER BY {order}")]


def test_decimals_are_texts_without_an_exponent(tmp_path: Path) -> None:
    numbers = pa.array([Decimal(10**27), Decimal("-0.0000000001"), None], pa.decimal128(38, 10))
    found = stored_decimals(tmp_path / "x", numbers, "id")
    assert found == ["1" + "0" * 27 + "." + "0" * 10, "-0.0000000001", None]


def test_decimals_sort_as_numbers_where_they_are_cast(tmp_path: Path) -> None:
    numbers = pa.array([Decimal("9.5"), Decimal("10.5"), Decimal("-3")], pa.decimal128(10, 2))
    found = stored_decimals(tmp_path / "x", numbers, "CAST(at AS REAL)")
    assert found == ["-3.00", "9.50", "10.50"]
