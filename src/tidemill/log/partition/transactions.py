"""The transactions of one partition: which hold back the last stable offset, and which aborted.

Knows producers and offsets, and the indexes of aborted transactions. Knows no coordinator, no
transactional ids and no markers' format.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from operator import attrgetter
from typing import NamedTuple

from tidemill.log.disk.aborted_index import AbortedTransaction
from tidemill.log.names import TXN_INDEX
from tidemill.log.partition.chain import SegmentChain

_BASE_OFFSET = attrgetter("base_offset")
_FIRST_OFFSET = attrgetter("first_offset")


class OpenTransaction(NamedTuple):
    """A transaction that has written to the partition and has no marker yet."""

    producer_id: int
    epoch: int
    first_offset: int


class UnstableTransactions:
    """Transactions that hold back the last stable offset.

    These are open transactions, and transactions whose marker is not synced yet. Every method takes
    constant time.

    Attributes:
        open: the first offset of each open transaction by producer id, oldest first.
        ended: marker and first offset of those whose marker is not synced yet.
    """

    __slots__ = ("_first_offsets", "ended", "open")

    def __init__(self) -> None:
        self.open: OrderedDict[int, int] = OrderedDict()
        # The first offsets of all unstable transactions. They begin in this order.
        self._first_offsets: OrderedDict[int, None] = OrderedDict()
        self.ended: deque[tuple[int, int]] = deque()

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Add a transaction whose first batch was appended. Offsets must increase."""
        self.open[producer_id] = first_offset
        self._first_offsets[first_offset] = None

    def end(self, producer_id: int, marker_offset: int) -> None:
        """End a transaction. It stays unstable until its marker is synced."""
        self.ended.append((marker_offset, self.open.pop(producer_id)))

    def settle(self, high_watermark: int) -> None:
        """Drop ended transactions with a marker below the high watermark: these are synced."""
        ended = self.ended
        while ended and ended[0][0] < high_watermark:
            del self._first_offsets[ended.popleft()[1]]

    def first_offset(self) -> int:
        """Return the first offset of the oldest unstable transaction, or -1."""
        return next(iter(self._first_offsets), -1)


def find_aborted(
    chain: SegmentChain, first_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """Return the aborted transactions that overlap ``[first_offset, end_offset)``.

    Args:
        end_offset: end of the range, at most the last stable offset.

    Returns:
        The index entries, ordered by first offset.
    """
    segments = chain.with_aborted()
    if not segments or first_offset >= end_offset:
        return []
    found: list[AbortedTransaction] = []
    start = max(bisect_right(segments, first_offset, key=_BASE_OFFSET) - 1, 0)
    for segment in segments[start:]:
        if segment.aborted is None:
            continue
        entries, is_complete = segment.aborted.find(
            chain.env, segment.path(TXN_INDEX), first_offset, end_offset
        )
        found += entries
        if is_complete:
            break
    return sorted(found, key=_FIRST_OFFSET)
