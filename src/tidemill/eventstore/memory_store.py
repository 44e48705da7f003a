"""A store in memory, for tests of applications: the same fold over a list of records.

What it accepts and refuses is what a store in a log accepts and refuses. Must not know: clients.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from tidemill.eventstore import wire
from tidemill.eventstore.errors import CommitTooLargeError, InvalidCommitError
from tidemill.eventstore.events import (
    ANY,
    Appended,
    Condition,
    NewEvent,
    Query,
    StoredEvent,
    StreamAppend,
    Version,
)
from tidemill.eventstore.fold import Outcome
from tidemill.eventstore.reading import Answer, Following, Reader, answered
from tidemill.eventstore.state import State

MAX_BYTES = 1_048_576
"""The default of ``max.message.bytes``."""


class MemoryStore:
    """A store of events in the memory of this process. Threads can share it.

    Args:
        clock: returns milliseconds since 1970, for the time of events.
        max_bytes: the most bytes of a commit.
    """

    def __init__(
        self,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.timeout_s = 0.0
        self._clock = clock
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._state = State()
        self._reader = Reader(self._state, self._changed)
        self.log: list[bytes] = []
        """The records, as they would be in a topic. For tests."""

    def append(
        self,
        stream: str,
        events: Sequence[NewEvent],
        *,
        expected: Version = ANY,
        conditions: Sequence[Condition] = (),
    ) -> Appended:
        """Store events of one stream, all or none; see ``Events.append``."""
        appends = (StreamAppend(stream, tuple(events), expected),)
        return self.commit(appends, conditions=conditions)

    def commit(
        self,
        appends: Sequence[StreamAppend],
        *,
        conditions: Sequence[Condition] = (),
        keys: Sequence[str] = (),
    ) -> Appended:
        """Store events of several streams, all or none; see ``Store.commit``."""
        outcomes: list[Outcome | BaseException] = []
        self._propose(appends, conditions, outcomes.append, keys=tuple(keys))
        return answered(outcomes[0], 0)

    def truncate(self, below: Mapping[str, int]) -> None:
        """Make the first events of streams unreadable; see ``Store.truncate``."""
        outcomes: list[Outcome | BaseException] = []
        self._propose((), (), outcomes.append, truncate=tuple(below.items()))
        answered(outcomes[0], 0)

    def forget(self, keys: Sequence[str]) -> None:
        """Declare that keys are deleted; see ``Store.forget``."""
        outcomes: list[Outcome | BaseException] = []
        self._propose((), (), outcomes.append, forget=tuple(keys))
        answered(outcomes[0], 0)

    def is_forgotten(self, key: str) -> bool:
        """Return whether a key is deleted."""
        with self._changed:
            return self._state.is_forgotten(key)

    def propose(
        self, appends: Sequence[StreamAppend], conditions: Sequence[Condition], answer: Answer
    ) -> bytes:
        """Store events, and hand over the outcome; see ``Store.propose``."""
        return self._propose(appends, conditions, answer)

    def _propose(
        self,
        appends: Sequence[StreamAppend],
        conditions: Sequence[Condition],
        answer: Answer,
        **more: Any,
    ) -> bytes:
        with self._changed:
            seen = (self._state.position, self._state.hash)
            value = wire.encode(wire.propose(os.urandom(16), appends, conditions, seen, **more))
            if len(value) > self._max_bytes:
                raise CommitTooLargeError(f"a commit of {len(value)} bytes")
            outcome = self._state.step(len(self.log), value, wire.decode(value), self._clock())
            self.log.append(value)
            self._reader.notify()
        answer(outcome or InvalidCommitError("the commit can't be decoded"))
        return b""

    def abandon(self, commit_id: bytes) -> None:
        """Do nothing: a commit has its outcome immediately."""

    def catch_up(self) -> None:
        """Do nothing: all is folded."""

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        to: int | None = None,
        backwards: bool = False,
        limit: int | None = None,
        fresh: bool = False,
    ) -> Iterator[StoredEvent]:
        """Read a stream; see ``Events.read``."""
        return self._reader.read(stream, after=after, to=to, backwards=backwards, limit=limit)

    def read_all(
        self,
        *,
        after: int = 0,
        to: int | None = None,
        queries: Sequence[Query] = (),
        category: str | None = None,
        backwards: bool = False,
        limit: int | None = None,
        fresh: bool = False,
    ) -> Iterator[StoredEvent]:
        """Read all streams in the order of positions; see ``Events.read_all``."""
        return self._reader.read_all(
            after=after,
            to=to,
            queries=queries,
            category=category,
            backwards=backwards,
            limit=limit,
        )

    def streams(self, category: str | None = None, *, start: str = "") -> Iterator[str]:
        """Return the names of all streams that have events, sorted, from ``start`` on."""
        return self._reader.streams(category, start)

    def version(self, stream: str) -> int:
        """Return the number of events in a stream."""
        return self._reader.version(stream)

    def position(self) -> int:
        """Return the position of the last event; 0 if there is none."""
        return self._reader.position()

    def follow(
        self,
        *,
        after: int = 0,
        queries: Sequence[Query] = (),
        category: str | None = None,
        wait_s: float | None = None,
    ) -> Following:
        """Read all behind a position, then what comes; see ``Events.follow``."""
        return self._reader.follow(after=after, queries=queries, category=category, wait_s=wait_s)

    def close(self) -> None:
        """End what follows the store."""
        with self._changed:
            self._reader.is_closed = True
            self._reader.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
