"""A model of capture from SQLite: DDL, keys, snapshots and crashes, in any order.

The real source and the real snapshots follow a database file. Whatever the order of transactions,
polls, reads, commits and crashes, the topic by key is the table in the end.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tests.support.folded_topic import FoldedTopic
from tidemill.connect.cdc.contract import Capture, Position, Source
from tidemill.connect.cdc.errors import SourceUnavailableError
from tidemill.connect.cdc.snapshots import Snapshots
from tidemill.connect.cdc.sqlite.rows import json_cells
from tidemill.connect.cdc.sqlite.source import SqliteSource
from tidemill.connect.cdc.writer import Writer

TABLES = [
    "(id INTEGER PRIMARY KEY, u INT UNIQUE, v TEXT)",
    "(id TEXT PRIMARY KEY NOT NULL COLLATE NOCASE, u INT UNIQUE, v TEXT)",
    "(id PRIMARY KEY NOT NULL, u INT, v TEXT) WITHOUT ROWID",
    "(id TEXT COLLATE RTRIM NOT NULL, u INT NOT NULL, v TEXT, PRIMARY KEY (u, id))",
]


class Model:
    """The worker over a database file."""

    def __init__(self, folder: Path, table: str, chunk_rows: int) -> None:
        self._path = folder / "shop.db"
        self.database = sqlite3.connect(self._path, isolation_level=None)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute(f"CREATE TABLE t {table}")
        self._chunk_rows = chunk_rows
        self._number = 0
        self.topic = FoldedTopic("sqlite")
        self.start(None)
        self.topic.state.request("main.t")
        self.topic.commit()

    def start(self, position: Position | None) -> None:
        options = {"path": str(self._path), "batch_rows": 2}
        self.source = SqliteSource(Capture("model", database=options))
        topic = self.topic
        topic.state.position = self.source.start(position)
        self.snapshots = Snapshots(
            cast(Source, self.source),
            cast(Writer, topic),
            topic.state,
            lambda name: [(key, b"x") for key in topic.rows],
            self._chunk_rows,
        )
        self.snapshots.know(self.source.tables())

    def transaction(self, statements: list[str]) -> None:
        """Carry out statements; one that the table does not allow is left out."""
        self.database.execute("BEGIN IMMEDIATE")
        for each in statements:
            self._number += 1
            columns = [row[1] for row in self.database.execute("PRAGMA table_info(t)")]
            names = {"n": self._number, "last": columns[-1], "rest": ", NULL" * (len(columns) - 3)}
            for part in each.format(**names).split(";"):
                with contextlib.suppress(sqlite3.IntegrityError, sqlite3.OperationalError):
                    self.database.execute(part)
        self.database.execute("COMMIT")

    def poll(self) -> None:
        batch = self.source.poll(0)
        if batch is not None:
            self.snapshots.see(batch)
            self.topic.write(batch)

    def step(self) -> None:
        """Read a chunk. The worker starts again if the table was altered since the last poll."""
        try:
            self.snapshots.step()
        except SourceUnavailableError:
            self.crash()

    def commit(self) -> None:
        """Store everything, and let the source remove what is stored."""
        self.topic.commit()
        assert self.topic.state.position is not None
        self.source.confirm(self.topic.state.position)

    def crash(self) -> None:
        self.snapshots.close()
        self.source.close()
        self.topic.crash()
        self.start(self.topic.state.position)

    def finish(self) -> None:
        for _ in range(200):
            self.step()
            self.poll()
        assert not self.snapshots.active, "the reads do not end"
        self.commit()
        self.snapshots.close()
        self.source.close()

    def check(self) -> None:
        cursor = self.database.execute("SELECT * FROM t")
        names = [each[0] for each in cursor.description]
        rows = [dict(zip(names, json_cells(row), strict=True)) for row in cursor]
        found = [{name: each.get(name) for name in names} for each in self.topic.rows.values()]
        assert Counter(map(repr, found)) == Counter(map(repr, rows))
        for key, row in self.topic.rows.items():
            assert all(row[name] == value for name, value in json.loads(key).items())
        self.database.close()


VALUE = st.sampled_from(["1", "1.0", "'a'", "'A'", "'a '", "2", "3"])
CONFLICT = st.sampled_from(["", "OR REPLACE"])
WRITE = st.one_of(
    st.builds("INSERT {} INTO t VALUES ({}, {}, 'i{{n}}'{{rest}})".format, CONFLICT, VALUE, VALUE),
    st.builds("UPDATE {} t SET id = {}, v = 'u{{n}}' WHERE id = {}".format, CONFLICT, VALUE, VALUE),
    st.builds("UPDATE t SET v = 'w{{n}}' WHERE id = {}".format, VALUE),
    st.builds("DELETE FROM t WHERE id = {}".format, VALUE),
    st.just("DELETE FROM t"),
)
DDL = st.sampled_from(
    [
        "ALTER TABLE t ADD COLUMN c{n} TEXT DEFAULT 'new'",
        "ALTER TABLE t ADD COLUMN c{n} TEXT",
        "ALTER TABLE t RENAME COLUMN {last} TO d{n}",
        "ALTER TABLE t RENAME TO s; ALTER TABLE s RENAME TO t",
        *(f"DROP TABLE t; CREATE TABLE t {table}" for table in TABLES),
        *(
            f"CREATE TABLE s {table}; INSERT OR IGNORE INTO s SELECT id, u, 's{{n}}' FROM t;"
            " DROP TABLE t; ALTER TABLE s RENAME TO t"
            for table in TABLES
        ),
        "CREATE UNIQUE INDEX i ON t (u)",
        "DROP INDEX i",
    ]
)
TRANSACTION = st.tuples(
    st.just("transaction"), st.lists(st.one_of(WRITE, WRITE, WRITE, DDL), min_size=1, max_size=5)
)
STEP = st.sampled_from([(each,) for each in ("poll", "poll", "step", "commit", "crash")])


@settings(max_examples=examples(80), deadline=None)
@given(
    table=st.sampled_from(TABLES),
    steps=st.lists(TRANSACTION | STEP, max_size=12),
    chunk_rows=st.integers(1, 4),
)
@example(
    TABLES[1],
    [
        ("transaction", ["INSERT INTO t VALUES ('a', 1, 'i')"]),
        ("poll",), ("step",), ("poll",), ("step",), ("commit",),
        ("transaction", ["INSERT OR REPLACE INTO t VALUES ('A', 1, 'i')"]), ("crash",),
    ],
    2,
)  # fmt: skip
def test_the_topic_equals_the_table_whatever_ddl_and_crashes_come(
    table: str, steps: list[tuple[Any, ...]], chunk_rows: int
) -> None:
    with TemporaryDirectory() as folder:
        model = Model(Path(folder), table, chunk_rows)
        for name, *arguments in steps:
            getattr(model, name)(*arguments)
        model.finish()
        model.check()
