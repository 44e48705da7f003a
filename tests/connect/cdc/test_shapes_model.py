"""A model of capture from a binary log: shapes, keys and positions under crashes.

A server in memory changes rows, and runs statements that change rows without events. The worker's
own parts write into topics with transactions. Whatever comes when, the topics equal the tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.binlog_model import MariaDbLog, ModelServer, ModelSource, MySqlLog
from tests.support.effort import examples
from tidemill.confluent.clients import Kafka
from tidemill.connect.base.producer import Producer
from tidemill.connect.cdc.binlog import groups, source
from tidemill.connect.cdc.binlog.packed_rows import Scan
from tidemill.connect.cdc.definition import parse
from tidemill.connect.cdc.snapshots import Snapshots
from tidemill.connect.cdc.state import KEY, WorkerState, notes_of
from tidemill.connect.cdc.writer import Writer

DEFINITION = parse(
    {"name": "model", "kind": "mariadb", "database": {"host": "localhost", "user": "u"}}
)
STATE = "tidemill.source.model"
Log = dict[str, list[tuple[bytes, bytes | None]]]


class Transactions:
    """A producer whose records are in the topics when they are committed."""

    def __init__(self, topics: Log) -> None:
        self._topics = topics
        self._open: list[tuple[str, bytes, bytes | None]] = []

    def send(self, topic: str, key: bytes, value: bytes | None, ts_ms: int = 0) -> None:
        self._open.append((topic, key, value))

    def post(self) -> None:
        pass

    def commit(self) -> None:
        for topic, key, value in self._open:
            self._topics.setdefault(topic, []).append((key, value))
        self._open = []


class _Topics:
    def create_topics(self, client: str, topics: Any) -> None:
        pass


class Worker:
    """The worker, without its loop."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self.topics: Log = {}
        self.crash()

    def crash(self) -> None:
        """Start another worker, with nothing but what is in the topics."""
        stored = self.table(STATE)
        self.state = state = WorkerState.decode(stored.get(KEY))
        self._source = ModelSource(self._server, notes_of(stored))
        producer = cast(Producer, Transactions(self.topics))
        self._writer = Writer(cast(Kafka, _Topics()), producer, DEFINITION, state)
        is_first = state.position is None
        state.position = self._source.start(state.position)
        tables = self._source.tables()
        self._writer.prepare(tables)
        if is_first:
            for table in tables:
                state.request(table.id)
        read = lambda topic: list(self.topics.get(topic, []))  # noqa: E731
        self._snapshots = Snapshots(self._source, self._writer, state, read, 2)
        self._snapshots.know(tables)
        if is_first:
            self.poll(0)
            self._writer.commit()

    def poll(self, arriving: int = 2) -> bool:
        """Take the next batch into the transaction, and return whether there was one."""
        self._source.arrive(arriving)
        batch = self._source.poll(0)
        if batch is None:
            return False
        if batch.schemas:
            self._writer.prepare(batch.schemas)
        self._snapshots.see(batch)
        self._writer.write(batch)
        return True

    def step(self) -> bool:
        """Read the next part of a table, if there is one to read."""
        return self._snapshots.active and self._snapshots.step()

    def commit(self) -> None:
        self._writer.commit()

    def settle(self) -> None:
        """Run until there is nothing more to do."""
        for _ in range(2000):
            stepped = self.step()
            polled = self.poll()
            self.commit()
            if not (stepped or polled or self._snapshots.active) and self._source.is_at_end:
                self._snapshots.close()
                return
        raise AssertionError(f"it does not end: {self.state}")

    def table(self, topic: str) -> dict[bytes, bytes]:
        """Return the last value of each key."""
        found: dict[bytes, bytes] = {}
        for key, value in self.topics.get(topic, []):
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        return found

    def rows(self, name: str) -> dict[str, Any]:
        """Return the rows of a topic, by the JSON of their keys."""
        return {
            key.decode(): after
            for key, value in self.table(f"model.d.{name}").items()
            if (after := json.loads(value)["after"]) is not None
        }


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST_HELD", 3)
    monkeypatch.setattr(source, "MOST_HELD", 3)
    monkeypatch.setattr(
        groups, "scan", lambda tables, received, begin, **_: Scan(begin, 0, 0, 0, {})
    )


NAME, NUMBER = st.sampled_from("ttx"), st.integers(0, 6)
CHANGE = st.tuples(NUMBER, st.sampled_from(["insert", "insert", "update", "rekey", "delete"]))
Step = tuple[Any, ...]


def _with_name(*actions: str) -> st.SearchStrategy[Step]:
    return st.tuples(st.sampled_from(actions), NAME)


STEP: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("write"), NAME, st.lists(CHANGE, min_size=1, max_size=6)),
    st.tuples(st.just("write"), NAME, st.lists(CHANGE, min_size=1, max_size=3)),
    st.sampled_from([("poll",), ("poll",), ("step",), ("step",), ("commit",), ("crash",)]),
    _with_name("drop_column", "change_type", "change_key", "truncate", "add_index"),
    _with_name("unlogged_key", "drop", "create", "replace"),
    st.tuples(st.sampled_from(["add_column", "unlogged_column"]), NAME, NUMBER),
    st.tuples(st.just("drop_partition"), NAME, NUMBER),
    st.sampled_from([("exchange", 3), ("swap",), ("rename",)]),
)


def _run(server: ModelServer, worker: Worker, step: Step) -> None:
    action, *args = step
    match action:
        case "poll" | "step" | "commit" | "crash":
            getattr(worker, action)()
        case "unlogged_key":
            server.change_key(*args, is_logged=False)
        case "unlogged_column":
            server.add_column(*args, is_logged=False)
        case "create":
            if args[0] not in server.tables:
                server.create(*args, text=f"CREATE TABLE IF NOT EXISTS {args[0]} (id INT)")
        case "replace":
            server.create(*args, text=f"create or replace table {args[0]} like y")
        case _:
            change: Callable[..., None] = getattr(server, action)
            change(*args)


INSERT = ("write", "t", [(1, "insert"), (2, "insert")])
STORE: list[Step] = [("poll",), ("step",), ("commit",)]


@pytest.mark.parametrize("log", [MariaDbLog, MySqlLog])
@settings(max_examples=examples(150), deadline=None)
@given(rows=st.lists(CHANGE, max_size=4), steps=st.lists(STEP, max_size=30))
@example(rows=[(1, "insert")], steps=[("add_column", "t", 5), INSERT])
@example(rows=[(1, "insert")], steps=[("add_column", "t", 5), *3 * STORE, ("crash",)])
@example(rows=[(1, "insert")], steps=[*9 * STORE, ("unlogged_column", "t", 5)])
@example(rows=[(1, "insert")], steps=[("unlogged_key", "t"), INSERT, ("unlogged_key", "t")])
@example(rows=[(1, "insert"), (5, "insert")], steps=[("drop_partition", "t", 3), *3 * STORE])
@example(rows=[(1, "insert")], steps=[*9 * STORE, ("drop", "t"), ("create", "t"), ("rename",)])
@example(rows=[(1, "insert")], steps=[*9 * STORE, ("replace", "t")])
@example(rows=[(1, "insert")], steps=[*9 * STORE, ("drop", "t"), ("rename",)])
def test_topics_equal_the_tables_whatever_statements_batches_and_crashes_come(
    log: Any, rows: list[tuple[int, str]], steps: list[Step]
) -> None:
    server = ModelServer(log)
    server.write("t", rows)
    server.write("x", rows[::-1])
    worker = Worker(server)
    for step in steps:
        _run(server, worker, step)
    worker.crash()  # what is not in the binary log is found at a start
    worker.settle()
    for name, table in server.tables.items():
        wanted = {_key(table.key, row): row for row in table.rows}
        assert worker.rows(name) == wanted, name


def _key(name: str, row: Any) -> str:
    return json.dumps({name: row[name]}, separators=(",", ":"))
