"""Order what is to be delivered: in lanes by key, or in any order; and retries by their time.

A lane has one delivery at a time. While that one fails, the events behind it wait, and other lanes
continue. No I/O, no clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

BATCH_BYTES = 1 << 20
"""A delivery has so many bytes at most, unless its first event alone has more."""


@dataclass(slots=True, eq=False)
class Event:
    """A record that is to be delivered.

    Attributes:
        attempts: attempts of an earlier process.
        steps: those of them that are steps of the schedule.
        due_ms: time of the next attempt, if an earlier process has planned it; else 0.
        job: the redelivery that it belongs to; empty: none.
        id: the message id, once it is known.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    attempts: int = 0
    steps: int = 0
    due_ms: int = 0
    job: str = ""
    id: str = ""

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        size = 200 + len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:
            size += 150 + len(name) + len(value or b"")
        return size


@dataclass(slots=True, eq=False)
class Delivery:
    """Events that are sent together, in one request.

    Attributes:
        lane: the key whose order it must keep; None: none.
        attempts: the attempts that have failed.
        steps: those of them that are steps of the schedule.
    """

    events: list[Event]
    lane: bytes | None = None
    attempts: int = 0
    steps: int = 0
    due_ms: int = 0
    cancelled: bool = False


class Lanes:
    """The events that are not finished.

    Args:
        ordered: whether events with the same key keep their order.
        batch: most events of one delivery.
    """

    def __init__(self, *, ordered: bool, batch: int = 1) -> None:
        self._ordered = ordered
        self._batch = batch
        self._lanes: dict[bytes, deque[Event]] = {}
        self._ready: deque[bytes] = deque()
        self._pool: deque[Event] = deque()
        self._pool_turn = True
        self._retries: list[tuple[int, int, Delivery]] = []
        self._cancelled = 0
        self._number = 0
        self.count = 0
        self.bytes = 0

    def add(self, event: Event) -> None:
        """Take an event. The order of the calls is the order of each lane."""
        self.count += 1
        self.bytes += event.size
        key = event.key
        if not self._ordered or key is None or event.job:
            self._pool.append(event)
            return
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque([event])
            self._ready.append(key)
        else:
            lane.append(event)

    def take(self, now_ms: int) -> Delivery | None:
        """Return what is to be sent now: a retry that is due, or the next events."""
        self._drop_cancelled()
        if self._retries and self._retries[0][0] <= now_ms:
            return heapq.heappop(self._retries)[2]
        while self._ready or self._pool:
            self._pool_turn = not self._pool_turn
            if self._pool and (self._pool_turn or not self._ready):
                made = self._collect(self._pool, None)
            else:
                key = self._ready.popleft()
                made = self._collect(self._lanes[key], key)
            if made.due_ms <= now_ms:
                return made
            self._push(made)
        return None

    def _collect(self, events: deque[Event], lane: bytes | None) -> Delivery:
        first = events.popleft()
        made = Delivery([first], lane, first.attempts, first.steps, first.due_ms)
        room = BATCH_BYTES - first.size
        while len(made.events) < self._batch and events:
            # One with a planned attempt waits for its time, and the others must not. Attempts of a
            # redelivery are recorded for it, and finish no record of the topic.
            if first.due_ms or events[0].due_ms or events[0].job != first.job:
                break
            room -= events[0].size
            if room < 0:
                break
            made.events.append(events.popleft())
        return made

    def retry(self, delivery: Delivery, due_ms: int) -> None:
        """Send a delivery again at a time. Its lane waits."""
        delivery.due_ms = due_ms
        self._push(delivery)

    def finish(self, delivery: Delivery) -> None:
        """Forget a delivery, and let its lane continue."""
        for each in delivery.events:
            self.count -= 1
            self.bytes -= each.size
        if delivery.lane is None:
            return
        if self._lanes[delivery.lane]:
            self._ready.append(delivery.lane)
        else:
            del self._lanes[delivery.lane]

    def evict(self) -> Delivery | None:
        """Remove the longest lane that waits for a retry, and return its events; None: none."""
        found = [each for _, _, each in self._retries if each.lane is not None]
        found = [each for each in found if not each.cancelled]
        if not found:
            return None
        longest = max(found, key=lambda each: len(self._lanes[each.lane or b""]))
        longest.cancelled = True
        self._cancelled += 1
        lane = self._lanes[longest.lane or b""]
        removed = Delivery([*longest.events, *lane], longest.lane, longest.attempts)
        lane.clear()
        self.finish(removed)
        return removed

    def hurry(self, due_ms: int, spread_ms: int) -> None:
        """Bring retries forward, because the endpoint works again, over a time of ``spread_ms``."""
        step = spread_ms / max(len(self._retries), 1)
        planned = sorted(self._retries, key=lambda each: each[:2])
        for place, (due, _, delivery) in enumerate(planned):
            delivery.due_ms = min(due, due_ms + int(place * step))
        self._retries = [(each.due_ms, number, each) for _, number, each in planned]
        heapq.heapify(self._retries)

    @property
    def next_due_ms(self) -> int | None:
        """The time of the next retry; 0 if there are events that can be sent now."""
        self._drop_cancelled()
        if self._ready or self._pool:
            return 0
        return self._retries[0][0] if self._retries else None

    @property
    def retrying(self) -> int:
        """The number of deliveries that wait for a retry."""
        return len(self._retries) - self._cancelled

    @property
    def first_retry_ms(self) -> int | None:
        """The time of the next retry; None: none waits."""
        self._drop_cancelled()
        return self._retries[0][0] if self._retries else None

    def blocked(self, most: int) -> list[tuple[bytes, int]]:
        """Return keys that wait for a retry, with the number of events behind, longest first."""
        found = [
            (each.lane, len(self._lanes[each.lane]))
            for _, _, each in self._retries
            if each.lane is not None and not each.cancelled
        ]
        return heapq.nlargest(most, found, key=lambda each: each[1])

    def _push(self, delivery: Delivery) -> None:
        self._number += 1
        heapq.heappush(self._retries, (delivery.due_ms, self._number, delivery))

    def _drop_cancelled(self) -> None:
        while self._retries and self._retries[0][2].cancelled:
            heapq.heappop(self._retries)
            self._cancelled -= 1
