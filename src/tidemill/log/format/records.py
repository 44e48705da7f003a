"""Decode, scan and encode the records inside a batch.

Knows the record format (zigzag varints, deltas, headers); ``compression`` has the codecs and
``batch`` the header of a batch. Opens no files.

Source: Kafka documentation, "Record"; KIP-82 (headers), KIP-98. One record is::

    length varint | attributes i8 | timestampDelta varlong | offsetDelta varint |
    keyLength varint | key | valueLength varint | value | headerCount varint |
    (keyLength varint | key | valueLength varint | value)*

A length of -1 is null. ``length`` counts what follows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from tidemill.log.errors import DecompressedTooLargeError, InvalidRecordError
from tidemill.log.format.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    build_batch,
    parse_header,
)
from tidemill.log.format.compression import DEFAULT_LIMIT, Codec, compress, decompress
from tidemill.log.steps import Steps, elsewhere

Headers = tuple[tuple[str, bytes | None], ...]
"""Header names and values, in order. Names can repeat. Bytes of a name that are not UTF-8 are kept
as surrogates (PEP 383), so that encoding returns the same bytes."""


QUICK_INPUT = 1 << 16
QUICK_OUTPUT = 1 << 18
"""Records up to this size are decompressed without another thread, in about a millisecond."""
MEDIUM_OUTPUT = 1 << 23
"""The size that most batches don't exceed when decompressed."""


class Record(NamedTuple):
    """A stored record."""

    offset: int
    timestamp: int
    """Milliseconds since the epoch; -1 if the batch has no timestamp."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class NewRecord(NamedTuple):
    """A record to write. Its position in the batch determines its offset."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None
    """Milliseconds since the epoch; None for the timestamp of the batch."""


class RawRecord(NamedTuple):
    """The positions of a record's parts in the decompressed body, without copies."""

    start: int
    """The first byte of the record, where its length begins."""
    end: int
    """The first byte after the record."""
    rest: int
    """The first byte after the timestamp delta. The rest does not depend on the batch's times."""
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_length: int
    """-1 if the key is null."""
    value_start: int
    value_length: int
    """-1 if the value is null (a tombstone)."""


# --- reading -------------------------------------------------------------------------------------


def records_body(
    batch: Buffer, header: BatchHeader, position: int = 0, *, limit: int
) -> bytes | memoryview:
    """Return the encoded records of the batch at ``position``, decompressed.

    They stay valid when the buffer changes.

    Raises:
        InvalidRecordError: they can't be decompressed, or have more than ``limit`` bytes.
        UnsupportedCompressionError: the codec is unknown.
    """
    data = memoryview(batch)[position + HEADER_SIZE : position + header.size]
    if header.record_count == 0 and not data:
        return b""
    return bytes(data) if header.codec == Codec.NONE else decompress(header.codec, data, limit)


def load_records(batch: Buffer, header: BatchHeader, limit: int) -> Steps[bytes | memoryview]:
    """Return the encoded records of a batch: small ones now, others by another thread.

    They are not copied if they are not compressed.

    Args:
        limit: most bytes that they can have after decompression.
    """
    data = memoryview(batch)[HEADER_SIZE : header.size]
    if header.codec == Codec.NONE or not len(data):
        return data
    if len(data) <= QUICK_INPUT:
        quick = min(QUICK_OUTPUT, limit)
        try:
            return decompress(header.codec, data, quick)
        except DecompressedTooLargeError:
            if quick == limit:
                raise
    if limit > MEDIUM_OUTPUT:
        # Most batches don't need the memory that the limit allows.
        with suppress(DecompressedTooLargeError):
            work = partial(decompress, header.codec, data, MEDIUM_OUTPUT)
            return (yield from elsewhere(work, MEDIUM_OUTPUT))
    return (yield from elsewhere(partial(decompress, header.codec, data, limit), limit))


def decode_records(batch: Buffer, position: int = 0, *, limit: int = DEFAULT_LIMIT) -> list[Record]:
    """Return all records of the batch at ``position``. The CRC is not checked.

    Args:
        limit: most bytes that the records can have after decompression.

    Raises:
        InvalidRecordError: the records are malformed or too large.
        UnsupportedCompressionError: the codec is unknown.
    """
    header = parse_header(batch, position)
    body = records_body(batch, header, position, limit=limit)
    fixed_time = header.max_timestamp if header.is_log_append_time else None
    out = []
    for raw in scan_records(body, header.record_count):
        key_end = raw.key_start + max(raw.key_length, 0)
        value_end = raw.value_start + max(raw.value_length, 0)
        out.append(
            Record(
                header.base_offset + raw.offset_delta,
                header.base_timestamp + raw.timestamp_delta if fixed_time is None else fixed_time,
                None if raw.key_length < 0 else bytes(body[raw.key_start : key_end]),
                None if raw.value_length < 0 else bytes(body[raw.value_start : value_end]),
                _decode_headers(body, value_end, raw.end),
            )
        )
    return out


def scan_records(body: Buffer, count: int) -> Iterator[RawRecord]:
    """Yield ``count`` encoded records without decoding their headers.

    Raises:
        InvalidRecordError: a record is malformed, or bytes follow the last record.
    """
    position = 0
    for index in range(count):
        start = position
        try:
            length, position = read_varint(body, position)
            end = position + length
            if length < 0 or end > len(body):
                raise InvalidRecordError(
                    f"record {index} of {count}: length {length} exceeds the batch"
                )
            timestamp_delta, rest = read_varint(body, position + 1, VARLONG)
            offset_delta, position = read_varint(body, rest)
            key_length, key_start = read_varint(body, position)
            position = key_start + key_length if key_length > 0 else key_start
            value_length, value_start = read_varint(body, position)
            position = value_start + value_length if value_length > 0 else value_start
        except IndexError:
            raise InvalidRecordError(f"record {index} of {count} is cut") from None
        # At least one byte must follow: the number of headers.
        if position >= end or key_length < -1 or value_length < -1:
            raise InvalidRecordError(f"record {index} of {count}: its parts don't match its length")
        yield RawRecord(
            start,
            end,
            rest,
            timestamp_delta,
            offset_delta,
            key_start,
            key_length,
            value_start,
            value_length,
        )
        position = end
    if position != len(body):
        raise InvalidRecordError(f"{len(body) - position} bytes follow the last of {count} records")


def in_steps(records: Iterator[RawRecord], every: int) -> Iterator[RawRecord | None]:
    """Yield records, and None behind each ``every`` of them, where the caller can pause."""
    for number, raw in enumerate(records, 1):
        yield raw
        if not number % every:
            yield None


def _decode_headers(body: Buffer, position: int, end: int) -> Headers:
    try:
        count, position = read_varint(body, position)
        if count == 0 and position == end:
            return ()
        if not 0 <= count <= end - position:
            raise InvalidRecordError(f"{count} headers exceed the record")
        headers = []
        for _ in range(count):
            name_length, start = read_varint(body, position)
            position = start + name_length
            if name_length < 0 or position > end:
                raise InvalidRecordError("a header's name exceeds the record")
            name = str(body[start:position], "utf-8", "surrogateescape")
            value_length, start = read_varint(body, position)
            position = start + max(value_length, 0)
            if value_length < -1 or position > end:
                raise InvalidRecordError("a header's value exceeds the record")
            headers.append((name, None if value_length < 0 else bytes(body[start:position])))
    except IndexError:
        raise InvalidRecordError("a record's headers are cut") from None
    if position != end:
        raise InvalidRecordError(f"{end - position} bytes follow the headers of a record")
    return tuple(headers)


# --- writing -------------------------------------------------------------------------------------


def encode_batch(
    records: Iterable[NewRecord],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    codec: int = 0,
    level: int | None = None,
    leader_epoch: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time: bool = False,
) -> bytearray:
    """Return a batch with these records, as a producer builds it.

    Args:
        records: at least one record. They get consecutive offsets.
        timestamp_ms: timestamp of the records that have none; with ``log_append_time`` the
            timestamp of all records.
        codec, level: the compression of the records.
        base_offset, leader_epoch, producer_id, producer_epoch, base_sequence, transactional,
            control, log_append_time: fields of the batch's header.

    Raises:
        ValueError: there are no records.
        UnsupportedCompressionError: the codec is unknown.
    """
    body, count, base_timestamp, max_timestamp = _encode_records(records, timestamp_ms)
    attributes = codec
    if log_append_time:
        attributes |= TIMESTAMP_TYPE_BIT
        max_timestamp = timestamp_ms
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    if control:
        attributes |= CONTROL_BIT
    return build_batch(
        base_offset=base_offset,
        body=compress(codec, body, level),
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=count,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def _encode_records(
    records: Iterable[NewRecord], timestamp_ms: int
) -> tuple[bytearray, int, int, int]:
    """Return the encoded records, their number, and their base and latest timestamp."""
    body = bytearray()
    base_timestamp = max_timestamp = NO_TIMESTAMP
    count = 0
    for count, record in enumerate(records, 1):
        timestamp = timestamp_ms if record.timestamp is None else record.timestamp
        if count == 1:
            base_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        encode_record(
            body, count - 1, timestamp - base_timestamp, record.key, record.value, record.headers
        )
    if count == 0:
        raise ValueError("a batch needs at least one record")
    return body, count, base_timestamp, max_timestamp


def encode_record(
    out: bytearray,
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers = (),
) -> None:
    """Append one encoded record to ``out``."""
    tail = bytearray()
    write_varint(tail, offset_delta)
    _write_bytes(tail, key)
    _write_bytes(tail, value)
    write_varint(tail, len(headers))
    for name, content in headers:
        _write_bytes(tail, name.encode("utf-8", "surrogateescape"))
        _write_bytes(tail, content)
    encode_with_rest(out, timestamp_delta, tail)


def encode_with_rest(out: bytearray, timestamp_delta: int, rest: Buffer) -> None:
    """Append a record to ``out`` whose part after the timestamp delta is already encoded."""
    head = bytearray(1)  # the attributes, which are unused
    write_varint(head, timestamp_delta)
    write_varint(out, len(head) + len(rest))
    out += head
    out += rest


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # zigzag of -1
        return
    write_varint(out, len(data))
    out += data


# --- zigzag varints (Protocol Buffers' sint32 and sint64) ----------------------------------------


VARLONG = 10
"""Most bytes of a number of 64 bits."""


def write_varint(out: bytearray, value: int) -> None:
    """Append a signed number. A varlong has the same encoding, with a larger range."""
    zigzag = (value << 1) if value >= 0 else ((-value << 1) - 1)
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def read_varint(buffer: Buffer, position: int, most: int = 5) -> tuple[int, int]:
    """Return a signed number and the position after it.

    Args:
        most: its most bytes: 5 for 32 bits, ``VARLONG`` for 64.

    Raises:
        InvalidRecordError: the number is out of range.
        IndexError: the buffer ends inside the number.
    """
    byte = buffer[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    zigzag = 0
    for index in range(most):
        byte = buffer[position + index]
        zigzag |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if zigzag >> (32 if most == 5 else 64):
                break
            return (zigzag >> 1) ^ -(zigzag & 1), position + index + 1
    raise InvalidRecordError(f"a number has more than {32 if most == 5 else 64} bits")
