"""Equal keys have one text, whether a snapshot or the stream delivers them.

The tests of MariaDB and MySQL subclass ``KeysContract``, with the fixtures of
``tests.connect.cdc.binlog_servers``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.connect.cdc.binlog_servers import Execute, Server, poll_all
from tidemill.connect.cdc.binlog.source import BinlogSource
from tidemill.connect.cdc.contract import Row, Source, Table
from tidemill.connect.cdc.envelope import Encoder

Keys = dict[str, list[str]]

KEYS: Keys = {
    "TINYINT ZEROFILL": ["5", "0"],
    "INT(5) ZEROFILL": ["5", "0", "70000"],
    "MEDIUMINT": ["-5", "0"],
    "BIGINT UNSIGNED": ["18446744073709551615", "0"],
    "BOOL": ["0", "1", "7"],
    "DECIMAL(6,2) ZEROFILL": ["12.5", "0", "0.05", "1234.56"],
    "DECIMAL(9,0) UNSIGNED ZEROFILL": ["7", "0"],
    "DECIMAL(4,4) ZEROFILL": ["0.5", "0"],
    "DECIMAL(40,20)": ["-0.5", "0", "1", "-12345678901234567890.5"],
    "FLOAT": ["0.1", "-0e0", "16777217", "3.4e38", "1e-40", "-1.5", "0.3"],
    "FLOAT ZEROFILL": ["1.5", "0"],
    "FLOAT(7,3)": ["1.1", "0.1005", "-2"],
    "DOUBLE": ["0.1", "1e300", "-0e0", "5e-324", "123456789012345678"],
    "DOUBLE ZEROFILL": ["1.5", "0"],
    "DOUBLE(10,2)": ["1.1", "1e7"],
    "BIT(1)": ["0", "1"],
    "BIT(10)": ["b'0'", "b'11'"],
    "BIT(64)": ["b'0'", "0xffffffffffffffff"],
    "YEAR": ["2020", "0", "1901", "2155"],
    "TIME": ["'00:00:00'", "'-01:00:00'", "'838:59:59'"],
    "TIME(6)": ["'-00:00:00.000001'", "'-838:59:59'", "'01:02:03.5'"],
    "DATE": ["'2020-01-01'", "'0000-00-00'", "'2020-00-00'"],
    "DATETIME(3)": ["'2020-01-01 00:00:00.5'", "'0000-00-00'"],
    "TIMESTAMP": ["'2020-01-01 00:00:00'", "0"],
    "TIMESTAMP(6)": ["'2020-01-01 00:00:00.5'", "0"],
    "ENUM('b','a','')": ["1", "2", "3", "'wrong'"],
    "ENUM('1','0','2')": ["'1'", "'0'", "3"],
    "SET('b','a','c')": ["1", "'c,b'", "''", "7"],
    "BINARY(4)": ["x'01'", "x'00000000'", "x'01000001'", "x'20'"],
    "VARBINARY(4)": ["x'01'", "x'0100'", "''", "x'20'"],
    "BLOB": ["'a '", "''", "x'00'"],
    "TEXT": ["'a '", "''", "'b'"],
    "CHAR(10)": ["'a  '", "''", "'B'", "'é'"],
    "CHAR(10) COLLATE utf8mb4_bin": ["'a  '", "'A'"],
    "CHAR(200)": ["'a '", "repeat('é', 200)"],
    "CHAR(10) CHARACTER SET latin1": ["'a '", "'é'"],
    "CHAR(10) CHARACTER SET ucs2": ["'a  '", "''", "'é'"],
    "CHAR(10) CHARACTER SET utf16": ["'a  '", "'é'"],
    "CHAR(5) CHARACTER SET utf16le": ["'a  '", "'é'"],
    "CHAR(5) CHARACTER SET utf32": ["'a  '", "'é'"],
    "VARCHAR(10) COLLATE utf8mb4_general_ci": ["'a '", "'B'", "' '"],
    "VARCHAR(10) COLLATE utf8mb4_bin": ["'a '", "'A'"],
    "VARCHAR(10) CHARACTER SET ucs2": ["'a '", "''"],
    "VARCHAR(300)": ["'a '", "''"],
}
"""Types of a primary key, and literals."""


class KeysContract:
    """Inherit it, and set what differs.

    Attributes:
        KEYS: types that only this server has.
    """

    KEYS: ClassVar[Keys] = {}

    @pytest.fixture
    def unusual(self, server: Server) -> Iterator[None]:
        """Settings of the server that change how it shows values."""
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.sql_mode, @@GLOBAL.time_zone")
            before = cursor.fetchone()
            cursor.execute("SET GLOBAL sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES'")
            cursor.execute("SET GLOBAL time_zone = '+05:00'")
            yield
            cursor.execute("SET GLOBAL sql_mode = %s, GLOBAL time_zone = %s", before)

    def test_keys_of_each_type_have_the_same_text_in_snapshot_and_stream(
        self, source: BinlogSource, execute: Execute, unusual: None, shop: str
    ) -> None:
        keys = {**KEYS, **self.KEYS}
        execute("SET SESSION sql_mode = ''")
        for number, key in enumerate(keys):
            part = "k(9)" if key in ("TEXT", "BLOB") else "k"
            execute(f"CREATE TABLE t{number} (k {key}, PRIMARY KEY ({part}))")
        source.start(None)
        for number, values in enumerate(keys.values()):
            execute(f"INSERT INTO t{number} VALUES ({'), ('.join(values)})")
        streamed: dict[str, set[bytes]] = {}
        for change in poll_all(source, sum(len(values) for values in keys.values())):
            streamed.setdefault(change.table.name, set()).add(_text(change.table, change.after))
        for number, (key, values) in enumerate(keys.items()):
            table = source.find_table(shop, f"t{number}")
            assert table is not None
            for limit in (1, 100):
                read = [_text(table, row) for row in _rows(source, table, limit)]
                assert len(read) == len(values), (key, read)
                assert set(read) == streamed[table.name], (key, limit)

    def test_a_key_whose_case_changes_leaves_no_other_spelling(
        self, source: BinlogSource, execute: Execute
    ) -> None:
        execute(
            "CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT)",
            "INSERT INTO t VALUES ('a', 1), ('b', 1), ('c', 1), ('d', 1)",
        )
        source.start(None)
        table = source.tables()[0]
        topic = {_text(table, row) for row in _rows(source, table, 100)}
        execute(
            "UPDATE t SET k = 'A' WHERE k = 'a'",
            "REPLACE INTO t VALUES ('B ', 2)",
            "INSERT INTO t VALUES ('C', 2) ON DUPLICATE KEY UPDATE k = VALUES(k)",
            "UPDATE t SET k = 'ÀÀ' WHERE k = 'D'",
            "UPDATE t SET k = 'aa' WHERE k = 'àà'",
        )
        for change in poll_all(source, 5):
            for record in Encoder("mysql", "p").encode(change):
                key = record.key or b""
                topic.discard(key) if record.value is None else topic.add(key)
        assert topic == {_text(table, row) for row in _rows(source, table, 100)}
        assert topic == {_text(table, {"k": key}) for key in ("A", "B ", "C", "aa")}


def _text(table: Table, row: Row) -> bytes:
    return Encoder("mysql", "p").key_of(table, row)


def _rows(source: Source, table: Table, limit: int) -> Iterator[Row]:
    after: list[Any] | None = None
    for _ in range(100):
        chunk = source.read_chunk(table, after, limit)
        yield from chunk.rows
        after = chunk.last_key
        if after is None:
            return
    raise AssertionError(f"the chunks of {table.id} don't end")
