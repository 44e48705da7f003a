"""A model of capture without a server: DDL, partitions, keys and crashes, in any order.

A table with partitions is in memory, with the log and the catalog that PostgreSQL would show. The
real source, its looks at the catalog and the real snapshots follow it. Whatever the order of
transactions, polls, looks, reads, commits and crashes, the topic by key is the table in the end.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.connect.cdc.postgres.test_messages import framed, row
from tests.connect.cdc.postgres.test_positions import Server
from tests.support.effort import examples
from tests.support.folded_topic import FoldedTopic
from tidemill.connect.cdc.contract import Capture, Chunk, Position, Source, Table
from tidemill.connect.cdc.postgres import PostgresSource
from tidemill.connect.cdc.postgres import source as module
from tidemill.connect.cdc.postgres.catalog import (
    CatalogColumn,
    CatalogTable,
    Published,
    UsedType,
)
from tidemill.connect.cdc.postgres.decoding.stream import Stream
from tidemill.connect.cdc.postgres.lsn import Origin, Place, place_of
from tidemill.connect.cdc.postgres.types import TypeRow, Types
from tidemill.connect.cdc.snapshots import Snapshots
from tidemill.connect.cdc.writer import Writer

OID, ENUM = 16400, 20000
INT, TEXT = 23, 25
START, WIDTH = 100, 1000
PARTS = (0, 1)
Key = tuple[str, ...]
Action = tuple[Any, ...]


@dataclass
class Column:
    """A column of the table; ``default`` is the value of rows from before it was added."""

    name: str
    number: int
    type_oid: int
    version: int = 1
    default: int | None = None


@dataclass
class Database:
    """The table as it is now, and the transactions that led there.

    Attributes:
        rows: By partition: the values of each row by column number.
        attached: The partitions that belong to the table, with when they were attached.
        files: A number for each partition that TRUNCATE and rewrites change.
        labels: The labels of the enum, by OID.
        is_partitioned: Whether the two partitions are there. Else all rows are in one file.
        log: The messages of each transaction, with the place of its end.
    """

    columns: list[Column] = field(
        default_factory=lambda: [
            Column("id", 1, INT),
            Column("alt", 2, INT),
            Column("v", 3, INT),
            Column("m", 4, ENUM),
        ]
    )
    key: str = "id"
    rows: dict[int, list[dict[int, int]]] = field(default_factory=lambda: {0: [], 1: []})
    attached: dict[int, int] = field(default_factory=lambda: {0: 1, 1: 1})
    files: dict[int, int] = field(default_factory=lambda: {0: 1, 1: 1})
    labels: dict[int, str] = field(default_factory=lambda: {1: "sad", 2: "happy"})
    is_partitioned: bool = True
    xid: int = 10
    changed: int = 1
    relabelled: int = 1
    rekeyed: int = 1
    next_number: int = 5
    log: list[tuple[int, list[bytes]]] = field(default_factory=list)
    wrote: list[bytes] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.log[-1][0] if self.log else START

    def visible(self) -> list[dict[int, int]]:
        return [each for part in self.attached for each in self.rows[part]]

    def text(self, column: Column, found: dict[int, int]) -> str | None:
        """Return what PostgreSQL writes for a value."""
        value = found.get(column.number, column.default)
        if value is None:
            return None
        return self.labels[value] if column.type_oid == ENUM else str(value)

    def selected(self) -> list[dict[str, Any]]:
        """Return the rows as a SELECT gives them, as JSON values."""
        return [
            {
                each.name: int(text) if each.type_oid == INT and text is not None else text
                for each in self.columns
                for text in [self.text(each, found)]
            }
            for found in self.visible()
        ]

    def commit(self, actions: Sequence[Action]) -> None:
        """Carry out a transaction, and append what the server sends of it to the log."""
        self.xid += 1
        base = WIDTH * (len(self.log) + 1)
        commit, end = base + 900, base + 950
        self.wrote = [b"B" + struct.pack(">QqI", commit, 0, self.xid)]
        for name, *arguments in actions:
            getattr(self, name)(*arguments)
        self.wrote.append(b"C" + struct.pack(">BQQq", 0, commit, end, 0))
        messages = [
            framed(commit if each[:1] in b"BC" else base + number, each)
            for number, each in enumerate(self.wrote)
        ]
        self.log.append((end, messages))

    # --- rows ---------------------------------------------------------------------------------

    def put(self, key: int, value: int) -> None:
        """Write a row: the even ones are in partition 0."""
        part = key % 2
        there = self._row(key)
        if there is None:
            found = {1: key, 2: key + 1000, 4: 1 + value % 2}
            found |= {each.number: value for each in self.columns if each.number not in (1, 2, 4)}
            self.rows[part].append(found)
            if part in self.attached:
                self._send(b"I", None, found)
            return
        for each in self.columns[2:]:
            there[each.number] = 1 + value % 2 if each.type_oid == ENUM else value
        if part in self.attached:
            self._send(b"U", None, there)

    def delete(self, key: int) -> None:
        found = self._row(key)
        if found is not None:
            self.rows[key % 2].remove(found)
            if key % 2 in self.attached:
                self._send(b"D", found, None)

    def move(self, key: int, other: int) -> None:
        """Change a key: the row stays in its partition."""
        found = self._row(key)
        if found is None or self._row(2 * other + key % 2) is not None:
            return
        before = dict(found)
        found[1], found[2] = 2 * other + key % 2, 2 * other + key % 2 + 1000
        if key % 2 in self.attached:
            self._send(b"U", before, found)

    def _row(self, key: int) -> dict[int, int] | None:
        return next((each for each in self.rows[key % 2] if each[1] == key), None)

    # --- the table ----------------------------------------------------------------------------

    def add(self, default: int | None) -> None:
        if len(self.columns) < 7:
            self.columns.append(
                Column(f"c{self.next_number}", self.next_number, INT, self.xid, default)
            )
            self.next_number += 1
            self._altered()

    def drop(self) -> None:
        if len(self.columns) > 4:
            self.columns.pop()
            self._altered()

    def drop_and_add(self) -> None:
        if len(self.columns) > 4:
            gone = self.columns.pop()
            self.columns.append(Column(gone.name, self.next_number, INT, self.xid))
            self.next_number += 1
            self._altered()

    def rename(self) -> None:
        """Rename the column v, or rename it back."""
        self._alter(3, name="w" if self.columns[2].name == "v" else "v")

    def swap_names(self) -> None:
        if len(self.columns) > 4:
            one, other = self.columns[2].name, self.columns[-1].name
            self._alter(3, name=other)
            self._alter(self.columns[-1].number, name=one)

    def retype(self) -> None:
        """Change the type of the column v, and its values, with a rewrite."""
        type_oid = TEXT if self.columns[2].type_oid == INT else INT
        self._alter(3, type_oid=type_oid)
        self._rewrite()

    def recompute(self) -> None:
        """ALTER COLUMN v TYPE with the same type, USING v + 10000."""
        for part in PARTS:
            for each in self.rows[part]:
                if 3 in each:
                    each[3] += 10_000
        self._alter(3)
        self._rewrite()

    def vacuum_full(self) -> None:
        self._rewrite()

    def rekey(self) -> None:
        self.key = "alt" if self.key == "id" else "id"
        self.rekeyed = self.xid
        self._altered()

    def relabel(self) -> None:
        """Swap the labels of the enum."""
        self.labels = {1: self.labels[2], 2: self.labels[1]}
        self.relabelled = self.xid

    def grant(self) -> None:
        self._altered()

    def attach(self, part: int) -> None:
        if part not in self.attached:
            self.attached[part] = self.xid

    def detach(self, part: int) -> None:
        self.attached.pop(part, None)

    def truncate(self, part: int) -> None:
        """TRUNCATE of a partition: nothing of it is in the stream."""
        self.rows[part].clear()
        self.files[part] = self.xid

    def _alter(self, number: int, **fields: Any) -> None:
        self.columns = [
            replace(each, version=self.xid, **fields) if each.number == number else each
            for each in self.columns
        ]
        self._altered()

    def _altered(self) -> None:
        self.changed = self.xid

    def _rewrite(self) -> None:
        self.files = dict.fromkeys(PARTS, self.xid)
        self.changed = self.xid

    # --- what the server sends ----------------------------------------------------------------

    def _send(self, kind: bytes, old: dict[int, int] | None, new: dict[int, int] | None) -> None:
        count = struct.pack(">H", len(self.columns))
        relation = b"R" + struct.pack(">I", OID) + b"public\0t\0d" + count
        for each in self.columns:
            flag = b"\1" if each.name == self.key else b"\0"
            relation += flag + each.name.encode() + b"\0" + struct.pack(">Ii", each.type_oid, -1)
        content = kind + struct.pack(">I", OID)
        if old is not None:
            is_key = [each.name == self.key for each in self.columns]
            texts = [self.text(each, old) for each in self.columns]
            content += b"K" + row(*(t if k else None for t, k in zip(texts, is_key, strict=True)))
        if new is not None:
            content += b"N" + row(*(self.text(each, new) for each in self.columns))
        self.wrote += [relation, content]


class FakeCatalog:
    """The catalog of the database as it is now."""

    version = 150000

    def __init__(self, database: Database) -> None:
        self.database = database
        self.connection = SimpleNamespace(info=SimpleNamespace(dbname="d"))
        self.types = Types(lambda oid: TypeRow("mood", "e", "E", 0, 0, ",", False))

    def table(self, schema: str, name: str) -> CatalogTable:
        return self.tables_by_oid([OID])[0]

    def tables_by_oid(self, oids: Sequence[int]) -> list[CatalogTable]:
        now = self.database
        columns = tuple(
            CatalogColumn(
                each.name, each.number, each.type_oid, "t", False, False,
                each.default is not None, "p", 0, each.version,
            )
            for each in now.columns
        )  # fmt: skip
        return [
            CatalogTable(
                OID, "public", "t", now.is_partitioned, "d", columns, (now.key,), (), 0.0,
                constraint=now.rekeyed, last_number=now.next_number - 1,
                last_dropped=max(
                    set(range(now.next_number)) - {each.number for each in now.columns}
                ),
                filenode=0 if now.is_partitioned else now.files[0],
                tree=self.trees([OID])[OID], leaves="d" if now.is_partitioned else "",
            )
        ]  # fmt: skip

    def trees(self, oids: Sequence[int]) -> dict[int, str]:
        now = self.database
        if not now.is_partitioned:
            return {OID: ""}
        tree = [(part, now.files[part], at) for part, at in sorted(now.attached.items())]
        return {OID: repr(tree) if tree else ""}

    def published(self, name: str) -> list[Published]:
        return [Published(OID, None, None, "1 2")]

    def rows(self, *arguments: Any, **more: Any) -> list[tuple[bool, ...]]:
        return [(True, True, True, True)]  # the publication has all kinds of changes

    def value(self, *arguments: Any, **more: Any) -> None:
        return None

    def horizon(self) -> int:
        return self.database.xid + 1

    def log_end(self) -> int:
        return self.database.end

    def changed_since(self, horizon: int, name: str) -> set[int]:
        return {OID} if self.database.changed >= horizon else set()

    def has_changed_labels(self, horizon: int) -> bool:
        return self.database.relabelled >= horizon

    def used_types(self, oids: Sequence[int]) -> list[UsedType]:
        now = self.database
        form = {str(oid): f"{now.relabelled} {label}" for oid, label in now.labels.items()}
        return [UsedType(ENUM, "mood", form, frozenset([OID]), False)]


class ModelSource(PostgresSource):
    """The source with a database in memory instead of connections."""

    catalog: FakeCatalog

    def _open_catalog(self) -> Any:
        return self.catalog

    def read_chunk(self, table: Table, after: list[Any] | None, limit: int) -> Chunk:
        (key,) = table.key
        rows = sorted(self.catalog.database.selected(), key=lambda each: int(each[key]))
        rows = [each for each in rows if after is None or each[key] > after[0]][:limit]
        last = [rows[-1][key]] if len(rows) == limit else None
        high = self.catalog.database.end
        self._wanted = max(self._wanted, high)
        return Chunk(rows, last, self._at(Place(high)), 0)

    def estimate(self, table: Table) -> int:
        return 1


class Model:
    """The worker over the database in memory."""

    def __init__(
        self, is_partitioned: bool, rows: list[int], pieces: list[int], chunk_rows: int
    ) -> None:
        self.database = Database(is_partitioned=is_partitioned)
        for key in rows:
            self.database.put(key, 1)
        self._pieces = cycle([*pieces, 7])
        self._chunk_rows = chunk_rows
        self._origin = Origin("s", 1, "d", "x", START)
        self._confirmed = START
        self.topic = FoldedTopic("postgres")
        self.start(None)
        self.topic.state.request("public.t")
        self.topic.commit()

    def start(self, position: Position | None) -> None:
        place = Place(START) if position is None else place_of(position)
        notes = {name: note for name, note in self.topic.notes.items() if note}
        source = ModelSource(Capture("model", database={"dsn": ""}, notes=notes))
        source.catalog = FakeCatalog(self.database)
        source._origin = self._origin
        source._watch.prepare()
        source._shapes = source._watch.start("d", position)
        source._stream = Stream(source._shapes, place)
        source._returned, source._is_streaming = place, True
        source._due |= {"refresh": math.inf, "heartbeat": math.inf}
        self.source, self._sent = source, self._confirmed
        server: Any = Server([], self._pieces)
        self.server, source._replication = server, server
        if position is None:
            self.topic.state.position = source._at(place)
        topic = self.topic
        self.snapshots = Snapshots(
            cast(Source, source),
            cast(Writer, topic),
            topic.state,
            lambda name: [(key, b"x") for key in topic.rows],
            self._chunk_rows,
        )
        self.snapshots.know(source.tables())

    def transaction(self, actions: Sequence[Action]) -> None:
        is_whole = not self.database.is_partitioned
        self.database.commit([each for each in actions if not (is_whole and each[0] == "detach")])

    def poll(self) -> bool:
        for end, messages in self.database.log:
            if end > self._sent:
                self.server._sending += [(each, end) for each in messages]
                self._sent = end
        batch = self.source.poll(0)
        if batch is not None:
            batch = replace(batch, position=json.loads(json.dumps(batch.position)))
            self.snapshots.see(batch)
            self.topic.write(batch)
        return batch is not None

    def look(self) -> None:
        self.source._due["refresh"] = 0.0
        self.poll()
        self.source._due["refresh"] = math.inf

    def step(self) -> None:
        self.snapshots.step()

    def commit(self) -> None:
        self.topic.commit()
        position = self.topic.state.position
        assert position is not None
        self._confirmed = min(place_of(position).lsn, self.database.end)

    def crash(self) -> None:
        self.snapshots.close()
        self.source.close()
        self.topic.crash()
        self.start(self.topic.state.position)

    def settle(self) -> None:
        """Read everything, and store it."""
        for _ in range(3):
            self.look()
            for _ in range(200):
                self.step()
                self.poll()
                position = self.topic.state.position
                assert position is not None
                is_there = place_of(position).lsn >= self.database.end
                if is_there and not self.snapshots.active:
                    break
            else:
                raise AssertionError(f"it does not end: {self.topic.state}")
        self.commit()

    def finish(self) -> None:
        """Let the worker look and read to the end."""
        self.settle()
        self.snapshots.close()
        self.source.close()

    def check(self) -> None:
        expected = self.database.selected()
        names = [each.name for each in self.database.columns]
        found = [{name: each.get(name) for name in names} for each in self.topic.rows.values()]
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
        encoder_keys = {
            json.dumps({self.database.key: each[self.database.key]}) for each in expected
        }
        assert {json.dumps(json.loads(key)) for key in self.topic.rows} == encoder_keys


KEYS, VALUES, PART = st.integers(0, 5), st.integers(1, 9), st.sampled_from(PARTS)
WRITE = st.one_of(
    st.tuples(st.just("put"), KEYS, VALUES),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("move"), KEYS, st.integers(0, 3)),
)
DDL: dict[str, Action] = {
    each: (each,)
    for each in (
        "drop", "drop_and_add", "rename", "swap_names", "retype", "recompute", "vacuum_full",
        "rekey", "relabel", "grant",
    )
} | {"add": ("add", None), "add with a default": ("add", 7)}  # fmt: skip
OF_PARTITIONS: dict[str, Action] = {
    "attach": ("attach", 1), "detach": ("detach", 1), "truncate": ("truncate", 0),
}  # fmt: skip
ANY = st.sampled_from(list(DDL.values()))
TRANSACTION = st.tuples(
    st.just("transaction"), st.lists(st.one_of(WRITE, WRITE, WRITE, ANY), max_size=3)
)
STEP = st.sampled_from([(each,) for each in ("poll", "poll", "look", "step", "commit", "crash")])
STEPS = st.lists(TRANSACTION | STEP | STEP, max_size=8)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_CHANGES", 2)
    monkeypatch.setattr(module, "_HEARTBEAT_S", 0.0)


@pytest.mark.parametrize("is_partitioned", [False, True])
@pytest.mark.parametrize("ddl", [*DDL, *OF_PARTITIONS])
@settings(max_examples=examples(12), deadline=None)
@given(
    rows=st.lists(KEYS, unique=True, min_size=1, max_size=4),
    is_settled=st.booleans(),
    before=STEPS,
    beside=st.tuples(st.lists(WRITE, max_size=2), st.lists(WRITE, max_size=2)),
    after=STEPS,
    pieces=st.lists(st.integers(0, 4), max_size=6),
    chunk_rows=st.integers(1, 4),
)
@example([0, 1], True, [], ([], []), [], [], 2)
@example([0, 1], True, [("transaction", [("add", 3)])], ([], []), [("crash",)], [], 2)
@example([0, 1], True, [], ([], []), [("crash",), ("poll",), ("crash",)], [], 2)
@example([1], True, [("transaction", [("detach", 1), ("put", 1, 5)])], ([], []), [], [], 2)
def test_the_topic_equals_the_table_whatever_ddl_and_crashes_come(
    is_partitioned: bool,
    ddl: str,
    rows: list[int],
    is_settled: bool,
    before: list[tuple[Any, ...]],
    beside: tuple[list[Action], list[Action]],
    after: list[tuple[Any, ...]],
    pieces: list[int],
    chunk_rows: int,
) -> None:
    """The DDL is in a transaction with rows before and behind it."""
    if ddl in OF_PARTITIONS and not is_partitioned:
        return
    model = Model(is_partitioned, rows, pieces, chunk_rows)
    if is_settled:
        model.settle()
    action = (DDL | OF_PARTITIONS)[ddl]
    altering: tuple[Any, ...] = ("transaction", [*beside[0], action, *beside[1]])
    for name, *arguments in [*before, altering, *after]:
        getattr(model, name)(*arguments)
    model.finish()
    model.check()
