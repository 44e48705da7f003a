"""A model of the worker, without a database: crashes between batches of every kind, in any order.

What is stored with each commit is one position. It never says less than the one before, and with it
a change is delivered once, whatever the source returned before it was stopped.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.connect.cdc.postgres.test_messages import OID, RELATION, OneTable, framed, row
from tests.support.effort import examples
from tidemill.connect.cdc.contract import Batch, Capture, Position
from tidemill.connect.cdc.errors import CaptureError
from tidemill.connect.cdc.postgres import PostgresSource
from tidemill.connect.cdc.postgres import source as module
from tidemill.connect.cdc.postgres.decoding.shapes import News
from tidemill.connect.cdc.postgres.decoding.stream import Stream
from tidemill.connect.cdc.postgres.lsn import Origin, Place, place_of, to_json

START, WIDTH = 100, 1000
"""Where the slot begins, and the bytes of log that each item takes."""
NOTE, EARLY, COMMIT, END = 300, 500, 900, 950
"""Places in the log of an item. The next item's streamed rows are before its commit."""


@dataclass(frozen=True)
class Transaction:
    """A transaction.

    Attributes:
        records: How many rows each of its log records has: they share one LSN.
        is_streamed: The server sends the first half before the item in front of it.
        rolled_back: Rows of a savepoint that was rolled back, if it is streamed.
    """

    records: tuple[int, ...]
    is_streamed: bool = False
    rolled_back: int = 0


@dataclass(frozen=True)
class Message:
    """A logical message outside of a transaction."""


@dataclass(order=True)
class Frame:
    """Messages that the server sends together.

    Attributes:
        at: The place in the log that makes the server send them.
        number: Their order at this place.
        sent: What the server has sent everything up to, with these messages.
        starts_at: Only streams that start here or before contain them.
    """

    at: int
    number: int
    messages: list[bytes]
    sent: int
    starts_at: int


@dataclass
class Log:
    """What a server sends, and what a reader must get."""

    frames: list[Frame] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def since(self, start: int) -> list[tuple[bytes, int]]:
        """Return the messages of a stream from a place, and how far each one brings it."""
        relation = [(framed(start, RELATION), start)]
        return relation + [
            (data, each.sent)
            for each in sorted(self.frames)
            if each.starts_at >= start
            for data in each.messages
        ]


def written(items: list[Transaction | Message]) -> Log:
    """Return the log with these items."""
    log = Log()

    def send(at: int, sent: int, starts_at: int, *messages: bytes) -> None:
        log.frames.append(Frame(at, len(log.frames), list(messages), sent, starts_at))

    for number, item in enumerate(items, 1):
        base = WIDTH * number
        if isinstance(item, Message):
            at, end = base + NOTE, base + NOTE + 5
            content = b"M" + struct.pack(">BQ", 0, end) + b"note\0" + struct.pack(">I", 0)
            send(at, end, at, framed(at, content))
            log.changes.append(f"message {end}")
            continue
        xid, commit, end = 700 + number, base + COMMIT, base + END
        if not item.is_streamed:
            begin = b"B" + struct.pack(">QqI", commit, 0, xid)
            send(commit, commit, commit, framed(commit, begin))
        for record, rows in enumerate(item.records):
            is_early = item.is_streamed and record < len(item.records) // 2
            lsn = (base - WIDTH + EARLY if is_early else base) + 10 * record
            for count in range(rows):
                name = f"{xid} {record} {count}"
                if item.is_streamed:
                    send(lsn, lsn, commit, *_part(xid, xid, lsn, name))
                else:
                    send(commit, commit, commit, framed(lsn, _insert(name)))
                log.changes.append(name)
        if item.is_streamed:
            for count in range(item.rolled_back):
                send(
                    base + 800, base + 800, commit, *_part(xid, xid + 1000, base + 800, str(count))
                )
            abort = b"A" + struct.pack(">II", xid, xid + 1000)
            send(base + 800, base + 800, commit, framed(0, abort))
            finish = b"c" + struct.pack(">IBQQq", xid, 0, commit, end, 0)
        else:
            finish = b"C" + struct.pack(">BQQq", 0, commit, end, 0)
        send(commit, end, commit, framed(commit, finish))
        if item.records:
            log.ended.append(f"{xid}:{commit}")
    return log


def _insert(name: str) -> bytes:
    return b"I" + struct.pack(">I", OID) + b"N" + row("1", name)


def _part(xid: int, sub: int, lsn: int, name: str) -> list[bytes]:
    insert = _insert(name)
    streamed = insert[:1] + struct.pack(">I", sub) + insert[1:]
    return [framed(0, b"S" + struct.pack(">IB", xid, 0)), framed(lsn, streamed), framed(0, b"E")]


class Tables(OneTable):
    """One table, with news that the test makes."""

    def __init__(self) -> None:
        super().__init__()
        self.news = News()


class Server:
    """A replication connection.

    Args:
        pieces: How many messages are there at each look; 0: the server is slow.
    """

    def __init__(self, sending: list[tuple[bytes, int]], pieces: Iterator[int]) -> None:
        self._sending = sending
        self._pieces = pieces
        self.server_end = 0
        self.confirmed = 0

    @property
    def is_empty(self) -> bool:
        return not self._sending

    def receive_many(self, most: int) -> list[bytes]:
        count = next(self._pieces)
        taken, self._sending = self._sending[:count], self._sending[count:]
        for _, sent in taken:
            self.server_end = max(self.server_end, sent)
        return [data for data, _ in taken]

    def wait(self, timeout_s: float) -> bool:
        return False

    def send_status_if_due(self) -> None:
        pass

    def confirm(self, lsn: int) -> None:
        self.confirmed = lsn

    def close(self) -> None:
        pass


class Model:
    """The worker, its state topic, the slot, and the topic of changes."""

    def __init__(self, log: Log, pieces: list[int]) -> None:
        self._log = log
        self._pieces = cycle([*pieces, 7])
        self._origin = Origin("s", 1, "d", "x", START)
        self.stored: Position = to_json(Place(START), self._origin)
        self.position = self.stored
        self.confirmed = START
        self.pending: list[Batch] = []
        self.changes: list[str] = []
        self.ended: list[str] = []
        self.start()

    def start(self) -> None:
        """Start a worker: nothing is left of the one before but what was stored."""
        self.pending, self.position = [], self.stored
        place = place_of(self.stored)
        assert place.lsn >= self.confirmed, "the slot is behind the stored position"
        source = self.source = PostgresSource(Capture("model", database={"dsn": ""}))
        shapes: Any = Tables()
        # It can send what is stored already, as far as the slot goes back.
        start = self.confirmed if next(self._pieces) % 2 else place.lsn
        server: Any = Server(self._log.since(start), self._pieces)
        self.server, source._replication, source._is_streaming = server, server, True
        source._shapes, source._stream = shapes, Stream(shapes, place)
        source._origin, source._returned = self._origin, place
        source._due |= {"refresh": math.inf, "heartbeat": math.inf}

    def poll(self) -> None:
        """Take the next batch into the transaction."""
        batch = self.source.poll(0)
        if batch is not None:
            self.pending.append(batch)
            self.position = batch.position

    def announce(self) -> None:
        """Let the source find a changed table, which makes a batch of its own."""
        self.source._shapes.news.resync["public.t"] = "it was changed"

    def commit(self) -> None:
        """Store the changes, and the position with them."""
        now, before = json.loads(json.dumps(self.position)), self.stored
        assert place_of(now) >= place_of(before), "the position says less than the one before"
        assert self.source.reached(now, before)
        for batch in self.pending:
            self.changes += [
                str((each.after or {})["v"]) if each.op == "c" else f"message {each.source['lsn']}"
                for each in batch.changes
            ]
            self.ended += [each.id for each in batch.ended]
        self.pending, self.stored = [], now
        assert self.changes == self._log.changes[: len(self.changes)], "lost, or delivered twice"
        assert self.ended == self._log.ended[: len(self.ended)]

    def confirm(self) -> None:
        """Let the slot move to the stored position."""
        self.source.confirm(self.stored)
        self.confirmed = max(self.confirmed, self.server.confirmed)

    def finish(self) -> None:
        """Let the worker read everything."""
        while not self.server.is_empty or self.source._fed < len(self.source._received):
            self.poll()
        for _ in range(10):
            self.poll()
        self.commit()
        assert (self.changes, self.ended) == (self._log.changes, self._log.ended)


TRANSACTIONS = st.builds(
    Transaction,
    st.lists(st.integers(1, 3), min_size=0, max_size=6).map(tuple),
    st.booleans(),
    st.integers(0, 2),
)
ITEMS = st.lists(TRANSACTIONS | st.builds(Message), min_size=1, max_size=5)
STEPS = st.lists(
    st.sampled_from(["poll", "poll", "poll", "announce", "commit", "confirm", "crash"]),
    max_size=40,
)
LARGE = Transaction((3, 3, 3))


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_CHANGES", 3)
    monkeypatch.setattr(module, "_HEARTBEAT_S", 0.0)


@settings(max_examples=examples(400))
@given(ITEMS, STEPS, st.lists(st.integers(0, 4), max_size=12))
@example(
    [LARGE],
    ["poll", "commit", "confirm", "crash", "announce", "poll", "commit", "crash"],
    [6, 5, 6, 0],
)
@example(  # within what is skipped
    [LARGE],
    ["poll", "poll", "commit", "crash", "poll", "announce", "poll", "commit"],
    [6, 9, 6, 3, 0],
)
def test_each_change_is_stored_once_whatever_batches_and_crashes_come(
    items: list[Transaction | Message], steps: list[str], pieces: list[int]
) -> None:
    model = Model(written(items), pieces)
    for step in steps:
        if step == "crash":
            model.source.close()
            model.start()
        else:
            getattr(model, step)()
    model.finish()
    model.source.close()


def test_a_place_before_the_last_one_is_refused() -> None:
    """Whatever led to it: it is not stored, and the next worker continues at the stored one."""
    model = Model(written([LARGE]), [])
    model.source._returned = Place(WIDTH * 9)
    with pytest.raises(CaptureError, match="the stream went back"):
        model.finish()
    model.source.close()
