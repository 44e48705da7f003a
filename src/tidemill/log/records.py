"""The records inside a batch: decoded, scanned without copying, and encoded.

Knows the record format (zigzag varints, deltas, headers) and asks ``compression`` for the codecs.
Opens no file; what a batch's header means stands in ``batch``.

Source: Kafka documentation, "Record"; KIP-82 (headers), KIP-98. One record is::

    length varint | attributes i8 | timestampDelta varlong | offsetDelta varint |
    keyLength varint | key | valueLength varint | value | headerCount varint |
    (keyLength varint | key | valueLength varint | value)*

A length of -1 is null. ``length`` counts what follows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidemill.errors import InvalidRecordError
from tidemill.log.batch import (
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
from tidemill.log.compression import DEFAULT_LIMIT, compress, decompress

Headers = tuple[tuple[str, bytes | None], ...]
"""Header names and values, in order; names may repeat. Bytes of a name that are not UTF-8 are kept
as surrogates (PEP 383), so that encoding gives the same bytes again."""


class Record(NamedTuple):
    """One record as a reader sees it."""

    offset: int
    timestamp: int
    """Milliseconds since the epoch; -1 where the batch has none."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class NewRecord(NamedTuple):
    """One record to write; its offset is given by its place in the batch."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None
    """Milliseconds since the epoch; None takes the batch's."""


class RawRecord(NamedTuple):
    """Where the parts of one record stand in the decompressed body; nothing is copied."""

    start: int
    """First byte of the record (of its length)."""
    end: int
    """First byte after the record."""
    rest: int
    """First byte after the timestamp delta: what follows does not depend on the batch's times."""
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_length: int
    """-1 where the key is null."""
    value_start: int
    value_length: int
    """-1 where the value is null (a tombstone)."""


# --- reading -------------------------------------------------------------------------------------


def records_body(batch: Buffer, header: BatchHeader, position: int = 0, *, limit: int) -> bytes:
    """The encoded records of the batch at ``position``, decompressed.

    Raises:
        InvalidRecordError: they can't be decompressed, or to more than ``limit`` bytes.
        UnsupportedCompressionError: the codec is unknown.
    """
    data = memoryview(batch)[position + HEADER_SIZE : position + header.size]
    if header.record_count == 0 and not data:
        return b""
    return decompress(header.codec, data, limit)


def decode_records(batch: Buffer, position: int = 0, *, limit: int = DEFAULT_LIMIT) -> list[Record]:
    """All records of the batch at ``position``, whose CRC is taken as proven.

    Args:
        batch: a buffer with the whole batch.
        position: where the batch starts.
        limit: most bytes that the records may decompress to.

    Raises:
        InvalidRecordError: the records are not well-formed, or too large.
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
                None if raw.key_length < 0 else body[raw.key_start : key_end],
                None if raw.value_length < 0 else body[raw.value_start : value_end],
                _decode_headers(body, value_end, raw.end),
            )
        )
    return out


def scan_records(body: bytes, count: int) -> Iterator[RawRecord]:
    """Walk over ``count`` encoded records without looking into their headers.

    Raises:
        InvalidRecordError: a record is not well-formed, or bytes are left after the last.
    """
    position = 0
    for index in range(count):
        start = position
        try:
            length, position = read_varint(body, position)
            end = position + length
            if length < 0 or end > len(body):
                raise InvalidRecordError(
                    f"record {index} of {count}: its length {length} does not fit the batch"
                )
            timestamp_delta, rest = read_varlong(body, position + 1)
            offset_delta, position = read_varint(body, rest)
            key_length, key_start = read_varint(body, position)
            position = key_start + key_length if key_length > 0 else key_start
            value_length, value_start = read_varint(body, position)
            position = value_start + value_length if value_length > 0 else value_start
        except IndexError:
            raise InvalidRecordError(f"record {index} of {count} is cut") from None
        # One byte at least follows: the number of headers.
        if position >= end or key_length < -1 or value_length < -1:
            raise InvalidRecordError(f"record {index} of {count}: its parts do not fit its length")
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


def check_records(
    batch: Buffer,
    header: BatchHeader,
    position: int = 0,
    *,
    require_keys: bool,
    limit: int = DEFAULT_LIMIT,
) -> None:
    """Prove that a batch which a client sent is well-formed inside.

    Args:
        batch: a buffer with the whole batch.
        header: its header.
        position: where the batch starts.
        require_keys: refuse records without key, as compacted topics do.
        limit: most bytes that the records may decompress to.

    Raises:
        InvalidRecordError: a record is not well-formed, offsets are not consecutive, or a key is
            missing where one is required.
        UnsupportedCompressionError: the codec is unknown.
    """
    body = records_body(batch, header, position, limit=limit)
    for expected, raw in enumerate(scan_records(body, header.record_count)):
        if raw.offset_delta != expected:
            raise InvalidRecordError(
                f"record {expected} has the offset delta {raw.offset_delta}, not {expected}"
            )
        if require_keys and raw.key_length < 0:
            raise InvalidRecordError(
                f"record {expected} has no key: a compacted topic needs one",
                hint="Send a key with each record, or drop 'compact' from cleanup.policy.",
            )


def _decode_headers(body: bytes, position: int, end: int) -> Headers:
    try:
        count, position = read_varint(body, position)
        if count == 0 and position == end:
            return ()
        if not 0 <= count <= end - position:
            raise InvalidRecordError(f"{count} headers do not fit the record")
        headers = []
        for _ in range(count):
            name_length, start = read_varint(body, position)
            position = start + name_length
            if name_length < 0 or position > end:
                raise InvalidRecordError("a header's name does not fit the record")
            name = str(body[start:position], "utf-8", "surrogateescape")
            value_length, start = read_varint(body, position)
            position = start + max(value_length, 0)
            if value_length < -1 or position > end:
                raise InvalidRecordError("a header's value does not fit the record")
            headers.append((name, None if value_length < 0 else body[start:position]))
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
    """One batch with these records, as a producer builds it.

    Args:
        records: at least one; they get consecutive offsets.
        timestamp_ms: time of the records that have none of their own; with ``log_append_time`` the
            time of all.
        codec, level: how to compress the records.
        base_offset, leader_epoch, producer_id, producer_epoch, base_sequence, transactional,
            control, log_append_time: fields of the batch's header.

    Raises:
        ValueError: there are no records.
        UnsupportedCompressionError: the codec is unknown.
    """
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
        raise ValueError("a batch needs a record")
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
    """Append a record whose part after the timestamp delta is encoded already."""
    head = bytearray(1)  # the attributes: none are defined
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


def write_varint(out: bytearray, value: int) -> None:
    """Append a signed number; also for varlong, which differs by its range only."""
    zigzag = (value << 1) if value >= 0 else ((-value << 1) - 1)
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """A signed number of 32 bits, and the position after it.

    Raises:
        InvalidRecordError: it is out of range.
        IndexError: the buffer ends inside it.
    """
    byte = buffer[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read_long(buffer, position, 5)


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """A signed number of 64 bits, and the position after it.

    Raises:
        InvalidRecordError: it is out of range.
        IndexError: the buffer ends inside it.
    """
    byte = buffer[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read_long(buffer, position, 10)


def _read_long(buffer: Buffer, position: int, most: int) -> tuple[int, int]:
    zigzag = 0
    for index in range(most):
        byte = buffer[position + index]
        zigzag |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if zigzag >> (32 if most == 5 else 64):
                break
            return (zigzag >> 1) ^ -(zigzag & 1), position + index + 1
    raise InvalidRecordError(f"a number takes more than {32 if most == 5 else 64} bits")
