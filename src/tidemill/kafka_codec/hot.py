"""Produce and Fetch written by hand, because they carry the records, which must not be copied.

A Produce request is decoded into views of the frame; a Fetch response is encoded into a list of
buffers. The tests compare both with kio in every version. Sans-IO; knows only the wire format.

Sources: ProduceRequest.json, ProduceResponse.json and FetchResponse.json of Apache Kafka 4.3.
Versions 0 to 2 of Produce, which 4.0 removed, are those of 3.9: the broker decodes such a request
in order to refuse it in a response of its version.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from uuid import UUID

from tidemill.errors import ProtocolError
from tidemill.kafka_codec.primitives import (
    array_length,
    compact_string,
    legacy_string,
    read_uvarint,
    topic_key,
    uvarint,
)
from tidemill.parts import Part

MAX_ELEMENTS = 5000
"""Topics and partitions in a Produce request."""
_ELEMENTS_PER_STEP = 64

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_INDEX_LENGTH = struct.Struct(">ii")
_TRUNCATED = "the request ends in the middle of a field"


class ProduceTopic(NamedTuple):
    """One topic of a Produce request."""

    name: str
    """Empty since v13."""
    topic_id: UUID | None
    """None before v13."""
    partitions: list[tuple[int, memoryview | None]]
    """(partition, records). The records are a view into the frame, or None for null."""


class ProduceRequest(NamedTuple):
    """A Produce request of any version from 0 to 13."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


# --- Produce request -----------------------------------------------------------------------------


ProduceSteps: TypeAlias = Generator[None, None, ProduceRequest]


def decode_produce(frame: memoryview, position: int, version: int) -> ProduceSteps:
    """Decode a Produce request whose body starts at ``position``. Yield after every few elements.

    Raises:
        ProtocolError: the rest of the frame is not exactly one such request.
    """
    try:
        if version >= 9:
            request, end = yield from _decode_compact(frame, position, by_id=version >= 13)
        else:
            request, end = yield from _decode_legacy(frame, position, transactional=version >= 3)
    except (struct.error, IndexError):
        raise ProtocolError(_TRUNCATED) from None
    if end != len(frame):
        raise ProtocolError(
            f"{len(frame) - end} bytes follow the request's body"
            if end < len(frame)
            else _TRUNCATED
        )
    return request


def _decode_compact(
    frame: memoryview, position: int, *, by_id: bool
) -> Generator[None, None, tuple[ProduceRequest, int]]:
    """Decode v9 or newer: compact lengths, and tagged fields, of which it skips all."""
    transactional_id, position = _compact_text(frame, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    count, position = read_uvarint(frame, position + 6)
    elements = _checked_count(count - 1, frame, position, MAX_ELEMENTS)
    topics: list[ProduceTopic] = []
    decoded = 0
    for _ in range(count - 1):
        name, topic_id = "", None
        if by_id:
            topic_id = _uuid(frame, position)
            position += 16
        else:
            given, position = _compact_text(frame, position)
            name = _not_null(given)
        inner, position = read_uvarint(frame, position)
        elements = _checked_count(inner - 1, frame, position, elements)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(inner - 1):
            (index,) = _I32.unpack_from(frame, position)
            length, position = read_uvarint(frame, position + 4)
            start, position = position, position + max(length - 1, 0)
            partitions.append((index, frame[start:position] if length else None))
            position = _skip_tags(frame, position)
            decoded += 1
            if not decoded % _ELEMENTS_PER_STEP:
                yield
        decoded += 1
        if not decoded % _ELEMENTS_PER_STEP:
            yield
        position = _skip_tags(frame, position)
        topics.append(ProduceTopic(name, topic_id, partitions))
    position = _skip_tags(frame, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics), position


def _decode_legacy(
    frame: memoryview, position: int, *, transactional: bool
) -> Generator[None, None, tuple[ProduceRequest, int]]:
    """Decode v0 to v8: 16-bit lengths of strings and 32-bit lengths of arrays."""
    transactional_id = None
    if transactional:
        transactional_id, position = _legacy_text(frame, position)
    acks, timeout_ms, count = _ACKS_TIMEOUT_COUNT.unpack_from(frame, position)
    position += 10
    elements = _checked_count(count, frame, position, MAX_ELEMENTS)
    topics: list[ProduceTopic] = []
    decoded = 0
    for _ in range(count):
        given, position = _legacy_text(frame, position)
        (inner,) = _I32.unpack_from(frame, position)
        position += 4
        elements = _checked_count(inner, frame, position, elements)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(inner):
            index, length = _INDEX_LENGTH.unpack_from(frame, position)
            if length < -1:
                raise ProtocolError(f"invalid length {length} of records")
            start = position + 8
            position = start + max(length, 0)
            partitions.append((index, frame[start:position] if length >= 0 else None))
            decoded += 1
            if not decoded % _ELEMENTS_PER_STEP:
                yield
        decoded += 1
        if not decoded % _ELEMENTS_PER_STEP:
            yield
        topics.append(ProduceTopic(_not_null(given), None, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics), position


def _checked_count(count: int, frame: memoryview, position: int, elements: int) -> int:
    """Check the length of an array before it is read.

    Args:
        count: its announced length; each element takes at least one byte.
        elements: how many elements the request may still have.

    Returns:
        How many elements the request may have after this array.
    """
    if not 0 <= count <= len(frame) - position:
        raise ProtocolError(
            f"length {count} of an array, but {len(frame) - position} bytes are left"
        )
    if count > elements:
        raise ProtocolError(f"more than {MAX_ELEMENTS} array elements in one message")
    return elements - count


def _not_null(name: str | None) -> str:
    if name is None:
        raise ProtocolError("the name of a topic must not be null")
    return name


def _uuid(frame: memoryview, position: int) -> UUID:
    raw = bytes(frame[position : position + 16])
    if len(raw) < 16:
        raise ProtocolError(_TRUNCATED)
    return UUID(bytes=raw)


def _compact_text(frame: memoryview, position: int) -> tuple[str | None, int]:
    length, position = read_uvarint(frame, position)
    if length == 0:
        return None, position
    end = position + length - 1
    return _text(frame, position, end), end


def _legacy_text(frame: memoryview, position: int) -> tuple[str | None, int]:
    (length,) = _I16.unpack_from(frame, position)
    position += 2
    if length < 0:
        if length < -1:
            raise ProtocolError(f"invalid length {length} of a name")
        return None, position
    end = position + length
    return _text(frame, position, end), end


def _text(frame: memoryview, start: int, end: int) -> str:
    if end > len(frame):
        raise ProtocolError(f"length {end - start}, but {len(frame) - start} bytes are left")
    try:
        return str(frame[start:end], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a name is not UTF-8: {error}") from None


def _skip_tags(frame: memoryview, position: int) -> int:
    # If the records are truncated, the position is behind the end, and this raises IndexError.
    if frame[position] == 0:
        return position + 1
    count, position = read_uvarint(frame, position)
    for _ in range(count):
        _, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        position += size
    return position


# --- Produce response ----------------------------------------------------------------------------


class ProducedPartition(NamedTuple):
    """The result of one partition of a Produce request."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()
    """(index in the batch, reason) of the records for which the batch was refused (KIP-467)."""


ProducedTopics: TypeAlias = Sequence[tuple[str, UUID | None, Sequence[ProducedPartition]]]
"""(name, topic id, partitions). Responses have the name up to v12, the id since v13."""

_PARTITION_FIELDS = {
    0: struct.Struct(">ihq"),
    2: struct.Struct(">ihqq"),
    5: struct.Struct(">ihqqq"),
}


def encode_produce(version: int, topics: ProducedTopics, throttle_ms: int = 0) -> bytes:
    """Encode the body of a Produce response, v0 to v13."""
    steps = encode_produce_in_steps(version, topics, throttle_ms)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            body: bytes = end.value
            return body


def encode_produce_in_steps(
    version: int, topics: ProducedTopics, throttle_ms: int = 0
) -> Generator[None, None, bytes]:
    """Encode like ``encode_produce``. Yield after every few partitions."""
    if version >= 9:
        return (yield from _encode_produce_compact(version, topics, throttle_ms))
    pack = _PARTITION_FIELDS[5 if version >= 5 else 2 if version >= 2 else 0].pack
    fields = 5 if version >= 5 else 4 if version >= 2 else 3
    out = bytearray(_I32.pack(len(topics)))
    encoded = 0
    for name, _, partitions in topics:
        out += legacy_string(name)
        out += _I32.pack(len(partitions))
        for partition in partitions:
            out += pack(*partition[:fields])
            if version >= 8:
                out += _I32.pack(len(partition.record_errors))
                for index, reason in partition.record_errors:
                    out += _I32.pack(index) + legacy_string(reason)
                out += legacy_string(partition.error_message)
            encoded += 1
            if not encoded % _ELEMENTS_PER_STEP:
                yield
    if version >= 1:
        out += _I32.pack(throttle_ms)
    return bytes(out)


def _encode_produce_compact(
    version: int, topics: ProducedTopics, throttle_ms: int
) -> Generator[None, None, bytes]:
    pack = _PARTITION_FIELDS[5].pack
    out = bytearray(uvarint(len(topics) + 1))
    encoded = 0
    for name, topic_id, partitions in topics:
        out += topic_key(version >= 13, name, topic_id)
        out += uvarint(len(partitions) + 1)
        for partition in partitions:
            out += pack(*partition[:5])
            message = partition.error_message
            if message is None and not partition.record_errors:
                out += b"\1\0\0"  # no record errors, null message, no tags
            else:
                out += uvarint(len(partition.record_errors) + 1)
                for index, reason in partition.record_errors:
                    out += _I32.pack(index) + compact_string(reason) + b"\0"
                out += (b"\0" if message is None else compact_string(message)) + b"\0"
            encoded += 1
            if not encoded % _ELEMENTS_PER_STEP:
                yield
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
    """(producer id, first offset) of aborted transactions. None is null (read_uncommitted)."""
    records: Part = b""


FetchedTopics: TypeAlias = Sequence[tuple[str, UUID | None, Sequence[FetchedPartition]]]
"""(name, topic id, partitions). Responses have the name up to v12, the id since v13."""

_ABORTED = struct.Struct(">qq")
_FETCH_HEAD = struct.Struct(">ihi")
_NO_REPLICA = _I32.pack(-1)
_PARTITIONS_PER_STEP = 32
_COPY_BELOW = 4096
"""Records shorter than this are copied. To send them as a buffer of their own costs more."""


def encode_fetch(
    version: int,
    topics: FetchedTopics,
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
) -> list[Part]:
    """Encode the body of a Fetch response, v4 to v18, as buffers. Long records are not copied."""
    steps = encode_fetch_in_steps(
        version, topics, error_code=error_code, session_id=session_id, throttle_ms=throttle_ms
    )
    while True:
        try:
            next(steps)
        except StopIteration as end:
            buffers: list[Part] = end.value
            return buffers


def encode_fetch_in_steps(
    version: int,
    topics: FetchedTopics,
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
) -> Generator[None, None, list[Part]]:
    """Encode like ``encode_fetch``. Yield after every few partitions."""
    compact = version >= 12
    by_id = version >= 13
    out = bytearray()
    out += (
        _FETCH_HEAD.pack(throttle_ms, error_code, session_id)
        if version >= 7
        else _I32.pack(throttle_ms)
    )
    buffers: list[Part] = []
    out += array_length(compact, len(topics))
    for name, topic_id, partitions in topics:
        out += topic_key(by_id, name, topic_id) if compact else legacy_string(name)
        out += array_length(compact, len(partitions))
        for index, partition in enumerate(partitions):
            if index % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                yield
            _append_fields(out, version, compact, partition)
            records = partition.records
            out += array_length(compact, len(records))
            if isinstance(records, bytes | bytearray | memoryview) and len(records) < _COPY_BELOW:
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


def _append_fields(
    out: bytearray, version: int, compact: bool, partition: FetchedPartition
) -> None:
    """Append the fields of a partition that come before its records."""
    if version >= 5:
        out += _PARTITION_FIELDS[5].pack(
            partition.partition,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
        )
    else:
        out += _PARTITION_FIELDS[2].pack(
            partition.partition,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
        )
    aborted = partition.aborted
    if aborted is None:
        out += array_length(compact, -1)
    else:
        out += array_length(compact, len(aborted))
        for entry in aborted:
            out += _ABORTED.pack(*entry)
            if compact:
                out.append(0)
    if version >= 11:
        out += _NO_REPLICA
