"""Check every record of a batch that a client sent: fast, and with pauses.

A record is walked from length to length: its parts must fill it exactly, offsets must be 0, 1, 2
and so on, and keys of headers must be there. Contents are not decoded. ``records`` has the layout
of a record, ``validate`` decides which batches are walked. Knows no codecs and no topics.

This is the broker's most expensive loop per record, so the extension does it. It stops in front of
a record with many headers, which is walked here with pauses, and of a malformed one, for which the
error is made here.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.log.errors import InvalidRecordError
from tidemill.log.format.batch import Buffer
from tidemill.log.steps import Steps
from tidemill.native import extension

SMALLEST_RECORD = 7
"""Bytes of a record without key, value and headers: each of its parts takes one."""

PAUSE_AFTER = 8192
"""Number of records between two pauses: at most about 0.5 ms."""

PAUSE_AFTER_HEADERS = 512
"""Number of headers of a record with many of them between two pauses: at most about 0.5 ms."""


class Walked(NamedTuple):
    """The result of a walk."""

    earliest: int
    """The smallest timestamp delta, or 0 if that is smaller."""
    latest: int
    """The largest timestamp delta."""
    without_key: int
    """Number of records whose key is null."""


def walk_records(body: Buffer, count: int) -> Steps[Walked]:
    """Check ``count`` encoded records. Yield after each ``PAUSE_AFTER`` of them, for a pause.

    Args:
        body: the records, decompressed, and nothing else.
        count: how many there must be, at least one.

    Raises:
        InvalidRecordError: a record is malformed, an offset is not the next one, or bytes follow
            the last record.
    """
    if count * SMALLEST_RECORD > len(body):
        raise InvalidRecordError(f"{count} records can't fit into {len(body)} bytes")
    earliest, latest, without_key = 0, -(1 << 63), 0
    position = index = 0
    try:
        while True:
            last = min(index + PAUSE_AFTER, count)
            position, index, least, most, missing = extension.walk_records(
                body, position, index, last
            )
            if index < last:
                position, delta, has_no_key = yield from _walk_one(body, position, index)
                least, most, missing = min(least, delta), max(most, delta), missing + has_no_key
                if position > len(body):
                    raise IndexError  # noqa: TRY301
                index += 1
            earliest, latest = min(earliest, least), max(latest, most)
            without_key += missing
            if index == count:
                break
            yield None
    except IndexError:
        raise InvalidRecordError(f"a record exceeds the {len(body)} bytes of the batch") from None
    if position != len(body):
        raise InvalidRecordError(f"{len(body) - position} bytes follow the last of {count} records")
    return Walked(earliest, latest, without_key)


def _walk_one(body: Buffer, position: int, index: int) -> Steps[tuple[int, int, bool]]:
    """Check a record that the extension has left.

    Returns:
        The position behind it, its timestamp delta, and whether it has no key.
    """
    size, start = _number(body, position)
    delta, position = _number(body, start + 1, 64)
    has_no_key = False
    offset, position = _number(body, position)
    for part in ("key", "value"):
        length, position = _number(body, position)
        if length == 1:
            has_no_key = has_no_key or part == "key"
        elif length & 1:
            raise _negative(index, part)
        else:
            position += length >> 1
    headers, position = _number(body, position)
    position = yield from _walk_headers(body, position, headers)
    if offset != 2 * index or (position - start) << 1 != size:
        raise _mismatch(index, offset, size, position - start)
    return position, _plain(delta), has_no_key


def _walk_headers(body: Buffer, position: int, number: int) -> Steps[int]:
    """Check the headers of a record; return the position behind them.

    Args:
        number: how many there are, in zigzag.
    """
    if number & 1 or number > len(body) - position:  # a header has at least two bytes
        raise InvalidRecordError(f"a record can't have {_plain(number)} headers")
    for each in range(1, (number >> 1) + 1):
        length = body[position]
        position += 1
        if length > 127:
            length, position = _number(body, position - 1)
        if length & 1:
            raise InvalidRecordError("the key of a header is null")
        position += length >> 1
        length = body[position]
        position += 1
        if length > 127:
            length, position = _number(body, position - 1)
        if not length & 1:
            position += length >> 1
        elif length != 1:
            raise InvalidRecordError("the length of a header's value is negative")
        if not each % PAUSE_AFTER_HEADERS:
            yield None
    return position


def _number(body: Buffer, position: int, bits: int = 32) -> tuple[int, int]:
    """Return a number in zigzag, and the position behind it."""
    number = shift = 0
    while True:
        byte = body[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 128:
            break
        if shift > bits:
            number = 1 << bits
            break
    if number >> bits:
        raise InvalidRecordError(f"a number of a record has more than {bits} bits")
    return number, position


def _plain(zigzag: int) -> int:
    return (zigzag >> 1) ^ -(zigzag & 1)


def _negative(index: int, part: str) -> InvalidRecordError:
    return InvalidRecordError(f"record {index}: the length of its {part} is negative")


def _mismatch(index: int, offset: int, size: int, found: int) -> InvalidRecordError:
    if offset != 2 * index:
        return InvalidRecordError(f"record {index} has the offset delta {_plain(offset)}")
    return InvalidRecordError(
        f"record {index}: its parts have {found} bytes, but its length is {_plain(size)}"
    )
