"""Limit what an endpoint gets: a circuit breaker that probes, and a rate. No I/O, no clock."""

from __future__ import annotations

import math
from typing import Literal

THRESHOLD = 5
"""The breaker opens after so many failures without a success between them."""
FIRST_OPEN_MS, LONGEST_OPEN_MS = 1000, 60_000


class Breaker:
    """Stops deliveries to an endpoint that fails, and lets one through at times to probe it.

    Attributes:
        state: ``open`` lets nothing through until ``opens_until_ms``, ``half-open`` lets one
            delivery through, whose result decides.
    """

    def __init__(self) -> None:
        self.state: Literal["closed", "open", "half-open"] = "closed"
        self.open_until_ms = 0
        self._failures = 0
        self._openings = 0
        self._probing = False

    def allows(self, now_ms: int) -> bool:
        """Return whether a delivery can start."""
        if self.state == "open" and now_ms >= self.open_until_ms:
            self.state, self._probing = "half-open", False
        return self.state == "closed" or (self.state == "half-open" and not self._probing)

    def started(self) -> None:
        """Note that a delivery has started. In ``half-open`` it is the probe."""
        self._probing = self.state == "half-open"

    def succeeded(self) -> bool:
        """Note a success, and return whether it closed the breaker."""
        was_closed = self.state == "closed"
        self.state, self._failures, self._openings, self._probing = "closed", 0, 0, False
        return not was_closed

    def failed(self, now_ms: int, chance: float) -> None:
        """Note a failure. Those of deliveries that started before it opened change nothing."""
        self._failures += 1
        if self.state == "half-open" or (self.state == "closed" and self._failures >= THRESHOLD):
            pause = min(FIRST_OPEN_MS * 2 ** min(self._openings, 10), LONGEST_OPEN_MS)
            self._open(now_ms + math.ceil(pause * (1 + 0.2 * chance)))

    def throttled(self, now_ms: int, pause_ms: int | None, chance: float) -> None:
        """Note that the receiver asks for a pause; None: it does not say how long."""
        self._failures += 1
        if pause_ms is None:
            pause = min(FIRST_OPEN_MS * 2 ** min(self._openings, 10), LONGEST_OPEN_MS)
            pause_ms = math.ceil(pause * (1 + 0.2 * chance))
        if self.state != "open" or now_ms + pause_ms > self.open_until_ms:
            self._open(now_ms + pause_ms)

    def _open(self, until_ms: int) -> None:
        self._openings += self.state != "open"
        self.state, self.open_until_ms, self._probing = "open", until_ms, False


class Rate:
    """A limit of deliveries per second, with bursts of a tenth of a second (a leaky bucket).

    Args:
        per_s: deliveries per second; None: no limit.
    """

    def __init__(self, per_s: float | None) -> None:
        self._interval_ms = 0.0 if per_s is None else 1000 / per_s
        self._burst_ms = 0.0 if per_s is None else max(100 - self._interval_ms, 0)
        self._next_ms = 0.0

    def wait_ms(self, now_ms: int) -> int:
        """Return how long the next delivery has to wait, in milliseconds."""
        if not self._interval_ms:
            return 0
        return max(math.ceil(self._next_ms - self._burst_ms - now_ms), 0)

    def take(self, now_ms: int) -> None:
        """Note that a delivery starts."""
        self._next_ms = max(self._next_ms, now_ms) + self._interval_ms
