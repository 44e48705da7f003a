"""The blocks of a window: ranges of offsets that span blocks. Knows no counts and no marks."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator

from tidemill.state.errors import NotAcquiredError
from tidemill.state.queues.blocks import ACQUIRED, AVAILABLE, DONE, MASK, SHIFT, SIZE, Block

_ACQUIRED_RUNS = re.compile(b"%c+" % ACQUIRED)
_AVAILABLE_RUNS = re.compile(b"%c+" % AVAILABLE)


class Blocks(dict[int, Block]):
    """The blocks that are not finished, by number."""

    __slots__ = ()

    def at_or_above(self, offset: int) -> Block:
        """Return the block of an offset at or above ``next``; create it if it is missing."""
        number = offset >> SHIFT
        block = self.get(number)
        if block is None:
            block = self[number] = Block()
            block.fill(0, offset & MASK, DONE)
        return block

    def acquire(self, owner: int, first: int, end: int) -> None:
        """Mark a range as acquired, from ``first`` to ``end`` (exclusive)."""
        while first < end:
            block = self.at_or_above(first)
            index = first & MASK
            length = min(end - first, SIZE - index)
            if length == 1:
                block.states[index] = ACQUIRED
                block.owners[index] = owner
            else:
                block.states[index : index + length] = bytes((ACQUIRED,)) * length
                block.owners[index : index + length] = array("I", (owner,)) * length
            first += length

    def parts(self, first: int, last: int) -> list[tuple[Block, int, int]]:
        """Return (block, first index, end index) for a range of offsets."""
        parts = []
        while first <= last:
            index = first & MASK
            end = min(SIZE, index + last - first + 1)
            parts.append((self[first >> SHIFT], index, end))
            first += end - index
        return parts

    def check(self, owner: int, first: int, last: int) -> None:
        """Raise NotAcquiredError if the owner does not hold the whole range."""
        offset = first
        while offset <= last:
            block = self.get(offset >> SHIFT)
            index = offset & MASK
            end = min(SIZE, index + last - offset + 1)
            if block is None:
                raise NotAcquiredError(offset)
            out = block.span(index, end, ACQUIRED)
            owners = block.owners[index : index + out]
            if owners != array("I", (owner,)) * out:
                at = next(at for at, each in enumerate(owners) if each != owner)
                raise NotAcquiredError(offset + at)
            if out < end - index:
                raise NotAcquiredError(offset + out)
            offset += end - index

    def held(self, owner: int) -> list[tuple[int, int]]:
        """Return the ranges that an owner holds, lowest first."""
        ranges: list[tuple[int, int]] = []
        for number in sorted(self):
            block = self[number]
            base = number << SHIFT
            for run in _ACQUIRED_RUNS.finditer(block.states):
                for index in range(run.start(), run.end()):
                    if block.owners[index] != owner:
                        continue
                    offset = base + index
                    if ranges and ranges[-1][1] == offset - 1:
                        ranges[-1] = (ranges[-1][0], offset)
                    else:
                        ranges.append((offset, offset))
        return ranges

    def within(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first, last, state) of the runs of equal states in a range below ``next``."""
        while first <= last:
            end = min(last, first | MASK)
            block = self.get(first >> SHIFT)
            if block is None:
                yield first, end, DONE
                first = end + 1
                continue
            index = first & MASK
            state = block.states[index]
            length = block.span(index, index + end - first + 1, state)
            yield first, first + length - 1, state
            first += length

    def available(self) -> list[tuple[int, int]]:
        """Return the ranges below ``next`` that are available, lowest first."""
        return [
            ((number << SHIFT) + run.start(), (number << SHIFT) + run.end() - 1)
            for number in sorted(self)
            for run in _AVAILABLE_RUNS.finditer(self[number].states)
        ]
