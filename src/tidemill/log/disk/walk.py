"""Find batches in a segment by offset and by timestamp, and check what is found.

The CRC of a batch does not cover its base offset, and indexes have no CRC at all. So offsets are
compared with their neighbours: an index entry must name the batch at its position, each batch must
begin where the one before it ends (or later, if compaction has removed batches), and all offsets
are in the segment's range. A wrong index is built again; a wrong log is an error with its place.

Knows segments; not what a reader can see.
"""

from __future__ import annotations

import struct

from tidemill.errors import TidemillError
from tidemill.log.disk.index import find_time_entry
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import CorruptLogError
from tidemill.log.format.batch import HEADER_SIZE, BatchHeader, check_batch, parse_header

# base offset, batch length, last offset delta: all that finding an offset needs
_WALK = struct.Struct(">qi11xi")
_WALK_CHUNK = 8192


class _IndexMismatchError(Exception):
    """An index entry, a position and a last offset, does not name the batch at its position."""


def locate(segment: Segment, offset: int) -> tuple[int, int] | None:
    """Return position and size of the first batch whose last offset is at or above ``offset``.

    None if the segment ends below it.
    """
    if offset >= segment.end_offset:
        return None
    relative = offset - segment.base_offset
    if segment.table is not None:
        recent = segment.table.find_recent(relative, segment.size)
        if recent is not None:
            return recent
    try:
        return _walk(segment, offset)
    except _IndexMismatchError as mismatch:
        _rebuild_index(segment, *mismatch.args)
    try:
        return _walk(segment, offset)
    except _IndexMismatchError as mismatch:
        raise segment.corrupt("not a record batch", mismatch.args[0], None) from mismatch


def _walk(segment: Segment, offset: int) -> tuple[int, int]:
    entry = segment.index_entry(offset)
    position, known = (0, -1) if entry is None else entry
    expected = segment.base_offset if position == 0 else -1
    end, dense = segment.size, segment.dense
    if known >= 0 and not 0 <= position <= end - HEADER_SIZE:
        raise _IndexMismatchError(position, known)
    while position < end:
        chunk = segment.file.pread(min(_WALK_CHUNK, end - position), position)
        at = 0
        last_start = len(chunk) - HEADER_SIZE
        while at <= last_start:
            base, length, delta = _WALK.unpack_from(chunk, at)
            size, last = length + 12, base + delta
            malformed = size < HEADER_SIZE or position + at + size > end or delta < 0
            if known >= 0:
                if malformed or last != known:
                    raise _IndexMismatchError(position, known)
                known = -1
            elif malformed:
                raise segment.corrupt("not a record batch", position + at, None)
            if base < expected or last >= segment.end_offset or (dense and base > expected >= 0):
                raise misplaced(segment, position + at, base, last, expected)
            if last >= offset:
                return position + at, size
            expected = last + 1
            at += size
        if at == 0:
            raise segment.corrupt("the file is shorter than before", position, None)
        position += at
    raise segment.corrupt(
        f"its last batch ends at offset {expected - 1}, and not at {segment.end_offset - 1}",
        end,
        expected,
    )


def misplaced(
    segment: Segment, position: int, base: int, last: int, expected: int
) -> CorruptLogError:
    """Return the error for a batch whose offsets do not fit.

    Args:
        base, last: its offsets.
        expected: smallest offset that it can have, or -1 if that is not known.
    """
    low = segment.base_offset if expected < 0 else expected
    return segment.corrupt(
        f"its batch has the offsets {base} to {last}, but the batch there must "
        f"{'begin at' if segment.dense else 'be at or above'} {low} and end below "
        f"{segment.end_offset}",
        position,
        low,
    )


def _rebuild_index(segment: Segment, position: int, last_offset: int) -> None:
    """Rebuild an index that does not match the log."""
    if not segment.dense:
        # Compaction leaves gaps, so the neighbours of a batch do not show whether it is wrong.
        header = _batch_at(segment, position)
        if header is not None:
            raise segment.corrupt(
                f"its batch ends at offset {header.last_offset}, but the index says "
                f"{last_offset}: one of both is damaged",
                position,
                min(header.base_offset, last_offset),
            )
    segment.rebuild_index()


def _batch_at(segment: Segment, position: int) -> BatchHeader | None:
    head = segment.file.pread(HEADER_SIZE, position)
    if len(head) < HEADER_SIZE:
        return None
    size = parse_header(head).size
    if not HEADER_SIZE <= size <= segment.size - position:
        return None
    try:
        return check_batch(segment.file.pread(size, position))
    except TidemillError:
        return None


def find_record(segment: Segment, position: int, end: int) -> tuple[int, int] | None:
    """Return position and size of the first batch from ``position`` on that has a record.

    Compaction leaves batches that have only a header. None if there is no record below ``end``.
    """
    expected = -1
    while position < end:
        chunk = segment.file.pread(min(_WALK_CHUNK, end - position), position)
        at = 0
        while at <= len(chunk) - HEADER_SIZE:
            base, length, delta = _WALK.unpack_from(chunk, at)
            if base < expected or base + delta >= segment.end_offset:
                raise misplaced(segment, position + at, base, base + delta, expected)
            if length + 12 > HEADER_SIZE:
                return position + at, length + 12
            expected = base + delta + 1
            at += HEADER_SIZE
        if at == 0:
            raise segment.corrupt("the file is shorter than before", position, None)
        position += at
    return None


def position_before(segment: Segment, offset: int) -> int:
    """Return the position where the batches below ``offset`` end."""
    place = locate(segment, offset)
    return segment.size if place is None else place[0]


def position_for_time(segment: Segment, timestamp: int) -> int:
    """Return the position of a batch at or before the first record that is not older."""
    for attempt in range(2):
        entry = find_time_entry(segment.time_entries(), timestamp)
        if entry is None:
            return 0
        position = position_of_time_entry(segment, *entry)
        if position is not None:
            return position
        if attempt == 0:
            segment.rebuild_index()
    return 0


def position_of_time_entry(segment: Segment, timestamp: int, relative: int) -> int | None:
    """Return the position of the batch that an entry of the time index names; None if wrong."""
    offset = segment.base_offset + relative
    place = locate(segment, offset) if relative >= 0 else None
    if place is None:
        return None
    header = parse_header(segment.file.pread(HEADER_SIZE, place[0]))
    if header.last_offset != offset:
        return None
    # Earlier versions kept the time of a batch from which compaction has removed the latest record.
    # A later time than the real one makes a search begin earlier, and nothing is missed.
    latest = header.max_timestamp
    return place[0] if timestamp == latest or (timestamp > latest and not segment.dense) else None
