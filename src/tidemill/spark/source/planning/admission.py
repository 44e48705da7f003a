"""Bounds the batches of a stream that sets no limit itself, so that each ends in good time.

A query that is behind would otherwise read its whole backlog in one batch. If that takes longer
than the transaction timeout, the batch fails, and each restart runs it again with the same size. So
the first batch has a bound, and each later bound follows from how long the batch before took.

The source sees when it is asked for the next batch, not when a batch ends: in between, Spark may
wait for the trigger. It waits until a multiple of the trigger's interval since 1970, so a call
shortly after a whole second may follow such a wait, and several of them in a row do. Must not know:
Spark, offsets, topics.
"""

from __future__ import annotations

from tidemill.clock import Clock

FIRST = 400_000
"""Bound of the first batch, in offsets. A query that handles 5,000 records a second takes 80 s."""
LEAST = 1_000
"""Least bound, in offsets."""
AIM_MS = 15_000
"""How long a batch of a backlog should take. The transaction timeout is eight times as long."""

_MOST_CHANGE = 8
_TICK_MS = 1000
_LATENESS_MS = 100
"""Most milliseconds after a trigger until Spark asks for the batch."""
_ENOUGH_TICKS = 3
_CAREFUL_MS = (30_000, 120_000)
"""Between these intervals of a trigger, a batch of twice the size might take longer than a
transaction may. Above them, the interval says nothing about the time that a batch takes."""


class Admission:
    """Decides how many offsets a batch may have."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limit = FIRST
        self._size = 0
        self._asked_ms = 0
        self._ticks = 0

    def next_limit(self) -> int:
        """Return the most offsets of the batch that is planned now; at least ``LEAST``.

        Call it when the batch before has ended.
        """
        now = self._clock.monotonic_ms()
        elapsed, self._asked_ms = now - self._asked_ms, now
        is_on_tick = self._clock.now_ms() % _TICK_MS < _LATENESS_MS
        self._ticks = self._ticks + 1 if is_on_tick else 0
        if not self._size:
            return self._limit
        is_full = self._size >= self._limit
        if is_on_tick and elapsed >= _TICK_MS:
            # Spark may have waited, so it is not known how long the batch took. If Spark always
            # waits, the batches end before their trigger and can be larger.
            if is_full and self._ticks >= _ENOUGH_TICKS:
                is_careful = _CAREFUL_MS[0] < elapsed < _CAREFUL_MS[1]
                self._limit += self._limit // 4 if is_careful else self._limit
        elif elapsed > AIM_MS:
            fits = max(self._size * AIM_MS // elapsed, self._limit // _MOST_CHANGE, LEAST)
            self._limit = min(self._limit, fits)
        elif is_full:
            took = max(elapsed, AIM_MS // _MOST_CHANGE)
            self._limit = self._limit * AIM_MS // took
        return self._limit

    def planned(self, size: int) -> None:
        """Take in the size of the batch that was planned."""
        self._size = size
