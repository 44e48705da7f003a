"""Find what a reader wants: stored bytes from an offset on, records by timestamp, and distances.

Reads never change the segments. A slice can be loaded in another thread. Knows segments, and
decodes a batch only to find a timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidemill.log.disk.segment import Segment
from tidemill.log.disk.slice import Slice
from tidemill.log.disk.walk import find_record, locate, position_before, position_for_time
from tidemill.log.errors import StorageError
from tidemill.log.format.batch import HEADER_SIZE, BatchHeader, parse_header
from tidemill.log.format.compression import DEFAULT_LIMIT
from tidemill.log.format.records import RawRecord, in_steps, load_records, scan_records
from tidemill.log.partition.chain import SegmentChain
from tidemill.log.steps import Steps

_WHOLE_BYTES = 65_536
"""Shorter slices are cut anywhere: the next place that the index knows can be 4 KiB before."""


def find_slice(
    chain: SegmentChain,
    offset: int,
    max_bytes: int,
    limit_offset: int,
    min_one: bool,
) -> Slice | None:
    """Find stored bytes in one segment, beginning with the batch that holds ``offset``.

    See ``PartitionLog.read``. ``offset`` is in the log and below ``limit_offset``.
    """
    segments = chain.segments
    index = len(segments) - 1
    if offset < segments[index].base_offset:
        index = max(chain.index_of(offset), 0)
    empty: Slice | None = None
    while index < len(segments):
        segment = segments[index]
        place = locate(segment, offset)
        if place is not None:
            position, size = place
            if limit_offset >= chain.head.end_offset:
                end = segment.size
            else:
                end = _readable_end(chain, index, limit_offset)
            if position >= end:
                break
            if size > HEADER_SIZE:
                return _cut(segment, place, end, max_bytes, min_one)
            first = find_record(segment, position, end)
            if first is not None:
                return _cut(segment, first, end, max_bytes, min_one)
            empty = _cut(segment, place, end, max_bytes, min_one)
        # Compaction left no record from here to the end of the segment.
        # The active segment can have none at all, so don't look there for this offset.
        offset = max(offset, segment.end_offset)
        index += 1
    return empty


def _readable_end(chain: SegmentChain, index: int, limit_offset: int) -> int:
    """Return the byte position in a segment where the records below ``limit_offset`` end."""
    segments, head = chain.segments, chain.head
    segment = segments[index]
    if index + 1 < len(segments) and segments[index + 1].base_offset <= limit_offset:
        return segment.size
    if limit_offset == head.high_watermark and segment is head.end_segment:
        return head.end_position
    return position_before(segment, limit_offset)


def _cut(
    segment: Segment, first: tuple[int, int], end: int, max_bytes: int, min_one: bool
) -> Slice:
    """Return the slice from the first batch (position, size) on, cut to the reader's limit.

    A long slice is cut between two batches where the index knows a place. A reader drops a batch
    that is cut, so its bytes would be sent twice.
    """
    position, first_size = first
    size = found = end - position
    if size > max_bytes:
        size = found = max_bytes
        if size < first_size:
            size = found = first_size if min_one else 0
        elif size >= _WHOLE_BYTES:
            size = max(segment.batch_start(position + size) - position, 0)
            size = size if size >= first_size else found
    return Slice(segment, position, size, found)


# --- by timestamp ---------------------------------------------------------------------------------

Found = tuple[int, int] | None
"""Offset and timestamp of a record."""

_PAUSE_AFTER = 256
"""Number of records between two pauses, less than a millisecond."""


def search(chain: SegmentChain, find: Callable[[Sequence[Segment]], Steps[Found]]) -> Steps[Found]:
    """Search the segments. Search again if some were deleted or compacted between two steps."""
    while True:
        if chain.failure is not None:
            raise chain.failure.with_traceback(None)
        segments = tuple(chain.segments)
        try:
            return (yield from find(segments))
        except StorageError:
            if chain.removed or all(chain.holds(segment) for segment in segments):
                raise


def find_timestamp(
    segments: Sequence[Segment], timestamp_ms: int, start_offset: int, end_offset: int
) -> Steps[Found]:
    """Return offset and timestamp of the first record in the offset range that is not older."""
    for segment in segments:
        if segment.base_offset >= end_offset:
            return None
        if segment.max_timestamp >= timestamp_ms:
            found = yield from _find_in(segment, timestamp_ms, start_offset, end_offset)
            if found is not None:
                return found
    return None


def find_max_timestamp(
    segments: Sequence[Segment], start_offset: int, end_offset: int
) -> Steps[Found]:
    """Return offset and timestamp of the first record with the latest timestamp (KIP-734)."""
    best: Found = None
    for segment in sorted(segments, key=lambda each: each.max_timestamp, reverse=True):
        if best is not None and segment.max_timestamp <= best[1] and not _earlier(segment, best):
            break
        found = yield from _max_in(segment, start_offset, end_offset)
        if found is not None and (best is None or (-found[1], found[0]) < (-best[1], best[0])):
            best = found
    return best


def _earlier(segment: Segment, best: tuple[int, int]) -> bool:
    return segment.max_timestamp == best[1] and segment.base_offset < best[0]


def _find_in(
    segment: Segment, timestamp_ms: int, start_offset: int, end_offset: int
) -> Steps[Found]:
    start = max(position_for_time(segment, timestamp_ms), _start_position(segment, start_offset))
    for position, header in segment.batches(start):
        if header.base_offset >= end_offset:
            return None
        if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
            continue
        first, last = start_offset - header.base_offset, end_offset - header.base_offset
        batch = segment.file.pread(header.size, position)
        body = yield from load_records(batch, header, DEFAULT_LIMIT)
        for raw in in_steps(scan_records(body, header.record_count), _PAUSE_AFTER):
            if raw is None:
                yield None
                continue
            timestamp = _time_of(raw, header)
            if timestamp >= timestamp_ms and first <= raw.offset_delta < last:
                return header.base_offset + raw.offset_delta, timestamp
    return None


def _start_position(segment: Segment, start_offset: int) -> int:
    return position_before(segment, start_offset) if start_offset > segment.base_offset else 0


def _max_in(segment: Segment, start_offset: int, end_offset: int) -> Steps[Found]:
    # The time index is exact for the whole segment only. If its latest record is outside the
    # offset range, search the batches.
    found = yield from _find_in(segment, segment.max_timestamp, start_offset, end_offset)
    if found is not None or segment.max_timestamp < 0:
        return found
    best: Found = None
    for position, header in segment.batches(_start_position(segment, start_offset)):
        if header.base_offset >= end_offset:
            break
        if header.last_offset < start_offset or (best and header.max_timestamp <= best[1]):
            continue
        first, last = start_offset - header.base_offset, end_offset - header.base_offset
        batch = segment.file.pread(header.size, position)
        body = yield from load_records(batch, header, DEFAULT_LIMIT)
        for raw in in_steps(scan_records(body, header.record_count), _PAUSE_AFTER):
            if raw is None:
                yield None
                continue
            timestamp = _time_of(raw, header)
            if first <= raw.offset_delta < last and (best is None or timestamp > best[1]):
                best = header.base_offset + raw.offset_delta, timestamp
    return best


def _time_of(raw: RawRecord, header: BatchHeader) -> int:
    if header.is_log_append_time:
        return header.max_timestamp
    return header.base_timestamp + raw.timestamp_delta


class Distance(NamedTuple):
    """The distance from an offset to the high watermark."""

    records: int
    """Offsets in between. Offsets that compaction or transaction markers took count, too."""
    size_bytes: int
    """Stored bytes, to the accuracy of a batch."""
    timestamp_ms: int | None
    """The largest timestamp of the first batch at or behind the offset; None at the end."""


def distance(chain: SegmentChain, offset: int, high_watermark: int) -> Distance:
    """Return the distance from ``offset``, or from the log's start if that is higher."""
    offset = max(offset, chain.head.start_offset)
    if offset >= high_watermark:
        return Distance(0, 0, None)
    segments = chain.segments
    index = max(chain.index_of(offset), 0)
    while index < len(segments):
        place = locate(segments[index], offset)
        if place is not None:
            break
        index += 1  # compaction left nothing from here to the end of the segment
    else:
        return Distance(0, 0, None)
    position = place[0]
    size = sum(segment.size for segment in segments[index:]) - position
    header = parse_header(segments[index].file.pread(HEADER_SIZE, position))
    return Distance(high_watermark - offset, size, header.max_timestamp)
