"""The stored form of a window: which records describe a change, and the window of stored records.

Knows blocks, counts and marks, and no command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidemill.state.queues.block_table import Blocks
from tidemill.state.queues.blocks import (
    AVAILABLE,
    DONE,
    FINISHED,
    SHIFT,
    SIZE,
    UNTOUCHED,
    Block,
    decode,
    encode,
)
from tidemill.state.queues.counts import DeliveryCounts
from tidemill.state.queues.format import MARKS, Marks, decode_marks, encode_marks

_UNTOUCHED_RUNS = re.compile(b"%c+" % UNTOUCHED)


class Changes:
    """Notes what changed since the last records.

    Attributes:
        dirty: the blocks that changed.
    """

    __slots__ = ("_marked", "_stored", "dirty")

    def __init__(self, marked: Marks, stored: set[int]) -> None:
        self.dirty: set[int] = set()
        self._marked = marked
        self._stored = stored  # the blocks whose last record is not a tombstone

    def all_changed(self, blocks: Mapping[int, Block]) -> None:
        """Note that it is not known what is stored."""
        self.dirty.update(blocks)
        self.dirty.update(self._stored)
        self._marked = Marks(-1, -1)

    def keys(self) -> list[int]:
        """Return the keys that have records: block numbers and ``MARKS``."""
        return [*sorted(self._stored), MARKS]

    def take(
        self, blocks: Mapping[int, Block], counts: DeliveryCounts, marks: Marks
    ) -> list[tuple[int, bytes | None]]:
        """Return (block number or ``MARKS``, value) of each change, and note them as stored."""
        records: list[tuple[int, bytes | None]] = []
        low = marks.start >> SHIFT
        passed = {number for number in self._stored if number < low}
        for number in sorted(self.dirty | passed):
            value = _value_of(number, blocks.get(number), counts, marks)
            if value is not None:
                self._stored.add(number)
            elif number in self._stored:
                self._stored.discard(number)
            else:
                continue
            records.append((number, value))
        self.dirty.clear()
        if marks != self._marked:
            self._marked = marks
            records.append((MARKS, encode_marks(marks)))
        return records


def _value_of(
    number: int, block: Block | None, counts: DeliveryCounts, marks: Marks
) -> bytes | None:
    """Return the value of a block's record; None if the marks say everything."""
    base = number << SHIFT
    if min(base + SIZE, marks.delivered) <= max(base, marks.start):
        return None  # nothing of it is between the marks
    if block is None:
        return FINISHED
    known = [(offset - base, count) for offset, count in counts.within(base, base + SIZE)]
    if not known and block.done == max(0, marks.start - base):
        return None
    return encode(block, known)


def load(
    records: Mapping[int, bytes], end: int
) -> tuple[Marks, Blocks, DeliveryCounts, list[tuple[int, int]], Changes]:
    """Return the marks, the blocks, the counts, and the ranges that are available, lowest first.

    What was out is available.

    Args:
        records: the last value by block number, and that of ``MARKS``.
        end: the end of the log.
    """
    value = records.get(MARKS)
    written = Marks(0, 0) if value is None else decode_marks(value)
    marks = Marks(min(written.start, end), min(written.delivered, end))
    blocks = Blocks()
    counts = DeliveryCounts()
    counts.recovered = marks.delivered
    returned: list[tuple[int, int]] = []
    for number in range(marks.start >> SHIFT, (marks.delivered - 1 >> SHIFT) + 1):
        value = records.get(number)
        block, known = (Block(), []) if value is None else decode(value)
        base = number << SHIFT
        stop = min(SIZE, marks.delivered - base)
        block.fill(0, max(0, marks.start - base), DONE)
        block.fill(stop, SIZE, UNTOUCHED)
        runs = _UNTOUCHED_RUNS.finditer(block.states, 0, stop)
        returned.extend((base + run.start(), base + run.end() - 1) for run in runs)
        block.states[:stop] = block.states[:stop].translate(_WAITING)
        for index, count in known:
            if block.states[index] == AVAILABLE:
                counts.known[base + index] = count + 1
        if block.done < SIZE:
            blocks[number] = block
    changes = Changes(written, {number for number in records if number != MARKS})
    changes.dirty.update(offset >> SHIFT for offset in counts.known)  # they grew by one
    return marks, blocks, counts, returned, changes


_WAITING = bytes(AVAILABLE if state == UNTOUCHED else state for state in range(256))
