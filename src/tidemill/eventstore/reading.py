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

from tidemill.eventstore.events import Query, StoredEvent
from tidemill.eventstore.state import Chunk, Folded, Head, State, Wanted, category_of

CHUNK = 1000
"""The most events of one chunk."""
_END = 2**63 - 1
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
    """Reads a state that is advanced elsewhere: the part of a store that reads.

    Args:
        state: what is read. It is used with ``changed`` held.
        changed: notified behind each step.

    Attributes:
        failure: why nothing comes any more; followers raise it.
        is_closed: whether the store is closed; followers end.
    """

    def __init__(self, state: State, changed: threading.Condition) -> None:
        self._state = state
        self._changed = changed
        self._listeners: set[Callable[[], None]] = set()
        self.failure: BaseException | None = None
        self.is_closed = False

    def notify(self) -> None:
        """Wake all that wait or listen. The caller holds ``changed``."""
        self._changed.notify_all()
        for listener in self._listeners:
            listener()

    def catch_up(self) -> None:
        """Fold all that is in the log now. Where a commit is folded when it is made, all is."""

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _check_usable(self) -> None:
        """Raise the error because of which nothing can be read or written."""
        self._check_failure()

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
        self._check_usable()
        if fresh:
            self.catch_up()
        last = _END if to is None else to
        with self._changed:
            after = max(after, self._state.truncated(stream) - 1)
            recent = self._state.recent_of(stream, after, last)
            floor, base = self._state.floor, self._state.base

        def chunk(after: int, to: int, most: int) -> Chunk:
            return base.of_stream(stream, after, to, floor, backwards, most)

        if recent:
            last = recent[0].version - 1
        return _events([stored(each) for each in recent], chunk, after, last, backwards, limit)

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
        self._check_usable()
        if fresh:
            self.catch_up()
        wanted = Wanted(tuple(queries), category)
        last = _END if to is None else to
        with self._changed:
            recent = self._state.recent(after, last)
            floor, base = self._state.floor, self._state.base
            hidden = self._state.hidden()

        def chunk(after: int, to: int, most: int) -> Chunk:
            return visible(base.of_all(after, to, wanted, backwards, most), hidden)

        chosen = _chosen(recent, wanted, hidden)
        return _events(chosen, chunk, after, min(last, floor), backwards, limit)

    def streams(self, category: str | None = None, *, start: str = "") -> Iterator[str]:
        """Return the names of all streams that have events, sorted, from ``start`` on."""
        self._check_usable()
        with self._changed:
            base = self._state.base
            recent = [
                each
                for each in self._state.recent_streams()
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

    def version(self, stream: str) -> int:
        """Return the number of events in a stream, also of those that were truncated."""
        self._check_usable()
        with self._changed:
            return self._state.version(stream)

    def position(self) -> int:
        """Return the position of the last event that this process knows; 0 if there is none."""
        self._check_usable()
        return self._state.position

    def head(self) -> Head:
        """Return how far this process has folded the log.

        The chain hash covers all accepted commits. A copy that is kept elsewhere
        proves later that they were not changed: see ``verify``.
        """
        self._check_usable()
        with self._changed:
            return self._state.head()

    def is_forgotten(self, key: str) -> bool:
        """Return whether the log says that a key is deleted, as far as it is folded."""
        self._check_usable()
        with self._changed:
            return self._state.is_forgotten(key)

    def follow(
        self,
        *,
        after: int = 0,
        queries: Sequence[Query] = (),
        category: str | None = None,
        wait_s: float | None = None,
    ) -> Following:
        """Read all behind a position, then what comes; see ``Events.follow``."""
        self._check_usable()
        return Following(self, after, Wanted(tuple(queries), category), wait_s)


def _chosen(recent: list[Folded], wanted: Wanted, hidden: Mapping[str, int]) -> list[StoredEvent]:
    """Return those of some events that are wanted, and not truncated."""
    return [
        stored(each)
        for each in recent
        if wanted.matches(each.event) and each.version >= hidden.get(each.event.stream, 0)
    ]


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
        with self._reader._changed:
            floor = self._reader._state.floor
            recent = self._reader._state.recent(self.after, self.after + most)
            hidden = self._reader._state.hidden()
        if self.after < floor:
            found = self._reader._state.base.of_all(self.after, floor, self._wanted, False, most)
            self.after = floor if found.reached is None else found.reached
            return visible(found, hidden).events
        if recent:
            self.after = recent[-1].position
        return _chosen(recent, self._wanted, hidden)

    def is_in_memory(self) -> bool:
        """Return whether ``take`` needs no file."""
        return self.after >= self._reader._state.floor

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function, which must not block, when something came or the store is closed."""
        with self._reader._changed:
            self._listener = listener
            self._reader._listeners.add(listener)

    def is_behind(self) -> bool:
        """Return whether there are events that were not looked at, or there is an error to raise.

        The caller holds ``changed``.
        """
        return self._reader._state.position > self.after or self._reader.failure is not None

    @property
    def is_closed(self) -> bool:
        """Whether the iteration ends: this, or the store, was closed."""
        return self._is_closed or self._reader.is_closed

    def check(self) -> None:
        """Raise the error because of which nothing comes any more, if all before was looked at."""
        if self._reader.failure is not None and self._reader._state.position <= self.after:
            raise self._reader.failure

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredEvent:
        deadline = None if self._wait_s is None else time.monotonic() + self._wait_s
        changed = self._reader._changed
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
        with self._reader._changed:
            self._is_closed = True
            self._reader.notify()
            if self._listener is not None:
                self._reader._listeners.discard(self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
