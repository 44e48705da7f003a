"""What MariaDB and MySQL have in common as sources: types, transactions, DDL, chunks, positions.

The tests of each server subclass ``BinlogContract`` and ``SourceContract``, in a folder with the
fixtures of ``tests.connect.cdc.binlog_servers``.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pymysql
import pytest

from tests.connect.cdc.binlog_servers import (
    Execute,
    MakeSource,
    Server,
    database_section,
    poll_all,
    resumed,
)
from tests.connect.cdc.killing import assert_topics_follow
from tests.contracts.sources import SourceContract, SourceHarness, brief, changes_until
from tests.support.effort import rounds
from tests.support.mariadb import PASSWORD
from tests.support.processes import poll_until
from tidemill.connect.cdc.binlog import groups
from tidemill.connect.cdc.binlog.source import BinlogSource
from tidemill.connect.cdc.contract import Batch, Source
from tidemill.connect.cdc.envelope import Encoder, decode
from tidemill.connect.cdc.errors import (
    DefinitionError,
    PermanentCaptureError,
    PositionLostError,
    SetupError,
    SourceUnavailableError,
)

Types = Sequence[tuple[str, str, Any, str]]
"""Type, a literal, the value in a record, the kind of the column."""

COMMON_TYPES: Types = [
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
    ("decimal(10,2)", "-0.05", "-0.05", "decimal"),
    ("varchar(20)", "'é € 😀'", "é € 😀", "text"),
    ("varchar(300)", "''", "", "text"),
    ("char(10)", "'abc'", "abc", "text"),
    ("char(200)", "repeat('é', 200)", "é" * 200, "text"),
    ("varchar(10) character set latin1", "'é€'", "é€", "text"),
    ("varchar(10) character set ucs2", "'é€'", "é€", "text"),
    ("text", "repeat('x', 60000)", "x" * 60000, "text"),
    ("longtext", "repeat('x', 70000)", "x" * 70000, "text"),
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
    ("datetime", "'9999-12-31 23:59:59'", "9999-12-31T23:59:59", "timestamp"),
    ("datetime(6)", "'2020-01-02 03:04:05.123456'", "2020-01-02T03:04:05.123456", "timestamp"),
    ("datetime(1)", "'0000-00-00 00:00:00'", "0000-00-00T00:00:00.0", "timestamp"),
    ("timestamp null", "'2020-01-02 03:04:05'", "2020-01-02T03:04:05Z", "timestamptz"),
    ("timestamp(3) null", "'2020-01-02 03:04:05.5'", "2020-01-02T03:04:05.500Z", "timestamptz"),
    ("timestamp null", "'0000-00-00 00:00:00'", "0000-00-00T00:00:00Z", "timestamptz"),
    ("enum('x','zé')", "'zé'", "zé", "enum"),
    ("set('p','q','r')", "'r,p'", "p,r", "text"),
    ("set('p','q')", "''", "", "text"),
    ("bit(1)", "b'1'", True, "bool"),
    ("bit(10)", "b'1000000001'", "1000000001", "other"),
]  # fmt: skip

KEYS = [
    ("INT", ["-5", "0", "7", "100", "2000000000"]),
    ("BIGINT UNSIGNED", ["0", "9007199254740993", "9007199254740994", "18446744073709551615"]),
    ("DECIMAL(30,5)", ["-1.5", "0", "1234567890123456789.00001", "1234567890123456789.00002"]),
    ("DOUBLE", ["-1e300", "0.1", "0.30000000000000004", "1e300"]),
    ("VARCHAR(20)", ["''", "'a%s'", "'B'", "'é'", "'z\\\\'"]),
    ("VARCHAR(20) CHARACTER SET cp1256", ["'a'", "_cp1256 x'8a'", "'z'"]),  # x'8a' is "?" in UTF-8
    ("VARBINARY(20)", ["''", "x'00'", "x'0001'", "x'ff'"]),
    ("DATETIME(6)", ["'2020-01-01 00:00:00'", "'2020-01-01 00:00:00.000001'", "'2021-01-01'"]),
    ("ENUM('z','m','a')", ["'z'", "'m'", "'a'"]),
    ("BIT(10)", ["b'0'", "b'11'", "b'1111111111'"]),
]  # fmt: skip
"""Types of a primary key, and literals in the order of the key."""


def dump_threads(server: Server) -> list[int]:
    """Return the server's threads that send its binary log."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW PROCESSLIST")
        return [row[0] for row in cursor.fetchall() if "Binlog Dump" in str(row[4])]


class BinlogHarness:
    """A database of its own for ``SourceContract``."""

    def __init__(self, server: Server, shop: str, make_source: MakeSource) -> None:
        self._server = server
        self._shop = shop
        self._make_source = make_source

    def source(self, name: str = "contract", **capture: Any) -> BinlogSource:
        made: BinlogSource = self._make_source(name=name, **capture.pop("database", {}))
        return made

    def _run(self, statements: Sequence[str], end: str) -> None:
        with self._server.connect(database=self._shop) as connection:
            for statement in statements:
                connection.cursor().execute(statement)
            getattr(connection, end)()

    def execute(self, *statements: str) -> None:
        self._run(statements, "commit")

    def roll_back(self, *statements: str) -> None:
        self._run(statements, "rollback")


class KeptPosition(SourceContract):
    """The contract of a source, for servers where ``start`` creates nothing."""

    @pytest.fixture
    def harness(self, server: Server, shop: str, make_source: MakeSource) -> SourceHarness:
        return BinlogHarness(server, shop, make_source)

    def test_drop_removes_everything_and_a_position_is_lost(
        self, harness: SourceHarness, source: Source
    ) -> None:
        """There is nothing to remove, and the position stays valid."""
        harness.execute("INSERT INTO t VALUES (4, 'd')")
        _, position = changes_until(source, 1)
        source.drop()
        source.close()
        harness.execute("INSERT INTO t VALUES (5, 'e')")
        again = harness.source()
        again.start(position)
        found, _ = changes_until(again, 1)
        assert brief(found) == [("c", {"id": 5, "note": "e"})]


class BinlogContract:
    """Inherit it, and set what differs.

    Attributes:
        NAME: the server's name.
        TYPES: types that only this server has, or writes in its own way.
        INDEXES: indexes of the table with all types.
        NOTES: statements after which the server writes more into its binary log.
        COMPRESSED: statements after which a connection writes compressed transactions.
        PURGED: part of the error for a position whose files are gone.
    """

    NAME: ClassVar[str]
    TYPES: ClassVar[Types]
    INDEXES: ClassVar[str] = ""
    NOTES: ClassVar[Sequence[str]] = ()
    COMPRESSED: ClassVar[Sequence[str]] = ()
    PURGED: ClassVar[str]

    @pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
    def test_no_key_is_lost_or_left_when_rows_take_the_keys_of_others(
        self, source: Any, execute: Execute, server: Server, shop: str, engine: str
    ) -> None:
        rng = random.Random(5)
        execute(f"CREATE TABLE t (i INT PRIMARY KEY, u INT UNIQUE, v TEXT) ENGINE = {engine}")
        execute("CREATE TABLE finish (i INT PRIMARY KEY)")
        source.start(None)
        for number in range(rounds("KEY_STATEMENTS", 300, 5000)):
            a, b = rng.randrange(5), rng.randrange(5)
            statement = rng.choice(
                [
                    f"REPLACE INTO t VALUES ({a}, {b}, '{number}')",
                    f"INSERT INTO t VALUES ({a}, {b}, '{number}') ON DUPLICATE KEY UPDATE i = {b}",
                    f"UPDATE IGNORE t SET i = {a} - i",
                    f"UPDATE IGNORE t SET i = {a} WHERE i = {b}",
                    "UPDATE t SET i = i + 1, u = u - 1 ORDER BY i DESC",
                    "UPDATE IGNORE t SET u = u + 1 ORDER BY u DESC",
                    f"DELETE FROM t WHERE i = {a} OR i > 9",
                ]
            )
            with suppress(pymysql.err.IntegrityError):
                execute(statement)
        execute("INSERT INTO finish VALUES (1)")
        topic: dict[bytes | None, Any] = {}
        encoder, is_finished = Encoder("mysql", "model"), False
        while not is_finished:
            for change in poll_all(source, 1):
                is_finished = change.table.name == "finish"
                for record in [] if is_finished else encoder.encode(change):
                    if record.value is None:
                        topic.pop(record.key, None)
                    elif (after := decode(record.value)["after"]) is not None:
                        topic[record.key] = tuple(after.values())
        with server.connect(database=shop) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT * FROM t ORDER BY i")
            assert sorted(topic.values()) == list(cursor.fetchall())

    def test_values_of_all_types_are_the_same_in_snapshot_and_stream(
        self, source: BinlogSource, execute: Execute
    ) -> None:
        types = [*self.TYPES, *COMMON_TYPES]
        columns = ", ".join(f"c{i} {each[0]}" for i, each in enumerate(types))
        values = ", ".join(each[1] for each in types)
        execute(
            "SET sql_mode = ''",
            "SET time_zone = '+00:00'",
            f"CREATE TABLE t (id INT PRIMARY KEY, {columns}, g INT AS (id + 1) STORED, "
            f"v INT AS (id + 2) VIRTUAL, h INT INVISIBLE DEFAULT 7{self.INDEXES})",
        )
        source.start(None)
        names = ", ".join(f"c{i}" for i in range(len(types)))
        execute(
            f"INSERT INTO t (id, {names}) VALUES (1, {values})", "INSERT INTO t (id) VALUES (2)"
        )
        full, empty = poll_all(source, 2)
        expected = {f"c{i}": each[2] for i, each in enumerate(types)}
        assert full.after == {"id": 1, **expected, "g": 2, "v": 3, "h": 7}
        assert empty.after["id"] == 2
        assert {each for name, each in empty.after.items() if name.startswith("c")} == {None}
        (table,) = source.tables()
        assert source.read_chunk(table, None, 10).rows == [full.after, empty.after]
        kinds = [each[3] for each in types]
        assert [each.kind for each in table.columns[1 : len(kinds) + 1]] == kinds
        assert [each.kind for each in full.table.columns[1 : len(kinds) + 1]] == kinds

    def test_changes_of_a_transaction_come_in_order_and_with_its_id(
        self, source: BinlogSource, execute: Execute, shop: str
    ) -> None:
        execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "CREATE TABLE b (id INT PRIMARY KEY)")
        source.start(None)
        execute(
            *self.NOTES,
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

    def test_ddl_changes_the_rows_that_follow_and_asks_for_a_new_read(
        self, source: BinlogSource, execute: Execute, shop: str
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
            "/* all */ TRUNCATE TABLE `a2`",
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
        schemas = [table for batch in batches for table in batch.schemas]
        assert {each.name for each in schemas} == {"a", "late", "a2"}
        assert {each.key for each in schemas} == {("id",)}
        resync = {each for batch in batches for each in batch.resync}
        assert resync == {f"{shop}.a", f"{shop}.a2"}

    def test_a_table_that_gets_its_old_shape_back_is_read_again_too(
        self, source: BinlogSource, execute: Execute, shop: str
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
        assert {each for batch in batches for each in batch.resync} == {f"{shop}.a"}

    def test_changes_of_tables_that_are_not_selected_move_only_the_position(
        self, make_source: MakeSource, shop: str, execute: Execute
    ) -> None:
        execute("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
        source = make_source(f"{shop}.a")
        start = source.start(None)
        execute("INSERT INTO b VALUES (1)")
        batch = source.poll(60)
        assert batch is not None
        assert not batch.changes
        assert source.reached(batch.position, start)
        assert not source.reached(start, batch.position)

    def test_a_table_that_must_not_be_read_is_not_taken_for_one_that_is_gone(
        self, make_source: MakeSource, execute: Execute, shop: str
    ) -> None:
        """Its snapshot would be skipped, and its rows be missing when it can be read again."""
        user = f"'reader_{shop}'@localhost"
        rights = "REPLICATION SLAVE, REPLICATION CLIENT"
        execute(
            "CREATE TABLE a (id INT PRIMARY KEY)",
            "CREATE TABLE b (id INT PRIMARY KEY)",
            f"CREATE USER {user} IDENTIFIED BY 'pw'",
            f"GRANT {rights} ON *.* TO {user}",
            f"GRANT SELECT ON {shop}.a TO {user}",
            f"GRANT SELECT ON {shop}.b TO {user}",
        )
        try:
            source = make_source(user=f"reader_{shop}", password="pw")
            source.start(None)
            execute(f"REVOKE SELECT ON {shop}.b FROM {user}")
            assert source.find_table(shop, "a") is not None
            with pytest.raises(SetupError, match="denied"):
                source.find_table(shop, "b")
            execute(f"GRANT SELECT ON {shop}.b TO {user}")
            assert source.find_table(shop, "b") is not None
            execute("DROP TABLE b")
            assert source.find_table(shop, "b") is None
            assert source.find_table("elsewhere", "b") is None
        finally:
            execute(f"DROP USER {user}")

    def test_a_stream_resumes_behind_each_batch(
        self, source: BinlogSource, execute: Execute
    ) -> None:
        execute("CREATE TABLE a (id INT PRIMARY KEY)")
        position = source.start(None)
        execute(*[f"INSERT INTO a VALUES ({i})" for i in range(20)])
        rows, _ = resumed(source, position, 20)
        assert [row["id"] for row in rows] == list(range(20))

    def test_a_large_transaction_comes_in_parts_and_resumes_inside(
        self, source: BinlogSource, execute: Execute, monkeypatch: pytest.MonkeyPatch
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
        self, source: BinlogSource, execute: Execute, server: Server, shop: str
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
            for _ in range(50):
                batch = source.poll(60)
                assert batch is not None
                returned |= {
                    each.after["id"]: each.after["v"] for each in batch.changes if each.after
                }
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

    @pytest.mark.parametrize(("key", "values"), KEYS)
    def test_chunks_cover_a_table_once_in_the_order_of_its_key(
        self, source: BinlogSource, execute: Execute, key: str, values: list[str]
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

    def test_changes_as_statements_are_refused(
        self, source: BinlogSource, execute: Execute
    ) -> None:
        execute("CREATE TABLE a (id INT PRIMARY KEY)")
        source.start(None)
        execute("SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO a VALUES (1)")
        with pytest.raises(PermanentCaptureError, match="as a statement instead of rows"):
            poll_all(source, 1)

    def test_rows_without_all_columns_are_refused(
        self, source: BinlogSource, execute: Execute
    ) -> None:
        execute(
            "CREATE TABLE a (id INT PRIMARY KEY, v INT, w INT)", "INSERT INTO a VALUES (1, 1, 1)"
        )
        source.start(None)
        execute("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE a SET v = 2")
        with pytest.raises(PermanentCaptureError, match="only some columns"):
            poll_all(source, 1)

    def test_xa_transactions_are_refused(self, source: BinlogSource, execute: Execute) -> None:
        execute("CREATE TABLE a (id INT PRIMARY KEY)")
        source.start(None)
        execute("XA START 'x'", "INSERT INTO a VALUES (1)", "XA END 'x'")
        execute("XA PREPARE 'x'", "XA COMMIT 'x'")
        with pytest.raises(PermanentCaptureError, match="XA"):
            poll_all(source, 1)

    def test_xa_transactions_and_statements_of_other_tables_do_not_stop_the_capture(
        self, make_source: MakeSource, shop: str, execute: Execute
    ) -> None:
        execute("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")
        source = make_source(f"{shop}.a")
        source.start(None)
        execute("XA START 'o'", "INSERT INTO other VALUES (1)", "XA END 'o'", "XA PREPARE 'o'")
        execute("XA COMMIT 'o'", "XA START 'p'", "INSERT INTO other VALUES (5)", "XA END 'p'")
        execute("XA COMMIT 'p' ONE PHASE", "SET SESSION binlog_format = 'STATEMENT'")
        execute("INSERT INTO other VALUES (2)", "SET SESSION binlog_format = 'ROW'")
        execute("INSERT INTO a VALUES (1)")
        (change,) = poll_all(source, 1)
        assert change.after == {"id": 1}

    def test_a_position_whose_files_were_purged_is_lost(
        self, source: BinlogSource, execute: Execute, server: Server
    ) -> None:
        execute("CREATE TABLE a (id INT PRIMARY KEY)")
        position = source.start(None)
        source.close()
        execute("INSERT INTO a VALUES (1)", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")

        def is_purged() -> bool:
            execute("PURGE BINARY LOGS BEFORE NOW() + INTERVAL 1 DAY")  # keeps files that are read
            with server.connect() as connection, connection.cursor() as cursor:
                return int(cursor.execute("SHOW BINARY LOGS")) == 1

        poll_until(is_purged, 90, "the server keeps its binary logs")
        with pytest.raises(PositionLostError, match=self.PURGED) as lost:
            resumed(source, position, 1)
        assert "--resnapshot" in (lost.value.hint or "")

    def test_a_lost_connection_is_reported_and_the_next_start_continues(
        self, source: BinlogSource, execute: Execute, server: Server
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

    def test_a_wrong_password_is_reported_without_the_password(
        self, make_source: MakeSource
    ) -> None:
        with pytest.raises(SetupError, match="refuses user") as caught:
            make_source(password="wrong secret").tables()
        assert "wrong secret" not in str(caught.value)

    @pytest.mark.parametrize(
        ("section", "message"),
        [
            ({"user": None}, "needs a user"),
            ({"pasword": "x"}, "unknown key 'pasword'"),
            ({"port": 0}, "invalid port"),
            ({"port": "3306"}, "invalid port"),
            ({"server_id": 2**32}, "invalid server_id"),
        ],
    )
    def test_a_wrong_definition_is_refused(
        self, make_source: MakeSource, section: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(DefinitionError, match=message) as caught:
            make_source(**section)
        if "pasword" in section:
            assert f"Known keys for {self.NAME}" in (caught.value.hint or "")

    @pytest.mark.crash
    def test_topics_equal_the_tables_after_kills_of_worker_and_broker(
        self,
        server: Server,
        shop: str,
        execute: Execute,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
        section = database_section(server, password="${env:SHOP_PASSWORD}")
        kind = self.NAME.lower()
        assert_topics_follow(kind, server, shop, execute, section, tmp_path, first=self.COMPRESSED)
