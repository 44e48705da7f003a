"""Statements in files: topics give what DuckDB gives over the same rows, in each way to ask."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", minversion="1.5", reason="the extra tidemill[sql] needs it")

import duckdb
import pyarrow as pa

from tests.sql.conftest import EVENTS, ROWS, Topics
from tests.sql.slt import Block, blocks, lines_of, queries
from tidemill import sql
from tidemill.sql.errors import SqlError
from tidemill.sql.views.definition import Definition
from tidemill.sql.views.store import Store

FILES = ("queries", "windows", "kept")


@pytest.fixture
def oracle() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as database:
        database.register("t", pa.Table.from_pylist(ROWS))
        database.register("e", pa.Table.from_pylist(EVENTS))
        yield database


def expected(block: Block, oracle: duckdb.DuckDBPyConnection) -> tuple[str, ...]:
    """Return the rows of a block, which are those of DuckDB."""
    found = oracle.execute(block.oracle.format(t="t", e="e")).fetchall()
    assert lines_of(found) == block.rows
    return block.rows


@pytest.mark.parametrize("block", queries(*FILES), ids=str)
def test_a_statement_on_a_topic_gives_what_duckdb_gives(
    topics: Topics, table: str, events: str, oracle: duckdb.DuckDBPyConnection, block: Block
) -> None:
    statement = block.statement.format(t=table, e=events)
    found = lines_of(sql.connect(topics.servers).execute(statement).fetchall())
    rows = expected(block, oracle)
    if "ORDER BY" in statement:
        assert found == rows
    else:
        assert sorted(found) == sorted(rows)


@pytest.mark.parametrize("block", queries(*FILES, way="follow"), ids=str)
def test_a_statement_that_is_followed_gives_what_duckdb_gives(
    topics: Topics, ended: str, oracle: duckdb.DuckDBPyConnection, block: Block
) -> None:
    connection = sql.connect(topics.servers)
    statement = block.statement.format(e=ended)
    with connection.follow(
        statement, start="beginning", watermark="2 minutes", until_end=True
    ) as follower:
        assert sorted(lines_of(list(follower))) == sorted(expected(block, oracle))


@pytest.mark.parametrize("block", queries(*FILES, way="view"), ids=str)
def test_a_view_has_what_duckdb_gives(
    topics: Topics,
    events: str,
    oracle: duckdb.DuckDBPyConnection,
    tmp_path: Path,
    block: Block,
) -> None:
    definition = Definition(name="v", query=block.statement.format(e=events))
    with Store(tmp_path, definition, topics.kafka, threading.Event()) as store:
        while store.advance():
            pass
        assert sorted(lines_of(store.rows())) == sorted(expected(block, oracle))


def test_statements_that_write_leave_what_duckdb_has(
    topics: Topics, table: str, oracle: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    ours: dict[str, Any] = {"t": table, "folder": here}
    theirs: dict[str, Any] = {"t": "t", "folder": there}
    connection = sql.connect(topics.servers, files=here)
    for block in blocks("writing"):
        if block.kind == "table":
            name, columns = block.given.split(" ", 1)
            ours[name], theirs[name] = topics.fill([]), name
            oracle.execute(f"CREATE TABLE {name} ({columns})")
            continue
        statement = block.statement.format(**ours)
        if block.kind == "error":
            with pytest.raises(SqlError, match=block.given):
                connection.execute(statement)
            continue
        cursor = connection.execute(statement)
        text = block.oracle.format(**theirs).replace("TO '", f"TO '{there}/")
        if "INSERT INTO" in text:
            text = text.replace("SELECT", "BY NAME SELECT", 1)
        found = oracle.execute(text).fetchall()
        if block.kind == "write":
            assert found == [(int(block.given),)], statement
            assert cursor.rowcount == int(block.given), statement
        else:
            assert lines_of(cursor.fetchall()) == lines_of(found) == block.rows, statement
