"""Check every record of a batch that a client sent: fast, and with pauses.

A record is walked from length to length: its parts must fill it exactly, offsets must be 0, 1, 2
and so on, and keys of headers must be there. Contents are not decoded. ``records`` has the layout
of a record, ``validate`` decides which batches are walked. Knows no codecs and no topics.

This is the broker's most expensive loop per record, so the compiled extension does it, where there
is one. The edition in Python is written out without calls for lengths of one and two bytes, and
``uniform`` spares it for runs of records that have the same lengths.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.log.errors import InvalidRecordError
from tidemill.log.format.batch import Buffer
from tidemill.log.format.uniform import count_uniform
from tidemill.log.steps import Steps, run_steps
from tidemill.native import load

SMALLEST_RECORD = 7
"""Bytes of a record without key, value and headers: each of its parts takes one."""

PAUSE_AFTER = 512
"""Number of records, or headers of a record, between two pauses: at most about 0.5 ms."""

COMPILED_PAUSE_AFTER = 8192
"""The same for the compiled edition: at most about 0.5 ms."""

_native = load()
_TWO_BYTES = 1 << 14
"""Above every number that is encoded in two bytes."""
_FEW_HEADERS = 128
"""Records with fewer than 64 headers (in zigzag) are walked without a pause."""


class Walked(NamedTuple):
    """The result of a walk."""

    earliest: int
    """The smallest timestamp delta, or 0 if that is smaller."""
    latest: int
    """The largest timestamp delta."""
    without_key: int
    """Number of records whose key is null."""


class _Seen:
    """A summary of the records so far.

    Attributes:
        ahead: the largest positive timestamp delta in zigzag, or -1.
        behind: the smallest and the largest negative one in zigzag, or None.
        without_key: number of records without a key.
    """

    __slots__ = ("ahead", "behind", "without_key")

    def __init__(self) -> None:
        self.ahead = -1
        self.behind: tuple[int, int] | None = None
        self.without_key = 0

    def add_behind(self, delta: int) -> None:
        """Count a negative timestamp delta."""
        least, most = self.behind or (delta, delta)
        self.behind = min(least, delta), max(most, delta)

    def add(self, ahead: int, least: int, most: int, without_key: int) -> None:
        """Count records that were checked together.

        Args:
            ahead: the largest timestamp delta that is not negative; -1: none.
            least: the smallest negative one in zigzag; 0: none.
            most: the largest of those.
            without_key: number of records without a key.
        """
        self.ahead = max(self.ahead, 2 * ahead)
        if least:
            self.add_behind(least)
            self.add_behind(most)
        self.without_key += without_key

    def result(self) -> Walked:
        least, most = self.behind or (-1, -1)
        latest = self.ahead >> 1 if self.ahead >= 0 else -((least + 1) >> 1)
        return Walked(-((most + 1) >> 1), latest, self.without_key)


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
    seen = _Seen()
    position = index = 0
    try:
        while True:
            if _native is None:
                last, index, position = _next_in_python(body, position, index, count, seen)
            else:
                last = min(index + COMPILED_PAUSE_AFTER, count)
                position, index, *summary = _native.walk_records(body, position, index, last)
                seen.add(*summary)
            if index < last:
                position = yield from _walk_one(body, position, index, seen)
                index += 1
            if index == count:
                break
            yield None
    except IndexError:
        raise InvalidRecordError(f"a record exceeds the {len(body)} bytes of the batch") from None
    if position != len(body):
        raise InvalidRecordError(f"{len(body) - position} bytes follow the last of {count} records")
    return seen.result()


def _next_in_python(
    body: Buffer, position: int, index: int, count: int, seen: _Seen
) -> tuple[int, int, int]:
    """Check some records.

    Returns:
        The end of what was to be checked; index and position of the next record. If that is before
        the end, the record has many headers.
    """
    run = count_uniform(body, position, index, count)
    if run is None:
        last = min(index + PAUSE_AFTER, count)
        return last, *_walk_some(body, position, index, last, seen)
    seen.add(run.latest_delta >> 1, 0, 0, run.without_key)
    return index + run.records, index + run.records, run.end


def _walk_some(body: Buffer, position: int, first: int, last: int, seen: _Seen) -> tuple[int, int]:
    """Check records up to ``last`` or one with many headers; return index and position of that."""
    ahead, without_key = seen.ahead, seen.without_key
    for expected in range(2 * first, 2 * last, 2):
        record = position
        size = body[position]
        position += 1
        if size > 127:
            size = size & 127 | body[position] << 7
            position += 1
            if size >= _TWO_BYTES:
                size, position = _number(body, record)
        start, position = position, position + 2
        delta = body[start + 1]
        if delta > 127:
            delta, position = _number(body, start + 1, 64)
        if delta & 1:
            seen.add_behind(delta)
        elif delta > ahead:
            ahead = delta
        offset = body[position]
        position += 1
        if offset > 127:
            offset = offset & 127 | body[position] << 7
            position += 1
            if offset >= _TWO_BYTES:
                offset, position = _number(body, position - 2)
        key = body[position]
        position += 1
        if key == 1:
            without_key += 1
        else:
            if key > 127:
                key, position = _number(body, position - 1)
            if key & 1:
                raise _negative(expected >> 1, "key")
            position += key >> 1
        value = body[position]
        position += 1
        if value > 127:
            value = value & 127 | body[position] << 7
            position += 1
            if value >= _TWO_BYTES:
                value, position = _number(body, position - 2)
        if not value & 1:
            position += value >> 1
        elif value != 1:
            raise _negative(expected >> 1, "value")
        headers = body[position]
        if headers >= _FEW_HEADERS:
            last, position, without_key = expected >> 1, record, without_key - (key == 1)
            break
        position += 1
        if headers:
            position = run_steps(_walk_headers(body, position, headers))
        if offset != expected or (position - start) << 1 != size:
            raise _mismatch(expected >> 1, offset, size, position - start)
    seen.ahead, seen.without_key = ahead, without_key
    return last, position


def _walk_one(body: Buffer, position: int, index: int, seen: _Seen) -> Steps[int]:
    """Check a record with many headers; return the position behind it."""
    size, start = _number(body, position)
    delta, position = _number(body, start + 1, 64)
    if delta & 1:
        seen.add_behind(delta)
    else:
        seen.ahead = max(seen.ahead, delta)
    offset, position = _number(body, position)
    for part in ("key", "value"):
        length, position = _number(body, position)
        if length == 1:
            seen.without_key += part == "key"
        elif length & 1:
            raise _negative(index, part)
        else:
            position += length >> 1
    headers, position = _number(body, position)
    position = yield from _walk_headers(body, position, headers)
    if offset != 2 * index or (position - start) << 1 != size:
        raise _mismatch(index, offset, size, position - start)
    return position


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
        if not each % PAUSE_AFTER:
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
