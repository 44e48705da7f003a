"""When a segment is full or old enough that the next batch starts a new one.

Decides, and changes nothing; closing and starting segments is ``partition``'s. Source: Apache
Kafka's ``LogSegment.shouldRoll``.
"""

from __future__ import annotations

from crc32c import crc32c

from tidemill.log.config import LogConfig
from tidemill.log.index import MAX_RELATIVE_OFFSET
from tidemill.log.names import TopicPartition
from tidemill.log.segment import Segment


def must_roll(
    segment: Segment,
    size: int,
    last_offset: int,
    timestamp: int,
    now_ms: int,
    config: LogConfig,
    tp: TopicPartition,
) -> bool:
    """Whether batches have to go into a new segment.

    Args:
        segment: the active one; not empty.
        size: bytes of the batches.
        last_offset: of them.
        timestamp: their latest, or -1.
        now_ms: the broker's time.
        config: the topic's.
        tp: spreads the jitter, so that partitions don't roll all at once.

    Raises:
        CorruptLogError, StorageError: the segment can't be read.
    """
    if segment.size + size > config.segment_bytes:
        return True
    if last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return True
    table = segment.table or segment.open_table()
    if table.is_full(config.segment_index_bytes):
        return True
    # As Kafka: by record time where there is one, so that replayed history rolls as it would have
    # rolled.
    begin = segment.first_timestamp
    if begin is None:
        begin = segment.read_first_timestamp()
    waited = timestamp - begin if begin >= 0 and timestamp >= 0 else now_ms - segment.created_ms
    limit = config.max_segment_ms
    if config.segment_jitter_ms:
        seed = crc32c(f"{tp}/{segment.base_offset}".encode())
        limit -= min(seed % (config.segment_jitter_ms + 1), limit)
    return waited > limit
