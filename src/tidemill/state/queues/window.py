"""The acknowledgement machine of one log partition.

Records below ``start`` are done, and records from ``next`` on were never acquired. Between them
each record is available (it was returned), acquired, or done. Ranges go in and ranges come out, so
the work grows with the number of ranges.

Pure: no log, no records' contents and no clock. An owner is a number that the caller chooses.

Acknowledgements change the window immediately; ``take_records`` returns what is to be stored. If
that is lost, acknowledged records are delivered once more. A record that is not in the log is never
marked, because the caller passes the high watermark as ``end``.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidemill.state.errors import NotAcquiredError
from tidemill.state.queues.block_table import Blocks
from tidemill.state.queues.blocks import ACQUIRED, AVAILABLE, DONE, MASK, SHIFT, SIZE
from tidemill.state.queues.changes import Changes, load
from tidemill.state.queues.counts import Deadlines, DeliveryCounts
from tidemill.state.queues.format import Marks


class Acquired(NamedTuple):
    """A range of records that an owner holds now.

    Attributes:
        first, last: the offsets, both inclusive.
        delivery_count: how often they were delivered before.
    """

    first: int
    last: int
    delivery_count: int


class AckWindow:
    """The states of one partition's records.

    A command of an owner that does not hold one of the records raises NotAcquiredError, and changes
    nothing.

    Attributes:
        start: all records below are done.
        next: no record from here on was ever acquired.
        acquired: how many records are out.
        returned: how many records are available below ``next``.
    """

    __slots__ = (
        "_blocks",
        "_changes",
        "_counts",
        "_deadlines",
        "_returned",
        "acquired",
        "next",
        "returned",
        "start",
    )

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.next = start
        self.acquired = 0
        self.returned = 0
        self._blocks = Blocks()
        self._returned: list[tuple[int, int]] = []  # a heap; can have offsets that are done since
        self._counts = DeliveryCounts()
        self._deadlines = Deadlines()
        self._changes = Changes(Marks(start, start), set())

    @classmethod
    def recover(cls, records: Mapping[int, bytes], end: int) -> AckWindow:
        """Return the window of the stored records. What was out is available.

        Args:
            records: the last value by block number, and that of ``MARKS``.
            end: the end of the log.
        """
        marks, blocks, counts, returned, changes = load(records, end)
        window = cls(marks.start)
        window.next = marks.delivered
        window._blocks = blocks
        window._counts = counts
        window._changes = changes
        window._returned = returned
        window.returned = sum(last - first + 1 for first, last in returned)
        window._advance()
        return window

    # --- acquire ---------------------------------------------------------------------------------

    def acquire(
        self, owner: int, count: int, end: int, deadline: int | None = None
    ) -> list[Acquired]:
        """Acquire up to ``count`` records: returned ones first, then those from ``next`` on.

        Args:
            end: no record from here on; the high watermark.
            deadline: when ``expire`` returns them; None for never.
        """
        runs: list[Acquired] = []
        if self._returned:
            count -= self._acquire_returned(owner, count, runs)
        if count > 0 and self.next < end:
            first = self.next
            self.next = min(end, first + count)
            self._blocks.acquire(owner, first, self.next)
            self.acquired += self.next - first
            runs.append(Acquired(first, self.next - 1, 0))
        if deadline is not None:
            for run in runs:
                self._deadlines.set(run.first, run.last, deadline)
        return runs

    def acquire_range(
        self, owner: int, first: int, last: int, count: int, end: int, deadline: int
    ) -> list[Acquired]:
        """Acquire up to ``count`` records of a range that begins at or below ``next``.

        Args:
            end: no record from here on that was never acquired.
            deadline: when ``expire`` returns them.
        """
        runs: list[Acquired] = []
        if first < self.next:
            for start, stop, state in self._blocks.within(first, min(last, self.next - 1)):
                stop = min(stop, start + count - 1)
                while state == AVAILABLE and start <= stop:
                    length = self._counts.same(start, stop - start + 1)
                    runs.append(Acquired(start, start + length - 1, self._counts.of(start)))
                    self.returned -= length
                    count -= length
                    start += length
        if last >= self.next and count > 0 and self.next < end:
            start, self.next = self.next, min(end, last + 1, self.next + count)
            runs.append(Acquired(start, self.next - 1, self._counts.of(start)))
        for run in runs:
            self._blocks.acquire(owner, run.first, run.last + 1)
            self._deadlines.set(run.first, run.last, deadline)
            self.acquired += run.last - run.first + 1
        return runs

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first, last, state, delivery count) of the runs in a range below ``next``.

        The state is one of ``blocks``; a record that was never acquired has none.
        """
        for start, stop, state in self._blocks.within(first, last):
            while start <= stop:
                length = stop - start + 1
                if state != DONE:
                    length = self._counts.same(start, length)
                count = 0 if state == DONE else self._counts.of(start)
                yield start, start + length - 1, state, count
                start += length

    def set_count(self, first: int, last: int, count: int) -> None:
        """Set how often records below ``next`` were delivered and returned."""
        self._counts.set(first, last, count)

    def check(self, owner: int, first: int, last: int) -> None:
        """Raise NotAcquiredError if the owner does not hold the whole range."""
        self._blocks.check(owner, first, last)

    def first_available(self, end: int) -> int | None:
        """Return the offset that ``acquire`` would return first; None if there is none."""
        heap = self._returned
        while heap:
            first, last = heap[0]
            block = self._blocks.get(first >> SHIFT)
            if block is not None and block.states[first & MASK] == AVAILABLE:
                return first
            if first == last:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (first + 1, last))
        return self.next if self.next < end else None

    def available_ranges(self) -> list[tuple[int, int]]:
        """Return the ranges below ``next`` that are available, lowest first."""
        return self._blocks.available()

    def is_available(self, offset: int) -> bool:
        """Return whether a record below ``next`` was returned and is not out."""
        block = self._blocks.get(offset >> SHIFT)
        return block is not None and block.states[offset & MASK] == AVAILABLE

    def is_done(self, offset: int) -> bool:
        """Return whether a record is done."""
        if offset < self.start:
            return True
        if offset >= self.next:
            return False
        block = self._blocks.get(offset >> SHIFT)
        return block is None or block.states[offset & MASK] == DONE

    def _acquire_returned(self, owner: int, count: int, runs: list[Acquired]) -> int:
        taken = 0
        while taken < count:
            first = self.first_available(self.next)
            if first is None:
                break
            _, last = self._returned[0]
            block = self._blocks[first >> SHIFT]
            index = first & MASK
            end = min(index + count - taken, SIZE, index + last - first + 1)
            length = self._counts.same(first, block.span(index, end, AVAILABLE))
            if length == last - first + 1:
                heapq.heappop(self._returned)
            else:
                heapq.heapreplace(self._returned, (first + length, last))
            runs.append(Acquired(first, first + length - 1, self._counts.of(first)))
            block.states[index : index + length] = bytes((ACQUIRED,)) * length
            block.owners[index : index + length] = array("I", (owner,)) * length
            taken += length
        self.returned -= taken
        self.acquired += taken
        return taken

    def delivery_count(self, offset: int) -> int:
        """Return how often the record was delivered and returned."""
        return self._counts.of(offset)

    # --- settle ----------------------------------------------------------------------------------

    def acknowledge(self, owner: int, first: int, last: int) -> None:
        """Mark records as done."""
        if first == last:
            block = self._blocks.get(first >> SHIFT)
            index = first & MASK
            if block is None or block.states[index] != ACQUIRED or block.owners[index] != owner:
                raise NotAcquiredError(first)
            block.states[index] = DONE
            block.done += 1
            self._finish_range(first, first, 1)
            return
        self._blocks.check(owner, first, last)
        for block, index, end in self._blocks.parts(first, last):
            block.fill(index, end, DONE)
        self._finish_range(first, last, last - first + 1)

    def release(self, owner: int, first: int, last: int, *, counts: bool = True) -> None:
        """Return records to their places.

        Args:
            counts: whether the delivery counts grow by one.
        """
        self._blocks.check(owner, first, last)
        for block, index, end in self._blocks.parts(first, last):
            block.fill(index, end, AVAILABLE)
        if counts:
            self._counts.add(first, last)
        self._deadlines.forget(first, last)
        heapq.heappush(self._returned, (first, last))
        self.acquired -= last - first + 1
        self.returned += last - first + 1
        self._changes.dirty.update(range(first >> SHIFT, (last >> SHIFT) + 1))

    def finish(self, offset: int) -> None:
        """Mark one record as done that is not out, even if it was never acquired."""
        if offset >= self.next:
            first = self.next
            self.acquire(0, offset + 1 - first + self.returned, offset + 1)
            for start, last in self.held(0):
                self.release(0, start, last, counts=False)
        if self.is_available(offset):
            self.skip(offset, offset)

    def hand_over(self, owner: int, first: int, last: int, to: int) -> None:
        """Give acquired records to another owner. Their deadlines end."""
        self._blocks.check(owner, first, last)
        self._deadlines.forget(first, last)
        for block, index, end in self._blocks.parts(first, last):
            block.owners[index:end] = array("I", (to,)) * (end - index)

    def release_owner(self, owner: int, *, counts: bool = True) -> list[tuple[int, int]]:
        """Return all records of an owner; return their ranges."""
        ranges = self._blocks.held(owner)
        for first, last in ranges:
            self.release(owner, first, last, counts=counts)
        return ranges

    def skip(self, first: int, last: int) -> None:
        """Mark offsets as done that are available, or the next ones: gaps and dropped records.

        Raises:
            ValueError: one of them is acquired or done, or lies behind the next one.
        """
        if first > self.next:
            raise ValueError(f"offset {first} is behind the next one, {self.next}")
        for offset in range(first, min(last + 1, self.next)):
            block = self._blocks.get(offset >> SHIFT)
            if block is None or block.states[offset & MASK] != AVAILABLE:
                raise ValueError(f"offset {offset} is not available")
        known = min(last + 1, self.next) - first
        if known > 0:
            for block, index, end in self._blocks.parts(first, first + known - 1):
                block.fill(index, end, DONE)
            self.returned -= known
            self._finish_range(first, first + known - 1, 0)
        if last >= self.next:
            self._skip_untouched(last + 1)

    def _skip_untouched(self, end: int) -> None:
        first, self.next = self.next, end
        if self.start == first:
            # No block is needed: everything below is done.
            self._blocks.pop(first >> SHIFT, None)
            self._changes.dirty.add(first >> SHIFT)
            self.start = end
            return
        at = first
        while at < end:
            stop = min(end, (at | MASK) + 1)
            self._changes.dirty.add(at >> SHIFT)
            if at & MASK or stop - at < SIZE:  # a block that is missing below ``next`` is done
                self._blocks.at_or_above(at).fill(at & MASK, ((stop - 1) & MASK) + 1, DONE)
            at = stop
        self._finish_range(first, end - 1, 0)

    def held(self, owner: int) -> list[tuple[int, int]]:
        """Return the ranges that an owner holds, lowest first."""
        return self._blocks.held(owner)

    # --- deadlines -------------------------------------------------------------------------------

    def renew(self, owner: int, first: int, last: int, deadline: int) -> None:
        """Give acquired records another deadline."""
        self._blocks.check(owner, first, last)
        self._deadlines.set(first, last, deadline)

    def expire(self, now: int) -> list[tuple[int, int]]:
        """Return the records whose deadline is reached to their places: (offset, owner) of each."""
        expired: list[tuple[int, int]] = []
        for offset in self._deadlines.take(now):
            owner = self._blocks[offset >> SHIFT].owners[offset & MASK]
            self.release(owner, offset, offset)
            expired.append((offset, owner))
        return expired

    def next_deadline(self) -> int | None:
        """Return the time of the earliest deadline; it possibly was renewed since."""
        return self._deadlines.next()

    # --- inside ----------------------------------------------------------------------------------

    def _finish_range(self, first: int, last: int, acquired: int) -> None:
        """Note that a range is done: forget what is known of it, and raise ``start``."""
        self.acquired -= acquired
        self._counts.forget(first, last)
        self._deadlines.forget(first, last)
        for number in range(first >> SHIFT, (last >> SHIFT) + 1):
            self._changes.dirty.add(number)
            block = self._blocks.get(number)
            if block is not None and block.done == SIZE:
                del self._blocks[number]
        if first <= self.start:
            self._advance()

    def _advance(self) -> None:
        while self.start < self.next:
            number = self.start >> SHIFT
            block = self._blocks.get(number)
            if block is None:
                self.start = min(self.next, (number + 1) << SHIFT)
                continue
            done = block.span(self.start & MASK, SIZE, DONE)
            self.start += done
            if self.start & MASK or not done:
                return

    # --- records ---------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Mark everything below ``offset`` as done, in whatever state: the log begins there now."""
        if offset <= self.start:
            return
        first, stop = self.start, min(offset, self.next)
        for number in sorted(self._blocks):
            base = number << SHIFT
            if base >= stop:
                break
            block = self._blocks[number]
            end = min(SIZE, stop - base)
            self.acquired -= block.states.count(ACQUIRED, 0, end)
            self.returned -= block.states.count(AVAILABLE, 0, end)
            block.fill(0, end, DONE)
            self._changes.dirty.add(number)
            if block.done == SIZE:
                del self._blocks[number]
        self._counts.forget(first, stop - 1)
        self._deadlines.forget(first, stop - 1)
        self.start = stop
        if offset > self.next:
            self.skip(self.next, offset - 1)
        self._advance()

    def marks(self) -> Marks:
        """Return the marks as they are now."""
        return Marks(self.start, self.next)

    def take_records(self) -> list[tuple[int, bytes | None]]:
        """Return (block number or ``MARKS``, value) of what changed since the last call."""
        return self._changes.take(self._blocks, self._counts, self.marks())

    def all_changed(self) -> None:
        """Note that the records of the last calls were not stored."""
        self._changes.all_changed(self._blocks)

    def forget_changes(self) -> None:
        """Note that the caller stores what changed in a form of its own."""
        self._changes.dirty.clear()

    def stored_keys(self) -> list[int]:
        """Return the block numbers that have records, and ``MARKS``: what a deletion removes."""
        return self._changes.keys()
