"""Allocate blocks behind the ends of segments that grow fast (fallocate, Linux only).

While the kernel writes a file to the disk, it allocates blocks for what was appended to it, and
appends to the same file wait for that: up to hundreds of milliseconds where a disk is busy. They
don't wait where blocks were allocated before, and take less processor time. So a sync for which no
request waits first allocates space behind the end of the file. It must be done then, because
fallocate waits too while the file is being written to the disk. A sync takes longer afterwards,
which costs throughput where requests wait for it (acks=all).

The size of the file stays the same. The space is released when the segment is closed, when it did
not grow between two checks, and at a stop. Appends and syncs work without the space too, so an
error of fallocate is ignored.

Knows sizes of segments and the free space, and nothing of batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Protocol

from tidemill import system
from tidemill.log.disk.files import unimportant

FROM_BYTES = 256 << 10
"""Unsynced bytes of a segment from which space is allocated. Fewer go through the journal."""
TIMES = 3
"""The space is so many times the unsynced bytes: more than what is appended during the sync."""
LEAST_BYTES, MOST_BYTES = 4 << 20, 64 << 20
"""Smallest and largest space behind one segment."""
TOTAL_BYTES = 4 << 30
"""Most space behind all segments together."""
SEGMENT_BYTES = 1 << 30
"""Size that the first segment of a partition is expected to have, the default of Kafka."""
FREE_SHARE = 8
"""The space of all segments is at most this part of the free space."""
NOTHING = (0, 0)


class Growing(Hashable, Protocol):
    """The members of a ``Segment`` that are used here."""

    size: int
    synced_size: int

    def release_allocated(self) -> None: ...

    def begin_release(self) -> Callable[[], None] | None: ...


class Preallocation:
    """The space behind the segments of one data folder. Closed at first: nothing is allocated."""

    __slots__ = ("_ends", "_folder", "_plans", "_seen", "_used")

    def __init__(self) -> None:
        self._folder: str | None = None
        self._ends: dict[Growing, int] = {}
        self._seen: dict[Growing, int] = {}
        self._used = 0  # never too little: what segments have grown by is subtracted by a count
        self._plans = 0

    def open(self, folder: str) -> None:
        """Allow it if the file system of a folder writes to a disk of its own.

        A file system in memory (tmpfs) would take the memory, and one over a network its time.
        """
        if system.can_allocate(folder):
            self._folder = folder

    def plan(self, segment: Growing, most: int) -> tuple[int, int]:
        """Return position and length of what to allocate before the next sync of a segment.

        Args:
            most: size from which the segment will probably not grow.

        Returns:
            ``NOTHING`` if it needs no space, or there is too little free space.
        """
        unsynced = segment.size - segment.synced_size
        if self._folder is None or unsynced < FROM_BYTES:
            return NOTHING
        ahead = min(max(unsynced * TIMES, LEAST_BYTES), MOST_BYTES)
        start = max(self._ends.get(segment, 0), segment.size)
        if start - segment.size > ahead // 2:
            return NOTHING
        length = min(segment.size + ahead, most) - start
        if length < LEAST_BYTES // 2 or not self._has_space(self._folder, length):
            return NOTHING
        self._ends[segment] = start + length
        self._used += length
        return start, length

    def _has_space(self, folder: str, length: int) -> bool:
        try:
            found = os.statvfs(folder)
        except OSError:
            return False
        limit = min(TOTAL_BYTES, found.f_bavail * found.f_frsize // FREE_SHARE)
        self._plans += 1
        # A count takes time for each segment, so there is at most one for as many plans.
        if self._used + length > limit and self._plans >= len(self._ends):
            self._plans = 0
            ends = list(self._ends.items())  # the thread of a sync can remove a segment meanwhile
            self._used = sum(max(0, end - segment.size) for segment, end in ends)
        return self._used + length <= limit

    def idle(self) -> list[Growing]:
        """Return the segments with space that are synced and did not grow since the last call."""
        before, self._seen = self._seen, {each: each.size for each in list(self._ends)}
        return [
            segment
            for segment, size in self._seen.items()
            if before.get(segment) == size == segment.synced_size
        ]

    def close(self) -> None:
        """Release all space, and allocate nothing more.

        Where that fails, only space on the disk is lost.
        """
        self._folder = None
        for segment in list(self._ends):
            with unimportant():
                segment.release_allocated()

    def forget(self, segment: Growing) -> bool:
        """Forget the space of a segment; return whether it had any, which is to be released."""
        return self._ends.pop(segment, 0) > segment.size
