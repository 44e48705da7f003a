"""The source for MariaDB against a real server: values, transactions, DDL, positions, snapshots."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pymysql
import pytest

from tests.connect.cdc.mariadb.conftest import Execute, database_section, poll_all
from tests.support.mariadb import MariaDb
from tests.support.processes import poll_until
from tidemill.connect.cdc.binlog import groups
from tidemill.connect.cdc.contract import Batch, Capture
from tidemill.connect.cdc.errors import (
    DefinitionError,
    PermanentCaptureError,
    PositionLostError,
    SetupError,
    SourceUnavailableError,
)
from tidemill.connect.cdc.mariadb import MariaDbSource

UUID_4 = "f81d4fae-7dec-41d0-a765-00a0c91e6b00"
UUID_7 = "01890a5d-ac96-774b-bcce-b302099a8057"
UUID_0 = "00000000-0000-0000-0000-000000000000"

ALL_TYPES: list[tuple[str, str, Any, str]] = [
    ("tinyint", "-1", -1, "int"),
    ("tinyint unsigned", "255", 255, "int"),
    ("smallint", "-32768", -32768, "int"),
    ("mediumint", "-8388608", -8388608, "int"),
    ("mediumint unsigned", "16777215", 16777215, "int"),
    ("int unsigned", "4294967295", 4294967295, "int"),
    ("bigint", "-9223372036854775808", -(2**63), "int"),
    ("bigint unsigned", "18446744073709551615", "18446744073709551615", "int"),
    ("year", "2020", 2020, "int"),
    ("year", "0", 0, "int"),
    ("float", "0.1", 0.1, "float"),
    ("float", "16777216", 16777216.0, "float"),
    ("float", "3.4028235e38", 3.4028235e38, "float"),
    ("double", "0.1", 0.1, "float"),
    ("double", "-1.7976931348623157e308", -1.7976931348623157e308, "float"),
    ("decimal(10,2)", "-0.05", "-0.05", "decimal"),
    ("decimal(40,10)", "-12345678901234567890.01", "-12345678901234567890.0100000000", "decimal"),
    ("decimal(9,0)", "-999999999", "-999999999", "decimal"),
    ("decimal(18,9)", "0", "0.000000000", "decimal"),
    ("varchar(20)", "'é € 😀'", "é € 😀", "text"),
    ("varchar(300)", "''", "", "text"),
    ("char(10)", "'abc'", "abc", "text"),
    ("char(200)", "repeat('é', 200)", "é" * 200, "text"),
    ("varchar(10) character set latin1", "'é€'", "é€", "text"),
    ("varchar(10) character set ucs2", "'é€'", "é€", "text"),
    ("text", "repeat('x', 60000)", "x" * 60000, "text"),
    ("longtext", "repeat('x', 70000)", "x" * 70000, "text"),
    ("json", "'{\"a\": 1.10}'", '{"a": 1.10}', "text"),
    ("varchar(100) compressed", "repeat('c', 100)", "c" * 100, "text"),
    ("text compressed", "repeat('c', 1000)", "c" * 1000, "text"),
    ("varbinary(10)", "x'00ff'", "AP8=", "bytes"),
    ("binary(4)", "x'0102'", "AQIAAA==", "bytes"),
    ("blob", "x''", "", "bytes"),
    ("longblob", "x'00'", "AA==", "bytes"),
    ("point", "point(1, 2)", "AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA==", "bytes"),
    ("date", "'2020-02-29'", "2020-02-29", "date"),
    ("date", "'0000-00-00'", "0000-00-00", "date"),
    ("date", "'2020-00-00'", "2020-00-00", "date"),
    ("time", "'838:59:59'", "838:59:59", "time"),
    ("time(3)", "'-01:02:03.4'", "-01:02:03.400", "time"),
    ("time(6)", "'-00:00:00.000001'", "-00:00:00.000001", "time"),
    ("time(2)", "'12:00:00.99'", "12:00:00.99", "time"),
    ("datetime", "'9999-12-31 23:59:59'", "9999-12-31T23:59:59", "timestamp"),
    ("datetime(6)", "'2020-01-02 03:04:05.123456'", "2020-01-02T03:04:05.123456", "timestamp"),
    ("datetime(1)", "'0000-00-00 00:00:00'", "0000-00-00T00:00:00.0", "timestamp"),
    ("timestamp null", "'2020-01-02 03:04:05'", "2020-01-02T03:04:05Z", "timestamptz"),
    ("timestamp(3) null", "'2020-01-02 03:04:05.5'", "2020-01-02T03:04:05.500Z", "timestamptz"),
    ("timestamp null", "'0000-00-00 00:00:00'", "0000-00-00T00:00:00Z", "timestamptz"),
    ("enum('x','zé')", "'zé'", "zé", "enum"),
    ("enum('x','y')", "'wrong'", "", "enum"),
    ("set('p','q','r')", "'r,p'", "p,r", "text"),
    ("set('p','q')", "''", "", "text"),
    ("bit(1)", "b'1'", True, "bool"),
    ("bit(10)", "b'1000000001'", "1000000001", "other"),
    ("uuid", f"'{UUID_4}'", UUID_4, "uuid"),
    ("uuid", f"'{UUID_7}'", UUID_7, "uuid"),
    ("uuid", f"'{UUID_0}'", UUID_0, "uuid"),
    ("inet6", "'::1'", "::1", "other"),
    ("inet6", "'2001:db8::ff00:42:8329'", "2001:db8::ff00:42:8329", "other"),
    ("inet4", "'10.0.0.1'", "10.0.0.1", "other"),
]  # fmt: skip


def dump_threads(server: MariaDb) -> list[int]:
    """Return the server's threads that send its binary log."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'"
        )
        return [thread for (thread,) in cursor.fetchall()]


def test_values_of_all_types_are_the_same_in_snapshot_and_stream(
    source: MariaDbSource, execute: Execute
) -> None:
    columns = ", ".join(f"c{i} {each[0]}" for i, each in enumerate(ALL_TYPES))
    values = ", ".join(each[1] for each in ALL_TYPES)
    execute(
        "SET sql_mode = ''",
        "SET time_zone = '+00:00'",
        f"CREATE TABLE t (id INT PRIMARY KEY, {columns}, g INT AS (id + 1) STORED, "
        "v INT AS (id + 2) VIRTUAL, h INT INVISIBLE DEFAULT 7)",
    )
    source.start(None)
    names = ", ".join(f"c{i}" for i in range(len(ALL_TYPES)))
    execute(f"INSERT INTO t (id, {names}) VALUES (1, {values})", "INSERT INTO t (id) VALUES (2)")
    full, empty = poll_all(source, 2)
    expected = {f"c{i}": each[2] for i, each in enumerate(ALL_TYPES)}
    assert full.after == {"id": 1, **expected, "g": 2, "v": 3, "h": 7}
    assert empty.after["id"] == 2
    assert {each for name, each in empty.after.items() if name.startswith("c")} == {None}
    (table,) = source.tables()
    assert source.read_chunk(table, None, 10).rows == [full.after, empty.after]
    kinds = [each[3] for each in ALL_TYPES]
    assert [each.kind for each in table.columns[1 : len(kinds) + 1]] == kinds
    assert [each.kind for each in full.table.columns[1 : len(kinds) + 1]] == kinds


def test_changes_of_a_transaction_come_in_order_and_with_its_id(
    source: MariaDbSource, execute: Execute, shop: str
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "CREATE TABLE b (id INT PRIMARY KEY)")
    source.start(None)
    execute(
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
    assert source.poll(0) is None


def test_ddl_changes_the_shape_of_the_rows_that_follow(
    source: MariaDbSource, execute: Execute, shop: str
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
    )
    batches: list[Batch] = []
    changes = poll_all(source, 7, batches=batches)
    assert [(each.table.name, each.after) for each in changes] == [
        ("a", {"id": 1, "v": 1}),
        ("a", {"id": 2, "w": "x"}),
        ("a", {"id": 3, "u": "y"}),
        ("late", {"id": 1}),
        ("late", {"id": 2}),
        ("late", {"id": 3}),
        ("a2", {"id": 4, "u": None}),
    ]
    schemas = [table for batch in batches for table in batch.schemas]
    assert [each.name for each in schemas] == ["a", "a", "a", "late", "a2"]
    assert [each.key for each in schemas] == [("id",)] * 5
    assert [each for batch in batches for each in batch.resync] == [f"{shop}.a"] * 2


def test_a_table_that_gets_its_old_shape_back_is_read_again_too(
    source: MariaDbSource, execute: Execute, shop: str
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    source.start(None)
    execute("INSERT INTO a VALUES (1)", "ALTER TABLE a ADD COLUMN v INT")
    execute("INSERT INTO a VALUES (2, 2)", "ALTER TABLE a DROP COLUMN v")
    execute("INSERT INTO a VALUES (3)")
    batches: list[Batch] = []
    assert [each.after for each in poll_all(source, 3, batches=batches)] == [
        {"id": 1},
        {"id": 2, "v": 2},
        {"id": 3},
    ]
    assert [each for batch in batches for each in batch.resync] == [f"{shop}.a"] * 2


def test_truncate_is_told_and_asks_for_a_new_read(source: MariaDbSource, execute: Execute) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    source.start(None)
    execute("INSERT INTO a VALUES (1)", "/* all */ TRUNCATE TABLE `a`", "INSERT INTO a VALUES (2)")
    batches: list[Batch] = []
    changes = poll_all(source, 3, batches=batches)
    assert [each.op for each in changes] == ["c", "t", "c"]
    (resync,) = [each for batch in batches for each in batch.resync]
    assert resync.endswith(".a")


def test_changes_of_tables_that_are_not_selected_move_only_the_position(
    server: MariaDb, shop: str, execute: Execute
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    source = MariaDbSource(Capture("s", (f"{shop}.a",), database=database_section(server)))
    start = source.start(None)
    execute("INSERT INTO b VALUES (1)")
    batch = source.poll(60)
    assert batch is not None
    assert not batch.changes
    assert source.reached(batch.position, start)
    assert not source.reached(start, batch.position)
    source.close()


def test_a_stream_resumes_behind_each_batch(source: MariaDbSource, execute: Execute) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    position = source.start(None)
    execute(*[f"INSERT INTO a VALUES ({i})" for i in range(20)])
    seen: list[int] = []
    while len(seen) < 20:
        source.start(position)
        batch = source.poll(60)
        assert batch is not None
        seen += [each.after["id"] for each in batch.changes if each.after]
        position = batch.position
    assert seen == list(range(20))


def test_a_large_transaction_comes_in_parts_and_resumes_inside(
    source: MariaDbSource, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MOST_HELD", 100)
    monkeypatch.setattr("tidemill.connect.cdc.binlog.source.MOST_HELD", 101)
    execute("CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(1000))")
    position = source.start(None)
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
    source: MariaDbSource, execute: Execute, server: MariaDb, shop: str
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 0)")
    source.start(None)
    (table,) = source.tables()
    stop = threading.Event()

    def write() -> None:
        with server.connect(autocommit=True, database=shop) as connection:
            cursor = connection.cursor()
            while not stop.is_set():
                cursor.execute("UPDATE a SET v = v + 1")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        returned = 0
        for _ in range(50):
            batch = source.poll(60)
            assert batch is not None
            returned = max([returned, *(each.after["v"] for each in batch.changes if each.after)])
            chunk = source.read_chunk(table, None, 10)
            value = chunk.rows[0]["v"]
            assert value >= returned
            while not source.reached(batch.position, chunk.high):
                batch = source.poll(60)
                assert batch is not None
                for change in batch.changes:
                    assert change.after is not None
                    returned = change.after["v"]
            assert returned >= value
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("INT", ["-5", "0", "7", "100", "2000000000"]),
        ("BIGINT UNSIGNED", ["0", "9007199254740993", "9007199254740994", "18446744073709551615"]),
        ("DECIMAL(30,5)", ["-1.5", "0", "1234567890123456789.00001", "1234567890123456789.00002"]),
        ("DOUBLE", ["-1e300", "0.1", "0.30000000000000004", "1e300"]),
        ("VARCHAR(20)", ["''", "'a%s'", "'B'", "'é'", "'z\\\\'"]),
        ("VARBINARY(20)", ["''", "x'00'", "x'0001'", "x'ff'"]),
        ("DATETIME(6)", ["'2020-01-01 00:00:00'", "'2020-01-01 00:00:00.000001'", "'2021-01-01'"]),
        ("ENUM('z','m','a')", ["'z'", "'m'", "'a'"]),
        ("UUID", [f"'{UUID_4}'", f"'{UUID_7}'", f"'{UUID_0}'"]),
        ("BIT(10)", ["b'0'", "b'11'", "b'1111111111'"]),
    ],
)  # fmt: skip
def test_chunks_cover_a_table_once_in_the_order_of_its_key(
    source: MariaDbSource, execute: Execute, key: str, values: list[str]
) -> None:
    rows = ", ".join(f"({value}, {n})" for value in values for n in (2, 1, 3))
    execute(
        f"CREATE TABLE a (k {key}, `n%s` INT, PRIMARY KEY (k, `n%s`))",
        f"INSERT INTO a VALUES {rows}",
    )
    (table,) = source.tables()
    for limit in (1, 2, 100):
        seen: list[Any] = []
        after = None
        while True:
            chunk = source.read_chunk(table, after, limit)
            assert len(chunk.rows) <= limit
            seen += [tuple(row.values()) for row in chunk.rows]
            after = chunk.last_key
            if after is None:
                break
        assert len(seen) == len(set(seen)) == len(values) * 3
        assert [n for _, n in seen] == [1, 2, 3] * len(values)


def test_a_table_without_a_key_is_read_as_of_the_start_of_the_stream(
    server: MariaDb, shop: str, execute: Execute
) -> None:
    execute("CREATE TABLE a (v INT)", "INSERT INTO a VALUES (1), (1)")
    section = database_section(server)
    source = MariaDbSource(Capture("s", (f"{shop}.*",), (), "all-columns", section))
    (table,) = source.tables()
    with source.read_consistent([table]) as read:
        execute("INSERT INTO a VALUES (2)")
        rows = [row for _, part in read.rows for row in part]
    assert rows == [{"v": 1}, {"v": 1}]
    (change,) = poll_all(source, 1)
    assert change.after == {"v": 2}
    source.close()


def test_changes_as_statements_are_refused(source: MariaDbSource, execute: Execute) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    source.start(None)
    execute("SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO a VALUES (1)")
    with pytest.raises(PermanentCaptureError, match="as a statement instead of rows"):
        source.poll(60)


def test_rows_without_all_columns_are_refused(source: MariaDbSource, execute: Execute) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY, v INT, w INT)", "INSERT INTO a VALUES (1, 1, 1)")
    source.start(None)
    execute("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE a SET v = 2")
    with pytest.raises(PermanentCaptureError, match="only some columns"):
        source.poll(60)


def test_xa_transactions_are_refused(source: MariaDbSource, execute: Execute) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    source.start(None)
    execute("XA START 'x'", "INSERT INTO a VALUES (1)", "XA END 'x'")
    execute("XA PREPARE 'x'", "XA COMMIT 'x'")
    with pytest.raises(PermanentCaptureError, match="XA"):
        source.poll(60)


def test_xa_transactions_and_statements_of_other_tables_do_not_stop_the_capture(
    server: MariaDb, shop: str, execute: Execute
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")
    source = MariaDbSource(Capture("s", (f"{shop}.a",), database=database_section(server)))
    source.start(None)
    execute("XA START 'o'", "INSERT INTO other VALUES (1)", "XA END 'o'", "XA PREPARE 'o'")
    execute("XA COMMIT 'o'", "SET SESSION binlog_format = 'STATEMENT'")
    execute("INSERT INTO other VALUES (2)", "SET SESSION binlog_format = 'ROW'")
    execute("INSERT INTO a VALUES (1)")
    (change,) = poll_all(source, 1)
    assert change.after == {"id": 1}
    source.close()


def test_a_position_whose_files_were_purged_is_lost(
    source: MariaDbSource, execute: Execute, server: MariaDb
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    position = source.start(None)
    source.close()
    execute("INSERT INTO a VALUES (1)", "FLUSH BINARY LOGS")
    execute("INSERT INTO a VALUES (2)", "FLUSH BINARY LOGS")

    def is_purged() -> bool:
        execute(
            "PURGE BINARY LOGS BEFORE NOW() + INTERVAL 1 DAY"
        )  # keeps files that are being read
        with server.connect() as connection, connection.cursor() as cursor:
            return int(cursor.execute("SHOW BINARY LOGS")) == 1

    poll_until(is_purged, 30, "the server keeps its binary logs")
    source.start(position)
    with pytest.raises(PositionLostError, match="stored position"):
        source.poll(60)


def test_a_compressed_binary_log_is_read(source: MariaDbSource, execute: Execute) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY, v TEXT)")
    source.start(None)
    execute("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
    try:
        execute(
            "INSERT INTO a VALUES (1, repeat('x', 5000))", "UPDATE a SET v = 'y'", "DELETE FROM a"
        )
    finally:
        execute("SET GLOBAL log_bin_compress = OFF")
    changes = poll_all(source, 3)
    assert [each.op for each in changes] == ["c", "u", "d"]
    assert changes[0].after["v"] == "x" * 5000


def test_a_lost_connection_is_told_and_the_next_start_continues(
    source: MariaDbSource, execute: Execute, server: MariaDb
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    position = source.start(None)
    poll_until(lambda: bool(dump_threads(server)), 60, "the server sends its binary log")
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for thread in dump_threads(server):
            with suppress(pymysql.err.OperationalError):  # one of an earlier test has ended
                cursor.execute(f"KILL {thread}")
    with pytest.raises(SourceUnavailableError):
        source.poll(60)
    execute("INSERT INTO a VALUES (1)")
    source.start(position)
    assert poll_all(source, 1)[0].after == {"id": 1}


def test_check_names_what_is_missing_and_the_statement_that_gives_it(
    server: MariaDb, shop: str, execute: Execute
) -> None:
    user = f"u_{shop}"
    execute(
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, "
        "FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "CREATE TABLE nokey (v INT)",
        "CREATE TABLE old (id INT PRIMARY KEY) ENGINE=Aria",
        f"CREATE USER {user}@localhost IDENTIFIED BY 'pw'",
        f"GRANT SELECT ON {shop}.* TO {user}@localhost",
    )
    section = {"unix_socket": server.socket, "user": user, "password": "pw"}
    execute("SET GLOBAL binlog_row_image = 'MINIMAL'")
    try:
        source = MariaDbSource(Capture("s", (f"{shop}.*",), database=section))
        found = source.check()
        with pytest.raises(SetupError, match="not ready"):
            source.start(None)
        source.close()
    finally:
        execute("SET GLOBAL binlog_row_image = 'FULL'")
    text = {(each.severity, each.text.split(shop + ".")[-1], each.fix[:40]) for each in found}
    errors = {each.fix for each in found if each.severity == "error"}
    assert f"GRANT REPLICATION SLAVE ON *.* TO {user}@localhost" in errors
    assert f"GRANT BINLOG MONITOR ON *.* TO {user}@localhost" in errors
    assert any(fix.startswith("SET GLOBAL binlog_row_image = 'FULL'") for fix in errors)
    assert any("nokey" in each.text for each in found if each.severity == "error"), text
    warnings = [each.text for each in found if each.severity == "warning"]
    assert any("child" in each and "cascade" in each for each in warnings)
    assert any("Aria" in each for each in warnings)
    execute(f"DROP USER {user}@localhost")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "needs a user"),
        ({"user": "u", "pasword": "x"}, "unknown key 'pasword'"),
        ({"user": "u", "port": 0}, "invalid port"),
        ({"user": "u", "port": "3306"}, "invalid port"),
        ({"user": "u", "server_id": 2**32}, "invalid server_id"),
    ],
)
def test_a_wrong_definition_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        MariaDbSource(Capture("s", database=section))


def test_a_wrong_password_is_told_without_the_password(server: MariaDb) -> None:
    section = database_section(server, password="wrong secret")
    with pytest.raises(SetupError, match="refuses user") as caught:
        MariaDbSource(Capture("s", database=section)).tables()
    assert "wrong secret" not in str(caught.value)
