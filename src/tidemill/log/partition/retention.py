"""Remove old segments: by age, by size, and below the log's start.

Decides which segments the topic's configs keep, and removes the others from the start of the chain.
Source: Apache Kafka's ``UnifiedLog.deleteOldSegments``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.log.config.topic import LogConfig
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import OffsetOutOfRangeError
from tidemill.log.partition.append import Appender
from tidemill.log.partition.chain import SegmentChain
from tidemill.log.partition.lazy_producers import LazyProducers
from tidemill.log.partition.snapshots import sync_snapshots
from tidemill.log.partition.sync import SyncState, sync_name


@dataclass(slots=True, eq=False, repr=False)
class Retention:
    """Removes the oldest segments of one partition. All methods can block on the disk."""

    _chain: SegmentChain
    _producers: LazyProducers
    _sync: SyncState
    _appender: Appender

    def delete_before(self, offset: int) -> int:
        """Raise the log's start to ``offset``; see ``PartitionLog.delete_records_before``."""
        chain = self._chain
        if chain.failure is not None:
            raise chain.failure.with_traceback(None)
        if not 0 <= offset <= self._chain.head.high_watermark:
            raise OffsetOutOfRangeError(
                f"can't delete records of {chain.tp} before offset {offset}: "
                f"the high watermark is {self._chain.head.high_watermark}"
            )
        if offset > chain.head.start_offset:
            chain.head.start_offset = offset
            chain.head.changed = True
            self._remove_oldest(max(chain.index_of(offset), 0))
        return chain.head.start_offset

    def delete_old(self, now_ms: int) -> list[Segment]:
        """Remove the segments that are not kept; see ``PartitionLog.delete_old_segments``."""
        stable_offset = self._producers.stable_offset(self._chain.head.high_watermark)
        count = removable_segments(self._chain, self._chain.head.config, stable_offset, now_ms)
        if count < len(self._chain.segments):
            return self._remove_oldest(count) if count else []
        # Remove the closed segments first, because a new segment needs space on the disk.
        removed = self._remove_oldest(count - 1)
        # Its name must be on disk before the last old segment loses its own: a folder without any
        # segment is damage.
        sync_name(self._chain.env, self._appender.roll(now_ms))
        return removed + self._remove_oldest(1)

    def _remove_oldest(self, count: int) -> list[Segment]:
        """Remove the ``count`` oldest segments. The active segment always stays.

        Their files get the suffix ``.deleted``. ``LogStore.purge_deleted`` removes them after
        ``file.delete.delay.ms``. The oldest goes first, so that a crash leaves no gap.
        """
        chain = self._chain
        count = min(count, len(chain.segments) - 1)
        if count and len(self._producers.states):
            sync_snapshots(chain.env, chain.folder)
        if count:
            # A folder without any segment is damage.
            sync_name(chain.env, chain.segments[count])
        for segment in chain.segments[:count]:
            # A power cut can take back the new names. The journal has the rest not much longer.
            if segment.size > segment.synced_size:
                segment.file.datasync()
                segment.synced_size = segment.size
        delay_ms = self._chain.head.config.file_delete_delay_ms
        removed = [chain.remove_oldest(delay_ms) for _ in range(count)]
        if removed:
            self._sync.forget(removed)
        return removed


def removable_segments(
    chain: SegmentChain, config: LogConfig, stable_offset: int, now_ms: int
) -> int:
    """Return how many of the oldest segments retention removes.

    Age and size count if ``cleanup.policy`` has 'delete'. Segments below the log's start are
    always removed. A segment is kept if it reaches above the last stable offset.
    """
    count = max(chain.index_of(chain.head.start_offset), 0)
    if config.delete:
        count = max(
            count,
            _too_old(chain.segments, config.retention_ms, now_ms),
            _above_size(chain, config.retention_bytes),
        )
    return min(count, sum(each.end_offset <= stable_offset for each in chain.segments))


def _too_old(segments: list[Segment], retention_ms: int, now_ms: int) -> int:
    if retention_ms < 0:
        return 0
    count = 0
    for segment in segments:
        # Records without timestamps are as old as their file.
        latest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
        if not segment.size or now_ms - latest <= retention_ms:
            break
        count += 1
    return count


def _above_size(chain: SegmentChain, retention_bytes: int) -> int:
    if retention_bytes < 0:
        return 0
    excess = chain.size_bytes - retention_bytes
    count = 0
    for segment in chain.segments:
        if not segment.size or excess < segment.size:
            break
        excess -= segment.size
        count += 1
    return count
