"""SQLite as a source: the contract, and what only SQLite has."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.sources import (
    SourceContract,
    SourceHarness,
    brief,
    changes_until,
    next_batch,
    quiet,
    table_named,
)
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.errors import (
    DefinitionError,
    PositionLostError,
    SetupError,
    SourceUnavailableError,
)
from tidemill.connect.cdc.sqlite import SqliteSource


class SqliteHarness:
    """A database file. ``execute`` uses a connection that does not know the source."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self._sources: list[SqliteSource] = []

    def source(self, name: str = "contract", **capture: Any) -> SqliteSource:
        more = {"path": str(self.path), **capture.pop("database", {})}
        source = SqliteSource(Capture(name, database=more, **capture))
        self._sources.append(source)
        return source

    def started(self, **capture: Any) -> SqliteSource:
        source = self.source(**capture)
        source.start(None)
        return source

    def execute(self, *statements: str) -> None:
        self.db.execute("BEGIN")
        for statement in statements:
            self.db.execute(statement)
        self.db.execute("COMMIT")

    def roll_back(self, *statements: str) -> None:
        self.db.execute("BEGIN")
        for statement in statements:
            self.db.execute(statement)
        self.db.execute("ROLLBACK")

    def close(self) -> None:
        for source in self._sources:
            source.close()
        self.db.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteHarness]:
    harness = SqliteHarness(tmp_path / "shop.db")
    yield harness
    harness.close()


class TestContract(SourceContract):
    @pytest.fixture
    def harness(self, sqlite: SqliteHarness) -> SourceHarness:
        return sqlite


@pytest.mark.parametrize("recursive", ["ON", "OFF"])
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        # The row with the same key is overwritten.
        ("INSERT OR REPLACE INTO t VALUES (1, 'new', 'u1')", [("c", 1)]),
        # Row 2 goes because of the unique index, whatever its key is.
        ("INSERT OR REPLACE INTO t VALUES (9, 'new', 'u2')", [("d", 2), ("c", 9)]),
        # Both.
        ("INSERT OR REPLACE INTO t VALUES (1, 'new', 'u2')", [("d", 2), ("c", 1)]),
        ("REPLACE INTO t SELECT 8, 'new', u FROM t WHERE id = 3", [("d", 3), ("c", 8)]),
        ("UPDATE OR REPLACE t SET u = 'u2' WHERE id = 1", [("d", 2), ("u", 1)]),
        ("UPDATE OR REPLACE t SET id = 2 WHERE id = 1", [("u", 2)]),
        ("INSERT OR IGNORE INTO t VALUES (9, 'new', 'u2')", []),
        ("INSERT INTO t VALUES (9, 'n', 'u2') ON CONFLICT (u) DO UPDATE SET a = 'n'", [("u", 2)]),
        ("INSERT INTO t VALUES (9, 'n', 'u2') ON CONFLICT DO NOTHING", []),
        ("UPDATE t SET a = 'z'", [("u", 1), ("u", 2), ("u", 3)]),
    ],
)
def test_replace_is_captured(
    sqlite: SqliteHarness, statement: str, expected: list[tuple[str, int]], recursive: str
) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, u TEXT UNIQUE)")
    sqlite.execute("INSERT INTO t VALUES (1, 'a', 'u1'), (2, 'b', 'u2'), (3, 'c', 'u3')")
    source = sqlite.started()
    sqlite.db.execute(f"PRAGMA recursive_triggers = {recursive}")
    sqlite.execute(statement)
    sqlite.execute("INSERT INTO t VALUES (100, 'end', 'end')")
    found, _ = changes_until(source, 1)
    while found[-1].after is None or found[-1].after["id"] != 100:
        found += next_batch(source).changes
    shown = [(op, row and row["id"]) for op, row in brief(found)][:-1]
    if recursive == "OFF":
        assert shown == expected
    else:  # the row with the same key, which is overwritten, has a delete of its own
        assert [each for each in shown if each in expected] == expected
        assert len(shown) <= len(expected) + 1
    live = {1: True, 2: True, 3: True}
    for op, row in brief(found):
        assert row is not None
        live[row["id"]] = op != "d"
    before = {each.before["id"] for each in found if each.op == "u" and each.before}
    after = {each.after["id"] for each in found if each.op == "u" and each.after}
    present = {key for key, there in live.items() if there} - (before - after)
    rows = {row[0] for row in sqlite.db.execute("SELECT id FROM t")}
    assert present == rows


def test_a_unique_index_on_an_expression_is_refused_by_name(sqlite: SqliteHarness) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
    sqlite.execute("CREATE UNIQUE INDEX by_lower ON t (lower(a))")
    with pytest.raises(SetupError, match=r"table t has a unique index on an expression \(by_low"):
        sqlite.source().start(None)
    sqlite.source(database={"trust_expression_indexes": True}).start(None)


def test_values_keep_their_storage_class(sqlite: SqliteHarness) -> None:
    sqlite.execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b REAL, c, "
        "d AS (a + 1) STORED, e AS (a || 'x') VIRTUAL)"
    )
    source = sqlite.started()
    rows: list[tuple[Any, ...]] = [
        (2**63 - 1, math.inf, b"\x00\xff"),
        (-(2**63), -math.inf, "text\x00ü"),
        ("not a number", 0.1, None),
        (None, math.nan, 1.5),
        (2**53 + 1, 1e308, ""),
    ]
    for number, row in enumerate(rows):
        sqlite.db.execute("INSERT INTO t (id, a, b, c) VALUES (?, ?, ?, ?)", (number, *row))
    found, _ = changes_until(source, len(rows))
    got = [(each.after["a"], each.after["b"], each.after["c"]) for each in found if each.after]
    assert got == [
        (2**63 - 1, "Infinity", "AP8="),
        (-(2**63), "-Infinity", "text\x00ü"),
        ("not a number", 0.1, None),
        (None, None, 1.5),
        (2**53 + 1, 1e308, ""),
    ]
    assert found[4].after is not None
    assert (found[4].after["d"], found[4].after["e"]) == (2**53 + 2, "9007199254740993x")
    chunk = source.read_chunk(table_named(source, "t"), None, 100)
    assert chunk.rows == [each.after for each in found]


def test_a_text_that_is_not_utf8_does_not_stop_capture(sqlite: SqliteHarness) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
    source = sqlite.started()
    sqlite.execute("INSERT INTO t VALUES (1, CAST(x'61ff62' AS TEXT)), (2, 'fine')")
    found, _ = changes_until(source, 2)
    assert [each.after and each.after["a"] for each in found] == ["a\\xffb", "fine"]


def test_composite_and_blob_keys_of_tables_without_rowid(sqlite: SqliteHarness) -> None:
    sqlite.execute(
        "CREATE TABLE t (a BLOB, b TEXT COLLATE NOCASE, v INT, PRIMARY KEY (b, a)) WITHOUT ROWID"
    )
    for number in range(20):
        sqlite.db.execute("INSERT INTO t VALUES (?, ?, ?)", (bytes([number]), "kK"[number % 2], 1))
    source = sqlite.started()
    table = table_named(source, "t")
    assert table.key == ("b", "a")
    seen, after = [], None
    while True:
        chunk = source.read_chunk(table, after, 3)
        seen += [row["a"] for row in chunk.rows]
        if chunk.last_key is None:
            break
        after = chunk.last_key
    assert len(seen) == len(set(seen)) == 20


@pytest.mark.parametrize("row", ["(NULL, 'x')", "('x', NULL)", "('a', NULL)", "(NULL, NULL)"])
def test_a_null_anywhere_in_a_primary_key_stops_the_snapshot(
    sqlite: SqliteHarness, row: str
) -> None:
    sqlite.execute("CREATE TABLE t (a TEXT, b TEXT, PRIMARY KEY (a, b))")
    sqlite.execute(*[f"INSERT INTO t VALUES ('k{number}', 'b')" for number in range(10)])
    sqlite.execute(f"INSERT INTO t VALUES {row}")
    source = sqlite.started()
    with pytest.raises(SetupError, match="has NULL in its primary key"):
        source.read_chunk(table_named(source, "t"), None, 3)


def test_a_schema_change_is_followed_and_the_table_is_read_again(sqlite: SqliteHarness) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
    source = sqlite.started()
    assert quiet(source) == []
    for statement, columns in (
        ("ALTER TABLE t ADD COLUMN b INT DEFAULT 7", ["id", "a", "b"]),
        ("ALTER TABLE t RENAME COLUMN a TO c", ["id", "c", "b"]),
        ("DROP TABLE t", None),
        ("CREATE TABLE t (key TEXT PRIMARY KEY NOT NULL)", ["key"]),
    ):
        sqlite.execute(statement)
        if columns is None:
            assert quiet(source) == []
            continue
        batch = next_batch(source)
        assert batch.resync == ["main.t"]
        assert [each.name for each in batch.schemas[0].columns] == columns
    sqlite.execute("INSERT INTO t VALUES ('k')")
    (change,), _ = changes_until(source, 1)
    assert change.after == {"key": "k"}


def test_chunks_continue_behind_a_key_that_is_not_utf8(sqlite: SqliteHarness) -> None:
    sqlite.execute(
        "CREATE TABLE t (id TEXT NOT NULL, n, PRIMARY KEY (id, n))",
        "INSERT INTO t VALUES (CAST(x'61ff30' AS TEXT), 1), (CAST(x'61ff31' AS TEXT), x'00'),"
        " (CAST(x'61ff32' AS TEXT), 'z'), ('a\\xff32', 1.5), ('b', 1)",
    )
    source = sqlite.started()
    table, keys, after = table_named(source, "t"), [], None
    for _ in range(6):
        chunk = source.read_chunk(table, after, 1)
        keys += [row["id"] for row in chunk.rows]
        after = json.loads(json.dumps(chunk.last_key))
    assert keys == ["a\\xff32", "a\\xff0", "a\\xff1", "a\\xff2", "b"]
    assert after is None


def test_texts_and_blobs_in_one_key_are_named(sqlite: SqliteHarness) -> None:
    sqlite.execute(
        "CREATE TABLE both (id PRIMARY KEY NOT NULL)",
        "CREATE TABLE texts (id PRIMARY KEY NOT NULL)",
        "CREATE TABLE blobs (id BLOB PRIMARY KEY NOT NULL)",
        "CREATE TABLE numbers (id INTEGER PRIMARY KEY)",
        "INSERT INTO both VALUES (x'61'), ('YQ=='), (1)",
        "INSERT INTO texts VALUES ('a'), (1)",
        "INSERT INTO blobs VALUES (x''), (x'61')",
        "INSERT INTO numbers VALUES (1)",
    )
    found = [each for each in sqlite.source().check() if "texts and blobs" in each.text]
    assert [each.severity for each in found] == ["warning"]
    assert "table both has texts and blobs" in found[0].text


def test_a_row_without_a_key_that_replace_deletes_is_captured(sqlite: SqliteHarness) -> None:
    """The topic of a table without a key has all columns as the key."""
    sqlite.execute(
        "CREATE TABLE t (u INT UNIQUE, v TEXT)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')"
    )
    source = sqlite.started(keyless="all-columns")
    sqlite.execute("REPLACE INTO t VALUES (1, 'c')", "UPDATE OR REPLACE t SET u = 2 WHERE u = 1")
    found, _ = changes_until(source, 4)
    assert [(each.op, each.before, each.after) for each in found] == [
        ("d", {"u": 1, "v": "a"}, None),
        ("c", None, {"u": 1, "v": "c"}),
        ("d", {"u": 2, "v": "b"}, None),
        ("u", {"u": 1, "v": "c"}, {"u": 2, "v": "c"}),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t RENAME COLUMN a TO b",
        "ALTER TABLE t RENAME COLUMN id TO number",
        "DROP TABLE t",
    ],
)
def test_a_table_that_changes_before_it_is_read_has_no_chunk(
    sqlite: SqliteHarness, statement: str
) -> None:
    """An empty one would be the end of the table: a snapshot would delete the topic's keys."""
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)", "INSERT INTO t VALUES (1, 2)")
    source = sqlite.started()
    table = table_named(source, "t")
    triggers = [f"DROP TRIGGER _tidemill_contract_{event}_t" for event in ("ai", "au", "ad")]
    sqlite.execute(*triggers, statement)
    with pytest.raises(SourceUnavailableError, match="dropped or altered while it was read"):
        source.read_chunk(table, None, 3)


def test_changes_between_a_schema_change_and_the_next_look_are_not_lost(
    sqlite: SqliteHarness,
) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
    source = sqlite.started()
    sqlite.execute("ALTER TABLE t ADD COLUMN b INT")
    sqlite.execute("INSERT INTO t VALUES (1, 'a', 5)")
    batch = next_batch(source)
    changes = batch.changes
    assert batch.resync == ["main.t"]
    assert brief(changes) == [("c", {"id": 1, "a": "a"})]  # with the columns of before
    chunk = source.read_chunk(table_named(source, "t"), None, 10)
    assert chunk.rows == [{"id": 1, "a": "a", "b": 5}]  # and the table is read again


def test_a_column_is_dropped_with_its_triggers_in_one_transaction(sqlite: SqliteHarness) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b TEXT)")
    source = sqlite.started()
    with pytest.raises(sqlite3.OperationalError, match="trigger _tidemill_contract_"):
        sqlite.db.execute("ALTER TABLE t DROP COLUMN b")
    drops = [f"DROP TRIGGER _tidemill_contract_{event}_t" for event in ("ai", "au", "ad")]
    sqlite.execute(*drops, "ALTER TABLE t DROP COLUMN b", "INSERT INTO t VALUES (1, 'x')")
    batch = next_batch(source)
    assert batch.resync == ["main.t"]
    sqlite.execute("UPDATE t SET a = 'y'")
    (change,), _ = changes_until(source, 1)
    assert change.after == {"id": 1, "a": "y"}


def test_a_restored_backup_and_another_file_are_found(
    sqlite: SqliteHarness, tmp_path: Path
) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
    source = sqlite.started()
    copy = sqlite3.connect(tmp_path / "backup.db")
    sqlite.db.backup(copy)
    sqlite.execute("INSERT INTO t VALUES (1, 'a')")
    _, position = changes_until(source, 1)
    copy.execute("INSERT INTO t VALUES (2, 'b')")  # the same number, another change
    copy.commit()
    copy.execute("UPDATE _tidemill_contract_changes SET ts = ts + 5000")
    copy.commit()
    copy.close()
    restored = SqliteSource(Capture("contract", database={"path": str(tmp_path / "backup.db")}))
    with pytest.raises(PositionLostError, match="older state"):
        restored.start(position)
    restored.close()


def test_confirmed_changes_are_removed(sqlite: SqliteHarness) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    source = sqlite.started()
    sqlite.execute(*(f"INSERT INTO t VALUES ({number})" for number in range(50)))
    _, position = changes_until(source, 50)
    assert position is not None
    source.confirm(position)
    quiet(source)
    left = sqlite.db.execute("SELECT id FROM _tidemill_contract_changes").fetchall()
    assert left == [(position["id"],)]
    again = sqlite.source()
    assert again.start(position) == position


def test_a_table_without_a_key_is_refused_unless_chosen(sqlite: SqliteHarness) -> None:
    sqlite.execute("CREATE TABLE log (text TEXT)")
    with pytest.raises(SetupError, match="table log has no primary key"):
        sqlite.source().start(None)
    assert sqlite.source(keyless="skip").tables() == []
    source = sqlite.started(keyless="all-columns")
    sqlite.execute("INSERT INTO log VALUES ('a')", "UPDATE log SET text = 'b'")
    found, _ = changes_until(source, 2)
    assert found[1].before == {"text": "a"}


def test_a_lock_is_named_and_an_unknown_option_is_refused(sqlite: SqliteHarness) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    source = sqlite.source(database={"busy_timeout_s": 0.05})
    sqlite.db.execute("BEGIN IMMEDIATE")
    with pytest.raises(SourceUnavailableError, match="is locked"):
        source.start(None)
    sqlite.db.execute("ROLLBACK")
    source.start(None)
    with pytest.raises(DefinitionError, match="unknown option 'paht'"):
        sqlite.source(database={"paht": "x"})
    with pytest.raises(SourceUnavailableError, match="no database file"):
        SqliteSource(Capture("x", database={"path": str(sqlite.path) + ".missing"}))


def test_two_sources_share_a_database(sqlite: SqliteHarness) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, u INT UNIQUE)")
    one, two = sqlite.started(name="one"), sqlite.started(name="two")
    sqlite.execute("INSERT INTO t VALUES (1, 1)", "INSERT OR REPLACE INTO t VALUES (2, 1)")
    for source in (one, two):
        found, _ = changes_until(source, 3)
        assert [each.op for each in found] == ["c", "d", "c"]
    one.drop()
    sqlite.execute("DELETE FROM t")
    assert changes_until(two, 1)[0][0].op == "d"
