"""The events that members of a subscription group have out, wait for, and have finished.

Events of one stream are delivered one after the other, in order: while one is out, or waits for its
next attempt, those behind it wait. The checkpoint stays below everything that is not finished. Must
not know: clients, stores, threads, clocks: the time is a parameter.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from tidemill.eventstore.events import StoredEvent, content_size


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between attempts.

    Attributes:
        first_s: before the second attempt, in seconds.
        factor: each pause is so many times the one before.
        most_s: the longest pause, in seconds.
        attempts: after so many, an event is parked.
    """

    first_s: float = 0.2
    factor: float = 2.0
    most_s: float = 60.0
    attempts: int = 10

    def pause_s(self, attempt: int) -> float | None:
        """Return the pause behind an attempt, from 1; None if the event is to be parked."""
        if attempt >= self.attempts:
            return None
        return min(self.most_s, self.first_s * self.factor ** min(attempt - 1, 100))


_MOST_BYTES = 33_554_432
"""While the contents of what is not finished have so many bytes, no more is taken in."""


class Deliveries:
    """Gives out events.

    What is finished above the checkpoint takes no memory; after a crash it is delivered again.

    Args:
        checkpoint: the position up to which all is finished.
        window: the most events that are taken in and not finished.
    """

    def __init__(self, checkpoint: int, window: int) -> None:
        self._window = window
        self._reached = checkpoint
        self._size = 0
        self._open: dict[int, StoredEvent] = {}  # in the order of positions
        self._ready: deque[int] = deque()
        self._streams: dict[str, deque[int]] = {}
        self._attempts: dict[int, int] = {}
        self._out: set[int] = set()
        self._due: list[tuple[float, int]] = []

    @property
    def checkpoint(self) -> int:
        """The position up to which everything is finished."""
        return next(iter(self._open), self._reached + 1) - 1

    @property
    def room(self) -> int:
        """The number of events that can be taken in."""
        return self._window - len(self._open) if self._size < _MOST_BYTES else 0

    def offer(self, event: StoredEvent) -> None:
        """Take in the next event."""
        self._reached = event.position
        self._open[event.position] = event
        self._size += content_size(event)
        waiting = self._streams.setdefault(event.stream, deque())
        waiting.append(event.position)
        if len(waiting) == 1:
            self._ready.append(event.position)

    def reach(self, position: int) -> None:
        """Note that there is nothing for the group up to a position."""
        self._reached = max(self._reached, position)

    def take(self, now_s: float) -> tuple[StoredEvent, int] | None:
        """Give out an event, with the number of its attempt; None if none is ready."""
        while self._due and self._due[0][0] <= now_s:
            self._ready.append(heapq.heappop(self._due)[1])
        if not self._ready:
            return None
        position = self._ready.popleft()
        self._out.add(position)
        self._attempts[position] = attempt = self._attempts.get(position, 0) + 1
        return self._open[position], attempt

    def next_due_s(self) -> float | None:
        """Return when the next attempt is due; None if none waits for its time."""
        return self._due[0][0] if self._due else None

    def is_out(self, position: int) -> bool:
        """Return whether an event is given out."""
        return position in self._out

    def retry(self, position: int, at_s: float) -> None:
        """Give an event out again, from a time on."""
        self._out.remove(position)
        heapq.heappush(self._due, (at_s, position))

    def finish(self, position: int) -> None:
        """Finish an event, so that the next one of its stream can be given out."""
        self._out.remove(position)
        event = self._open.pop(position)
        self._size -= content_size(event)
        del self._attempts[position]
        waiting = self._streams[event.stream]
        waiting.popleft()
        if waiting:
            self._ready.append(waiting[0])
        else:
            del self._streams[event.stream]
