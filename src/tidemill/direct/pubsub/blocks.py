"""The bytes between a log's publisher and its subscribers: blocks, states and requests.

A *block* has the records of a range of offsets of one partition, and says which range that is, so
that a subscriber notices what it missed, and an offset without a record is not a loss. It is
published as the frames channel and block; the channel is the number of the partition and ``/``. All
numbers are big-endian. A block has columns:

==============  =================================================================================
bytes           meaning
==============  =================================================================================
2, 1            ``tb``, version 1
1               flags: 1 if records have headers
8               session: another one if the topic is created again
4               partition
8, 8            the range: its first offset, and the offset behind its end
4               n, the count of records
8 n, 8 n        offsets; times in milliseconds since the epoch
4 n, 4 n        lengths of keys; lengths of values; -1: null
2 n             counts of headers, if flag 1 is set
rest            all keys, all values; for each header: length of the name (2), length of the value
                (4; -1: null), name in UTF-8, value
==============  =================================================================================

A *state* is published in the channel ``/``: ``ts``, version, 0, session (8), count (4), and for
each partition its number (4) and the offset behind its last published record (8).

A *request* is one frame: ``tr``, version, kind (0: the state, 1: records, 2: records of which only
the last one of each key is wanted), number (4), partition (4), offset (8). The answer has the
number as its first frame, and a state or blocks in the others.

Must not know: sockets, a broker.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import lt
from typing import NamedTuple

from tidemill.direct.pubsub.errors import FrameError

VERSION = 1
STATE_CHANNEL = b"/"
DESCRIBE, READ, READ_LAST = 0, 1, 2
_BLOCK, _STATE, _REQUEST_MAGIC = b"tb", b"ts", b"tr"
_HEADERS = 1
_HEAD = struct.Struct(">2sBBQIQQI")
_STATE_HEAD = struct.Struct(">2sBBQI")
_STATE_ENTRY = struct.Struct(">IQ")
_REQUEST = struct.Struct(">2sBBIIQ")
_HEADER = struct.Struct(">Hi")
_MOST = 0xFFFF
NUMBER = struct.Struct(">I")
REQUEST_SIZE = _REQUEST.size

Headers = Sequence[tuple[str, bytes | None]]
Row = tuple[int, int, bytes | None, bytes | None, Headers]
"""Offset, time in milliseconds, key, value and headers of a record."""


class Columns(NamedTuple):
    """The records of a block, as columns.

    Attributes:
        size: how many records.
        numbers: offsets, times, lengths of keys and lengths of values, as a block has them.
        payloads: all keys, then all values.
        headers: of each record; empty if no record has one.
    """

    size: int
    numbers: Sequence[bytes]
    payloads: Sequence[bytes | memoryview]
    headers: Sequence[Headers]


class LogRecord(NamedTuple):
    """A record of a topic.

    Attributes:
        partition: its partition.
        offset: its offset there.
        timestamp_ms: its time, in milliseconds since the epoch.
        key, value: bytes, or None.
        headers: pairs of name and value.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class BlockHead(NamedTuple):
    """The beginning of a block of ``size`` records, from ``first`` to before ``following``."""

    flags: int
    session: int
    partition: int
    first: int
    following: int
    size: int


class Request(NamedTuple):
    """A request. ``kind`` is ``DESCRIBE``, ``READ`` or ``READ_LAST``."""

    kind: int
    number: int
    partition: int = 0
    offset: int = 0


def channel_of(partition: int) -> bytes:
    """Return the channel of a partition."""
    return b"%d/" % partition


def encode_block(
    session: int, partition: int, first: int, following: int, rows: Sequence[Row]
) -> bytes:
    """Return the block of a range with these records."""
    offsets, stamps, keys, values, headers = zip(*rows, strict=True) if rows else [()] * 5
    count = len(rows)
    lengths = [-1 if each is None else len(each) for each in chain(keys, values)]
    numbers = struct.pack(f">{count}Q{count}q{2 * count}i", *offsets, *stamps, *lengths)
    payloads = [*filter(None, keys), *filter(None, values)]
    columns = Columns(count, [numbers], payloads, headers if any(headers) else ())
    return encode_columns(session, partition, first, following, columns)


def encode_columns(
    session: int, partition: int, first: int, following: int, columns: Columns
) -> bytes:
    """Return the block of a range with these records.

    What the format has no room for is left out: a header whose name has more than 65,535 bytes, and
    those above so many of one record.
    """
    try:
        return _encode_columns(session, partition, first, following, columns)
    except struct.error:
        fitting = [
            [each for each in row if len(each[0].encode()) <= _MOST][:_MOST]
            for row in columns.headers
        ]
        columns = columns._replace(headers=fitting)
        return _encode_columns(session, partition, first, following, columns)


def _encode_columns(
    session: int, partition: int, first: int, following: int, columns: Columns
) -> bytes:
    size, numbers, payloads, headers = columns
    flags = _HEADERS if headers else 0
    head = _HEAD.pack(_BLOCK, VERSION, flags, session, partition, first, following, size)
    if not headers:
        return b"".join((head, *numbers, *payloads))
    counts = struct.pack(f">{size}H", *map(len, headers))
    pairs = (_encode_header(*each) for each in chain.from_iterable(headers))
    return b"".join((head, *numbers, counts, *payloads, *pairs))


def _encode_header(name: str, value: bytes | None) -> bytes:
    raw = name.encode()
    return _HEADER.pack(len(raw), -1 if value is None else len(value)) + raw + (value or b"")


def decode_head(data: bytes) -> BlockHead:
    """Return the beginning of a block.

    Raises:
        FrameError: it is not a block of this version.
    """
    if len(data) < _HEAD.size:
        raise FrameError(f"a block has {len(data):,} bytes and not {_HEAD.size} at least")
    magic, version, *fields = _HEAD.unpack_from(data)
    head = BlockHead(*fields)
    if magic != _BLOCK or version != VERSION or head.flags & ~_HEADERS:
        raise FrameError(f"invalid block {data[:4]!r}: magic, version or flags are not known")
    if head.first > head.following or head.size > head.following - head.first:
        raise FrameError(f"a block of {head.size:,} records has an invalid range")
    return head


def decode_records(data: bytes, head: BlockHead) -> list[LogRecord]:
    """Return the records of a block.

    Raises:
        FrameError: its lengths or offsets are invalid.
    """
    count, at = head.size, _HEAD.size
    if len(data) < at + count * (24 + 2 * head.flags):  # before anything is allocated
        raise FrameError(f"a block of {count:,} records has {len(data):,} bytes")
    found = struct.unpack_from(f">{count}Q{count}q{2 * count}i", data, at)
    offsets, stamps, lengths = found[:count], found[count : 2 * count], found[2 * count :]
    at += 24 * count
    counts: Sequence[int] = ()
    if head.flags & _HEADERS:
        counts = struct.unpack_from(f">{count}H", data, at)
        at += 2 * count
    _check_order(offsets, lengths, head)
    payloads, at = _cut(data, at, lengths)
    headers: Sequence[Headers] = [()] * count
    if counts:
        headers, at = _cut_headers(data, at, counts)
    if at != len(data):
        raise FrameError(f"a block has {len(data):,} bytes, and its lengths say {at:,}")
    columns = ([head.partition] * count, offsets, stamps, payloads[:count], payloads[count:])
    return list(map(LogRecord._make, zip(*columns, headers, strict=True)))


def _check_order(offsets: Sequence[int], lengths: Sequence[int], head: BlockHead) -> None:
    if not offsets:
        return
    if offsets[0] < head.first or offsets[-1] >= head.following:
        raise FrameError("a block has offsets outside of its range")
    if not all(map(lt, offsets, offsets[1:])):
        raise FrameError("a block has offsets that do not ascend")
    if min(lengths) < -1:
        raise FrameError("a block has a negative length")


def _cut(data: bytes, at: int, lengths: Sequence[int]) -> tuple[list[bytes | None], int]:
    found: list[bytes | None] = []
    for length in lengths:
        if length < 0:
            found.append(None)
            continue
        found.append(data[at : at + length])
        at += length
    return found, at


def _cut_headers(data: bytes, at: int, counts: Sequence[int]) -> tuple[list[Headers], int]:
    found: list[Headers] = []
    try:
        for count in counts:
            listed: list[tuple[str, bytes | None]] = []
            for _ in range(count):
                size, length = _HEADER.unpack_from(data, at)
                at += _HEADER.size
                (name, value), at = _cut(data, at, (size, length))
                listed.append(((name or b"").decode(), value))
            found.append(listed)
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"a block has invalid headers: {error}") from error
    return found, at


def encode_state(session: int, ends: Mapping[int, int]) -> bytes:
    """Return the state of a log: the offset behind the last record of each partition."""
    entries = b"".join(_STATE_ENTRY.pack(*each) for each in ends.items())
    return _STATE_HEAD.pack(_STATE, VERSION, 0, session, len(ends)) + entries


def decode_state(data: bytes) -> tuple[int, dict[int, int]]:
    """Return the session, and the end of each partition.

    Raises:
        FrameError: it is not a state of this version.
    """
    if len(data) < _STATE_HEAD.size:
        raise FrameError(f"a state has {len(data):,} bytes and not {_STATE_HEAD.size} at least")
    magic, version, _, session, count = _STATE_HEAD.unpack_from(data)
    if magic != _STATE or version != VERSION:
        raise FrameError(f"invalid state {data[:4]!r}: magic or version is not known")
    if len(data) != _STATE_HEAD.size + count * _STATE_ENTRY.size:
        raise FrameError(f"a state of {count:,} partitions has {len(data):,} bytes")
    return session, dict(_STATE_ENTRY.iter_unpack(data[_STATE_HEAD.size :]))


def encode_request(request: Request) -> bytes:
    """Return the bytes of a request."""
    return _REQUEST.pack(_REQUEST_MAGIC, VERSION, *request)


def decode_request(data: bytes) -> Request:
    """Return the request in bytes.

    Raises:
        FrameError: it is not a request of this version.
    """
    if len(data) != REQUEST_SIZE:
        raise FrameError(f"a request has {len(data):,} bytes and not {REQUEST_SIZE}")
    magic, version, *fields = _REQUEST.unpack(data)
    request = Request(*fields)
    if magic != _REQUEST_MAGIC or version != VERSION or request.kind > READ_LAST:
        raise FrameError(f"invalid request {data[:4]!r}: magic, version or kind is not known")
    return request
