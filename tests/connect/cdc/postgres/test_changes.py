"""Changes of every kind come in commit order, with the rows that they had."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.connect.cdc.postgres.reading import Reading, plain
from tidemill.connect.cdc.errors import SetupError

Sql = psycopg.Connection[Any]
Make = Callable[..., Reading]


def test_inserts_updates_and_deletes_have_their_rows(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    read = started()
    sql.execute("INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    sql.execute("UPDATE t SET name = 'b' WHERE id = 1")
    sql.execute("DELETE FROM t WHERE id = 2")
    found = read.changes(4)
    assert plain(found) == [
        ("c", None, {"id": 1, "name": "a"}),
        ("c", None, {"id": 2, "name": None}),
        ("u", None, {"id": 1, "name": "b"}),
        ("d", {"id": 2}, None),
    ]
    table = found[0].table
    assert table is not None
    assert (table.id, table.key) == ("public.t", ("id",))
    assert [(each.name, each.type_name, each.kind, each.nullable) for each in table.columns] == [
        ("id", "integer", "int", False),
        ("name", "text", "text", True),
    ]


def test_changes_name_their_transaction_and_its_end(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    read = started()
    with sql.transaction():
        sql.execute("INSERT INTO t VALUES (1)")
        xid = sql.execute("SELECT txid_current()").fetchall()[0][0]
        sql.execute("INSERT INTO t VALUES (2)")
    sql.execute("INSERT INTO t VALUES (3)")
    found = read.changes(3)
    first, second, third = found
    assert first.transaction == second.transaction != third.transaction
    assert first.source["txId"] == xid
    assert first.source["lsn"] < second.source["lsn"] < first.source["commit_lsn"]
    ended = [each.id for batch in read.batches for each in batch.ended]
    assert ended == [first.transaction, third.transaction]


def test_a_changed_key_has_its_old_key(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (a int, b text, c text, PRIMARY KEY (b, a))")
    read = started()
    sql.execute("INSERT INTO t VALUES (1, 'x', 'c')")
    sql.execute("UPDATE t SET a = 2")
    found = read.changes(2)
    assert plain(found)[1] == ("u", {"a": 1, "b": "x"}, {"a": 2, "b": "x", "c": "c"})
    assert found[1].table is not None
    assert found[1].table.key == ("b", "a")


def test_replica_identity_full_delivers_the_whole_old_row(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, name text, more text)")
    sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    read = started()
    sql.execute("INSERT INTO t VALUES (1, 'a', NULL)")
    sql.execute("UPDATE t SET name = 'b'")
    sql.execute("DELETE FROM t")
    found = read.changes(3)
    assert plain(found)[1:] == [
        ("u", {"id": 1, "name": "a", "more": None}, {"id": 1, "name": "b", "more": None}),
        ("d", {"id": 1, "name": "b", "more": None}, None),
    ]
    assert found[0].table is not None
    assert found[0].table.key == ("id",)  # not all columns, which the stream marks


def test_replica_identity_index_gives_the_key(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, n int)")
    sql.execute("CREATE UNIQUE INDEX code_index ON t (code)")
    sql.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX code_index")
    read = started()
    sql.execute("INSERT INTO t VALUES (1, 'a', 1)")
    sql.execute("DELETE FROM t")
    found = read.changes(2)
    assert plain(found)[1] == ("d", {"code": "a"}, None)
    assert found[0].table is not None
    assert found[0].table.key == ("code",)


def test_truncate_is_a_change_and_asks_for_a_new_read(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    read = started()
    sql.execute("INSERT INTO a VALUES (1)")
    sql.execute("TRUNCATE a, b")
    found = read.changes(3)
    assert [(each.op, each.table.id if each.table else "") for each in found[1:]] == [
        ("t", "public.a"),
        ("t", "public.b"),
    ]
    assert read.batches[-1].resync == ["public.a", "public.b"]


def test_logical_messages_come_with_and_without_a_transaction(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    read = started()
    with sql.transaction():
        sql.execute("INSERT INTO t VALUES (1)")
        sql.execute("SELECT pg_logical_emit_message(true, 'audit', 'by me')")
    sql.execute("SELECT pg_logical_emit_message(false, 'loose', '\\x00ff'::bytea)")
    sql.execute("SELECT pg_logical_emit_message(true, 'tidemill.heartbeat', '')")
    sql.execute("INSERT INTO t VALUES (2)")
    row, audit, loose, last = read.changes(4)
    assert (audit.op, audit.table, audit.transaction) == ("m", None, row.transaction)
    assert audit.after is not None
    assert b64decode(audit.after["content"]) == b"by me"
    assert (loose.transaction, loose.after) == (None, {"prefix": "loose", "content": "AP8="})
    assert loose.ts_ms > 1_600_000_000_000
    assert last.op == "c"


def test_rolled_back_work_is_not_delivered(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    read = started()
    with sql.transaction(force_rollback=True):
        sql.execute("INSERT INTO t VALUES (1)")
    with sql.transaction():
        sql.execute("INSERT INTO t VALUES (2)")
        with sql.transaction(force_rollback=True):
            sql.execute("INSERT INTO t VALUES (3)")
        sql.execute("INSERT INTO t VALUES (4)")
    assert [each.after for each in read.changes(2)] == [{"id": 2}, {"id": 4}]
    read.nothing()


def test_large_transactions_are_streamed_and_lose_their_aborted_savepoints(
    sql: Sql, dsn: str, started: Make
) -> None:
    """The first touch of a table is in a savepoint that is rolled back: its description counts."""
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)")
    read = started()
    with psycopg.connect(dsn, autocommit=True) as other, sql.transaction():
        with sql.transaction(force_rollback=True):
            sql.execute("INSERT INTO t SELECT i, 'gone' FROM generate_series(1, 3000) i")
        sql.execute("INSERT INTO t SELECT i, 'kept' FROM generate_series(1, 7000) i")
        with sql.transaction(force_rollback=True):
            sql.execute("DELETE FROM t")
        sql.execute("INSERT INTO t VALUES (7001, 'kept')")
        other.execute("INSERT INTO u VALUES (1)")
        assert [each.after for each in read.changes(1)] == [{"id": 1}]
    found = read.changes(7001)
    assert [each.after for each in found] == [{"id": i, "v": "kept"} for i in range(1, 7002)]
    assert len({each.transaction for each in found}) == 1
    assert max(len(batch.changes) for batch in read.batches) <= 5000
    streamed = sql.execute("SELECT sum(stream_txns) FROM pg_stat_replication_slots").fetchone()
    assert streamed is not None


def test_partitioned_tables_appear_as_their_root(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    sql.execute("CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (10) TO (20)")
    read = started()
    assert [each.id for each in read.source.tables()] == ["public.t"]
    sql.execute("INSERT INTO t VALUES (1, 1), (11, 1)")
    sql.execute("UPDATE t SET id = 12 WHERE id = 1")  # moves the row to another partition
    found = read.changes(4)
    assert {each.table.id for each in found if each.table} == {"public.t"}
    assert plain(found)[2:] == [("d", {"id": 1}, None), ("c", None, {"id": 12, "v": 1})]


def test_column_lists_and_row_filters_of_a_publication_are_kept(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, name text, secret text)")
    sql.execute("CREATE PUBLICATION mine FOR TABLE t (id, name) WHERE (id < 100)")
    sql.execute("INSERT INTO t VALUES (1, 'a', 's'), (100, 'b', 's')")
    read = started(publication="mine")
    (table,) = read.source.tables()
    assert [each.name for each in table.columns] == ["id", "name"]
    assert read.source.read_chunk(table, None, 10).rows == [{"id": 1, "name": "a"}]
    sql.execute("INSERT INTO t VALUES (2, 'c', 's'), (200, 'd', 's')")
    sql.execute("UPDATE t SET id = 300 WHERE id = 2")  # leaves the filter
    assert plain(read.changes(2)) == [
        ("c", None, {"id": 2, "name": "c"}),
        ("d", {"id": 2}, None),
    ]
    read.source.drop()
    assert sql.execute("SELECT count(*) FROM pg_publication").fetchone() == (1,)


def test_only_selected_tables_are_delivered(sql: Sql, started: Make) -> None:
    sql.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    sql.execute("CREATE SCHEMA s; CREATE TABLE s.a (id int PRIMARY KEY)")
    sql.execute("CREATE PUBLICATION every FOR ALL TABLES")
    read = started(publication="every", include=("public.*",), exclude=("b",))
    sql.execute("INSERT INTO b VALUES (1); INSERT INTO s.a VALUES (1); INSERT INTO a VALUES (1)")
    assert [each.table.id for each in read.changes(1) if each.table] == ["public.a"]
    read.nothing()


def test_a_publication_of_inserts_only_is_refused(sql: Sql, started: Make) -> None:
    """Updates and deletes would be missing in the topic, and nothing would say so."""
    sql.execute("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, name text)")
    sql.execute("CREATE PUBLICATION theirs FOR TABLE t WITH (publish = 'insert')")
    with pytest.raises(SetupError, match="leaves out some kinds of changes"):
        started(publication="theirs")
