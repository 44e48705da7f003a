"""A set of offsets as ranges. Knows nothing of what the offsets mean."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """A set of integers, stored as ranges that don't touch each other."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of each range, lowest first."""
        return zip(self._firsts, self._lasts, strict=True)

    def add(self, first: int, last: int) -> None:
        """Add a range, both ends inclusive."""
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]

    def remove_below(self, offset: int) -> None:
        """Remove everything below an offset."""
        count = bisect_left(self._lasts, offset)
        if count:
            del self._firsts[:count], self._lasts[:count]
        if self._firsts and self._firsts[0] < offset:
            self._firsts[0] = offset

    def clear(self) -> None:
        """Remove everything."""
        self._firsts.clear()
        self._lasts.clear()

    def split(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Yield (first, last, whether it is in the set) of the parts of a range."""
        index = bisect_left(self._lasts, first)
        while first <= last:
            if index == len(self._firsts) or self._firsts[index] > last:
                yield first, last, False
                return
            if self._firsts[index] > first:
                yield first, self._firsts[index] - 1, False
                first = self._firsts[index]
            end = min(last, self._lasts[index])
            yield first, end, True
            first = end + 1
            index += 1
