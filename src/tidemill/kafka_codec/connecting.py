"""Encode the requests that reading and writing share, and decode their responses.

Only the small part of the Kafka protocol that both need. Every length in a response is checked.
Must not know: sockets, Spark. Source: Kafka's protocol guide.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.errors import ProtocolError

METADATA, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 3, 17, 18, 36

VERSIONS: Mapping[int, int] = {
    METADATA: 4,
    API_VERSIONS: 0,
    SASL_HANDSHAKE: 1,
    SASL_AUTHENTICATE: 0,
}
"""The version of each of these requests."""

NAMES: Mapping[int, str] = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    9: "OffsetFetch",
    10: "FindCoordinator",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
}
"""Names of requests, for messages."""

_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


class Cursor:
    """Reads the fields of a response, one after the other."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def _unpack(self, form: struct.Struct) -> int:
        try:
            (number,) = form.unpack_from(self._view, self._at)
        except struct.error:
            raise malformed() from None
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
            raise malformed()
        self._at += size
        return self._view[self._at - size : self._at]

    def check_room(self, size: int) -> None:
        """Raise an error if fewer bytes are left."""
        if size > len(self._view) - self._at:
            raise malformed()

    def bytes(self) -> memoryview:
        """Bytes with a length of 4 bytes; null is empty."""
        return self.take(max(0, self.i32()))

    def text(self) -> str:
        """A string with a length of 2 bytes; null is empty."""
        raw = self.take(max(0, self.i16()))
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise malformed() from None

    def count(self, least_size: int) -> int:
        """A number of elements. Null is 0."""
        number = self.i32()
        if number > (len(self._view) - self._at) // least_size:
            raise malformed()
        return max(0, number)


def malformed() -> ProtocolError:
    """Return the error for a response that does not have the form of its version."""
    return ProtocolError("a response is malformed")


def string(text: str) -> bytes:
    """Encode a string with a length of 2 bytes."""
    raw = text.encode()
    return _I16.pack(len(raw)) + raw


def header(api: int, version: int, correlation_id: int, client_id: str) -> bytes:
    """Return the header of a request."""
    return struct.pack(">hhi", api, version, correlation_id) + string(client_id)


def parse_api_versions(view: memoryview) -> tuple[int, dict[int, tuple[int, int]]]:
    """Return the error code, and the least and greatest version of each request."""
    cursor = Cursor(view)
    error = cursor.i16()
    found = {}
    for _ in range(cursor.count(6)):
        api, least, most = cursor.i16(), cursor.i16(), cursor.i16()
        found[api] = (least, most)
    return error, found


def sasl_handshake(mechanism: str) -> bytes:
    """Return the request that begins an exchange."""
    return string(mechanism)


def parse_sasl_handshake(view: memoryview) -> tuple[int, list[str]]:
    """Return the error code, and the mechanisms of the broker."""
    cursor = Cursor(view)
    error = cursor.i16()
    return error, [cursor.text() for _ in range(cursor.count(2))]


def sasl_authenticate(message: bytes) -> bytes:
    """Return the request with a message of the exchange."""
    return _I32.pack(len(message)) + message


def parse_sasl_authenticate(view: memoryview) -> tuple[int, str, bytes]:
    """Return the error code, its text, and the broker's message."""
    cursor = Cursor(view)
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


def metadata(topic: str, *, create: bool = False) -> bytes:
    """Return the request for the leaders of a topic.

    Args:
        topic: The topic.
        create: Whether a broker that creates topics by itself may do so.
    """
    return _I32.pack(1) + string(topic) + bytes([create])


def parse_metadata(view: memoryview, topic: str) -> Metadata:
    """Return the leaders of the topic."""
    cursor = Cursor(view)
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
        raise malformed()
    return result
