"""Decides how often a query without a trigger asks the brokers for new records.

Spark asks the source again a few milliseconds after it had nothing new. That is right while records
arrive, and keeps the JVM, Python and the broker busy when none do. So the source takes its time:
the longer there was nothing new, the longer it waits before it asks. A query with a trigger asks
more rarely by itself, and never waits here. Must not know: Spark, offsets, topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tidemill.clock import Clock

LONGEST_MS = 50
"""Longest time between two questions of an idle query."""
_SHARE = 10
"""A record that comes after some time waits for at most a tenth of that time."""


class Pacing:
    """The pace of one query's questions."""

    def __init__(self, clock: Clock, sleep: Callable[[float], None] = time.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._asked_ms: int | None = None
        self._news_ms: int | None = None

    def wait(self) -> None:
        """Wait until it is time to ask. Call it before each question."""
        now = self._clock.monotonic_ms()
        if self._asked_ms is None or self._news_ms is None:
            self._news_ms = now
        else:
            pause = min(LONGEST_MS, (self._asked_ms - self._news_ms) // _SHARE)
            if (rest := self._asked_ms + pause - now) > 0:
                self._sleep(rest / 1000)
        self._asked_ms = self._clock.monotonic_ms()

    def answered(self, *, has_news: bool) -> None:
        """Note the answer to a question."""
        if has_news:
            self._news_ms = self._clock.monotonic_ms()
