"""Upserts into PostgreSQL keep the contract, against a server from its binaries."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.contracts.upsert import ALL_VALUES, FIRST, Database, Row, UpsertContract
from tests.support.postgres import PostgresNotFoundError, postgres
from tidemill.errors import MissingPackageError, SinkError
from tidemill.spark.upsert_postgres import PostgresTable
from tidemill.spark.upsert_rows import Column, Layout
from tidemill.spark.upsert_version import version


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with postgres(tmp_path_factory.mktemp("postgres") / "log") as dsn:
            yield dsn
    except PostgresNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def dsn(server: str) -> Iterator[str]:
    """A database of its own."""
    name = f"d{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield server.replace("dbname=postgres", f"dbname={name}")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


class TestPostgres(UpsertContract):
    @pytest.fixture
    def database(self, dsn: str) -> Iterator[Database]:
        made = []
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")

            def query(statement: str) -> list[Row]:
                cursor = connection.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []

            def make(*args: Any, **kwargs: Any) -> PostgresTable:
                made.append(PostgresTable(dsn, *args, **kwargs))
                return made[-1]

            yield Database(make, query, query)
        for table in made:
            table.close()

    @pytest.fixture
    def stored(self) -> Row:
        return (*ALL_VALUES[:13], {"x": 1, "y": "a"}, ["x", None], {"k": 7})


LAYOUT = Layout((Column("id", "int"), Column("text", "string")), ("id",))


def rows(*texts: str) -> pa.Table:
    count = len(texts)
    ids = pa.array(range(count), pa.int32())
    return pa.table({"id": ids, "text": list(texts), "_deleted": [False] * count})


def test_a_lost_connection_is_replaced_before_the_next_batch(dsn: str) -> None:
    table = PostgresTable(dsn, "t", "id")
    table.apply(rows("a"), LAYOUT, version(FIRST, 0))
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND datname = current_database()"
        )
        table.apply(rows("b"), LAYOUT, version(FIRST, 1))
        assert other.execute("SELECT text FROM t").fetchall() == [("b",)]
    table.close()


def test_a_table_may_be_in_a_schema(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("CREATE SCHEMA flights")
        table = PostgresTable(dsn, "flights.out", "id")
        for batch in range(2):
            table.apply(rows("a"), LAYOUT, version(FIRST, batch))
        assert other.execute("SELECT id FROM flights.out").fetchall() == [(0,)]
    table.close()


def test_texts_with_nul_are_refused_with_what_to_do(dsn: str) -> None:
    table = PostgresTable(dsn, "t", "id")
    with pytest.raises(SinkError, match="NUL") as refusal:
        table.apply(rows("a\0b"), LAYOUT, version(FIRST, 0))
    assert "replace" in refusal.value.hint
    table.close()


def test_a_server_that_is_not_there_is_an_error_of_ours() -> None:
    with pytest.raises(SinkError, match="can't be written") as refusal:
        PostgresTable("host=/nowhere dbname=x", "t", "id").apply(rows("a"), LAYOUT, 1)
    assert "dsn" in refusal.value.hint


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingPackageError, match="psycopg is not installed") as refusal:
        PostgresTable("", "t", "id")
    assert refusal.value.hint == "pip install 'tidemill[postgres]'"
