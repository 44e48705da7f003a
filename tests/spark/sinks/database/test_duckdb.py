"""Upserts into DuckDB keep the contract."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.contracts.upsert import ALL_VALUES, FIRST, Database, Row, UpsertContract
from tidemill.spark.errors import MissingPackageError, SchemaError, SinkError
from tidemill.spark.sinks.database import duckdb as upsert_duckdb
from tidemill.spark.sinks.database.duckdb import DuckDBTable
from tidemill.spark.sinks.database.rows import Column, Layout
from tidemill.spark.sinks.database.version import version


class TestDuckDB(UpsertContract):
    @pytest.fixture
    def database(self, tmp_path: Path) -> Database:
        path = tmp_path / "out.duckdb"

        def query(statement: str) -> list[Row]:
            with duckdb.connect(str(path)) as connection:
                # As Arrow: to read times with zones row by row, it wants another package.
                found = connection.sql(statement).to_arrow_table()
            columns = [column.to_pylist() for column in found.columns]
            return list(zip(*columns, strict=True))

        def execute(statement: str) -> None:
            with duckdb.connect(str(path)) as connection:
                connection.execute(statement)

        def make(*args: Any, **kwargs: Any) -> DuckDBTable:
            return DuckDBTable(path, *args, **kwargs)

        return Database(make, query, execute)

    @pytest.fixture
    def stored(self) -> Row:
        return (*ALL_VALUES[:13], '{"x":1,"y":"a"}', '["x",null]', '{"k":7}')


LAYOUT = Layout((Column("id", "int"),), ("id",))
ONE = pa.table({"id": pa.array([1], pa.int32()), "_deleted": [False]})


def test_a_file_that_another_process_has_open_is_waited_for_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "busy.duckdb"
    program = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(); sys.stdin.read()"
    monkeypatch.setattr(upsert_duckdb, "BUSY_S", 0.2)
    table = DuckDBTable(path, "t", "id")
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(SinkError, match="lock") as refusal:
            table.apply(ONE, LAYOUT, version(FIRST, 0))
        assert "retried" in refusal.value.hint
        other.communicate(timeout=60)
    table.apply(ONE, LAYOUT, version(FIRST, 0))


DELETES = Layout((Column("id", "int"),), ("id",), deletes=True)
GONE = pa.table({"id": pa.array([1], pa.int32()), "_deleted": [True]})


@pytest.mark.parametrize("name", ["airports", "MAIN.airports", "main.AIRPORTS"])
def test_a_table_is_the_same_in_capitals_and_small_letters(tmp_path: Path, name: str) -> None:
    path = tmp_path / "out.duckdb"
    before = DuckDBTable(path, "Airports", "id")
    before.apply(ONE, DELETES, version(FIRST, 0))
    before.apply(GONE, DELETES, version(FIRST, 1))

    DuckDBTable(path, name, "id").apply(ONE, LAYOUT, version(FIRST, 0))  # late

    with duckdb.connect(str(path)) as connection:
        assert connection.sql("SELECT id FROM Airports").fetchall() == []
    other = Layout((Column("code", "int"),), ("code",))
    rows = ONE.rename_columns(["code", "_deleted"])
    with pytest.raises(SchemaError, match="has no column code"):
        DuckDBTable(path, name, "code").apply(rows, other, version(FIRST, 2))


def test_a_table_is_another_where_duckdb_tells_the_letters_apart(tmp_path: Path) -> None:
    path = tmp_path / "out.duckdb"
    for number, name in enumerate(["Ärger", "ärger"]):
        layout = Layout((Column(f"id{number}", "int"),), (f"id{number}",))
        rows = ONE.rename_columns([f"id{number}", "_deleted"])
        DuckDBTable(path, name, f"id{number}").apply(rows, layout, version(FIRST, 0))

    with duckdb.connect(str(path)) as connection:
        assert len(connection.sql("SHOW TABLES").fetchall()) == 2


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingPackageError, match="duckdb is not installed") as refusal:
        DuckDBTable(tmp_path / "x", "t", "id")
    assert refusal.value.hint.startswith("Install it: pip install 'tidemill[duckdb]' (")
