"""Reads streams and all events of a state, and follows it. Stores in a log and in memory share it.

A read is consistent: it is as of the position that the state had at the call. Events come in
chunks, so a long stream needs no memory. Must not know: clients, SQLite, bytes of commits.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from tidemill.eventstore.errors import OutcomeUnknownError
from tidemill.eventstore.events import Appended, Query, StoredEvent
from tidemill.eventstore.fold import Outcome, Void
from tidemill.eventstore.state import Chunk, Folded, State, Wanted, category_of

CHUNK = 1000
"""The most events of one chunk."""
_END = 2**63 - 1

Answer = Callable[[Outcome | BaseException], None]
"""Gets the outcome of a commit, in the thread that folds. It must not block."""
_NO_TAGS: frozenset[str] = frozenset()


def stored(folded: Folded) -> StoredEvent:
    """Return an event as callers of a store get it."""
    position, version, time_ms, event = folded
    return StoredEvent(
        event.type,
        event.data,
        uuid.UUID(bytes=event.id),
        event.metadata,
        frozenset(event.tags) if event.tags else _NO_TAGS,
        event.schema,
        event.stream,
        version,
        position,
        time_ms,
    )


class Reader:
    """Reads a state that another thread advances.

    Args:
        state: what is read. It is used with ``changed`` held.
        changed: notified behind each step.

    Attributes:
        listeners: called, with ``changed`` held, when it is notified. They must not block.
        failure: why nothing comes any more; followers raise it.
        is_closed: whether the store is closed; followers end.
    """

    def __init__(self, state: State, changed: threading.Condition) -> None:
        self.state = state
        self.changed = changed
        self.listeners: set[Callable[[], None]] = set()
        self.failure: BaseException | None = None
        self.is_closed = False

    def notify(self) -> None:
        """Wake all that wait. The caller holds ``changed``."""
        self.changed.notify_all()
        for listener in self.listeners:
            listener()

    def version(self, stream: str) -> int:
        """Return the number of events of a stream."""
        with self.changed:
            return self.state.version(stream)

    def position(self) -> int:
        """Return the position of the last event."""
        return self.state.position

    def read(
        self, stream: str, *, after: int, to: int | None, backwards: bool, limit: int | None
    ) -> Iterator[StoredEvent]:
        """Read a stream as of now."""
        last = _END if to is None else to
        with self.changed:
            after = max(after, self.state.truncated(stream) - 1)
            recent = self.state.recent_of(stream, after, last)
            floor, base = self.state.floor, self.state.base

        def chunk(after: int, to: int, most: int) -> Chunk:
            return base.of_stream(stream, after, to, floor, backwards, most)

        if recent:
            last = recent[0].version - 1
        return _events([stored(each) for each in recent], chunk, after, last, backwards, limit)

    def read_all(
        self,
        *,
        after: int,
        to: int | None,
        queries: Sequence[Query],
        category: str | None,
        backwards: bool,
        limit: int | None,
    ) -> Iterator[StoredEvent]:
        """Read all streams as of now."""
        wanted = Wanted(tuple(queries), category)
        last = _END if to is None else to
        with self.changed:
            recent = self.state.recent(after, last)
            floor, base = self.state.floor, self.state.base
            hidden = self.state.hidden()

        def chunk(after: int, to: int, most: int) -> Chunk:
            return visible(base.of_all(after, to, wanted, backwards, most), hidden)

        chosen = [
            stored(each)
            for each in recent
            if wanted.matches(each.event) and each.version >= hidden.get(each.event.stream, 0)
        ]
        return _events(chosen, chunk, after, min(last, floor), backwards, limit)

    def streams(self, category: str | None, start: str = "") -> Iterator[str]:
        """Return the names of all streams that have events, sorted, from ``start`` on."""
        with self.changed:
            base = self.state.base
            recent = [
                each
                for each in self.state.recent_streams()
                if each >= start and category in (None, category_of(each))
            ]

        def indexed() -> Iterator[str]:
            if start and category in (None, category_of(start)):
                yield start  # the index has names behind it; below, one without events is left out
            after = start
            while found := base.streams(category, after, CHUNK):
                yield from found
                after = found[-1]

        # SQLite and Python sort by code points.
        merged = heapq.merge(indexed(), sorted(recent))
        names = (name for name, _ in itertools.groupby(merged))
        return (name for name in names if self.version(name))

    def follow(
        self, *, after: int, queries: Sequence[Query], category: str | None, wait_s: float | None
    ) -> Following:
        """Read all behind a position, then what comes."""
        return Following(self, after, Wanted(tuple(queries), category), wait_s)


def visible(chunk: Chunk, hidden: Mapping[str, int]) -> Chunk:
    """Return a chunk without what was truncated."""
    if not hidden:
        return chunk
    events = [each for each in chunk.events if each.version >= hidden.get(each.stream, 0)]
    return Chunk(events, chunk.reached)


def _events(
    recent: list[StoredEvent],
    chunk: Callable[[int, int, int], Chunk],
    after: int,
    to: int,
    backwards: bool,
    limit: int | None,
) -> Iterator[StoredEvent]:
    """Yield the first of what the base has in a range, and of what is behind it.

    Args:
        chunk: returns what the base has in a range.
    """
    if limit is not None and limit <= 0:
        return iter(())
    most = min(limit or CHUNK, CHUNK)
    found = itertools.chain.from_iterable(_chunks(chunk, after, to, backwards, most))
    parts = (reversed(recent), found) if backwards else (found, recent)
    return itertools.islice(itertools.chain(*parts), limit)


def _chunks(
    chunk: Callable[[int, int, int], Chunk], after: int, to: int, backwards: bool, most: int
) -> Iterator[list[StoredEvent]]:
    while after < to:
        found = chunk(after, to, most)
        yield found.events
        if found.reached is None:
            return
        if backwards:
            to = found.reached - 1
        else:
            after = found.reached


class Following:
    """Events behind a position, then what comes, without gap or double. One thread iterates.

    It keeps at most one chunk: a slow reader costs no memory, and reads from the base again.
    Another thread can close it, which ends the iteration immediately.

    Attributes:
        after: the position up to which all was looked at.
    """

    def __init__(self, reader: Reader, after: int, wanted: Wanted, wait_s: float | None) -> None:
        self._reader = reader
        self._wanted = wanted
        self._wait_s = wait_s
        self._ready: deque[StoredEvent] = deque()
        self._is_closed = False
        self._listener: Callable[[], None] | None = None
        self.after = after

    def take(self, most: int = CHUNK) -> list[StoredEvent]:
        """Return the next events that are there, at most so many. Don't wait.

        An empty list does not mean that all was looked at: see ``is_behind``.
        """
        with self._reader.changed:
            floor = self._reader.state.floor
            recent = self._reader.state.recent(self.after, self.after + most)
            hidden = self._reader.state.hidden()
        if self.after < floor:
            found = self._reader.state.base.of_all(self.after, floor, self._wanted, False, most)
            self.after = floor if found.reached is None else found.reached
            return visible(found, hidden).events
        if recent:
            self.after = recent[-1].position
        return [
            stored(each)
            for each in recent
            if self._wanted.matches(each.event) and each.version >= hidden.get(each.event.stream, 0)
        ]

    def is_in_memory(self) -> bool:
        """Return whether ``take`` needs no file."""
        return self.after >= self._reader.state.floor

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function, which must not block, when something came or the store is closed."""
        with self._reader.changed:
            self._listener = listener
            self._reader.listeners.add(listener)

    def is_behind(self) -> bool:
        """Return whether there are events that were not looked at, or there is an error to raise.

        The caller holds ``changed``.
        """
        return self._reader.state.position > self.after or self._reader.failure is not None

    @property
    def is_closed(self) -> bool:
        """Whether the iteration ends: this, or the store, was closed."""
        return self._is_closed or self._reader.is_closed

    def check(self) -> None:
        """Raise the error because of which nothing comes any more, if all before was looked at."""
        if self._reader.failure is not None and self._reader.state.position <= self.after:
            raise self._reader.failure

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredEvent:
        deadline = None if self._wait_s is None else time.monotonic() + self._wait_s
        changed = self._reader.changed
        while not self.is_closed:
            if self._ready:
                return self._ready.popleft()
            self._ready.extend(self.take())
            if self._ready:
                continue
            self.check()
            with changed:
                while not self.is_behind() and not self.is_closed:
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise StopIteration
                    changed.wait(left)
        raise StopIteration

    def close(self) -> None:
        """End the iteration. Any thread can do that."""
        with self._reader.changed:
            self._is_closed = True
            self._reader.notify()
            if self._listener is not None:
                self._reader.listeners.discard(self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def answered(outcome: Outcome | BaseException | None, timeout_s: float) -> Appended:
    """Return what a writer gets, or raise it."""
    if outcome is None:
        raise OutcomeUnknownError(
            f"the commit did not come back within {timeout_s:g} s",
            hint="Append the same events, with the same ids, again: they are stored once.",
        )
    if isinstance(outcome, BaseException):
        raise outcome
    if isinstance(outcome, Void):
        raise outcome.error
    return outcome.appended
