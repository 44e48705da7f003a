"""A client's half of Produce and Fetch by hand: their records are not copied.

Every length in a response is checked. The server's half is ``hot``. Sans-IO; knows only the wire
format. Source: ProduceRequest.json and FetchRequest.json of Apache Kafka, and their responses.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidemill.errors import ProtocolError
from tidemill.kafka_codec.primitives import legacy_string

_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_ABORTED = struct.Struct(">qq")


# --- Produce -------------------------------------------------------------------------------------


def produce(
    transactional_id: str,
    acks: int,
    timeout_ms: int,
    topics: Mapping[str, Sequence[tuple[int, int]]],
) -> list[bytes]:
    """Return the request in parts. The records of each partition follow each part but the last.

    Args:
        transactional_id: The producer's; empty without transactions.
        acks: -1 or 1.
        timeout_ms: Milliseconds that the broker may wait for its replicas.
        topics: Partition and bytes of records, by topic.
    """
    parts = []
    part = legacy_string(transactional_id or None) + struct.pack(
        ">hii", acks, timeout_ms, len(topics)
    )
    for topic, partitions in topics.items():
        part += legacy_string(topic) + _I32.pack(len(partitions))
        for partition, size in partitions:
            parts.append(part + struct.pack(">ii", partition, size))
            part = b""
    return parts


def parse_produce(
    view: memoryview, version: int, wanted: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Return the error code of each partition.

    Args:
        wanted: The partitions that it must have.
    """
    cursor = _Cursor(view)
    codes = {}
    least = 30 if version >= 5 else 22
    for _ in range(cursor.count(6)):
        topic = cursor.text()
        for _ in range(cursor.count(least)):
            partition = cursor.i32()
            codes[topic, partition] = cursor.i16()
            cursor.take(least - 6)  # offset, time, first offset
    if not codes.keys() >= set(wanted):
        raise _malformed()
    return codes


# --- Fetch ---------------------------------------------------------------------------------------


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
    cursor = _Cursor(view)
    cursor.i32()  # throttle time
    if version >= 7:
        error = cursor.i16()
        cursor.i32()  # session
        if error:
            return FetchResponse(error)
    if cursor.count(6) != 1:
        raise _malformed()
    cursor.text()
    if cursor.count(26) != 1:
        raise _malformed()
    cursor.i32()  # partition
    error, end = cursor.i16(), cursor.i64()
    cursor.i64()  # last stable offset
    if version >= 5:
        cursor.i64()  # log start offset
    aborted = sorted(
        _ABORTED.iter_unpack(cursor.take(16 * cursor.count(16))),
        key=lambda pair: pair[1],
    )
    return FetchResponse(error, end, cursor.bytes(), aborted)


# --- fields of a response ------------------------------------------------------------------------


class _Cursor:
    """Reads the fields of a response, one after the other."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def _unpack(self, form: struct.Struct) -> int:
        try:
            (number,) = form.unpack_from(self._view, self._at)
        except struct.error:
            raise _malformed() from None
        self._at += form.size
        return int(number)

    def i16(self) -> int:
        return self._unpack(_I16)

    def i32(self) -> int:
        return self._unpack(_I32)

    def i64(self) -> int:
        return self._unpack(_I64)

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= len(self._view) - self._at:
            raise _malformed()
        self._at += size
        return self._view[self._at - size : self._at]

    def bytes(self) -> memoryview:
        """Bytes with a length of 4 bytes; null is empty."""
        return self.take(max(0, self.i32()))

    def text(self) -> str:
        """A string with a length of 2 bytes; null is empty."""
        raw = self.take(max(0, self.i16()))
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise _malformed() from None

    def count(self, least_size: int) -> int:
        """A number of elements. Null is 0."""
        number = self.i32()
        if number > (len(self._view) - self._at) // least_size:
            raise _malformed()
        return max(0, number)


def _malformed() -> ProtocolError:
    """Return the error for a response that does not have the form of its version."""
    return ProtocolError("a length in it is invalid, or a field is missing")
