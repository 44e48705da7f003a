"""Models of the worker over the sources with a binary log and over SQLite, with crashes.

The position that is stored with each commit never says less than the one before, and a change is
delivered once, whatever was returned before the worker was stopped.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.connect.cdc.binlog import groups, source
from tidemill.connect.cdc.binlog.decoding.events import (
    Event,
    GtidEvent,
    HeartbeatEvent,
    QueryEvent,
    RotateEvent,
    RowsEvent,
    RowsKind,
    XidEvent,
)
from tidemill.connect.cdc.binlog.groups import Groups
from tidemill.connect.cdc.binlog.known import KnownTables
from tidemill.connect.cdc.binlog.packed_rows import Scan
from tidemill.connect.cdc.binlog.source import BinlogSource
from tidemill.connect.cdc.contract import Batch, Capture, Change, Position, Source, Table
from tidemill.connect.cdc.mariadb.dialect import GtidPosition, MariaDb, parse_gtid
from tidemill.connect.cdc.mysql.dialect import MySql
from tidemill.connect.cdc.mysql.position import GtidSet, MySqlPosition
from tidemill.connect.cdc.sqlite.source import SqliteSource

STEPS = st.lists(st.sampled_from(["poll", "poll", "poll", "commit", "confirm", "crash"]))


class Worker:
    """The worker with its state topic and its topic of changes.

    Args:
        start: Starts a source at a stored position, and returns the position where it is.
        rank: Makes positions comparable.
    """

    def __init__(
        self,
        start: Callable[[Position | None], tuple[Source, Position]],
        rank: Callable[[Position], tuple[int, ...]],
    ) -> None:
        self._start, self._rank = start, rank
        self.changes: list[str] = []
        self.ended: list[str] = []
        self._pending: list[Batch] = []
        self._source, self._position = start(None)
        self._stored = self._position

    def crash(self) -> None:
        """Start another worker, with nothing but what was stored."""
        self._source.close()
        self._pending = []
        self._source, self._position = self._start(self._stored)
        assert self._rank(self._position) >= self._rank(self._stored)

    def poll(self) -> bool:
        """Take the next batch into the transaction, and return whether there was one."""
        batch = self._source.poll(0)
        if batch is not None:
            self._pending.append(batch)
            self._position = batch.position
        return batch is not None

    def commit(self) -> None:
        """Store the changes, and the position with them."""
        now: Position = json.loads(json.dumps(self._position))
        assert self._rank(now) >= self._rank(self._stored), "it says less than the one before"
        for batch in self._pending:
            for each in batch.changes:
                row = each.after or {}
                self.changes.append(row["v"] if each.op == "c" else each.op)
            self.ended += [each.id for each in batch.ended]
        self._pending, self._stored = [], now

    def confirm(self) -> None:
        """Let the source remove what is stored."""
        self._source.confirm(self._stored)

    def finish(self) -> None:
        """Read everything."""
        while self.poll():
            pass
        self.commit()
        self._source.close()


# --- a binary log ---------------------------------------------------------------------------------

FILE, SERVER = "log.000001", str(UUID(int=1))
CAPTURED = Table("d", "d", "t", (), ("id",))


@dataclass(frozen=True)
class Group:
    """An event group: how many rows each rows event has, and how many events are of other tables.

    Without rows events it is a TRUNCATE of the table.
    """

    rows: tuple[int, ...]
    others: int = 0


class Shapes:
    """A captured table with the number 1. Others are not captured."""

    packable: dict[int, Any] = {}

    def get(self, table_id: int) -> Any:
        return SimpleNamespace(table=CAPTURED, is_new=False) if table_id == 1 else None

    def settle(self, table_id: int) -> None:
        pass

    def trim(self) -> None:
        pass

    def text_of(self, event: QueryEvent) -> str:
        return event.statement


class Stream:
    """Events of a server. Between groups they can be late.

    Args:
        late: Whether nothing is there yet, for each look.
    """

    has_checksums = False

    def __init__(self, events: list[Event], late: Iterator[bool]) -> None:
        self.received = events
        self.place = 0
        self._late = late

    def wait(self, timeout_s: float) -> bool:
        return self.place < len(self.received) and not next(self._late)

    def fill(self) -> None:
        pass

    def read(self) -> Event:
        self.place += 1
        return self.received[self.place - 1]

    def close(self) -> None:
        pass


def log_of(items: list[Group | None], ids: str) -> tuple[list[list[Event]], list[str], list[str]]:
    """Return the events of each group, the changes, and the ids of groups with changes.

    Args:
        items: The groups; None is an event of no group.
        ids: What comes before the number of a group in its id.
    """
    events: list[list[Event]] = []
    changes: list[str] = []
    ended: list[str] = []
    end = itertools.count(100)
    for item in items:
        if item is None:
            events.append([HeartbeatEvent(1, 1, next(end))])
            continue
        gtid = f"{ids}{sum(len(each) > 1 for each in events) + 1}"
        begin = GtidEvent(1, 1, next(end), gtid, not item.rows, False, 5)
        if not item.rows:
            events.append([begin, QueryEvent(1, 1, next(end), "d", "TRUNCATE t")])
            changes.append("t")
            ended.append(gtid)
            continue
        group: list[Event] = [begin]
        group += [
            RowsEvent(1, 1, next(end), RowsKind.INSERT, 2, 1, (), b"x") for _ in range(item.others)
        ]
        for count in item.rows:
            at = next(end)
            names = [f"{gtid} {at} {number}" for number in range(count)]
            rows = ",".join(names).encode()
            group.append(RowsEvent(1, 1, at, RowsKind.INSERT, 1, 1, (), rows))
            changes += names
        events.append([*group, XidEvent(1, 1, next(end), 1)])
        ended.append(gtid)
    return events, changes, ended


def _decode(event: RowsEvent, shape: Any, transaction: Any) -> list[Change]:
    names = event.rows.decode().split(",")
    return [Change(shape.table, "c", None, {"v": name}, 0, {}, transaction.gtid) for name in names]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST_HELD", 3)
    monkeypatch.setattr(source, "MOST_HELD", 3)
    monkeypatch.setattr(groups, "decode_rows", _decode)
    monkeypatch.setattr(
        groups, "scan", lambda tables, received, begin, **_: Scan(begin, 0, 0, 0, {})
    )


class MariaDbLog:
    """The positions of MariaDB."""

    ids = "0-1-"
    dialect: Any = MariaDb()
    beginning: Any = GtidPosition(parse_gtid(""))

    @staticmethod
    def resumed(position: Any) -> Any:
        return position

    @staticmethod
    def rank(position: Position) -> tuple[int, ...]:
        found = GtidPosition.parse(position)
        return found.groups.get(0, (0, 0))[1], found.skip


class MySqlLog:
    """The positions of MySQL."""

    ids = f"{SERVER}:"
    dialect: Any = MySql()
    beginning: Any = MySqlPosition(GtidSet.parse(""), SERVER)

    @staticmethod
    def resumed(position: Any) -> Any:
        return MySqlPosition(position.ids, position.server, skip=position.skip)

    @staticmethod
    def rank(position: Position) -> tuple[int, ...]:
        found = MySqlPosition.parse(position)
        return found.ids.intervals.get(SERVER, ((1, 0),))[-1][1], found.skip


GROUPS = st.builds(Group, st.lists(st.integers(1, 4), max_size=5).map(tuple), st.integers(0, 2))


@pytest.mark.parametrize("server", [MariaDbLog, MySqlLog])
@settings(max_examples=examples(200))
@given(
    items=st.lists(st.none() | GROUPS, min_size=1, max_size=5),
    steps=STEPS,
    late=st.lists(st.booleans(), max_size=4),
)
@example(  # all rows of the group were stored, and not its end
    items=[Group((4,))], steps=[*4 * ["poll"], "commit", "crash"], late=[True]
)
def test_each_change_of_a_binary_log_is_stored_once_whatever_batches_and_crashes_come(
    server: Any, items: list[Group | None], steps: list[str], late: list[bool]
) -> None:
    events, changes, ended = log_of(items, server.ids)
    looks = itertools.cycle([*late, False])

    def start(position: Position | None) -> tuple[Source, Position]:
        at = server.beginning
        if position is not None:
            at = server.resumed(server.dialect.parse(position))
        done, sent = server.rank(at.stored())[0], 0
        sending: list[Event] = [RotateEvent(0, 1, 0, FILE, 4)]
        for group in events:
            sent += len(group) > 1
            if sent > done:
                sending += group
        database = {"host": "localhost", "user": "u"}
        made = BinlogSource(Capture("model", database=database), server.dialect)
        shapes: Any = Shapes()
        stream: Any = Stream(sending, looks)
        made._stream, made._returned, made._confirmed = stream, at, at
        known = KnownTables({}, lambda *_: None)
        made._groups = Groups(
            at, shapes, known, lambda *_: CAPTURED, lambda: ["t"], lambda _: False
        )
        return made, at.stored()

    worker = Worker(start, server.rank)
    for step in steps:
        getattr(worker, step)()
        assert worker.changes == changes[: len(worker.changes)], "lost, or delivered twice"
    for _ in range(50):  # late events
        worker.poll()
    worker.finish()
    assert (worker.changes, worker.ended) == (changes, ended)


# --- SQLite ---------------------------------------------------------------------------------------


@settings(max_examples=examples(40), deadline=None)
@given(
    steps=st.lists(
        st.sampled_from(["write", "write", "alter", "poll", "commit", "confirm", "crash"]),
        max_size=30,
    )
)
def test_each_change_of_sqlite_is_stored_once_whatever_batches_and_crashes_come(
    steps: list[str],
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")

        def start(position: Position | None) -> tuple[Source, Position]:
            options = {"path": str(path), "batch_rows": 3}
            made = SqliteSource(Capture("model", database=options))
            return made, made.start(position)

        worker = Worker(start, lambda position: (int(position["id"]),))
        written: list[str] = []
        for number, step in enumerate(steps):
            if step == "write":
                names = [f"{number} {each}" for each in range(number % 5 + 1)]
                database.executemany("INSERT INTO t (v) VALUES (?)", [(each,) for each in names])
                written += names
            elif step == "alter":
                database.execute(f"ALTER TABLE t ADD COLUMN c{number} TEXT")
            else:
                getattr(worker, step)()
            assert worker.changes == written[: len(worker.changes)], "lost, or delivered twice"
        worker.finish()
        database.close()
        assert worker.changes == written
