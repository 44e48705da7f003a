"""Encode Fetch requests and decode their responses by hand: records are not copied.

Every length in a response is checked. Must not know: sockets, Spark, plans. Source: Kafka's
protocol guide.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tidemill.kafka_codec.cursor import Cursor, malformed
from tidemill.kafka_codec.declared import FETCH, LIST_OFFSETS
from tidemill.kafka_codec.primitives import legacy_string

NEEDS = {FETCH: (4, 10), LIST_OFFSETS: (2, 2)}
"""The least and greatest version of each request."""

EARLIEST, LATEST = -2, -1

_I32, _I64 = struct.Struct(">i"), struct.Struct(">q")
_ABORTED = struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A request for the records of one partition."""

    topic: str
    partition: int
    offset: int
    partition_bytes: int
    max_bytes: int
    min_bytes: int
    wait_ms: int
    committed: bool

    def encode(self, version: int) -> bytes:
        """Return the body of the request."""
        parts = [
            struct.pack(">iiiib", -1, self.wait_ms, self.min_bytes, self.max_bytes, self.committed)
        ]
        if version >= 7:
            parts.append(struct.pack(">ii", 0, -1))  # without a session
        parts += [_I32.pack(1), legacy_string(self.topic), struct.pack(">ii", 1, self.partition)]
        if version >= 9:
            parts.append(_I32.pack(-1))  # leader epoch
        parts.append(_I64.pack(self.offset))
        if version >= 5:
            parts.append(_I64.pack(-1))  # log start offset
        parts.append(_I32.pack(self.partition_bytes))
        if version >= 7:
            parts.append(_I32.pack(0))  # forgotten topics
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """The records of one partition.

    Attributes:
        error: The error code.
        end: The offset of the next record of the log.
        records: The stored batches. The last one can be incomplete.
        aborted: Producer id and first offset of aborted transactions, by offset.
    """

    error: int
    end: int = -1
    records: memoryview = field(default_factory=lambda: memoryview(b""))
    aborted: list[tuple[int, int]] = field(default_factory=list)


def parse_fetch(view: memoryview, version: int) -> FetchResponse:
    """Return the records of the only partition."""
    cursor = Cursor(view)
    cursor.i32()  # throttle time
    if version >= 7:
        error = cursor.i16()
        cursor.i32()  # session
        if error:
            return FetchResponse(error)
    if cursor.count(6) != 1:
        raise malformed()
    cursor.text()
    if cursor.count(26) != 1:
        raise malformed()
    cursor.i32()  # partition
    error, end = cursor.i16(), cursor.i64()
    cursor.i64()  # last stable offset
    if version >= 5:
        cursor.i64()  # log start offset
    aborted = sorted(
        (_ABORTED.iter_unpack(cursor.take(16 * cursor.count(16)))),
        key=lambda pair: pair[1],
    )
    return FetchResponse(error, end, cursor.bytes(), aborted)
