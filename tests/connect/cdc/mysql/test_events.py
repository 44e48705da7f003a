"""Transactions of MySQL as changes: DDL, savepoints, compression, XA, and what is refused."""

from __future__ import annotations

import threading
from contextlib import suppress

import pymysql
import pytest

from tests.connect.cdc.binlog_servers import Execute, MakeSource, poll_all, resumed
from tests.support.mysql import MySql
from tidemill.connect.cdc.contract import Batch
from tidemill.connect.cdc.errors import PermanentCaptureError
from tidemill.connect.cdc.mysql import MySqlSource
from tidemill.connect.cdc.packed import Changes


@pytest.mark.parametrize("compression", ["OFF", "ON"])
@pytest.mark.parametrize("gtid", ["AUTOMATIC", "AUTOMATIC:tagged"])
def test_changes_have_the_time_of_the_commit_in_milliseconds(
    source: MySqlSource, server: MySql, shop: str, gtid: str, compression: str
) -> None:
    now = "SELECT ROUND(UNIX_TIMESTAMP(SYSDATE(6)) * 1000, 3)"
    with server.connect(autocommit=True, database=shop) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE a (id INT PRIMARY KEY)")
        cursor.execute(f"SET SESSION gtid_next = '{gtid}'")
        cursor.execute(f"SET SESSION binlog_transaction_compression = {compression}")
        source.start(None)
        for statement in ("BEGIN", "INSERT INTO a VALUES (1), (2)", "DELETE FROM a", now):
            cursor.execute(statement)
        ((begin,),) = cursor.fetchall()
        cursor.execute("COMMIT")
        cursor.execute("TRUNCATE TABLE a")
        cursor.execute(now)
        ((end,),) = cursor.fetchall()
    batches: list[Batch] = []
    changes = poll_all(source, 5, batches=batches)
    times = [each.ts_ms for each in changes]
    assert int(begin) <= times[0] <= times[-1] <= end
    assert set(times[:4]) == {times[0]}
    ends = [each.ts_ms for batch in batches for each in batch.ended]
    assert ends == [times[0], times[-1]]
    # The first batch can be without changes: the position moved behind CREATE TABLE.
    first = next(each.changes for each in batches if each.changes)
    assert isinstance(first, Changes)
    assert first.ts_ms == times[0]


def test_savepoints_with_tables_without_transactions(source: MySqlSource, execute: Execute) -> None:
    execute(
        "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM"
    )
    source.start(None)
    with suppress(pymysql.err.MySQLError):
        execute(
            "SET SESSION gtid_next = 'AUTOMATIC'",
            "BEGIN",
            "INSERT INTO a VALUES (1)",
            "SAVEPOINT `s 1`",
            "INSERT INTO a VALUES (2)",
            "ROLLBACK TO SAVEPOINT `s 1`",
            "COMMIT",
        )
    execute("INSERT INTO m VALUES (7)")
    changes = poll_all(source, 2)
    assert [(each.table.name, each.after) for each in changes] == [
        ("a", {"id": 1}),
        ("m", {"id": 7}),
    ]


def test_a_key_that_the_server_has_made_is_the_key(
    source: MySqlSource, execute: Execute, shop: str
) -> None:
    execute("SET SESSION sql_generate_invisible_primary_key = ON", "CREATE TABLE a (v INT)")
    (table,) = source.tables()
    assert table.key == ("my_row_id",)
    source.start(None)
    execute("INSERT INTO a VALUES (5), (5)")
    first, second = poll_all(source, 2)
    assert first.after == {"my_row_id": 1, "v": 5}
    assert first.table.key == ("my_row_id",)
    assert source.read_chunk(table, None, 10).rows == [first.after, second.after]


@pytest.mark.parametrize(("size", "in_memory"), [(10, 1 << 20), (3000, 1 << 24), (3000, 0)])
def test_compressed_transactions_are_read(
    source: MySqlSource,
    execute: Execute,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    in_memory: int,
) -> None:
    monkeypatch.setattr("tidemill.connect.cdc.binlog.decoding.payload.PART_BYTES", 10_000)
    monkeypatch.setattr("tidemill.connect.cdc.binlog.decoding.payload.IN_MEMORY_BYTES", in_memory)
    execute("CREATE TABLE a (id INT PRIMARY KEY, v TEXT)")
    position = source.start(None)
    execute("SET SESSION binlog_transaction_compression = ON", "BEGIN")
    execute(*[f"INSERT INTO a VALUES ({i}, repeat('{i}', 200))" for i in range(size)])
    execute("UPDATE a SET v = 'y'", "DELETE FROM a WHERE id = 0", "COMMIT")
    execute("INSERT INTO a VALUES (-1, 'z')")
    execute("SET SESSION binlog_transaction_compression = OFF", "INSERT INTO a VALUES (-2, 'z')")
    batches: list[Batch] = []
    changes = poll_all(source, 2 * size + 3, batches=batches)
    assert [each.op for each in changes] == ["c"] * size + ["u"] * size + ["d", "c", "c"]
    assert [each.after["v"] for each in changes[:size]] == [str(i) * 200 for i in range(size)]
    places = [each.source["pos"] for each in changes]
    assert places == sorted(places)
    ends = [each.id for batch in batches for each in batch.ended]
    assert len(ends) == 3
    again, _ = resumed(source, position, len(changes))
    assert again == [each.after for each in changes]


@pytest.mark.parametrize("lock", [False, True])
def test_a_table_without_a_key_is_read_exactly_while_others_write(
    server: MySql,
    shop: str,
    make_source: MakeSource,
    execute: Execute,
    monkeypatch: pytest.MonkeyPatch,
    lock: bool,
) -> None:
    if lock:
        monkeypatch.setattr("tidemill.connect.cdc.mysql.dialect.REST_S", 0.0)
    execute("CREATE TABLE a (v INT)", "INSERT INTO a VALUES (1), (1)")
    source = make_source(keyless="all-columns")
    stop, written = threading.Event(), [0]

    def write() -> None:
        with server.connect(autocommit=True, database=shop) as connection:
            cursor = connection.cursor()
            while not stop.wait(0.001):
                written[0] += 1
                cursor.execute(f"INSERT INTO a VALUES ({written[0] + 1})")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            (table,) = source.tables()
            source.start(None)
            with source.read_consistent([table]) as read:
                rows = [row["v"] for _, part in read.rows for row in part]
            assert sorted(rows) == [1, *range(1, len(rows))]
            changes = poll_all(source, 3)
            assert changes[0].after["v"] == len(rows)
    finally:
        stop.set()
        writer.join()


def test_partial_updates_of_json_are_refused_in_captured_tables(
    make_source: MakeSource, shop: str, execute: Execute
) -> None:
    for table in ("a", "other"):
        execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, j JSON)",
            f"INSERT INTO {table} VALUES (1, json_object('k', repeat('x', 1000), 'n', 1))",
        )
    source = make_source(f"{shop}.a")
    source.start(None)
    update = "UPDATE {} SET j = json_set(j, '$.n', 2)"
    execute("SET SESSION binlog_row_value_options = 'PARTIAL_JSON'", update.format("other"))
    execute("INSERT INTO a VALUES (2, '1')")
    assert poll_all(source, 1)[0].after == {"id": 2, "j": "1"}
    execute(update.format("a"))
    with pytest.raises(PermanentCaptureError, match="partial update of JSON") as caught:
        poll_all(source, 1)
    assert "binlog_row_value_options" in (caught.value.hint or "")


def test_cascades_of_foreign_keys_are_captured_or_reported(
    source: MySqlSource, execute: Execute
) -> None:
    execute(
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, "
        "FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (5, 1)",
    )
    is_reported = any("cascade" in each.text for each in source.check())
    source.start(None)
    execute("DELETE FROM parent", "INSERT INTO parent VALUES (2)")
    changes = poll_all(source, 2 if is_reported else 3)
    deleted = {each.table.name for each in changes if each.op == "d"}
    assert deleted == ({"parent"} if is_reported else {"parent", "child"})
