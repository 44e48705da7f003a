"""Delivery counts and deadlines of single offsets. Both are sparse. Knows no states."""

from __future__ import annotations

import heapq

_OUTDATED = 4096
"""Deadlines of records that are settled are removed when there are so many."""


class DeliveryCounts:
    """Counts how often records were delivered and returned.

    Attributes:
        recovered: offsets below it that have no count were possibly out when the broker ended.
    """

    __slots__ = ("known", "recovered")

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self.recovered = 0

    def of(self, offset: int) -> int:
        """Return the count of an offset."""
        return self.known.get(offset, 1 if offset < self.recovered else 0)

    def add(self, first: int, last: int) -> None:
        """Count one more delivery of a range."""
        for offset in range(first, last + 1):
            self.known[offset] = self.of(offset) + 1

    def set(self, first: int, last: int, count: int) -> None:
        """Give a range a count."""
        for offset in range(first, last + 1):
            self.known[offset] = count

    def same(self, first: int, length: int) -> int:
        """Return how many of ``length`` offsets have the count of the first."""
        if not self.known and not first < self.recovered < first + length:
            return length
        count = self.of(first)
        for step in range(1, length):
            if self.of(first + step) != count:
                return step
        return length

    def forget(self, first: int, last: int) -> None:
        """Forget a range that is done."""
        _forget(self.known, first, last)

    def within(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return (offset, count) of the counts in a range."""
        if not self.known:
            return []
        if len(self.known) < end - first:
            return sorted(each for each in self.known.items() if first <= each[0] < end)
        return [(each, self.known[each]) for each in range(first, end) if each in self.known]


class Deadlines:
    """The times at which acquired records are returned."""

    __slots__ = ("_due", "_of")

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._due: list[tuple[int, int, int]] = []  # a heap; deadlines can be outdated

    def set(self, first: int, last: int, deadline: int) -> None:
        """Give a range a deadline."""
        for offset in range(first, last + 1):
            self._of[offset] = deadline
        heapq.heappush(self._due, (deadline, first, last))
        if len(self._due) > _OUTDATED and len(self._due) > 2 * len(self._of):
            self._due = [(due, offset, offset) for offset, due in self._of.items()]
            heapq.heapify(self._due)

    def forget(self, first: int, last: int) -> None:
        """Forget a range that is not out any more."""
        _forget(self._of, first, last)

    def next(self) -> int | None:
        """Return the earliest deadline; the records are possibly settled or renewed since."""
        return self._due[0][0] if self._due else None

    def take(self, now: int) -> list[int]:
        """Return and forget the offsets whose deadline is reached."""
        offsets = []
        while self._due and self._due[0][0] <= now:
            _, first, last = heapq.heappop(self._due)
            for offset in range(first, last + 1):
                if self._of.get(offset, now + 1) <= now:
                    del self._of[offset]
                    offsets.append(offset)
        return offsets


def _forget(known: dict[int, int], first: int, last: int) -> None:
    if not known:
        return
    if len(known) < last - first:
        for offset in [each for each in known if first <= each <= last]:
            del known[offset]
    else:
        for offset in range(first, last + 1):
            known.pop(offset, None)
