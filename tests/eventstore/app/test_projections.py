"""Projections in SQLite, PostgreSQL and DuckDB."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.eventstore.app.projection_contract import ProjectionContract
from tests.support.postgres import postgres
from tests.support.processes import skip_if_missing
from tidemill.eventstore.app.projections.contract import Database
from tidemill.eventstore.app.projections.duckdb import DuckDB
from tidemill.eventstore.app.projections.postgres import PostgreSQL, _psycopg
from tidemill.eventstore.app.projections.sqlite import SQLite


class TestSQLite(ProjectionContract):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Callable[[], Database]:
        return partial(SQLite, tmp_path / "projections.db")


class TestDuckDB(ProjectionContract):
    runners: tuple[int, ...] = (3,)
    """DuckDB refuses the second of two transactions, so only one thread runs the projection."""

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Iterator[Callable[[], Database]]:
        import duckdb

        connection = duckdb.connect(str(tmp_path / "projections.duckdb"))
        yield lambda: DuckDB(connection=connection)
        connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with skip_if_missing(), postgres(tmp_path_factory.mktemp("postgres") / "log") as dsn:
        yield dsn


@pytest.mark.slow
class TestPostgreSQL(ProjectionContract):
    @pytest.fixture
    def connect(self, server: str) -> Callable[[], Database]:
        import psycopg

        schema = f"s{uuid.uuid4().hex[:8]}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}".encode())
        return partial(PostgreSQL, f"{server} options='-c search_path={schema}'")


def test_question_marks_become_placeholders_of_psycopg_outside_of_quotes() -> None:
    sql = """SELECT 'a?', "b?", 'it''s ?%', x % 2 FROM t WHERE a = ? AND b LIKE ?"""
    assert _psycopg(sql) == (
        """SELECT 'a?', "b?", 'it''s ?%%', x %% 2 FROM t WHERE a = %s AND b LIKE %s"""
    )
