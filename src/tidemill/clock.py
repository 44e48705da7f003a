"""Clocks, which are passed to the code that needs the time.

The code below the protocols never reads the machine's clock itself, so that tests and simulations
can set the time. This module must not know anything else of tidemill.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the Unix epoch (UTC)."""

    def monotonic_ms(self) -> int:
        """Return milliseconds that never decrease. Only differences between them are useful."""


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that only ``advance`` moves. Both times advance together."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        """Move the clock forward.

        Raises:
            ValueError: ``milliseconds`` is negative.
        """
        if milliseconds < 0:
            raise ValueError(f"a clock can't move by {milliseconds} ms")
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds


class SteadyClock:
    """Wall-clock milliseconds that follow the monotonic clock from the start on.

    Timeouts must not fire because an operator set the machine's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.now_ms() - clock.monotonic_ms()

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._clock.monotonic_ms() + self._offset_ms

    def monotonic_ms(self) -> int:
        """Return milliseconds of the monotonic clock."""
        return self._clock.monotonic_ms()
