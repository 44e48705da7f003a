"""Upserts into PostgreSQL keep the contract, against a server from its binaries."""

from __future__ import annotations

import sys
import threading
import traceback
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from tests.contracts.upsert import ALL_VALUES, FIRST, Database, Row, UpsertContract
from tests.support.postgres import postgres
from tests.support.processes import poll_until, skip_if_missing
from tidemill.spark import PostgresSink
from tidemill.spark.errors import MissingPackageError, OptionError, SchemaError, SinkError
from tidemill.spark.pipelines.declared import Pipeline
from tidemill.spark.pipelines.inputs import Built
from tidemill.spark.pipelines.start import start
from tidemill.spark.sinks.base import Run
from tidemill.spark.sinks.database import postgres as upsert_postgres
from tidemill.spark.sinks.database import rows as upsert_rows
from tidemill.spark.sinks.database.postgres import PostgresTable
from tidemill.spark.sinks.database.postgres_dsn import TOMBSTONES, check, place_of
from tidemill.spark.sinks.database.rows import Column, Layout
from tidemill.spark.sinks.database.version import version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with skip_if_missing(), postgres(tmp_path_factory.mktemp("postgres") / "log") as dsn:
        yield dsn


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


@pytest.fixture
def table(dsn: str) -> Iterator[PostgresTable]:
    made = PostgresTable(dsn, "t", "id")
    yield made
    made.close()


def found(dsn: str, statement: str = "SELECT text FROM t") -> list[Row]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement.encode()).fetchall()


def rows(*texts: str) -> pa.Table:
    count = len(texts)
    ids = pa.array(range(count), pa.int32())
    return pa.table({"id": ids, "text": list(texts), "_deleted": [False] * count})


def test_a_lost_connection_is_replaced_before_the_next_batch(
    dsn: str, table: PostgresTable
) -> None:
    table.apply(rows("a"), LAYOUT, version(FIRST, 0))
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND datname = current_database()"
        )
    table.apply(rows("b"), LAYOUT, version(FIRST, 1))
    assert found(dsn) == [("b",)]


def test_a_table_may_be_in_a_schema(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("CREATE SCHEMA flights")
        table = PostgresTable(dsn, "flights.out", "id")
        for batch in range(2):
            table.apply(rows("a"), LAYOUT, version(FIRST, batch))
        assert other.execute("SELECT id FROM flights.out").fetchall() == [(0,)]
    table.close()


class Held(PostgresTable):
    """A table that stops in the middle of a batch, after its rows were written."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.has_written, self.may_go_on = threading.Event(), threading.Event()

    def _execute(self, connection: psycopg.Connection[Any], statement: str) -> None:
        super()._execute(connection, statement)
        if statement.startswith("INSERT INTO") and "__deleted" not in statement[:30]:
            self.has_written.set()
            assert self.may_go_on.wait(60)


DELETING = Layout((Column("id", "int"), Column("text", "string")), ("id",), deletes=True)


def one(text: str | None) -> pa.Table:
    """The row 1; deleted if it has no text."""
    ids = pa.array([1], pa.int32())
    return pa.table({"id": ids, "text": pa.array([text], pa.string()), "_deleted": [text is None]})


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("late", ["t", "public.t"])
@pytest.mark.parametrize("is_new", [False, True], ids=["there", "new"])
def test_a_late_batch_does_not_bring_back_what_another_one_deletes_meanwhile(
    dsn: str, threads: ThreadPoolExecutor, isolation: str, late: str, is_new: bool
) -> None:
    named = isolation.replace(" ", "\\\\ ")
    dsn = f"{dsn} options='-c default_transaction_isolation={named}'"
    held, table = Held(dsn, late, "id"), PostgresTable(dsn, "t", "id")
    if not is_new:
        table.apply(rows(), DELETING, 1)
        table.apply(one(None), DELETING, 2)  # opens what a batch keeps open
    with psycopg.connect(dsn, autocommit=True) as other:
        try:
            hung = threads.submit(held.apply, one("late"), DELETING, 5)
            assert held.has_written.wait(60)
            deletion = threads.submit(table.apply, one(None), DELETING, 6)
            waiting = (
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                "AND datname = current_database()"
            )

            def has_come() -> bool:
                return deletion.done() or bool(other.execute(waiting.encode()).fetchall())

            poll_until(has_come, 60, "a wait or an end")
        finally:
            held.may_go_on.set()
        hung.result(60)
        deletion.result(60)
        assert other.execute("SELECT * FROM t").fetchall() == []
        assert other.execute("SELECT * FROM t__deleted").fetchall() == [(1, 6)]
    held.close()
    table.close()


def test_a_batch_that_hangs_is_waited_for_and_then_told_of(
    dsn: str, table: PostgresTable, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upsert_postgres, "BUSY_S", 0.1)
    held = Held(dsn, "t", "id")
    elsewhere = PostgresTable(dsn, "another", "id")
    try:
        hung = threads.submit(held.apply, rows("a"), LAYOUT, 1)
        assert held.has_written.wait(60)
        with pytest.raises(SinkError, match="lock timeout") as refusal:
            table.apply(rows("b"), LAYOUT, 2)
        elsewhere.apply(rows("b"), LAYOUT, 2)
    finally:
        held.may_go_on.set()
    hung.result(60)
    assert "retried" in refusal.value.hint
    table.apply(rows("b"), LAYOUT, 2)
    assert found(dsn) == [("b",)]
    for each in (held, elsewhere):
        each.close()


def test_the_longest_name_of_a_table_and_that_of_its_deletions_differ(dsn: str) -> None:
    """PostgreSQL would cut a name of 63 letters, so both tables would have the same name."""
    longest = "t" * 54
    table = PostgresTable(dsn, longest, "id")
    table.apply(one("a"), DELETING, 1)
    table.apply(one(None), DELETING, 2)
    assert found(dsn, f"SELECT id FROM {longest}__deleted") == [(1,)]
    table.close()


def connections(dsn: str) -> int:
    [(count,)] = found(
        dsn,
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidemill' "
        "AND datname = current_database()",
    )
    return int(count)


def test_closing_waits_for_no_batch_and_closes_after_it(
    dsn: str, threads: ThreadPoolExecutor
) -> None:
    held = Held(dsn, "t", "id")
    try:
        hung = threads.submit(held.apply, rows("a"), LAYOUT, 1)
        assert held.has_written.wait(60)
        held.close()
        assert connections(dsn) == 1
    finally:
        held.may_go_on.set()
    hung.result(60)
    poll_until(lambda: connections(dsn) == 0, 60, "the connection's end")
    held.apply(rows("b"), LAYOUT, 2)
    assert found(dsn) == [("b",)]
    held.close()


@pytest.mark.spark
@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_a_query_that_ends_leaves_no_connection(
    dsn: str, spark: SparkSession, tmp_path: Path, how: str
) -> None:
    poison = "IF(value >= 3, raise_error('not of the database'), value)" if how == "failed" else "0"
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    p = Pipeline("p")
    p.sql("q", "SELECT 1", sink=PostgresSink("t", "id", dsn), mode="update")
    df = rates.selectExpr(f"CAST({poison} AS BIGINT) AS id")
    trigger = {"processingTime": "200 milliseconds"}
    run = Run("p", "q", "update", str(tmp_path / "c"), "id", FIRST, trigger=trigger)
    started = start(Built(p.queries[0], df), run)
    try:
        poll_until(
            lambda: not started.is_active if how == "failed" else connections(dsn) == 1,
            120,
            "the query's batches",
        )
    finally:
        started.stop()
    failure = started.error()
    assert (failure is None) == (how == "stopped")
    assert failure is None or "not of the database" in str(failure)
    assert found(dsn, "SELECT 1 FROM t LIMIT 1") == [(1,)]
    poll_until(lambda: connections(dsn) == 0, 10, "the connection's end")


def test_texts_with_nul_are_refused_with_what_to_do(table: PostgresTable) -> None:
    with pytest.raises(SinkError, match="NUL") as refusal:
        table.apply(rows("a\0b"), LAYOUT, version(FIRST, 0))
    assert "replace" in refusal.value.hint


def test_a_server_that_is_not_there_is_an_error_of_ours() -> None:
    with pytest.raises(SinkError, match="can't write table") as refusal:
        PostgresTable("host=/nowhere dbname=x", "t", "id").apply(rows("a"), LAYOUT, 1)
    assert "dsn" in refusal.value.hint


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingPackageError, match="psycopg is not installed") as refusal:
        PostgresTable("", "t", "id")
    assert refusal.value.hint.startswith("Install it: pip install 'tidemill[postgres]' (")


# --- a dsn is checked before anything connects, and is never shown ---

BROKEN = [
    "postgresql//etl:S3CRET@db/flights",
    "postgresql:etl:S3CRET@db/flights",
    "postgresql://etl:S3CRET /@db/flights",
    "postgresql://etl:S3CRET%@db/flights",
    "postgresql://etl:x/S3CRET@db/flights",
    "postgresql://etl:x@S3CRET@db/flights",
    "postgresql://etl:x@db:S3CRET/flights",
    "host=db password=x S3CRET dbname=flights",
    "host=db password=x S3CRET=7 dbname=flights",
    "host=db password='S3CRET dbname=flights",
    "host=db port=S3CRET",
    "etl:S3CRET@db",
]


@pytest.mark.parametrize("dsn", BROKEN)
def test_a_mistyped_dsn_is_refused_without_its_text(dsn: str) -> None:
    with pytest.raises(OptionError, match="can't parse the dsn for PostgreSQL") as refusal:
        check(dsn, "t")
    assert "postgresql://etl@db/flights" in refusal.value.hint
    assert "S3CRET" not in "".join(traceback.format_exception(refusal.value))
    assert refusal.value.__cause__ is None
    assert refusal.value.__context__ is None


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "host=db dbname=flights user=etl@azure password='S3 CRET'",
        "host=/run/postgresql port=5433",
        "host=a,b port=5432,5433 dbname=flights",
        "service=flights",
        "postgres://etl%40azure:S3%40CRET@db/flights?sslmode=require",
        "postgresql://etl@[::1]:5432/flights",
        "postgresql:///flights?host=/run/postgresql",
    ],
)
def test_others_are_not(dsn: str) -> None:
    check(dsn, "schema.table")


@pytest.mark.parametrize("table", ["t" * 55, f"schema.{'t' * 55}", "ü" * 28, f"{'s' * 64}.t"])
def test_names_that_postgresql_would_cut_are_refused_before_anything_connects(table: str) -> None:
    with pytest.raises(SchemaError, match="is too long for PostgreSQL") as refusal:
        check("", table)
    assert "54 bytes" in refusal.value.hint
    assert upsert_rows.TOMBSTONES == TOMBSTONES


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("host=a dbname=x", "host=b dbname=x", False),
        ("host=a dbname=x", "host=a dbname=y", False),
        ("host=a port=5433 dbname=x", "host=a dbname=x", False),
        ("service=a", "service=b", False),
        ("host=a dbname=x user=u password=p", "postgresql://v:q@A:5432/x?sslmode=require", True),
        ("host=a user=x", "host=a user=y dbname=x", True),
        ("host=a dbname=x", "host=env dbname=x", False),
        ("dbname=x", "host=env dbname=x", True),
        ("broken", "broken", True),
        ("broken", "host=a", False),
    ],
)
def test_two_dsns_are_of_the_same_database(
    monkeypatch: pytest.MonkeyPatch, one: str, other: str, is_same: bool
) -> None:
    monkeypatch.delenv("PGPORT", raising=False)
    monkeypatch.setenv("PGHOST", "env")
    assert (place_of(one) == place_of(other)) == is_same
