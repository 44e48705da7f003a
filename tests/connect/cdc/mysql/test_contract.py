"""MySQL keeps the contracts of a source."""

from __future__ import annotations

import pytest

from tests.connect.cdc.binlog_servers import Execute
from tests.contracts.bad_rows import BadRowsContract
from tests.contracts.binlog import BinlogContract, KeptPosition
from tests.contracts.character_sets import CharacterSetsContract
from tidemill.connect.cdc.mysql import MySqlSource


class TestSource(KeptPosition):
    pass


class TestBadRows(BadRowsContract):
    """Rows that can't be captured."""

    KIND = "mysql"
    pytestmark = pytest.mark.nightly


class TestCharacterSets(CharacterSetsContract):
    """Text of every character set."""

    pytestmark = pytest.mark.nightly  # MariaDB's run uses the same code


class TestMySql(BinlogContract):
    NAME = "MySQL"
    PURGED = "gtid_purged"
    NOTES = ("SET SESSION binlog_rows_query_log_events = ON",)
    COMPRESSED = ("SET SESSION binlog_transaction_compression = ON",)
    INDEXES = ", INDEX f ((c0 + 1)), INDEX m ((CAST(c1->'$.a' AS UNSIGNED ARRAY)))"
    TYPES = [
        ("varchar(9) collate utf8mb4_ja_0900_as_cs_ks", "'日本'", "日本", "text"),
        ("json", "'{}'", "{}", "json"),
        ("vector(3)", "string_to_vector('[1,2,3]')", "AACAPwAAAEAAAEBA", "bytes"),
        ("geometry", "point(1, 2)", "AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA==", "bytes"),
        ("double unsigned", "1.7976931348623157e308", 1.7976931348623157e308, "float"),
        ("decimal(65,30)", "-12345678901234567890.01", "-12345678901234567890.01" + "0" * 28,
         "decimal"),
        ("decimal(9,0) unsigned", "999999999", "999999999", "decimal"),
        ("char(200) character set utf8mb3", "repeat('é', 200)", "é" * 200, "text"),
        ("tinytext", "'t'", "t", "text"),
        ("mediumtext", "repeat('x', 70000)", "x" * 70000, "text"),
        ("time(2)", "'-12:00:00.99'", "-12:00:00.99", "time"),
        ("enum('x','y') character set latin1", "'wrong'", "", "enum"),
        ("bit(64)", "b'1'", "0" * 63 + "1", "other"),
        ("bool", "true", 1, "int"),
        ("geomcollection", "geomcollection(point(0, 0))",
         "AAAAAAEHAAAAAQAAAAEBAAAAAAAAAAAAAAAAAAAAAAAAAA==", "bytes"),
    ]  # fmt: skip

    def test_a_large_compressed_transaction_comes_in_parts_and_resumes_inside(
        self, source: MySqlSource, execute: Execute, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        execute(*self.COMPRESSED)
        self.test_a_large_transaction_comes_in_parts_and_resumes_inside(
            source, execute, monkeypatch
        )
