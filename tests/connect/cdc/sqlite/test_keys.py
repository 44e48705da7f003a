"""Rows that take the keys of others, with every conflict clause: the topic equals the table.

So it does when the database takes keys as equal that differ as text.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.envelope import Encoder, decode
from tidemill.connect.cdc.sqlite.rows import json_cells
from tidemill.connect.cdc.sqlite.source import SqliteSource

KEY = st.integers(0, 4)
CONFLICT = st.sampled_from(["", "OR REPLACE", "OR IGNORE"])
STATEMENT = st.one_of(
    st.builds("INSERT {} INTO t VALUES ({}, {}, 'i')".format, CONFLICT, KEY, KEY),
    st.builds("UPDATE {} t SET id = {} WHERE id = {}".format, CONFLICT, KEY, KEY),
    st.builds("UPDATE {} t SET id = {} - id".format, CONFLICT, KEY),
    st.builds("UPDATE {} t SET u = {} WHERE id = {}".format, CONFLICT, KEY, KEY),
    st.builds("UPDATE {} t SET id = id + 1, u = u - {}".format, CONFLICT, KEY),
    st.builds("DELETE FROM t WHERE id = {}".format, KEY),
    st.builds(
        "INSERT INTO t VALUES ({}, {}, 'x') ON CONFLICT (id) DO UPDATE SET id = id + 1".format,
        KEY,
        KEY,
    ),
)


@settings(max_examples=examples(100), deadline=None)
@given(
    key=st.sampled_from(["INTEGER PRIMARY KEY", "INT PRIMARY KEY NOT NULL"]),
    options=st.sampled_from(["", "WITHOUT ROWID"]),
    transactions=st.lists(st.lists(STATEMENT, max_size=5), min_size=1, max_size=3),
)
def test_no_key_is_lost_or_left_when_rows_take_the_keys_of_others(
    key: str, options: str, transactions: list[list[str]]
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        database = sqlite3.connect(path, isolation_level=None)
        database.execute(f"CREATE TABLE t (id {key}, u INT UNIQUE, v TEXT) {options}")
        source = SqliteSource(Capture("model", database={"path": str(path)}))
        source.start(None)
        for statements in transactions:
            database.execute("BEGIN")
            for each in statements:
                with contextlib.suppress(sqlite3.IntegrityError):
                    database.execute(each)
            database.execute("COMMIT")
        assert_topic_equals_table(source, database)
        source.close()
        database.close()


def assert_topic_equals_table(source: SqliteSource, database: sqlite3.Connection) -> None:
    topic: dict[bytes | None, Any] = {}
    encoder = Encoder("sqlite", "model")
    while (batch := source.poll(0)) is not None:
        for record in (record for change in batch.changes for record in encoder.encode(change)):
            if record.value is None:
                topic.pop(record.key, None)
            elif (after := decode(record.value)["after"]) is not None:
                topic[record.key] = after
    cursor = database.execute("SELECT * FROM t")
    names = [each[0] for each in cursor.description]
    table = [dict(zip(names, json_cells(row), strict=True)) for row in cursor]
    assert sorted(map(repr, topic.values())) == sorted(map(repr, table))


EQUAL = ["'a'", "'A'", "'a '", "' a'", "'b'", "'B '", "1", "1.0", "'1'", "'1.0'", "x'61'", "x'31'",
         "2", "2.0", "-0.0", "0", "9007199254740993", "9007199254740992.0", "1e300"]  # fmt: skip
"""Literals of which some are equal, for some types and collations."""
VALUE = st.sampled_from(EQUAL)
EQUAL_STATEMENT = st.one_of(
    st.builds("INSERT {} INTO t VALUES ({}, {}, 'i')".format, CONFLICT, VALUE, VALUE),
    st.builds("UPDATE {} t SET id = {} WHERE id = {}".format, CONFLICT, VALUE, VALUE),
    st.builds("UPDATE {} t SET u = {} WHERE id = {}".format, CONFLICT, VALUE, VALUE),
    st.builds("DELETE FROM t WHERE id = {}".format, VALUE),
    st.builds("INSERT OR REPLACE INTO t SELECT {}, u, 's' FROM t".format, VALUE),
    st.builds(
        "INSERT INTO t VALUES ({}, {}, 'x') ON CONFLICT DO UPDATE SET id = excluded.id".format,
        VALUE,
        VALUE,
    ),
)
TYPES = st.sampled_from(
    ["", "BLOB", "TEXT", "INT", "REAL", "NUMERIC", "ANY", "BLOB COLLATE NOCASE",
     "TEXT COLLATE NOCASE", "TEXT COLLATE RTRIM", "COLLATE NOCASE"]
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(
    types=st.tuples(TYPES, TYPES),
    table=st.sampled_from(
        [
            "(id {} PRIMARY KEY NOT NULL, u {}, v TEXT)",
            "(id {} PRIMARY KEY NOT NULL, u {} UNIQUE, v TEXT)",
            "(id {} PRIMARY KEY NOT NULL, u {}, v TEXT) WITHOUT ROWID",
            "(id {} NOT NULL, u {} NOT NULL, v TEXT, PRIMARY KEY (u, id)) WITHOUT ROWID",
            "(id {} NOT NULL, u {} NOT NULL, v TEXT, PRIMARY KEY (id COLLATE NOCASE, u))",
            "(id {} NOT NULL UNIQUE, u {}, v TEXT)",
        ]
    ),
    is_recursive=st.booleans(),
    transactions=st.lists(st.lists(EQUAL_STATEMENT, max_size=6), min_size=1, max_size=3),
)
@example(
    ("TEXT COLLATE NOCASE", ""),
    "(id {} PRIMARY KEY NOT NULL, u {}, v TEXT)",
    False,
    [["INSERT INTO t VALUES ('a', 1, 'i')", "INSERT OR REPLACE INTO t VALUES ('A', 1, 'i')"]],
)
@example(
    ("", ""),
    "(id {} PRIMARY KEY NOT NULL, u {}, v TEXT) WITHOUT ROWID",
    False,
    [["INSERT INTO t VALUES (1, 1, 'i')", "INSERT OR REPLACE INTO t VALUES (1.0, 1, 'i')"]],
)
@example(
    ("TEXT COLLATE RTRIM", ""),
    "(id {} PRIMARY KEY NOT NULL, u {}, v TEXT)",
    True,
    [["INSERT INTO t VALUES ('a', 1, 'i'), ('b', 2, 'i')"], ["UPDATE OR REPLACE t SET id = 'b '"]],
)
def test_keys_that_are_equal_to_the_database_have_one_record(
    types: tuple[str, str], table: str, is_recursive: bool, transactions: list[list[str]]
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        database = sqlite3.connect(path, isolation_level=None)
        database.execute(f"PRAGMA recursive_triggers = {is_recursive}")
        database.execute(f"CREATE TABLE t {table.format(*types)}")
        capture = Capture("model", keyless="all-columns", database={"path": str(path)})
        source = SqliteSource(capture)
        source.start(None)
        for statements in transactions:
            database.execute("BEGIN")
            for each in statements:
                with contextlib.suppress(sqlite3.IntegrityError):
                    database.execute(each)
            database.execute("COMMIT")
        assert_topic_equals_table(source, database)
        source.close()
        database.close()
