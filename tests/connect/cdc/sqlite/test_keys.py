"""Rows that take the keys of others, with every conflict clause: the topic equals the table."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.envelope import Encoder, decode
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
        topic: dict[bytes | None, Any] = {}
        encoder = Encoder("sqlite", "model")
        while (batch := source.poll(0)) is not None:
            for record in (record for change in batch.changes for record in encoder.encode(change)):
                if record.value is None:
                    topic.pop(record.key, None)
                elif (after := decode(record.value)["after"]) is not None:
                    topic[record.key] = after
        table = [dict(zip("iuv", row, strict=True)) for row in database.execute("SELECT * FROM t")]
        found = [dict(zip("iuv", each.values(), strict=True)) for each in topic.values()]
        assert sorted(found, key=str) == sorted(table, key=str)
        source.close()
        database.close()
