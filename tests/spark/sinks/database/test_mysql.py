"""Upserts into MariaDB keep the contract, against a server from its binaries."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from tests.contracts.upsert import ALL_VALUES, FIRST, Database, Row, UpsertContract
from tests.support.mariadb import PASSWORD, USER, MariaDb, mariadb
from tests.support.processes import skip_if_missing
from tidemill.spark import MySqlSink, Pipeline
from tidemill.spark.errors import OptionError, SinkError
from tidemill.spark.pipelines.check import problems
from tidemill.spark.sinks.database.mysql import MySqlTable
from tidemill.spark.sinks.database.rows import Column, Layout
from tidemill.spark.sinks.database.version import version


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    with skip_if_missing(), mariadb(tmp_path_factory.mktemp("mariadb") / "log") as found:
        yield found


@pytest.fixture
def url(server: MariaDb, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database of its own. The password is in the environment."""
    name = f"d{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("MYSQL_PWD", PASSWORD)
    with server.connect() as connection, connection.cursor() as cursor:
        # The sink must not depend on the database's collation, which ignores case here.
        cursor.execute(f"CREATE DATABASE {name} COLLATE utf8mb4_general_ci")
        yield f"mysql://{USER}@localhost/{name}?unix_socket={quote(server.socket, safe='')}"
        cursor.execute(f"DROP DATABASE {name}")


class TestMariaDb(UpsertContract):
    @pytest.fixture
    def database(self, server: MariaDb, url: str) -> Iterator[Database]:
        made = []
        options = {"sql_mode": "ANSI_QUOTES", "autocommit": True}
        name = url.rpartition("/")[2].partition("?")[0]
        with server.connect(database=name, **options) as connection:

            def query(statement: str) -> list[Row]:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
                    return list(cursor.fetchall())

            def make(*args: Any, **kwargs: Any) -> MySqlTable:
                made.append(MySqlTable(url, *args, **kwargs))
                return made[-1]

            yield Database(make, query, query)
        for table in made:
            table.close()

    @pytest.fixture
    def stored(self) -> Row:
        at = datetime(2013, 3, 10, 7, 0, 0, 1)
        values = (*ALL_VALUES[:11], at, *ALL_VALUES[12:13])
        return (*values, '{"x":1,"y":"a"}', '["x",null]', '{"k":7}')


LAYOUT = Layout((Column("id", "string"), Column("text", "string")), ("id",))


@pytest.fixture
def table(url: str) -> Iterator[MySqlTable]:
    made = MySqlTable(url, "t", "id")
    yield made
    made.close()


def rows(*ids: str, text: str = "a") -> pa.Table:
    count = len(ids)
    return pa.table({"id": list(ids), "text": [text] * count, "_deleted": [False] * count})


def test_keys_differ_by_case_accents_and_trailing_space(
    table: MySqlTable, url: str, server: MariaDb
) -> None:
    keys = ["a", "A", "á", "a ", "", " ", "ß", "ss", "𝄞"]
    for batch in range(2):
        table.apply(rows(*keys), LAYOUT, version(FIRST, batch))
    name = url.rpartition("/")[2].partition("?")[0]
    with server.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM t")
        assert sorted(each for (each,) in cursor.fetchall()) == sorted(keys)


def test_a_lost_connection_is_replaced_before_the_next_batch(
    table: MySqlTable, server: MariaDb
) -> None:
    table.apply(rows("a"), LAYOUT, version(FIRST, 0))
    with server.connect() as other, other.cursor() as cursor:
        cursor.execute(f"KILL {table._connection.thread_id()}")
    table.apply(rows("b"), LAYOUT, version(FIRST, 1))


def test_a_key_that_is_too_long_and_a_server_that_is_away_are_typed_errors(
    url: str, table: MySqlTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SinkError, match="can't write table t in MySQL") as error:
        table.apply(rows("x" * 256), LAYOUT, version(FIRST, 0))
    assert "255" in error.value.hint
    away = f"mysql://me:hidden-word@localhost/d?unix_socket={quote(str(tmp_path / 'no'), safe='')}"
    with pytest.raises(SinkError, match="can't write table t in MySQL") as error:
        MySqlTable(away, "t", "id").apply(rows("x"), LAYOUT, version(FIRST, 0))
    assert "server runs" in error.value.hint
    assert "hidden-word" not in f"{error.value} {error.value.hint}"
    monkeypatch.setenv("MYSQL_PWD", "wrong")
    with pytest.raises(SinkError, match="Access denied") as error:
        MySqlTable(url, "t", "id").apply(rows("x"), LAYOUT, version(FIRST, 0))
    assert "grant" in error.value.hint


@pytest.mark.parametrize(
    "bad",
    ["", "mysql://host", "postgres://secret-word@h/d", "mysql://u:secret-word@h:port/d",
     "mysql://u:secret-word@h/d?other=1", "mysql://u:secret-word@h/a/b"],
)  # fmt: skip
def test_a_url_is_checked_before_anything_starts_and_never_shown(bad: str) -> None:
    with pytest.raises(OptionError) as error:
        MySqlTable(bad, "t", "id")
    assert "secret-word" not in f"{error.value} {error.value.hint}"
    pipeline = Pipeline("p")
    pipeline.stream("s", schema="id INT")
    sink = MySqlSink("t", "id", bad)
    pipeline.sql("q", "SELECT * FROM s", sink=sink)
    assert len(list(problems(pipeline))) == 1
    assert "secret-word" not in f"{sink} {list(problems(pipeline))}"
