"""The ids of transactions with tags, which MySQL has since 8.3.

Their event is a list of fields, each with its number. Integers have a variable length: the
number of one bits at the end of the first byte is that of the bytes behind it. Must not know
events.

Source: MySQL source documentation, "mysql::serialization library" and "Gtid_event".
"""

from __future__ import annotations

import uuid

from tidemill.connect.cdc.binlog.decoding.errors import BinlogError
from tidemill.connect.cdc.binlog.decoding.reader import Reader

_LONGEST_TAG = 32


def parse_tagged_gtid(body: bytes) -> tuple[str, int]:
    """Return the id in the body of the event, and the time of its commit.

    Returns:
        The id as ``uuid:tag:number``, and microseconds since the epoch on the server where it was
        written.

    Raises:
        BinlogError: it is damaged, or of a version that is not known.
    """
    reader = Reader(body)
    version = _unsigned(reader)
    if version != 1:
        raise BinlogError(f"a tagged GTID has the unknown version {version}")
    _unsigned(reader)  # the size of the message
    _unsigned(reader)  # the last field that must be understood
    source = tag = ""
    number = committed = 0
    while reader.remaining:
        match _unsigned(reader):
            case 0:
                _unsigned(reader)
            case 1:
                source = str(uuid.UUID(bytes=bytes(_unsigned(reader) & 0xFF for _ in range(16))))
            case 2:
                number = _signed(reader)
            case 3:
                tag = _tag(reader)
            case 4 | 5:
                _signed(reader)  # values of the clock of replication
            case 6 | 7:  # the second one is there if it was committed elsewhere first
                committed = _unsigned(reader) or committed
            case other if tag and other > 7:
                break
            case other:
                raise BinlogError(f"a tagged GTID has the unexpected field {other}")
    if not source or not tag or number < 1:
        raise BinlogError("a tagged GTID lacks its source, tag or number")
    return f"{source}:{tag}:{number}", committed


def _tag(reader: Reader) -> str:
    size = _unsigned(reader)
    if not 1 <= size <= _LONGEST_TAG:
        raise BinlogError(f"a tagged GTID has a tag of {size} bytes")
    return reader.raw(size).decode("ascii", "replace")


def _unsigned(reader: Reader) -> int:
    first = reader.uint(1)
    more = 0
    while more < 8 and first >> more & 1:
        more += 1
    if more == 8:
        return reader.uint(8)
    return first >> (more + 1) | reader.uint(more) << (7 - more)


def _signed(reader: Reader) -> int:
    value = _unsigned(reader)
    return -(value >> 1) - 1 if value & 1 else value >> 1
