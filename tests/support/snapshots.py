"""A database and a topic for tests of snapshots, without a database and without Kafka."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from tidemill.connect.cdc.contract import (
    Batch,
    Change,
    Chunk,
    Column,
    ConsistentRead,
    Finding,
    Lag,
    Position,
    Row,
    Table,
)
from tidemill.connect.cdc.state import WorkerState

TABLE = Table("d", "s", "t", (Column("k", "int", "int"), Column("v", "int", "int")), ("k",))

Record = tuple[bytes, int | None]


class FakeSource:
    """A table with a log of changes. ``v`` is the number of the change that wrote a row.

    A change that is not captured is a gap: the source finds it later, and says so. ``early`` is one
    that it finds in the catalog, while its stream is behind: the next batch says so.
    """

    def __init__(self) -> None:
        self.states: list[dict[int, int]] = [{}]
        self.log: list[Change | None] = [None]  # the change that led to a state; None: not captured
        self.resyncs: set[int] = set()
        self.early = self.told = 0  # gaps of the catalog, and how many of them a batch has named
        self.read = 0
        self.lag_of_chunk = 0

    def commit(self, key: int, delete: bool, captured: bool, early: bool = False) -> None:
        state = dict(self.states[-1])
        number = len(self.states)
        before = {"k": key, "v": state[key]} if key in state else None
        if delete:
            if before is None:
                return
            del state[key]
            change = Change(TABLE, "d", before, None, number, {})
        else:
            state[key] = number
            after = {"k": key, "v": number}
            change = Change(TABLE, "c" if before is None else "u", before, after, number, {})
        self.states.append(state)
        self.log.append(change if captured else None)
        if not captured and early:
            self.early += 1
        elif not captured:
            self.states.append(state)
            self.log.append(None)
            self.resyncs.add(len(self.states) - 1)

    def poll(self, timeout_s: float, limit: int = 3) -> Batch | None:
        upto = min(self.read + limit, len(self.log) - 1)
        if upto == self.read and self.told == self.early:
            return None
        numbers = range(self.read + 1, upto + 1)
        changes = [deepcopy(each) for each in (self.log[n] for n in numbers) if each is not None]
        self.read = upto
        is_gap = self.told < self.early or any(n in self.resyncs for n in numbers)
        self.told = self.early
        position: Position = {"n": upto, "told": self.told}
        return Batch(changes, position, resync=[TABLE.id] if is_gap else [])

    def read_chunk(self, table: Table, after: list[Any] | None, limit: int) -> Chunk:
        # Any state between what was polled and what is committed keeps the contract's promise.
        at = max(self.read, len(self.states) - 1 - self.lag_of_chunk)
        keys = sorted(key for key in self.states[at] if after is None or key > after[0])
        rows = [{"k": key, "v": self.states[at][key]} for key in keys[:limit]]
        last = [rows[-1]["k"]] if len(rows) == limit else None
        return Chunk(rows, last, {"n": len(self.states) - 1}, 0)

    def reached(self, position: Position, goal: Position) -> bool:
        return position["n"] >= goal["n"]  # type: ignore[operator]

    def left_out(self) -> dict[str, str]:
        return {}

    def estimate(self, table: Table) -> int:
        return len(self.states[-1])

    def start(self, position: Position | None) -> Position:
        self.read = 0 if position is None else int(position["n"])
        self.told = 0 if position is None else int(position.get("told", 0))
        return {"n": self.read, "told": self.told}

    def tables(self) -> list[Table]:
        return [TABLE]

    def find_table(self, schema: str, name: str) -> Table | None:
        return TABLE

    def check(self) -> list[Finding]:
        return []

    def lag(self) -> Lag:
        return Lag()

    def confirm(self, position: Position) -> None: ...
    def drop(self) -> None: ...
    def close(self) -> None: ...

    @contextlib.contextmanager
    def read_consistent(self, tables: Sequence[Table]) -> Iterator[ConsistentRead]:
        raise NotImplementedError
        yield


class FakeWriter:
    """A topic with transactions: what is not committed is gone after a crash."""

    def __init__(self, topic: list[Record], stored: WorkerState) -> None:
        self.state = deepcopy(stored)
        self.stored = stored
        self._topic = topic
        self._open: list[Record] = []

    def topic(self, table: Table) -> str:
        return table.id

    def key_of(self, table: Table, row: Row) -> bytes:
        return json.dumps({"k": row["k"]}).encode()

    def selects(self, table: Table, row: Row) -> bool:
        return True

    def write(self, batch: Batch) -> None:
        for change in batch.changes:
            row = change.after or change.before or {}
            key = self.key_of(TABLE, row)
            self._open.append((key, None if change.op == "d" else row["v"]))
        self.state.position = batch.position

    def write_rows(self, table: Table, rows: list[Row], read: Chunk) -> None:
        self._open += [(self.key_of(table, row), row["v"]) for row in rows]

    def delete_key(self, table: Table, key: bytes, row: Row) -> None:
        self._open.append((key, None))

    def commit(self) -> None:
        self._topic += self._open
        self._open = []
        self.stored = deepcopy(self.state)
