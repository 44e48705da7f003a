"""Produce and Fetch by hand: requests without copying records, responses without joining them.

Everything else goes through kio and ``encode``; ``tests/kafka/test_hot.py`` proves these functions
equal to kio for every version. Sans-IO; knows the wire only.

Source: ProduceRequest.json and FetchResponse.json of Apache Kafka 4.3; versions 0 to 2 of Produce
(removed there) from Apache Kafka 3.9, only so that they can be refused in their own words.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from uuid import UUID

from tidemill.errors import ProtocolError
from tidemill.kafka.guard import MAX_ELEMENTS, read_uvarint, uvarint

Buffer: TypeAlias = bytes | bytearray | memoryview

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_TORN = "the request ends in the middle of a field"


class ProduceTopic(NamedTuple):
    """One topic of a Produce request."""

    name: str
    """Empty from v13 on."""
    topic_id: UUID | None
    """From v13 on."""
    partitions: list[tuple[int, memoryview | None]]
    """(partition, records); the records are a view into the frame."""


class ProduceRequest(NamedTuple):
    """A Produce request of any version from 0 to 13."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


def _text(content: Buffer) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a name is not UTF-8: {error}") from None


# --- Produce request -----------------------------------------------------------------------------


def decode_produce(frame: memoryview, position: int, version: int) -> ProduceRequest:
    """A Produce request whose body starts at ``position``; views into ``frame``.

    Raises:
        ProtocolError: the body is not exactly one such request.
    """
    decoder = _CompactProduce if version >= 9 else _LegacyProduce
    try:
        return decoder(frame, position, version).request()
    except (struct.error, IndexError):
        raise ProtocolError(_TORN) from None


class _LegacyProduce:
    """v0 to v8: 16-bit string lengths and 32-bit counts."""

    def __init__(self, frame: memoryview, position: int, version: int) -> None:
        self.frame = frame
        self.position = position
        self.version = version
        self.end = len(frame)
        self.elements = MAX_ELEMENTS

    def request(self) -> ProduceRequest:
        transactional_id = self.string() if self.version >= 3 else None
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(self.frame, self.position)
        self.position += 6
        topics = [self.topic() for _ in range(self.count("topics"))]
        self.tags()
        if self.position != self.end:
            raise ProtocolError(f"{self.end - self.position} bytes follow the request's body")
        return ProduceRequest(transactional_id, acks, timeout_ms, topics)

    def topic(self) -> ProduceTopic:
        name, topic_id = "", None
        if self.version >= 13:
            raw = bytes(self.frame[self.position : self.position + 16])
            if len(raw) < 16:
                raise ProtocolError(_TORN)
            topic_id = UUID(bytes=raw)
            self.position += 16
        else:
            given = self.string()
            if given is None:
                raise ProtocolError("a topic's name may not be null")
            name = given
        partitions = [self.partition() for _ in range(self.count("partitions"))]
        self.tags()
        return ProduceTopic(name, topic_id, partitions)

    def partition(self) -> tuple[int, memoryview | None]:
        (index,) = _I32.unpack_from(self.frame, self.position)
        self.position += 4
        length = self.blob_length()
        records = None
        if length >= 0:
            start = self.position
            self.position += length
            records = self.frame[start : self.position]
        self.tags()
        return index, records

    def count(self, what: str) -> int:
        count = self.raw_count()
        if not 0 <= count <= self.end - self.position:
            raise ProtocolError(
                f"{count} {what}, but {self.end - self.position} bytes are left in the request"
            )
        self.elements -= count
        if self.elements < 0:
            raise ProtocolError(f"more than {MAX_ELEMENTS} array elements in one request")
        return count

    def string(self) -> str | None:
        length = self.fits(self.raw_string_length())
        if length < 0:
            return None
        start = self.position
        self.position += length
        return _text(self.frame[start : self.position])

    def fits(self, length: int) -> int:
        if not -1 <= length <= self.end - self.position:
            raise ProtocolError(
                f"length {length}, but {self.end - self.position} bytes are left in the request"
            )
        return length

    def blob_length(self) -> int:
        (length,) = _I32.unpack_from(self.frame, self.position)
        self.position += 4
        return self.fits(length)

    def raw_count(self) -> int:
        (count,) = _I32.unpack_from(self.frame, self.position)
        self.position += 4
        return int(count)

    def raw_string_length(self) -> int:
        (length,) = _I16.unpack_from(self.frame, self.position)
        self.position += 2
        return int(length)

    def tags(self) -> None:
        """No tagged fields before v9."""


class _CompactProduce(_LegacyProduce):
    """v9 on: varint lengths plus one, and tagged fields (none are defined: all are skipped)."""

    def raw_count(self) -> int:
        value, self.position = read_uvarint(self.frame, self.position)
        return value - 1

    raw_string_length = raw_count

    def blob_length(self) -> int:
        return self.fits(self.raw_count())

    def tags(self) -> None:
        if self.frame[self.position] == 0:
            self.position += 1
            return
        count, self.position = read_uvarint(self.frame, self.position)
        for _ in range(count):
            _, self.position = read_uvarint(self.frame, self.position)
            size, self.position = read_uvarint(self.frame, self.position)
            self.position += self.fits(size)


# --- Produce response ----------------------------------------------------------------------------


class ProducedPartition(NamedTuple):
    """What one partition of a Produce request came to."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None


ProducedTopics: TypeAlias = Sequence[tuple[str, UUID | None, Sequence[ProducedPartition]]]
"""(name, topic id, partitions); the name counts up to v12, the id from v13 on."""

_PRODUCED = {
    0: struct.Struct(">ihq"),
    2: struct.Struct(">ihqq"),
    5: struct.Struct(">ihqqq"),
}


def encode_produce(version: int, topics: ProducedTopics, throttle_ms: int = 0) -> bytes:
    """The body of a Produce response, v0 to v13."""
    if version >= 9:
        return _encode_produce_compact(version, topics, throttle_ms)
    pack = _PRODUCED[5 if version >= 5 else 2 if version >= 2 else 0].pack
    fields = 5 if version >= 5 else 4 if version >= 2 else 3
    out = bytearray(_I32.pack(len(topics)))
    for name, _, partitions in topics:
        out += _legacy_string(name)
        out += _I32.pack(len(partitions))
        for partition in partitions:
            out += pack(*partition[:fields])
            if version >= 8:
                out += b"\0\0\0\0"  # record errors: none
                out += _legacy_string(partition.error_message)
    if version >= 1:
        out += _I32.pack(throttle_ms)
    return bytes(out)


def _encode_produce_compact(version: int, topics: ProducedTopics, throttle_ms: int) -> bytes:
    pack = _PRODUCED[5].pack
    out = bytearray(uvarint(len(topics) + 1))
    for name, topic_id, partitions in topics:
        out += _topic_key(version >= 13, name, topic_id)
        out += uvarint(len(partitions) + 1)
        for partition in partitions:
            out += pack(*partition[:5])
            if partition.error_message is None:
                out += b"\1\0\0"  # record errors: none; message: null; no tags
            else:
                out += b"\1" + _compact_string(partition.error_message) + b"\0"
        out.append(0)
    out += _I32.pack(throttle_ms)
    out.append(0)
    return bytes(out)


# --- Fetch response ------------------------------------------------------------------------------


@dataclass(slots=True)
class FetchedPartition:
    """One partition of a Fetch response."""

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset); None is null (read_uncommitted)."""
    records: bytes | memoryview = b""


FetchedTopics: TypeAlias = Sequence[tuple[str, UUID | None, Sequence[FetchedPartition]]]
"""(name, topic id, partitions); the name counts up to v12, the id from v13 on."""

_FETCHED_V4 = struct.Struct(">ihqq")
_FETCHED_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_FETCH_HEAD = struct.Struct(">ihi")
_NO_REPLICA = _I32.pack(-1)
_COPY_BELOW = 4096
"""Records shorter than this are copied: a buffer of their own costs more."""


def encode_fetch(
    version: int,
    topics: FetchedTopics,
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
) -> list[Buffer]:
    """The body of a Fetch response, v4 to v18, in pieces; records are not copied."""
    compact = version >= 12
    by_id = version >= 13
    out = bytearray()
    out += (
        _FETCH_HEAD.pack(throttle_ms, error_code, session_id)
        if version >= 7
        else _I32.pack(throttle_ms)
    )
    buffers: list[Buffer] = []
    out += _count(compact, len(topics))
    for name, topic_id, partitions in topics:
        out += _topic_key(by_id, name, topic_id) if compact else _legacy_string(name)
        out += _count(compact, len(partitions))
        for partition in partitions:
            _put_fetched_fields(out, version, compact, partition)
            records = partition.records
            out += _count(compact, len(records))
            if len(records) < _COPY_BELOW:
                out += records
            else:
                buffers += (out, records)
                out = bytearray()
            if compact:
                out.append(0)
        if compact:
            out.append(0)
    if compact:
        out.append(0)
    if out:
        buffers.append(out)
    return buffers


def _put_fetched_fields(
    out: bytearray, version: int, compact: bool, partition: FetchedPartition
) -> None:
    """All of a partition before its records."""
    if version >= 5:
        out += _FETCHED_V5.pack(
            partition.partition,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
        )
    else:
        out += _FETCHED_V4.pack(
            partition.partition,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
        )
    aborted = partition.aborted
    if aborted is None:
        out += _count(compact, -1)
    else:
        out += _count(compact, len(aborted))
        for entry in aborted:
            out += _ABORTED.pack(*entry)
            if compact:
                out.append(0)
    if version >= 11:
        out += _NO_REPLICA


def _topic_key(by_id: bool, name: str, topic_id: UUID | None) -> bytes:
    if not by_id:
        return _compact_string(name)
    return bytes(16) if topic_id is None else topic_id.bytes


def _count(compact: bool, count: int) -> bytes:
    return uvarint(count + 1) if compact else _I32.pack(count)


def _compact_string(text: str) -> bytes:
    content = text.encode()
    return uvarint(len(content) + 1) + content


def _legacy_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    content = text.encode()
    return _I16.pack(len(content)) + content
