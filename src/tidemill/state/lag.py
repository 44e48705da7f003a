"""Decide what the lag of a consumer group means for the producers of a partition.

Pure: time and measurements are parameters. This module must not know logs, groups or a protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

LEAST_HOLD_MS = 100
"""Shortest time that a producer is held back."""
MOST_HOLD_MS = 5_000
"""Longest time that one request holds a producer back. Clients give up after 30 seconds by
default (``request.timeout.ms``)."""
RATE_WINDOW_MS = 1_000
"""How fast a group reads is measured over at least this time."""


class Lag(NamedTuple):
    """The distance that a group is behind in one partition."""

    records: int
    size_bytes: int
    age_ms: int
    """The age of the next record that it reads; 0 if it has read everything."""


class LagLimit(NamedTuple):
    """The largest lag. -1 means that there is no limit."""

    records: int = -1
    size_bytes: int = -1
    age_ms: int = -1

    def excess(self, lag: Lag) -> float:
        """Return by which share of the lag the tightest limit is exceeded; 0.0 within limits.

        0.25 means that a quarter of the lag must go.
        """
        shares = [
            1 - limit / value for value, limit in zip(lag, self, strict=True) if 0 <= limit < value
        ]
        return max(shares, default=0.0)


class Pace:
    """Estimates how long a group needs to get back within its limit."""

    def __init__(self) -> None:
        self._since: tuple[int, int] | None = None
        self._per_ms = 0.0

    def observe(self, now_ms: int, position: int) -> None:
        """Note the group's position: the offset of the next record that it reads."""
        if self._since is None or position < self._since[1]:
            self._since = (now_ms, position)
            return
        began, first = self._since
        if now_ms - began >= RATE_WINDOW_MS:
            self._per_ms = (position - first) / (now_ms - began)
            self._since = (now_ms, position)

    def hold_ms(self, records_over: int) -> int:
        """Return how long a producer should wait, in milliseconds.

        A group that does not move makes it wait as long as possible.
        """
        if self._per_ms <= 0:
            return MOST_HOLD_MS
        return max(LEAST_HOLD_MS, min(MOST_HOLD_MS, int(records_over / self._per_ms)))


def first_within(limit: LagLimit, position: int, end: int, lag_at: Callable[[int], Lag]) -> int:
    """Return the lowest offset from ``position`` on at which the lag is within the limit.

    Args:
        position: the group's position, at which the lag is too large.
        end: the end of the partition, where there is no lag.
        lag_at: measures the lag of a reader at an offset.
    """
    low, high = position, end
    while low < high:
        middle = (low + high) // 2
        if limit.excess(lag_at(middle)) > 0:
            low = middle + 1
        else:
            high = middle
    return low
