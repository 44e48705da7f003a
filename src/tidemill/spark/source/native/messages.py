"""Encode the requests of the native edition, and decode their responses.

Only the hot and small part of the Kafka protocol that reading needs. Every length in a response is
checked. Must not know: sockets, Spark, plans. Source: Kafka's protocol guide.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.spark.source.native.errors import ConnectionFailedError

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36

VERSIONS: Mapping[int, int] = {
    FETCH: 10,
    LIST_OFFSETS: 2,
    METADATA: 4,
    API_VERSIONS: 0,
    SASL_HANDSHAKE: 1,
    SASL_AUTHENTICATE: 0,
}
"""The version of each request. A Fetch can be as old as ``LEAST_FETCH``."""
LEAST_FETCH = 4

EARLIEST, LATEST = -2, -1

_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_ABORTED = struct.Struct(">qq")


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

    def i8(self) -> int:
        return self.take(1)[0]

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


def _malformed() -> ConnectionFailedError:
    return ConnectionFailedError("a response is malformed")


def _string(text: str) -> bytes:
    raw = text.encode()
    return _I16.pack(len(raw)) + raw


def header(api: int, version: int, correlation_id: int, client_id: str) -> bytes:
    """Return the header of a request."""
    return struct.pack(">hhi", api, version, correlation_id) + _string(client_id)


def parse_api_versions(view: memoryview) -> tuple[int, dict[int, tuple[int, int]]]:
    """Return the error code, and the least and greatest version of each request."""
    cursor = _Cursor(view)
    error = cursor.i16()
    found = {}
    for _ in range(cursor.count(6)):
        api, least, most = cursor.i16(), cursor.i16(), cursor.i16()
        found[api] = (least, most)
    return error, found


def sasl_handshake(mechanism: str) -> bytes:
    """Return the request that begins an exchange."""
    return _string(mechanism)


def parse_sasl_handshake(view: memoryview) -> tuple[int, list[str]]:
    """Return the error code, and the mechanisms of the broker."""
    cursor = _Cursor(view)
    error = cursor.i16()
    return error, [cursor.text() for _ in range(cursor.count(2))]


def sasl_authenticate(message: bytes) -> bytes:
    """Return the request with a message of the exchange."""
    return _I32.pack(len(message)) + message


def parse_sasl_authenticate(view: memoryview) -> tuple[int, str, bytes]:
    """Return the error code, its text, and the broker's message."""
    cursor = _Cursor(view)
    return cursor.i16(), cursor.text(), bytes(cursor.bytes())


@dataclass(frozen=True, slots=True)
class Metadata:
    """The leaders of one topic.

    Attributes:
        brokers: Addresses by node id.
        error: The error code of the topic.
        leaders: Error code and node id of the leader, by partition.
    """

    brokers: dict[int, tuple[str, int]]
    error: int
    leaders: dict[int, tuple[int, int]]


def metadata(topic: str) -> bytes:
    """Return the request for the leaders of a topic, which must not be created."""
    return _I32.pack(1) + _string(topic) + b"\0"


def parse_metadata(view: memoryview, topic: str) -> Metadata:
    """Return the leaders of the topic."""
    cursor = _Cursor(view)
    cursor.i32()  # throttle time
    brokers = {}
    for _ in range(cursor.count(12)):
        node, host, port = cursor.i32(), cursor.text(), cursor.i32()
        cursor.text()  # rack
        brokers[node] = (host, port)
    cursor.text()  # cluster id
    cursor.i32()  # controller
    result = None
    for _ in range(cursor.count(9)):
        code, name = cursor.i16(), cursor.text()
        cursor.i8()  # whether it is internal
        found = {}
        for _ in range(cursor.count(18)):
            partition_error, partition, leader = cursor.i16(), cursor.i32(), cursor.i32()
            cursor.take(4 * cursor.count(4))  # replicas
            cursor.take(4 * cursor.count(4))  # replicas in sync
            found[partition] = (partition_error, leader)
        if name == topic:
            result = Metadata(brokers, code, found)
    if result is None:
        raise _malformed()
    return result


def list_offset(topic: str, partition: int, which: int, *, committed: bool) -> bytes:
    """Return the request for the first or the end offset of a partition."""
    return (
        struct.pack(">ibi", -1, committed, 1)
        + _string(topic)
        + struct.pack(">iiq", 1, partition, which)
    )


def parse_list_offset(view: memoryview) -> tuple[int, int]:
    """Return the error code and the offset of the only partition."""
    cursor = _Cursor(view)
    cursor.i32()  # throttle time
    if cursor.count(6) != 1:
        raise _malformed()
    cursor.text()
    if cursor.count(22) != 1:
        raise _malformed()
    cursor.i32()  # partition
    error = cursor.i16()
    cursor.i64()  # timestamp
    return error, cursor.i64()


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
        parts += [_I32.pack(1), _string(self.topic), struct.pack(">ii", 1, self.partition)]
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
        (_ABORTED.iter_unpack(cursor.take(16 * cursor.count(16)))),
        key=lambda pair: pair[1],
    )
    return FetchResponse(error, end, cursor.bytes(), aborted)
