"""Arithmetic of offsets: how much to take next, and how to cut it into tasks.

Pure functions over numbers. Must not know: Spark, Kafka clients, options.
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
    """Offsets ``[start, end)`` of one partition. There may be fewer records than offsets."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.end - self.start


def limit_offsets(
    start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], limit: int
) -> Offsets:
    """Ends that take about ``limit`` offsets in all, shared out by each partition's backlog.

    A partition with a backlog always gets at least one offset, so that none starves beside a
    large one; ``limit`` may be passed by that many. ``start`` must hold all of ``latest``.
    """
    backlog = {tp: end - start[tp] for tp, end in latest.items() if end > start[tp]}
    total = sum(backlog.values())
    if total <= limit:
        return dict(latest)
    ends = dict(latest)
    for tp, size in backlog.items():
        share = limit * size // total  # whole numbers: exact at any size
        ends[tp] = start[tp] + max(1, share)
    return ends


def split_ranges(
    ranges: Iterable[OffsetRange],
    *,
    min_parts: int | None = None,
    max_size: int | None = None,
) -> list[OffsetRange]:
    """Cut ranges into at least about ``min_parts`` parts of at most ``max_size`` offsets.

    Parts of a range are of equal size, larger ranges get more of them. Empty ranges are dropped.
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
