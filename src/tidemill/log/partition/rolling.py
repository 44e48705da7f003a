"""Decide when the next batch starts a new segment.

Changes nothing; ``append`` closes and starts segments. Source: Apache Kafka's
``LogSegment.shouldRoll``.
"""

from __future__ import annotations

from tidemill.log.config.topic import LogConfig
from tidemill.log.disk.index import MAX_RELATIVE_OFFSET
from tidemill.log.disk.segment import Segment
from tidemill.log.format.crc import crc32c
from tidemill.log.names import TopicPartition


def must_roll(
    segment: Segment,
    size: int,
    last_offset: int,
    timestamp: int,
    now_ms: int,
    config: LogConfig,
    tp: TopicPartition,
) -> bool:
    """Return whether batches must go into a new segment.

    Args:
        segment: the active segment, not empty.
        timestamp: latest timestamp of the batches, or -1.
        tp: the partition; the jitter depends on it, so that partitions roll at different times.
    """
    if segment.size + size > config.segment_bytes:
        return True
    if last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return True
    table = segment.table or segment.open_table()
    if table.is_full(config.segment_index_bytes):
        return True
    # As in Kafka, the records' time counts if there is one. So replayed history gets the same
    # segments as it got live.
    begin = segment.first_timestamp
    if begin is None:
        begin = segment.read_first_timestamp()
    age = timestamp - begin if begin >= 0 and timestamp >= 0 else now_ms - segment.created_ms
    limit = config.max_segment_ms
    if config.segment_jitter_ms:
        seed = crc32c(f"{tp}/{segment.base_offset}".encode())
        limit -= min(seed % (config.segment_jitter_ms + 1), limit)
    return age > limit
