"""MariaDB keeps the contracts of a source; and what only MariaDB has."""

from __future__ import annotations

import pytest

from tests.connect.cdc.binlog_servers import Execute, MakeSource, poll_all
from tests.contracts.bad_rows import BadRowsContract
from tests.contracts.binlog import BinlogContract, KeptPosition
from tests.contracts.character_sets import CharacterSetsContract
from tidemill.connect.cdc.errors import SetupError
from tidemill.connect.cdc.mariadb import MariaDbSource

UUID_4 = "f81d4fae-7dec-41d0-a765-00a0c91e6b00"
UUID_7 = "01890a5d-ac96-774b-bcce-b302099a8057"
UUID_0 = "00000000-0000-0000-0000-000000000000"


class TestSource(KeptPosition):
    pass


class TestBadRows(BadRowsContract):
    """Rows that can't be captured."""

    KIND = "mariadb"


class TestCharacterSets(CharacterSetsContract):
    """Text of every character set."""


class TestMariaDb(BinlogContract):
    NAME = "MariaDB"
    PURGED = "stored position"
    TYPES = [
        ("double", "-1.7976931348623157e308", -1.7976931348623157e308, "float"),
        ("decimal(40,10)", "-1234567890123456789.01", "-1234567890123456789.0100000000", "decimal"),
        ("decimal(9,0)", "-999999999", "-999999999", "decimal"),
        ("decimal(18,9)", "0", "0.000000000", "decimal"),
        ("json", "'{\"a\": 1.10}'", '{"a": 1.10}', "text"),
        ("varchar(100) compressed", "repeat('c', 100)", "c" * 100, "text"),
        ("text compressed", "repeat('c', 1000)", "c" * 1000, "text"),
        ("time(2)", "'12:00:00.99'", "12:00:00.99", "time"),
        ("enum('x','y')", "'wrong'", "", "enum"),
        ("uuid", f"'{UUID_4}'", UUID_4, "uuid"),
        ("uuid", f"'{UUID_7}'", UUID_7, "uuid"),
        ("uuid", f"'{UUID_0}'", UUID_0, "uuid"),
        ("inet6", "'::1'", "::1", "other"),
        ("inet6", "'2001:db8::ff00:42:8329'", "2001:db8::ff00:42:8329", "other"),
        ("inet4", "'10.0.0.1'", "10.0.0.1", "other"),
    ]  # fmt: skip

    def test_uuids_are_read_in_the_order_of_the_server(
        self, source: MariaDbSource, execute: Execute
    ) -> None:
        self.test_chunks_cover_a_table_once_in_the_order_of_its_key(
            source, execute, "UUID", [f"'{each}'" for each in (UUID_4, UUID_7, UUID_0)]
        )


def test_a_table_without_a_key_is_read_as_of_the_start_of_the_stream(
    make_source: MakeSource, execute: Execute
) -> None:
    execute("CREATE TABLE a (v INT)", "INSERT INTO a VALUES (1), (1)")
    source = make_source(keyless="all-columns")
    (table,) = source.tables()
    with source.read_consistent([table]) as read:
        execute("INSERT INTO a VALUES (2)")
        rows = [row for _, part in read.rows for row in part]
    assert rows == [{"v": 1}, {"v": 1}]
    (change,) = poll_all(source, 1)
    assert change.after == {"v": 2}


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


def test_a_statement_with_variables_of_its_own_is_understood(
    source: MariaDbSource, execute: Execute, shop: str
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    source.start(None)
    execute(
        "SET STATEMENT lock_wait_timeout=5 FOR TRUNCATE TABLE a",
        "SET STATEMENT max_statement_time=9 FOR ALTER TABLE b ADD COLUMN v INT DEFAULT 5",
    )
    reasons: dict[str, str] = {}
    while reasons.keys() != {f"{shop}.a", f"{shop}.b"}:
        batch = source.poll(60)
        assert batch is not None, reasons
        reasons |= batch.reasons


def test_check_names_what_is_missing_and_the_statement_that_gives_it(
    make_source: MakeSource, shop: str, execute: Execute
) -> None:
    user = f"u_{shop}"
    execute(
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, "
        "FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "CREATE TABLE nokey (v INT)",
        "CREATE TABLE old (id INT PRIMARY KEY) ENGINE=Aria",
        "CREATE TABLE versioned (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
        f"CREATE USER {user}@localhost IDENTIFIED BY 'pw'",
        f"GRANT SELECT ON {shop}.* TO {user}@localhost",
    )
    execute("SET GLOBAL binlog_row_image = 'MINIMAL'")
    try:
        source = make_source(user=user, password="pw")
        found = source.check()
        with pytest.raises(SetupError, match="not ready"):
            source.start(None)
    finally:
        execute("SET GLOBAL binlog_row_image = 'FULL'")
    text = {(each.severity, each.text.split(shop + ".")[-1], each.fix[:40]) for each in found}
    errors = {each.fix for each in found if each.severity == "error"}
    assert f"GRANT REPLICATION SLAVE ON *.* TO '{user}'@'localhost'" in errors
    assert f"GRANT BINLOG MONITOR ON *.* TO '{user}'@'localhost'" in errors
    assert any(fix.startswith("SET GLOBAL binlog_row_image = 'FULL'") for fix in errors)
    assert any("nokey" in each.text for each in found if each.severity == "error"), text
    assert any("system-versioned" in each.text for each in found if each.severity == "error")
    warnings = [each.text for each in found if each.severity == "warning"]
    assert any("child" in each and "cascade" in each for each in warnings)
    assert any("Aria" in each for each in warnings)
    execute(f"DROP USER {user}@localhost")
