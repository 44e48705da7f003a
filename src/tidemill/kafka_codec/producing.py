"""Encode the requests that write records, alone and in transactions, and decode their responses.

Every length in a response is checked. Must not know: sockets, Spark, shares. Sources: Kafka's
protocol guide; KIP-98 (transactions), KIP-447 (stable offsets), KIP-482 (compact fields).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.kafka_codec.cursor import Cursor, malformed
from tidemill.kafka_codec.primitives import legacy_string as string

PRODUCE, OFFSET_FETCH, FIND_COORDINATOR, INIT_PRODUCER_ID = 0, 9, 10, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TRANSACTION, COMMIT_OFFSETS = 24, 25, 26, 28

NEEDS: Mapping[int, tuple[int, int]] = {
    PRODUCE: (3, 7),
    OFFSET_FETCH: (7, 7),
    FIND_COORDINATOR: (1, 2),
    INIT_PRODUCER_ID: (0, 1),
    ADD_PARTITIONS: (0, 2),
    ADD_OFFSETS: (0, 2),
    END_TRANSACTION: (0, 2),
    COMMIT_OFFSETS: (2, 2),
}
"""The least and greatest version of each request. All of them work without transaction.version 2,
which Apache Kafka 4 leaves to the client. OffsetFetch 7 is the first one with stable offsets."""

GROUP, TRANSACTION = 0, 1
"""What a coordinator coordinates."""

_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")


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
    part = nullable(transactional_id) + struct.pack(">hii", acks, timeout_ms, len(topics))
    for topic, partitions in topics.items():
        part += string(topic) + _I32.pack(len(partitions))
        for partition, size in partitions:
            parts.append(part + struct.pack(">ii", partition, size))
            part = b""
    return parts


def parse_produce(
    view: memoryview, version: int, wanted: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Return the error code of each partition.

    Args:
        view: The response.
        version: Its version.
        wanted: The partitions that it must have.
    """
    cursor = Cursor(view)
    codes = {}
    least = 30 if version >= 5 else 22
    for _ in range(cursor.count(6)):
        topic = cursor.text()
        for _ in range(cursor.count(least)):
            partition = cursor.i32()
            codes[topic, partition] = cursor.i16()
            cursor.take(least - 6)  # offset, time, first offset
    if not codes.keys() >= set(wanted):
        raise malformed()
    return codes


def find_coordinator(key: str, kind: int) -> bytes:
    """Return the request for the coordinator of a group or of a transactional id."""
    return string(key) + bytes([kind])


def parse_find_coordinator(view: memoryview) -> tuple[int, tuple[str, int]]:
    """Return the error code and the address."""
    cursor = Cursor(view)
    cursor.i32()  # throttle time
    code = cursor.i16()
    cursor.text()  # error message
    cursor.i32()  # node
    return code, (cursor.text(), cursor.i32())


def init_producer_id(transactional_id: str, timeout_ms: int) -> bytes:
    """Return the request for a producer id. One for a transactional id fences earlier ones."""
    return nullable(transactional_id) + _I32.pack(timeout_ms)


def parse_init_producer_id(view: memoryview) -> tuple[int, tuple[int, int]]:
    """Return the error code, and the producer's id and epoch."""
    cursor = Cursor(view)
    cursor.i32()  # throttle time
    return cursor.i16(), (cursor.i64(), cursor.i16())


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer with a transactional id, in requests to its coordinator."""

    transactional_id: str
    identity: tuple[int, int]

    def encode(self) -> bytes:
        """Return the fields with which such a request begins."""
        return string(self.transactional_id) + struct.pack(">qh", *self.identity)


def add_partitions(producer: Producer, partitions: Iterable[tuple[str, int]]) -> bytes:
    """Return the request that adds partitions to a transaction."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    body = producer.encode() + _I32.pack(len(topics))
    for topic, numbers in topics.items():
        body += string(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return body


def parse_add_partitions(view: memoryview) -> dict[tuple[str, int], int]:
    """Return the error code of each partition. Also of a TxnOffsetCommit."""
    cursor = Cursor(view)
    cursor.i32()  # throttle time
    codes = {}
    for _ in range(cursor.count(6)):
        topic = cursor.text()
        for _ in range(cursor.count(6)):
            partition = cursor.i32()
            codes[topic, partition] = cursor.i16()
    return codes


def add_offsets(producer: Producer, group: str) -> bytes:
    """Return the request that adds a group's offsets to a transaction."""
    return producer.encode() + string(group)


def end_transaction(producer: Producer, *, commit: bool) -> bytes:
    """Return the request that ends a transaction."""
    return producer.encode() + bytes([commit])


def parse_error(view: memoryview) -> int:
    """Return the error code of a response that has nothing else."""
    cursor = Cursor(view)
    cursor.i32()  # throttle time
    return cursor.i16()


def commit_offset(producer: Producer, group: str, topic: str, offset: int, metadata: str) -> bytes:
    """Return the request that commits an offset of partition 0 with the transaction."""
    return (
        string(producer.transactional_id)
        + string(group)
        + struct.pack(">qh", *producer.identity)
        + _I32.pack(1)
        + string(topic)
        + struct.pack(">iiqi", 1, 0, offset, -1)
        + string(metadata)
    )


def fetch_offset(group: str, topic: str) -> bytes:
    """Return the request for the stable offset of partition 0, in version 7."""
    fields = [_compact(group), b"\2", _compact(topic), b"\2", _I32.pack(0), b"\0", b"\1", b"\0"]
    return b"".join(fields)


def parse_fetch_offset(view: memoryview) -> tuple[int, int, str]:
    """Return the error code, the offset (-1 if there is none), and its metadata."""
    cursor = CompactCursor(view)
    cursor.i32()  # throttle time
    code, offset, metadata = 0, -1, ""
    for _ in range(cursor.compact_count(3)):
        cursor.compact_text()
        for _ in range(cursor.compact_count(20)):
            cursor.i32()  # partition
            offset = cursor.i64()
            cursor.i32()  # leader epoch
            metadata = cursor.compact_text()
            code = cursor.i16()
            cursor.skip_tags()
        cursor.skip_tags()
    return cursor.i16() or code, offset, metadata


class CompactCursor(Cursor):
    """Reads the fields of a flexible version, too."""

    def unsigned(self) -> int:
        """Return a number of 7 bits a byte."""
        number = 0
        for shift in range(0, 35, 7):
            byte = self.i8()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise malformed()

    def compact_text(self) -> str:
        """Return a string; null is empty."""
        try:
            return str(self.take(max(0, self.unsigned() - 1)), "utf-8")
        except UnicodeDecodeError:
            raise malformed() from None

    def compact_count(self, least_size: int) -> int:
        """Return a number of elements. Null is 0."""
        number = max(0, self.unsigned() - 1)
        self.check_room(number * least_size)
        return number

    def skip_tags(self) -> None:
        """Skip tagged fields."""
        number = self.unsigned()
        self.check_room(2 * number)
        for _ in range(number):
            self.unsigned()
            self.take(self.unsigned())


def nullable(value: str) -> bytes:
    """Encode a string; an empty one is null."""
    return string(value) if value else _I16.pack(-1)


def _compact(value: str) -> bytes:
    raw = value.encode()
    length, size = len(raw) + 1, b""
    while length >= 0x80:
        size += bytes([length & 0x7F | 0x80])
        length >>= 7
    return size + bytes([length]) + raw
