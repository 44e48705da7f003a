"""Decide which part of a partition can be compacted, and whether that is due.

Changes nothing. Source: Apache Kafka's ``LogCleanerManager``; KIP-58 (min.compaction.lag.ms);
KIP-354 (max.compaction.lag.ms).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.log.config.definition import MAX_LONG
from tidemill.log.disk.segment import Segment
from tidemill.log.partition.partition import PartitionLog


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The part of a partition that can be compacted now.

    Attributes:
        first_dirty_offset: below it there is one record per key already.
        segments: the closed segments that can be rewritten, including clean ones.
        end_offset: the end offset of these segments.
        clean_bytes, dirty_bytes: the sizes of the clean and of the dirty segments.
        is_due: whether the topic's configs require a compaction now.
    """

    first_dirty_offset: int
    segments: tuple[Segment, ...] = ()
    end_offset: int = -1
    clean_bytes: int = 0
    dirty_bytes: int = 0
    is_due: bool = False

    @property
    def dirty_ratio(self) -> float:
        """The share of dirty bytes, which is compared with ``min.cleanable.dirty.ratio``."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def cleanable(log: PartitionLog, now_ms: int) -> Cleanable:
    """Return the part of a partition that can be compacted, and whether that is due.

    It ends before the active segment, before a segment that reaches the last stable offset, and
    before a segment whose latest record is younger than ``min.compaction.lag.ms``. A compaction is
    due if the dirty share is above ``min.cleanable.dirty.ratio``, or if a dirty record is older
    than ``max.compaction.lag.ms``.

    Raises:
        StorageError: a segment can't be read.
    """
    config = log.config
    first_dirty = log.first_dirty_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    if not config.compact or not log.chain.sparse:  # its config could not be applied completely
        return Cleanable(first_dirty)
    segments: list[Segment] = []
    end_offset = clean = dirty = 0
    must = False
    for segment, end in log.chain.closed():
        is_dirty = end > first_dirty
        if end > log.last_stable_offset or (
            is_dirty
            and config.min_compaction_lag_ms > 0
            and segment.max_timestamp > now_ms - config.min_compaction_lag_ms
        ):
            break
        segments.append(segment)
        end_offset = end
        if is_dirty:
            dirty += segment.size
            must = must or _is_overdue(segment, config.max_compaction_lag_ms, now_ms)
        else:
            clean += segment.size
    found = Cleanable(first_dirty, tuple(segments), end_offset, clean, dirty)
    if not dirty or not (must or found.dirty_ratio > config.min_cleanable_dirty_ratio):
        return found
    return Cleanable(first_dirty, found.segments, end_offset, clean, dirty, is_due=True)


def _is_overdue(segment: Segment, max_lag_ms: int, now_ms: int) -> bool:
    if max_lag_ms == MAX_LONG:
        return False
    begin = segment.read_first_timestamp()
    return 0 < begin < now_ms - max_lag_ms
