"""Know which records of a partition are finished: the committed offset stays below all others.

A committed offset is a low-water mark: every record below it is finished. What is finished above it
is in the topic of attempts, and a new worker reads that from ``floor`` on. No I/O.
"""

from __future__ import annotations

from collections import deque


class Marks:
    """The unfinished records of one partition.

    Args:
        position: the offset of the next record.
        floor: an offset in the topic of attempts. All attempts of records from ``position`` on are
            at or behind it.
        known_to: the highest offset of which an earlier process has recorded an attempt.
    """

    def __init__(self, position: int, floor: int, known_to: int = -1) -> None:
        self._begun: deque[tuple[int, int]] = deque()
        self._finished: set[int] = set()
        self._next = position
        self._floor = floor
        self._known_to = known_to

    def begin(self, offset: int, floor: int) -> None:
        """Note a record that is to be delivered. Offsets must ascend.

        Args:
            offset: of the record.
            floor: all attempts of this record and of later ones are at or behind it.
        """
        self._begun.append((offset, floor))
        self._next = offset + 1

    def finish(self, offset: int) -> None:
        """Note that a record is finished: delivered or dead-lettered, and that this is on disk."""
        self._finished.add(offset)
        while self._begun and self._begun[0][0] in self._finished:
            self._finished.remove(self._begun.popleft()[0])

    def pass_over(self, offset: int, floor: int) -> None:
        """Note a record that needs no delivery, for example because it was filtered out."""
        self.begin(offset, floor)
        self.finish(offset)

    @property
    def next_offset(self) -> int:
        """The offset behind the last record that was begun."""
        return self._next

    @property
    def unfinished(self) -> int:
        """The number of records that are not finished."""
        return len(self._begun) - len(self._finished)

    def low_water(self, floor: int) -> tuple[int, int]:
        """Return the offset to commit, and from where the attempts are to be read for it.

        Args:
            floor: the end of the topic of attempts, for the case that nothing is unfinished.
        """
        if self._begun:
            return self._begun[0]
        # Attempts of records that were not read again yet are still needed.
        return self._next, floor if self._next > self._known_to else self._floor
