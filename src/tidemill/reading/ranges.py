"""Arithmetic of offsets: divides a limit between partitions, and ranges into tasks.

Pure functions of numbers. Must not know: Spark, Kafka clients, options.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets ``[start, end)`` of one partition. There may be fewer records than offsets."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.end - self.start


def limit_offsets(
    start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], limit: int
) -> Offsets:
    """Return end offsets so that a batch has about ``limit`` offsets.

    The limit is divided in proportion to the backlog of the partitions. A partition with a backlog
    always gets at least one offset, so the sum may be larger than ``limit`` by as many.

    Args:
        start: Where the batch starts, for all partitions in ``latest``.
    """
    backlog = {tp: end - start[tp] for tp, end in latest.items() if end > start[tp]}
    total = sum(backlog.values())
    if total <= limit:
        return dict(latest)
    ends = dict(latest)
    for tp, size in backlog.items():
        share = limit * size // total  # integers are exact at any size
        ends[tp] = start[tp] + max(1, share)
    return ends


def split_ranges(
    ranges: Iterable[OffsetRange],
    *,
    min_parts: int | None = None,
    max_size: int | None = None,
) -> list[OffsetRange]:
    """Split ranges into parts.

    The parts of a range have equal sizes, and larger ranges get more parts. Empty ranges are
    dropped.

    Args:
        min_parts: Least number of parts, approximately; None for no limit.
        max_size: Most offsets of a part; None for no limit.
    """
    whole = [r for r in ranges if r.size > 0]
    total = sum(r.size for r in whole)
    parts: list[OffsetRange] = []
    for r in whole:
        count = 1
        if min_parts is not None and min_parts > len(whole):
            count = max(1, math.ceil(min_parts * r.size / total))
        if max_size is not None:
            count = max(count, math.ceil(r.size / max_size))
        parts.extend(_cut(r, min(count, r.size)))
    return parts


def _cut(r: OffsetRange, count: int) -> list[OffsetRange]:
    bounds = [r.start + r.size * i // count for i in range(count + 1)]
    return [
        OffsetRange(r.topic, r.partition, first, last) for first, last in itertools.pairwise(bounds)
    ]
