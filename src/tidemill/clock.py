"""Time as a parameter.

Everything below the protocols is given a ``Clock`` and never reads the wall clock itself, so that
tests and simulations decide what time it is. This module must not know anything else of tidemill.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the Unix epoch (UTC)."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never run backwards; only differences mean something."""


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that moves only when told to. Both readings advance together."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        """Move forward.

        Raises:
            ValueError: ``milliseconds`` is negative.
        """
        if milliseconds < 0:
            raise ValueError(f"a clock moves forward, not by {milliseconds} ms")
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds
