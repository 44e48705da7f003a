"""Finding records by timestamp.

Reads segments and decodes the one batch that matters; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.records import decode_records
from tidemill.log.segment import Segment


def find_timestamp(
    segments: Sequence[Segment], timestamp_ms: int, start_offset: int, end_offset: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record within the offsets that is not older.

    Raises:
        CorruptLogError, StorageError: what is stored can't be used.
    """
    for segment in segments:
        if segment.base_offset >= end_offset:
            return None
        if segment.max_timestamp >= timestamp_ms:
            found = _find_in(segment, timestamp_ms, start_offset, end_offset)
            if found is not None:
                return found
    return None


def find_max_timestamp(
    segments: Sequence[Segment], start_offset: int, end_offset: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record with the latest timestamp (KIP-734).

    Raises:
        CorruptLogError, StorageError: what is stored can't be used.
    """
    best: tuple[int, int] | None = None
    for segment in sorted(segments, key=lambda each: each.max_timestamp, reverse=True):
        if best is not None and segment.max_timestamp <= best[1] and not _earlier(segment, best):
            break
        found = _max_in(segment, start_offset, end_offset)
        if found is not None and (best is None or (-found[1], found[0]) < (-best[1], best[0])):
            best = found
    return best


def _earlier(segment: Segment, best: tuple[int, int]) -> bool:
    return segment.max_timestamp == best[1] and segment.base_offset < best[0]


def _find_in(
    segment: Segment, timestamp_ms: int, start_offset: int, end_offset: int
) -> tuple[int, int] | None:
    start = max(segment.position_for_time(timestamp_ms), _start_position(segment, start_offset))
    for position, header in segment.batches(start):
        if header.base_offset >= end_offset:
            return None
        if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
            continue
        for record in decode_records(segment.file.pread(header.size, position)):
            if record.timestamp >= timestamp_ms and start_offset <= record.offset < end_offset:
                return record.offset, record.timestamp
    return None


def _start_position(segment: Segment, start_offset: int) -> int:
    return segment.start_position(start_offset) if start_offset > segment.base_offset else 0


def _max_in(segment: Segment, start_offset: int, end_offset: int) -> tuple[int, int] | None:
    # The time index is right for the whole segment only: if the latest record lies outside the
    # offsets, its batches are looked through.
    found = _find_in(segment, segment.max_timestamp, start_offset, end_offset)
    if found is not None or segment.max_timestamp < 0:
        return found
    best: tuple[int, int] | None = None
    for position, header in segment.batches(_start_position(segment, start_offset)):
        if header.base_offset >= end_offset:
            break
        if header.last_offset < start_offset or (best and header.max_timestamp <= best[1]):
            continue
        for record in decode_records(segment.file.pread(header.size, position)):
            if start_offset <= record.offset < end_offset and (
                best is None or record.timestamp > best[1]
            ):
                best = record.offset, record.timestamp
    return best
