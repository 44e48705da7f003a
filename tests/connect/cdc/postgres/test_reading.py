"""Rows that are read beside the stream: chunks, consistent reads, and the trap of visibility."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

from tests.connect.cdc.postgres.reading import Reading
from tests.support.processes import poll_until
from tidemill.connect.cdc.contract import Row, Table
from tidemill.connect.cdc.errors import SetupError, SourceUnavailableError
from tidemill.connect.cdc.postgres.lsn import end_of_records
from tidemill.connect.cdc.postgres.reading import visibility

Sql = psycopg.Connection[Any]
Make = Callable[..., Reading]


def all_rows(read: Reading, table: Table, limit: int) -> list[Row]:
    rows: list[Row] = []
    after = None
    while True:
        chunk = read.source.read_chunk(table, after, limit)
        rows += chunk.rows
        assert len(chunk.rows) <= limit
        after = chunk.last_key
        if after is None:
            return rows


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("int", "SELECT i, i FROM generate_series(-5, 5) i"),
        ("text COLLATE \"C\"", "SELECT chr(i), i FROM generate_series(32, 60) i"),
        ("text", "VALUES ('a', 1), ('B', 2), ('b', 3), ('''', 4), ('\\', 5), ('', 6), ('ü', 7)"),
        ("bytea", "VALUES ('\\x00'::bytea, 1), ('\\x', 2), ('\\xff00', 3)"),
        ("timestamptz", "VALUES ('infinity'::timestamptz, 1), ('-infinity', 2), ('2026-01-01', 3)"),
        ("float8", "VALUES ('NaN'::float8, 1), ('Infinity', 2), ('-Infinity', 3), (0.1, 4)"),
        ("numeric", "VALUES (1e30, 1), ('NaN', 2), (0.10, 3)"),
        ("boolean", "VALUES (true, 1), (false, 2)"),
        ("uuid", "SELECT md5(i::text)::uuid, i FROM generate_series(1, 9) i"),
        ("interval", "VALUES ('1 day'::interval, 1), ('-1 mon', 2), ('25:00', 3)"),
        ("char(3)", "VALUES ('a', 1), ('ab', 2), ('abc', 3)"),
    ],
)  # fmt: skip
def test_chunks_have_each_row_once_in_the_order_of_the_key(
    sql: Sql, started: Make, key: str, values: str
) -> None:
    sql.execute(f"CREATE TABLE t (k {key} PRIMARY KEY, v int)".encode())
    sql.execute(f"INSERT INTO t {values}".encode())
    read = started()
    (table,) = read.source.tables()
    expected = [row[0] for row in sql.execute("SELECT v FROM t ORDER BY k").fetchall()]
    for limit in (1, 2, 1000):
        assert [row["v"] for row in all_rows(read, table, limit)] == expected


def test_a_key_of_several_columns_is_compared_as_a_whole(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (a int, b text, v int, PRIMARY KEY (b, a))")
    sql.execute("INSERT INTO t SELECT i % 3, (i % 5)::text, i FROM generate_series(0, 14) i")
    read = started()
    (table,) = read.source.tables()
    expected = [row[0] for row in sql.execute("SELECT v FROM t ORDER BY b, a").fetchall()]
    assert [row["v"] for row in all_rows(read, table, 2)] == expected
    assert read.source.estimate(table) > 0


def test_the_stream_reaches_the_place_of_a_chunk(sql: Sql, dsn: str, started: Make) -> None:
    """Also while a long transaction has written log that is not flushed."""
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    read = started()
    (table,) = read.source.tables()
    with psycopg.connect(dsn) as other:
        other.execute("INSERT INTO t VALUES (1)")
        chunk = read.source.read_chunk(table, None, 10)
        assert chunk.rows == []

        def reached() -> bool:
            batch = read.source.poll(0.05)
            if batch is not None:
                read.take(batch)
            return read.source.reached(read.position, chunk.high)

        poll_until(reached, 20, "the place of the chunk")
    (change,) = read.changes(1)
    assert change.source["commit_lsn"] > chunk.source["commit_lsn"]


def test_a_chunk_waits_until_delivered_transactions_are_visible(
    sql: Sql, dsn: str, started: Make
) -> None:
    """A commit that waits for a synchronous standby is in the stream, but in no snapshot."""
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    read = started()
    (table,) = read.source.tables()
    sql.execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
    sql.execute("SELECT pg_reload_conf()")
    writer = psycopg.connect(dsn, autocommit=True)
    with closing(writer):
        poll_until(
            lambda: writer.execute("SHOW synchronous_standby_names").fetchone() == ("missing",),
            20,
            "the setting",
        )
        thread = threading.Thread(target=writer.execute, args=("INSERT INTO t VALUES (1)",))
        thread.start()
        try:
            assert [each.after for each in read.changes(1)] == [{"id": 1}]
            assert sql.execute("SELECT * FROM t").fetchall() == []
            timer = threading.Timer(0.3, release, args=(dsn,))
            timer.start()
            assert read.source.read_chunk(table, None, 10).rows == [{"id": 1}]
            timer.join()
        finally:
            release(dsn)
            thread.join(60)


def release(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
        connection.execute("SELECT pg_reload_conf()")


def test_a_snapshot_names_the_delivered_transactions_that_it_lacks() -> None:
    found = visibility.not_visible("100:110:103,105", {99, 101, 103, 109, 110, 150})
    assert found == {103, 110, 150}
    wrapped = visibility.not_visible(f"{2**32 - 5}:{2**32 + 3}:{2**32 + 1}", {2**32 - 6, 1, 2, 3})
    assert wrapped == {1, 3}


def test_a_transaction_that_stays_hidden_is_an_error(
    sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visibility, "_PATIENCE_S", 0.05)
    hidden = {(sql.execute("SELECT txid_current()").fetchall()[0][0] + 1000) & 0xFFFFFFFF}
    with (
        pytest.raises(SourceUnavailableError, match="not visible"),
        visibility.open_snapshot(sql, hidden),
    ):
        pass
    assert not sql.info.transaction_status


@pytest.mark.parametrize(
    ("insert", "records"), [(8192 + 24, 8192), (40, 0), (8192, 8192), (8192 + 48, 8192 + 48)]
)
def test_the_header_of_a_page_is_not_waited_for(insert: int, records: int) -> None:
    assert end_of_records(insert) == records


def test_tables_without_a_key_are_read_as_of_the_start_of_the_stream(
    sql: Sql, started: Make
) -> None:
    sql.execute("CREATE TABLE t (a int, b text)")
    sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    sql.execute("INSERT INTO t VALUES (1, 'a'), (1, 'a')")
    read = started(keyless="all-columns")
    sql.execute("INSERT INTO t VALUES (2, 'b')")
    sql.execute("DELETE FROM t WHERE a = 1")
    with read.source.read_consistent(read.source.tables()) as consistent:
        rows = [row for _, part in consistent.rows for row in part]
        assert consistent.position == read.position
    assert rows == [{"a": 1, "b": "a"}] * 2
    found = read.changes(3)
    assert [each.op for each in found] == ["c", "d", "d"]
    assert found[1].before == {"a": 1, "b": "a"}
    with (
        pytest.raises(SourceUnavailableError, match="snapshot of the slot is gone"),
        read.source.read_consistent([]),
    ):
        pass


def test_tables_without_a_key_are_refused_or_skipped(sql: Sql, reading: Make) -> None:
    sql.execute("CREATE TABLE t (a int); CREATE TABLE k (id int PRIMARY KEY)")
    with pytest.raises(SetupError, match=r"public\.t has no primary key"):
        reading().start()
    read = reading(keyless="skip")
    read.start()
    assert [each.id for each in read.source.tables()] == ["public.k"]
    sql.execute("INSERT INTO t VALUES (1)")
    sql.execute("UPDATE t SET a = 2")  # it is not published, so this is allowed
    read.nothing()


def test_a_table_that_a_users_publication_lacks_is_not_refused(sql: Sql, reading: Make) -> None:
    sql.execute("CREATE TABLE t (a int); CREATE TABLE k (id int PRIMARY KEY)")
    sql.execute("CREATE PUBLICATION mine FOR TABLE k")
    read = reading(publication="mine")
    assert [each for each in read.source.check() if each.severity == "error"] == []
    read.start()
    assert [each.id for each in read.source.tables()] == ["public.k"]


def test_chunks_continue_behind_a_key_that_is_not_utf8(logical_server: str) -> None:
    """In a database with the encoding SQL_ASCII. An escaped text has another place in the order."""
    name = f"ascii{uuid.uuid4().hex[:8]}"
    with psycopg.connect(logical_server, autocommit=True) as admin:
        options = "ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        admin.execute(f"CREATE DATABASE {name} {options}".encode())
        try:
            dsn = logical_server.replace("dbname=postgres", f"dbname={name}")
            with psycopg.connect(dsn, autocommit=True) as sql:
                sql.execute("CREATE TABLE t (k text PRIMARY KEY, v int)")
                sql.execute(
                    "INSERT INTO t SELECT convert_from(decode(h, 'hex'), 'SQL_ASCII'), n FROM"
                    " (VALUES ('61ff', 1), ('61ff5c27', 2), ('615c786666', 3), ('62', 4)) x (h, n)"
                )
            read = Reading(dsn)
            (table,) = read.source.tables()
            rows: list[Row] = []
            after = None
            for _ in range(5):
                chunk = read.source.read_chunk(table, json.loads(json.dumps(after)), 1)
                rows += chunk.rows
                after = chunk.last_key
            assert [row["v"] for row in rows] == [3, 1, 2, 4]
            read.start()
            with psycopg.connect(dsn, autocommit=True) as sql:
                sql.execute("UPDATE t SET v = v + 10")
            found = read.changes(4)
            assert [(each.after or {})["k"] for each in found] == [
                "a\\xff", "a\\xff\\'", "a\\xff", "b",
            ]  # fmt: skip
            read.source.close()
            read.source.drop()
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
