"""The records of the internal topic ``__tidemill_queue_state``.

The topic is compacted. A window has one record for its marks and one for each block that is partly
done above the low-water mark; the last value of a key is the state. A dead-letter target has a
record, too, and so have the bytes that wait in a queue that bounds them, and what was possibly
delivered before an unclean stop. Knows the bytes of records only, and no window.

Key: version i8 | kind i8 | owner string | topic id 16 bytes | partition i32 | block i64.
"""

from __future__ import annotations

import enum
from typing import NamedTuple
from uuid import UUID

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.primitives import Reader, Writer

MARKS = -1
"""The block number of the record with the window's marks."""
SIZES = -2
"""The block number of the record with the bytes that wait, of a queue with a bound in bytes."""
DOUBT = -3
"""The block number of the record with an offset below which each message was possibly delivered.
After an unclean stop nothing says which were. A window without one had no such stop."""
_VERSION = 0


class Kind(enum.IntEnum):
    """The user of a window."""

    QUEUE = 0
    LETTERS = 2
    """A partition that gets dead letters: how far their origins are known to be done."""


class StateKey(NamedTuple):
    """The key of a record.

    Attributes:
        owner: the queue or the group.
        topic_id, partition: the log.
    """

    kind: Kind
    owner: str
    topic_id: UUID
    partition: int
    block: int = MARKS

    def of_window(self) -> StateKey:
        """Return the key of the window's marks."""
        return self._replace(block=MARKS)


class Marks(NamedTuple):
    """The marks of a window.

    Attributes:
        start: everything below is done.
        delivered: everything below was possibly delivered.
    """

    start: int
    delivered: int


class WaitingBytes(NamedTuple):
    """The bytes of the messages that are not done.

    Attributes:
        end: messages from this offset on are not counted.
        size: the bytes of their values.
    """

    end: int
    size: int


def encode_key(key: StateKey) -> bytes:
    """Return the bytes of a key."""
    out = Writer().i8(_VERSION).i8(key.kind).string(key.owner)
    return out.done() + key.topic_id.bytes + Writer().i32(key.partition).i64(key.block).done()


def decode_key(data: bytes) -> StateKey:
    """Return the key."""
    reader = Reader(data)
    version = reader.i8()
    if version != _VERSION:
        raise FormatVersionError(
            f"a record of queues has version {version}", hint="Use a newer version of tidemill."
        )
    try:
        kind = Kind(reader.i8())
    except ValueError as error:
        raise InvalidRecordError(f"a record of queues has an invalid kind: {error}") from error
    return StateKey(kind, reader.string(), UUID(bytes=reader.raw(16)), reader.i32(), reader.i64())


def encode_offset(offset: int) -> bytes:
    """Return the value of the record about the dead letters of a partition, or of ``DOUBT``."""
    return Writer().i8(_VERSION).i64(offset).done()


def decode_offset(value: bytes) -> int:
    """Return the offset in the value of such a record."""
    reader = Reader(value)
    version, offset = reader.i8(), reader.i64()
    if version != _VERSION or offset < 0:
        raise InvalidRecordError(
            f"invalid offset {offset} in a record of queues (version {version})"
        )
    return offset


def encode_marks(marks: Marks) -> bytes:
    """Return the value of the record with a window's marks."""
    return Writer().i8(_VERSION).i64(marks.start).i64(marks.delivered).done()


def decode_marks(value: bytes) -> Marks:
    """Return a window's marks."""
    reader = Reader(value)
    version, start, delivered = reader.i8(), reader.i64(), reader.i64()
    if version != _VERSION or not 0 <= start <= delivered:
        raise InvalidRecordError(f"invalid marks {start}, {delivered} (version {version})")
    return Marks(start, delivered)


def encode_waiting(waiting: WaitingBytes) -> bytes:
    """Return the value of the record with the bytes that wait."""
    return Writer().i8(_VERSION).i64(waiting.end).i64(waiting.size).done()


def decode_waiting(value: bytes) -> WaitingBytes:
    """Return the bytes that wait."""
    reader = Reader(value)
    version, end, size = reader.i8(), reader.i64(), reader.i64()
    if version != _VERSION or end < 0 or size < 0:
        raise InvalidRecordError(f"invalid bytes that wait: {end}, {size} (version {version})")
    return WaitingBytes(end, size)
