"""Rows that swap a deferrable primary key within a transaction: no key of the table is lost."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.connect.cdc.postgres.reading import Reading
from tests.connect.cdc.postgres.test_messages import (
    COLUMNS,
    OID,
    RELATION,
    OneTable,
    framed,
    row,
)
from tests.support.effort import examples
from tidemill.connect.cdc.contract import Change, Column, Row, Table
from tidemill.connect.cdc.envelope import Encoder, decode
from tidemill.connect.cdc.postgres.decoding.shapes import Shape, decoder
from tidemill.connect.cdc.postgres.decoding.stream import Stream
from tidemill.connect.cdc.postgres.lsn import Place
from tidemill.connect.cdc.postgres.reading.contested import settle

TABLE = Table(
    "d", "public", "t", (Column("id", "integer", "int"), Column("v", "text", "text")), ("id",)
)

Step = tuple[str, int, int]
"""What a transaction does, to which of its rows, and the new key."""


Stored = tuple[int, str]
"""The key and the text of a row."""


class Deferrable(OneTable):
    """A table with a deferrable key under REPLICA IDENTITY FULL."""

    def __getitem__(self, oid: int) -> Shape:
        found = super().__getitem__(oid)
        whole = decoder([(name, convert) for name, convert, _ in COLUMNS])
        return Shape(found.relation, TABLE, found.names, whole, whole, found.columns, 0, True)


class Server:
    """Rows, and the messages of the transactions that change them."""

    def __init__(self, keys: set[int]) -> None:
        self._rows = [(key, f"first {key}") for key in sorted(keys)]
        self._commits = 0

    def table(self) -> dict[int, str]:
        return dict(self._rows)

    def read(
        self, table: Table, keys: Sequence[Sequence[Any]], columns: Sequence[str]
    ) -> list[Row]:
        """Return rows by their keys, as a source reads them."""
        here = self.table()
        return [{"id": key, "v": here[key]} for (key,) in keys if key in here]

    def transaction(self, steps: list[Step]) -> list[bytes]:
        """Carry out a transaction and return its messages. Keys that are not unique get others."""
        self._commits += 1
        commit = 1000 * self._commits + 900
        messages = [framed(commit, b"B" + struct.pack(">QqI", commit, 0, self._commits))]

        def log(kind: bytes, old: Stored | None, new: Stored | None) -> None:
            parts = b"" if old is None else b"O" + row(*map(str, old))
            parts += b"" if new is None else b"N" + row(*map(str, new))
            lsn = 1000 * self._commits + len(messages)
            messages.append(framed(lsn, kind + struct.pack(">I", OID) + parts))

        for number, (what, which, key) in enumerate(steps):
            if what == "insert":
                self._rows.append((key, f"{self._commits}.{number}"))
                log(b"I", None, self._rows[-1])
            elif self._rows:
                at = which % len(self._rows)
                old = self._rows[at]
                if what == "delete":
                    del self._rows[at]
                    log(b"D", old, None)
                else:
                    new = (key, old[1]) if what == "move" else (old[0], f"{old[1]}+")
                    self._rows[at] = new
                    log(b"U", old, new)
        used: set[int] = set()
        for at, (key, text) in enumerate(self._rows):
            if key in used:
                free = next(each for each in range(100) if all(r[0] != each for r in self._rows))
                self._rows[at] = (free, text)
                log(b"U", (key, text), (free, text))
            used.add(self._rows[at][0])
        end = b"C" + struct.pack(">BQQq", 0, commit, commit + 50, 0)
        return [*messages, framed(commit, end)]


STEP = st.tuples(
    st.sampled_from(["move", "move", "write", "insert", "delete"]),
    st.integers(0, 5),
    st.integers(0, 4),
)


@settings(max_examples=examples(300))
@given(
    keys=st.sets(st.integers(0, 4), max_size=4),
    transactions=st.lists(st.lists(STEP, max_size=6), min_size=1, max_size=3),
    cuts=st.sets(st.integers(0, 30), max_size=6),
    crashes=st.sets(st.integers(0, 30), max_size=3),
    is_late=st.booleans(),
)
@example(  # UPDATE t SET id = 3 - id
    {1, 2}, [[("move", 0, 2), ("move", 1, 1)]], set(), set(), False
)
@example(  # one row goes to a key and back, or away again
    {1, 2}, [[("move", 0, 2), ("move", 0, 1)]], set(), set(), False
)
@example({1, 2}, [[("move", 0, 2), ("move", 1, 1)]], {2}, {2}, True)
def test_the_topic_has_each_row_of_the_table_and_no_others(
    keys: set[int],
    transactions: list[list[Step]],
    cuts: set[int],
    crashes: set[int],
    is_late: bool,
) -> None:
    """Batches end at ``cuts``. With ``is_late`` the table is read after all transactions."""
    server = Server(keys)
    topic = server.table()
    encoder = Encoder("postgres", "p")

    def store(stream: Stream) -> None:
        settle(stream.contested, server.read)
        for change in stream.take().changes:
            for record in encoder.encode(change):
                key = json.loads(record.key or b"")["id"]
                if record.value is None:
                    topic.pop(key, None)
                elif (after := decode(record.value)["after"]) is not None:
                    topic[key] = after["v"]

    def read(messages: list[bytes], stream: Stream) -> Stream:
        for number, message in enumerate(messages):
            stream.feed_all([message], 0)
            if number in cuts | crashes:
                store(stream)
            if number in crashes:
                again = Stream(tables(), stream.place)
                for each in [RELATION_MESSAGE, *messages[: number + 1]]:
                    again.feed_all([each], 0)
                assert list(again.changes) == []
                again.contested.clear()
                stream = again
        store(stream)
        return stream

    stream = Stream(tables(), Place(0))
    stream.feed(RELATION_MESSAGE)
    logs = []
    for steps in transactions:
        logs.append(server.transaction(steps))
        if not is_late:
            stream = read(logs.pop(), stream)
    for log in logs:
        stream = read(log, stream)
    assert topic == server.table()


RELATION_MESSAGE = framed(1, RELATION)


def tables() -> Any:
    return Deferrable()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET id = 3 - id WHERE id < 3",
        "UPDATE t SET id = id % 3 + 1 WHERE id < 4",
        "UPDATE t SET id = 2 WHERE id = 1; UPDATE t SET id = 1 WHERE v = 'first 1'",
        "INSERT INTO t VALUES (1, 'new'); DELETE FROM t WHERE v = 'first 1'",
    ],
)
def test_rows_that_swap_their_keys_stay(
    sql: psycopg.Connection[Any], started: Callable[..., Reading], statement: str
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text)")
    sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    sql.execute("INSERT INTO t SELECT i, 'first ' || i FROM generate_series(1, 4) i")
    read = started()
    table = {key: f"first {key}" for key in range(1, 5)}
    sql.execute(f"BEGIN; {statement}; INSERT INTO t VALUES (9, 'end'); COMMIT".encode())
    changes: list[Change] = []
    while not changes or (changes[-1].after or {}).get("id") != 9:
        changes += read.changes(1)
    for record in (each for change in changes for each in Encoder("postgres", "p").encode(change)):
        key = json.loads(record.key or b"")["id"]
        if record.value is None:
            table.pop(key, None)
        elif (after := decode(record.value)["after"]) is not None:
            table[key] = after["v"]
    assert table == dict(sql.execute("SELECT id, v FROM t").fetchall())


def test_a_table_with_a_deferrable_key_alone_is_not_published(
    sql: psycopg.Connection[Any], started: Callable[..., Reading]
) -> None:
    """The server would refuse the application's updates: the table has no replica identity."""
    sql.execute("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v text)")
    sql.execute("CREATE TABLE other (id int PRIMARY KEY)")
    sql.execute("INSERT INTO t VALUES (1, 'a')")
    read = started()
    sql.execute("UPDATE t SET v = 'b'")
    sql.execute("INSERT INTO other VALUES (1)")
    (change,) = read.changes(1)
    assert change.table is not None
    assert change.table.id == "public.other"


def test_a_key_that_becomes_deferrable_is_noticed(
    sql: psycopg.Connection[Any], started: Callable[..., Reading]
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    sql.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    read = started()
    sql.execute("UPDATE t SET v = v || '!'")
    assert len(read.changes(2)) == 2
    sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    sql.execute("ALTER TABLE t ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED")
    sql.execute("UPDATE t SET id = 3 - id")
    found = [(each.op, (each.after or each.before or {})["id"]) for each in read.changes(3)]
    assert found == [("u", 2), ("u", 2), ("c", 1)]


def test_a_row_that_the_publication_leaves_out_is_not_read_by_its_key(
    sql: psycopg.Connection[Any], started: Callable[..., Reading]
) -> None:
    if sql.info.server_version < 150000:
        pytest.skip("row filters are new in PostgreSQL 15")
    sql.execute("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, n int, v int)")
    sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    sql.execute("INSERT INTO t VALUES (1, 1, 5), (3, 3, 5)")
    sql.execute("CREATE PUBLICATION theirs FOR TABLE t WHERE (v > 0)")
    read = started(publication="theirs")
    with sql.transaction():
        sql.execute("UPDATE t SET id = 1 WHERE n = 3")
        sql.execute("UPDATE t SET id = 2 WHERE n = 1")
        sql.execute("UPDATE t SET v = -1 WHERE n = 3")
    found = read.changes(4)
    assert [(each.op, (each.after or {}).get("v")) for each in found] == [
        ("u", 5),
        ("d", None),
        ("c", 5),
        ("d", None),
    ]
