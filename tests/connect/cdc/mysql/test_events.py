"""Transactions of MySQL as changes: DDL, savepoints, compression, XA, and what is refused."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pymysql
import pytest

from tests.connect.cdc.mysql.conftest import Execute, database_section, poll_all
from tests.support.mysql import MySql
from tests.support.processes import poll_until
from tidemill.connect.cdc.binlog import groups
from tidemill.connect.cdc.contract import Batch, Capture
from tidemill.connect.cdc.errors import PermanentCaptureError, SourceUnavailableError
from tidemill.connect.cdc.mysql import MySqlSource
from tidemill.connect.cdc.packed import Changes


def test_changes_of_a_transaction_come_in_order_and_with_its_id(
    source: MySqlSource, execute: Execute, shop: str
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "CREATE TABLE b (id INT PRIMARY KEY)")
    source.start(None)
    execute(
        "SET SESSION binlog_rows_query_log_events = ON",
        "BEGIN",
        "INSERT INTO a VALUES (1, 1), (2, 2)",
        "SAVEPOINT s",
        "INSERT INTO a VALUES (3, 3)",
        "ROLLBACK TO SAVEPOINT s",
        "UPDATE a SET v = v + 1",
        "INSERT INTO b VALUES (1)",
        "UPDATE a SET id = 9 WHERE id = 1",
        "DELETE FROM a WHERE id = 2",
        "COMMIT",
        "BEGIN",
        "INSERT INTO a VALUES (50, 0)",
        "ROLLBACK",
    )
    batches: list[Batch] = []
    changes = poll_all(source, 7, batches=batches)
    assert [(each.op, each.table.id, each.before, each.after) for each in changes] == [
        ("c", f"{shop}.a", None, {"id": 1, "v": 1}),
        ("c", f"{shop}.a", None, {"id": 2, "v": 2}),
        ("u", f"{shop}.a", {"id": 1, "v": 1}, {"id": 1, "v": 2}),
        ("u", f"{shop}.a", {"id": 2, "v": 2}, {"id": 2, "v": 3}),
        ("c", f"{shop}.b", None, {"id": 1}),
        ("u", f"{shop}.a", {"id": 1, "v": 2}, {"id": 9, "v": 2}),
        ("d", f"{shop}.a", {"id": 2, "v": 3}, None),
    ]
    ids = {each.transaction for each in changes}
    assert ids == {end.id for batch in batches for end in batch.ended}
    assert len(ids) == 1
    places = [(each.source["pos"], each.source["row"]) for each in changes]
    assert places == sorted(set(places))
    assert source.poll(0) is None


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


def test_ddl_changes_the_shape_of_the_rows_that_follow(
    source: MySqlSource, execute: Execute, shop: str
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)")
    source.start(None)
    execute(
        "INSERT INTO a VALUES (1, 1)",
        "ALTER TABLE a ADD COLUMN w VARCHAR(5) FIRST, DROP COLUMN v, ALGORITHM=COPY",
        "INSERT INTO a (id, w) VALUES (2, 'x')",
        "ALTER TABLE a RENAME COLUMN w TO u",
        "INSERT INTO a (id, u) VALUES (3, 'y')",
        "CREATE TABLE late (id INT PRIMARY KEY) AS SELECT id FROM a",
        "RENAME TABLE a TO a2",
        "INSERT INTO a2 (id) VALUES (4)",
        "TRUNCATE TABLE a2",
        "INSERT INTO a2 (id) VALUES (5)",
    )
    batches: list[Batch] = []
    changes = poll_all(source, 9, batches=batches)
    assert [(each.op, each.table.name, each.after) for each in changes] == [
        ("c", "a", {"id": 1, "v": 1}),
        ("c", "a", {"id": 2, "w": "x"}),
        ("c", "a", {"id": 3, "u": "y"}),
        ("c", "late", {"id": 1}),
        ("c", "late", {"id": 2}),
        ("c", "late", {"id": 3}),
        ("c", "a2", {"id": 4, "u": None}),
        ("t", "a2", None),
        ("c", "a2", {"id": 5, "u": None}),
    ]
    resync = [each for batch in batches for each in batch.resync]
    assert resync == [f"{shop}.a", f"{shop}.a", f"{shop}.a2"]


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
    again = poll_positions(source, position)
    assert again == [each.after for each in changes]


def poll_positions(source: MySqlSource, position: Any) -> list[Any]:
    """Return the rows after a position, with a new start behind each batch."""
    rows: list[Any] = []
    while True:
        source.start(position)
        batch = source.poll(60)
        assert batch is not None
        rows += [each.after for each in batch.changes]
        position = batch.position
        if rows and rows[-1] and rows[-1]["id"] == -2:
            return rows


@pytest.mark.parametrize("compression", ["OFF", "ON"])
def test_a_large_transaction_comes_in_parts_and_resumes_inside(
    source: MySqlSource, execute: Execute, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setattr(groups, "MOST_HELD", 100)
    monkeypatch.setattr("tidemill.connect.cdc.binlog.source.MOST_HELD", 101)
    execute("CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(1000))")
    position = source.start(None)
    execute(f"SET SESSION binlog_transaction_compression = {compression}")
    rows = [f"({i}, repeat('x', 900))" for i in range(1000)]
    execute("BEGIN", *[f"INSERT INTO a VALUES {row}" for row in rows], "COMMIT")
    seen: list[int] = []
    ended: list[Any] = []
    parts = 0
    while not ended:
        source.start(position)
        batch = source.poll(60)
        assert batch is not None
        seen += [each.after["id"] for each in batch.changes if each.after]
        position, ended, parts = batch.position, batch.ended, parts + 1
    assert seen == list(range(1000))
    assert parts > 5


def test_a_chunk_holds_what_poll_returned_and_nothing_behind_its_position(
    source: MySqlSource, execute: Execute, server: MySql, shop: str
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 0), (2, 0)")
    source.start(None)
    (table,) = source.tables()
    stop = threading.Event()

    def write(key: int) -> None:
        with server.connect(autocommit=True, database=shop) as connection:
            cursor = connection.cursor()
            while not stop.is_set():
                cursor.execute(f"UPDATE a SET v = v + 1 WHERE id = {key}")

    writers = [threading.Thread(target=write, args=(key,)) for key in (1, 2)]
    for each in writers:
        each.start()
    try:
        returned = {1: 0, 2: 0}
        for _ in range(100):
            batch = source.poll(60)
            assert batch is not None
            returned |= {each.after["id"]: each.after["v"] for each in batch.changes if each.after}
            chunk = source.read_chunk(table, None, 10)
            values = {row["id"]: row["v"] for row in chunk.rows}
            assert all(values[key] >= returned[key] for key in values)
            position = batch.position
            while not source.reached(position, chunk.high):
                batch = source.poll(60)
                assert batch is not None
                position = batch.position
                rows = [each.after for each in batch.changes if each.after]
                returned |= {row["id"]: row["v"] for row in rows}
            assert all(returned[key] >= values[key] for key in values)
    finally:
        stop.set()
        for each in writers:
            each.join()


@pytest.mark.parametrize("lock", [False, True])
def test_a_table_without_a_key_is_read_exactly_while_others_write(
    server: MySql, shop: str, execute: Execute, monkeypatch: pytest.MonkeyPatch, lock: bool
) -> None:
    if lock:
        monkeypatch.setattr("tidemill.connect.cdc.mysql.snapshot.REST_S", 0.0)
    execute("CREATE TABLE a (v INT)", "INSERT INTO a VALUES (1), (1)")
    section = database_section(server)
    source = MySqlSource(Capture("s", (f"{shop}.*",), (), "all-columns", section))
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
        source.close()


def test_changes_as_statements_are_refused(source: MySqlSource, execute: Execute) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    source.start(None)
    execute("SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO a VALUES (1)")
    with pytest.raises(PermanentCaptureError, match="as a statement instead of rows"):
        poll_all(source, 1)


def test_rows_without_all_columns_are_refused(source: MySqlSource, execute: Execute) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY, v INT, w INT)", "INSERT INTO a VALUES (1, 1, 1)")
    source.start(None)
    execute("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE a SET v = 2")
    with pytest.raises(PermanentCaptureError, match="only some columns"):
        poll_all(source, 1)


def test_partial_updates_of_json_are_refused_in_captured_tables(
    server: MySql, shop: str, execute: Execute
) -> None:
    for table in ("a", "other"):
        execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, j JSON)",
            f"INSERT INTO {table} VALUES (1, json_object('k', repeat('x', 1000), 'n', 1))",
        )
    source = MySqlSource(Capture("s", (f"{shop}.a",), database=database_section(server)))
    source.start(None)
    update = "UPDATE {} SET j = json_set(j, '$.n', 2)"
    execute("SET SESSION binlog_row_value_options = 'PARTIAL_JSON'", update.format("other"))
    execute("INSERT INTO a VALUES (2, '1')")
    assert poll_all(source, 1)[0].after == {"id": 2, "j": "1"}
    execute(update.format("a"))
    with pytest.raises(PermanentCaptureError, match="partial update of JSON") as caught:
        poll_all(source, 1)
    assert "binlog_row_value_options" in (caught.value.hint or "")
    source.close()


def test_xa_transactions_are_refused(source: MySqlSource, execute: Execute) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    source.start(None)
    execute("XA START 'x'", "INSERT INTO a VALUES (1)", "XA END 'x'")
    execute("XA PREPARE 'x'", "XA COMMIT 'x'")
    with pytest.raises(PermanentCaptureError, match="XA"):
        poll_all(source, 1)


def test_xa_transactions_and_statements_of_other_tables_do_not_stop_the_capture(
    server: MySql, shop: str, execute: Execute
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")
    source = MySqlSource(Capture("s", (f"{shop}.a",), database=database_section(server)))
    source.start(None)
    execute("XA START 'o'", "INSERT INTO other VALUES (1)", "XA END 'o'", "XA PREPARE 'o'")
    execute("XA COMMIT 'o'", "XA START 'p'", "INSERT INTO other VALUES (5)", "XA END 'p'")
    execute("XA COMMIT 'p' ONE PHASE", "SET SESSION binlog_format = 'STATEMENT'")
    execute("INSERT INTO other VALUES (2)", "SET SESSION binlog_format = 'ROW'")
    execute("INSERT INTO a VALUES (1)")
    (change,) = poll_all(source, 1)
    assert change.after == {"id": 1}
    source.close()


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


def test_a_lost_connection_is_reported_and_the_next_start_continues(
    source: MySqlSource, execute: Execute, server: MySql
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    position = source.start(None)
    poll_until(lambda: bool(dump_threads(server)), 90, "the server sends its binary log")
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for thread in dump_threads(server):
            with suppress(pymysql.err.OperationalError):  # one of an earlier test has ended
                cursor.execute(f"KILL {thread}")
    with pytest.raises(SourceUnavailableError):
        poll_all(source, 1)
    execute("INSERT INTO a VALUES (1)")
    source.start(position)
    assert poll_all(source, 1)[0].after == {"id": 1}


def dump_threads(server: MySql) -> list[int]:
    """Return the server's threads that send its binary log."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW PROCESSLIST")
        return [row[0] for row in cursor.fetchall() if "Binlog Dump" in str(row[4])]
