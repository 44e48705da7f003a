"""A set of deadlines, one per key, that returns the due ones in order of time.

It is a heap with lazy entries: moving a deadline further away, as each heartbeat does, costs one
write to a dict. This module must not know the clock or the meaning of the keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Deadlines in milliseconds, one per key."""

    def __init__(self) -> None:
        self._deadlines: dict[K, int] = {}
        self._queued: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def active(self) -> list[K]:
        """Return the keys that have a deadline."""
        return list(self._deadlines)

    def set(self, key: K, deadline_ms: int) -> None:
        """Set or move the deadline of ``key``."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or queued > deadline_ms:
            self._push(key, deadline_ms)

    def cancel(self, key: K) -> None:
        """Remove the deadline of ``key``, if it has one."""
        self._deadlines.pop(key, None)

    def get(self, key: K) -> int | None:
        """Return the deadline of ``key``, or None."""
        return self._deadlines.get(key)

    def next_deadline(self) -> int | None:
        """Return the earliest deadline, or None if there is none."""
        while self._heap:
            queued, _, key = self._heap[0]
            actual = self._deadlines.get(key)
            if actual == queued:
                return queued
            heapq.heappop(self._heap)
            if self._queued.get(key) == queued:
                del self._queued[key]
                if actual is not None:
                    self._push(key, actual)
        return None

    def pop_due(self, now_ms: int) -> K | None:
        """Remove and return the key with the earliest deadline, or None if none is due."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now_ms:
            return None
        queued, _, key = heapq.heappop(self._heap)
        if self._queued.get(key) == queued:
            del self._queued[key]
        del self._deadlines[key]
        return key

    def _push(self, key: K, deadline_ms: int) -> None:
        self._sequence += 1
        self._queued[key] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, self._sequence, key))
