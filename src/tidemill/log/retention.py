"""Deleting old segments: by age, by size, and below the log's start.

Decides which segments may go; taking them off the chain and their files away is ``partition``'s.
Source: Apache Kafka's ``UnifiedLog.deleteOldSegments``.
"""

from __future__ import annotations

from tidemill.log.partition import PartitionLog
from tidemill.log.segment import Segment


def delete_old_segments(log: PartitionLog, now_ms: int) -> list[Segment]:
    """Remove whole segments that the topic's configs let go, oldest first.

    Age and size count where ``cleanup.policy`` has 'delete'; what lies below the log's start goes
    in any case. A segment goes only if all of it is below the last stable offset. Where even the
    active segment is too old, it is closed first, so that an idle partition gets empty too.

    Args:
        log: the partition.
        now_ms: the broker's time.

    Returns:
        The removed segments.

    Raises:
        DiskFullError: there is no room for the new active segment's files.
        StorageError: the file system refuses.
    """
    count = _below_start(log)
    if log.config.delete:
        count = max(count, _too_old(log, now_ms), _too_many_bytes(log))
    count = min(count, _stable(log))
    if count < len(log.segments):
        return log.remove_oldest(count) if count else []
    # The closed ones first: to start a segment takes room on the disk.
    gone = log.remove_oldest(count - 1)
    log.roll(now_ms)
    return gone + log.remove_oldest(1)


def _below_start(log: PartitionLog) -> int:
    return max(log.segment_index(log.log_start_offset), 0)


def _too_old(log: PartitionLog, now_ms: int) -> int:
    retention = log.config.retention_ms
    if retention < 0:
        return 0
    count = 0
    for segment in log.segments:
        # Records without timestamps are as old as their file.
        latest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
        if not segment.size or now_ms - latest <= retention:
            break
        count += 1
    return count


def _too_many_bytes(log: PartitionLog) -> int:
    if log.config.retention_bytes < 0:
        return 0
    excess = log.size_bytes - log.config.retention_bytes
    count = 0
    for segment in log.segments:
        if not segment.size or excess < segment.size:
            break
        excess -= segment.size
        count += 1
    return count


def _stable(log: PartitionLog) -> int:
    segments, stable = log.segments, log.last_stable_offset
    ends = [segment.base_offset for segment in segments[1:]] + [log.log_end_offset]
    return sum(1 for end in ends if end <= stable)
