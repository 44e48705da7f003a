"""Know which records of a partition are finished: the committed offset stays below all others.

A committed offset is a low-water mark: every record below it is finished. What is finished above it
is in the topic of attempts, and a new worker reads that from ``floor`` on. No I/O.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator


class Marks:
    """The unfinished records of one partition.

    Args:
        position: the offset of the next record.
        floor: an offset in the topic of attempts. All attempts of records from ``position`` on are
            at or behind it.
        known_to: the highest offset of which an earlier process has recorded an attempt.
    """

    def __init__(self, position: int, floor: int, known_to: int = -1) -> None:
        # Unfinished ones only: behind a record that fails for days, millions are finished.
        self._unfinished: OrderedDict[int, int] = OrderedDict()
        self._next = position
        self._floor = floor
        self._known_to = known_to

    def begin(self, offset: int, floor: int) -> None:
        """Note a record that is to be delivered. Offsets must ascend.

        Args:
            offset: of the record.
            floor: all attempts of this record and of later ones are at or behind it.
        """
        self._unfinished[offset] = floor
        self._next = offset + 1

    def finish(self, offset: int) -> None:
        """Note that a record is finished: delivered or dead-lettered, and that this is on disk."""
        del self._unfinished[offset]

    def pass_over(self, offset: int) -> None:
        """Note a record that needs no delivery, for example because it was filtered out."""
        self._next = offset + 1

    @property
    def next_offset(self) -> int:
        """The offset behind the last record that was begun."""
        return self._next

    @property
    def unfinished(self) -> int:
        """The number of records that are not finished."""
        return len(self._unfinished)

    def low_water(self, floor: int) -> tuple[int, int]:
        """Return the offset to commit, and from where the attempts are to be read for it.

        Args:
            floor: the end of the topic of attempts, for the case that nothing is unfinished.
        """
        if self._unfinished:
            return next(iter(self._unfinished.items()))
        # Attempts of records that were not read again yet are still needed.
        return self._next, floor if self._next > self._known_to else self._floor


class Offsets:
    """A set of offsets as ranges: millions that follow each other take the room of one."""

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")  # behind the last offset of each range

    def add(self, offset: int) -> None:
        """Add an offset."""
        at = bisect_right(self._starts, offset)
        if at and offset < self._ends[at - 1]:
            return
        follows = at > 0 and self._ends[at - 1] == offset
        leads = at < len(self._starts) and self._starts[at] == offset + 1
        if follows and leads:
            self._ends[at - 1] = self._ends[at]
            del self._starts[at], self._ends[at]
        elif follows:
            self._ends[at - 1] = offset + 1
        elif leads:
            self._starts[at] = offset
        else:
            self._starts.insert(at, offset)
            self._ends.insert(at, offset + 1)

    def __iter__(self) -> Iterator[int]:
        for start, end in zip(self._starts, self._ends, strict=True):
            yield from range(start, end)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset)
        return at > 0 and offset < self._ends[at - 1]
