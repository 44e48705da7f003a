"""Check a run of records that have the same lengths, a column of bytes at a time.

Producers of measurements and benchmarks often send records of one size. Their lengths are in the
same places of each record, so a slice with a step has one byte of all of them. ``walk`` checks what
is left. Knows the layout of a record (see ``records``).
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.log.format.batch import Buffer

MOST = 4096
"""Most records that are looked at in one call, which takes about 0.3 ms."""
_FEWEST = 16
_WIDER = (64, 8192)
"""The offsets from which an offset takes two and three bytes."""
_ODD = bytes(range(1, 256, 2))
_LOWEST = bytes(2 * index for index in range(64))
_LOW = bytes(128 | 2 * index for index in range(64)) * (2 * MOST // 64)
_MIDDLE = b"".join(bytes([index]) * 64 for index in range(128))
_MIDDLE_OF_THREE = bytes(128 | byte for byte in _MIDDLE)


class Run(NamedTuple):
    """Records that were checked."""

    records: int
    end: int
    """The position behind the last one."""
    latest_delta: int
    """The largest timestamp delta, in zigzag. None is negative."""
    without_key: int


class _Shape(NamedTuple):
    """The places of the parts of a record, counted from its start."""

    size: int
    lengths: list[int]
    """Positions of bytes that the other records must have too."""
    delta: int
    """Position of the timestamp delta."""
    offset: int
    """Position of the offset, behind the timestamp delta."""
    without_key: bool


def count_uniform(body: Buffer, position: int, index: int, count: int) -> Run | None:
    """Check the records from ``index`` on that have the lengths of the first of them.

    Returns:
        None if too few have the same lengths, or if it can't tell. Then nothing was checked.

    Raises:
        IndexError: the first record exceeds the batch.
    """
    width = 1 if index < _WIDER[0] else 2 if index < _WIDER[1] else 3
    limit = min(count - index, 64 - index if width == 1 else 8192 - index % 8192)
    shape = _shape(body, position, width) if limit >= _FEWEST else None
    if shape is None:
        return None
    size = shape.size
    limit = min(limit, (len(body) - position) // size, MOST)

    def column(at: int) -> bytes:
        return bytes(body[position + at : position + limit * size : size])

    for at in shape.lengths:
        found = column(at)
        limit -= len(found.lstrip(found[:1]))
        if limit < _FEWEST:
            return None
    for at, wanted in enumerate(_offsets(index, limit, width), shape.offset):
        if column(at) != wanted:
            return None
    low = column(shape.delta)
    if low.translate(None, _ODD) != low:
        return None
    if shape.offset - shape.delta == 1:
        latest = max(low)
        valid = low.isascii()
    else:
        high = column(shape.delta + 1)
        most, least = max(zip(high, low, strict=True))
        latest = least & 127 | most << 7
        valid = high.isascii() and min(low) > 127
    if not valid:
        return None
    without_key = limit if shape.without_key else 0
    return Run(limit, position + limit * size, latest, without_key)


def _offsets(index: int, count: int, width: int) -> list[bytes]:
    """Return the bytes of ``count`` encoded offsets, by their place. All of them have ``width``."""
    if width == 1:
        return [_LOWEST[index : index + count]]
    low = _LOW[index % 64 : index % 64 + count]
    middle = slice(index % 8192, index % 8192 + count)
    if width == 2:
        return [low, _MIDDLE[middle]]
    return [low, _MIDDLE_OF_THREE[middle], bytes([index >> 13]) * count]


def _shape(body: Buffer, position: int, width: int) -> _Shape | None:
    """Return the shape of a plain record; None if it is malformed, large or has headers."""
    start = position
    lengths: list[int] = []
    size, at = _length(body, position)
    lengths += range(at - start)
    end = at + (size >> 1)
    delta = at + 1
    offset = delta + 1 if body[delta] < 128 else delta + 2
    at = offset + width
    key, behind = _length(body, at)
    lengths += range(at - start, behind - start)
    at = behind + (key >> 1 if key != 1 else 0)
    value, behind = _length(body, at)
    lengths += range(at - start, behind - start)
    at = behind + (value >> 1 if value != 1 else 0)
    invalid = size & 1 or (key & 1 and key != 1) or (value & 1 and value != 1)
    if invalid or at + 1 != end or body[at]:
        return None
    lengths.append(at - start)
    return _Shape(end - start, lengths, delta - start, offset - start, key == 1)


def _length(body: Buffer, position: int) -> tuple[int, int]:
    """Return a number of one or two bytes in zigzag, and the position behind it."""
    number = body[position]
    if number < 128:
        return number, position + 1
    number = number & 127 | body[position + 1] << 7
    # A longer number looks odd, and so invalid.
    return number if number < 1 << 14 else 3, position + 2
