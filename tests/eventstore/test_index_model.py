"""States over one index against the model: one writes it, others are behind it or ahead."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.eventstore.model import Model, check_reads
from tests.eventstore.strategies import commits, queries
from tests.support.effort import examples
from tidemill.eventstore import wire
from tidemill.eventstore.events import Condition, Query, StoredEvent, StreamAppend
from tidemill.eventstore.fold import Accepted, Repeated, Void
from tidemill.eventstore.index import About, IndexFile
from tidemill.eventstore.index_writing import IndexWriter
from tidemill.eventstore.reading import Following, Reader
from tidemill.eventstore.state import State

ABOUT = About("cluster", "topic", "id")
History = list[tuple[list[StreamAppend], list[Condition]]]


class Process:
    """A process that folds records at its own pace. It has the reading methods of a store."""

    def __init__(self, index: IndexFile, records: Sequence[bytes]) -> None:
        self.records = records
        self.index = index
        self.state = State(index, index.indexed().head)
        self.reader = Reader(self.state, threading.Condition())
        self.version, self.position = self.reader.version, self.reader.position

    def fold(self, count: int, expected: Sequence[object]) -> None:
        """Fold the next records; compare the outcomes with those of the model."""
        for offset in range(self.state.offset + 1, self.state.offset + 1 + count):
            if offset >= len(self.records):
                return
            value = self.records[offset]
            outcome = self.state.step(offset, value, wire.decode(value), 7)
            if isinstance(outcome, Void):
                assert type(outcome.error) is expected[offset]
            else:
                assert isinstance(outcome, Accepted | Repeated)
                places = list(outcome.appended.positions), dict(outcome.appended.versions)
                assert places == expected[offset]

    def read(self, stream: str, **how: object) -> Iterator[StoredEvent]:
        return self.reader.read(
            stream,
            **{"after": 0, "to": None, "backwards": False, "limit": None, **how},  # type: ignore[arg-type]
        )

    def read_all(self, **how: object) -> Iterator[StoredEvent]:
        default = {"after": 0, "to": None, "queries": (), "category": None}
        return self.reader.read_all(**{**default, "backwards": False, "limit": None, **how})  # type: ignore[arg-type]

    def follow(self, **how: object) -> Following:
        return self.reader.follow(**{"category": None, **how})  # type: ignore[arg-type]


@settings(max_examples=examples(30))
@given(
    st.lists(commits(), min_size=1, max_size=25),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=30),
    queries,
    st.integers(0, 12),
)
def test_processes_over_one_index_decide_and_read_as_the_model(
    history: History, schedule: list[tuple[int, int]], query: Query, after: int
) -> None:
    model = Model()
    expected = [model.commit(*each) for each in history]
    values = [wire.encode(wire.propose(b"i" * 16, *each)) for each in history]
    with tempfile.TemporaryDirectory() as folder:
        index = IndexFile(Path(folder) / "index", ABOUT)
        writer = IndexWriter(index)
        holder, other = Process(index, values), Process(index, values)

        def write(count: int) -> None:
            steps = list(holder.state.steps)[:count]
            if steps:
                holder.state.drop(writer.write(steps).head.offset)

        def check(process: Process) -> None:
            seen = Model()
            for each in history[: process.state.offset + 1]:
                seen.commit(*each)
            check_reads(process, seen, query, after)  # type: ignore[arg-type]

        actions: list[Callable[[int], object]] = [
            partial(holder.fold, expected=expected),
            partial(other.fold, expected=expected),
            write,
            lambda _: other.state.drop(index.indexed().head.offset),
            lambda _: check(holder),
            lambda _: check(other),
        ]
        for action, count in schedule:
            actions[action](count)
        other.fold(len(values), expected)
        check(other)
        holder.fold(len(values), expected)
        write(len(values))
        last = Process(index, values)
        check(last)
        assert last.state.head() == other.state.head() == holder.state.head()
        writer.close()
        index.close()
