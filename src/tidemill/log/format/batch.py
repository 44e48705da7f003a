"""Record batches in message format v2 (magic 2): decode, check, stamp and build them.

Works on any buffer. Opens no files and decompresses nothing (see ``compression`` and ``records``).
Source: Kafka documentation, "Message Format"; KIP-98.

Layout of the 61-byte header, big-endian:

    baseOffset i64 | batchLength i32 | partitionLeaderEpoch i32 | magic i8 | crc u32 |
    attributes i16 | lastOffsetDelta i32 | baseTimestamp i64 | maxTimestamp i64 |
    producerId i64 | producerEpoch i16 | baseSequence i32 | recordCount i32

``batchLength`` is the size of what follows it (total size - 12). The CRC-32C covers everything from
``attributes`` on, so base offset and leader epoch can be changed without a new CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from tidemill.log.errors import (
    CorruptBatchError,
    InvalidRecordError,
    UnsupportedCompressionError,
    UnsupportedFormatError,
)
from tidemill.log.format.crc import crc32c

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
LENGTH_OVERHEAD = 12
"""Bytes that ``batchLength`` does not count."""
MAGIC = 2
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
SEQUENCES = 1 << 31
"""A producer's sequences wrap to 0 at this number."""

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

CRC_START = 21
"""Position of ``attributes``, the first byte that the CRC covers."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qi")
_CRC = struct.Struct(">I")
_MAX_TIMESTAMP = struct.Struct(">q")


class BatchHeader(NamedTuple):
    """The decoded header of a batch."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the batch in bytes, with its header."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp is the time from which tombstones are removed (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record. It wraps at 2**31, as in clients."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header at ``position`` without checking it.

    Raises:
        struct.error: fewer than 61 bytes follow.
    """
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def peek(buffer: Buffer, position: int = 0) -> tuple[int, int]:
    """Return base offset and size of the batch at ``position``. Its first 12 bytes are enough."""
    base_offset, length = _PREFIX.unpack_from(buffer, position)
    return base_offset, length + LENGTH_OVERHEAD


def crc_of(buffer: Buffer, position: int, size: int) -> int:
    """Compute the CRC-32C of the batch of ``size`` bytes at ``position``."""
    return crc32c(memoryview(buffer)[position + CRC_START : position + size])


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Check length, magic, codec, counts and CRC of the batch at ``position``; return its header.

    Raises:
        CorruptBatchError: the batch is cut, or has a wrong length or CRC.
        UnsupportedFormatError: the magic is 0 or 1.
        UnsupportedCompressionError: the codec is unknown.
        InvalidRecordError: the counts contradict each other.
    """
    available = len(buffer) - position
    if available < HEADER_SIZE:
        if available >= 17 and memoryview(buffer)[position + 16] in (0, 1):
            raise UnsupportedFormatError("message format v0/v1 is not supported")
        raise CorruptBatchError(
            f"a batch has at least {HEADER_SIZE} bytes, but {available} are left"
        )
    header = parse_header(buffer, position)
    if header.magic != MAGIC:
        if header.magic in (0, 1):
            raise UnsupportedFormatError(f"message format v{header.magic} is not supported")
        raise CorruptBatchError(f"invalid magic {header.magic}, expected {MAGIC}")
    if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD or header.size > available:
        raise CorruptBatchError(
            f"invalid batch length {header.batch_length}: {available} bytes are there"
        )
    computed = crc_of(buffer, position, header.size)
    if computed != header.crc:
        raise CorruptBatchError(
            f"wrong CRC-32C {computed:#010x}, the header has {header.crc:#010x}"
        )
    if header.codec > 4:
        raise UnsupportedCompressionError(f"unknown compression codec {header.codec}")
    if header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"{header.record_count} records with last offset delta {header.last_offset_delta}"
        )
    return header


def iter_headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each complete batch, without checks."""
    end = len(buffer)
    while end - position >= HEADER_SIZE:
        header = parse_header(buffer, position)
        if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD or position + header.size > end:
            return
        yield position, header
        position += header.size


def stamp_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Give the batch the timestamp type LogAppendTime with ``now_ms``, and a new CRC."""
    attributes = int.from_bytes(buffer[position + 21 : position + 23], "big") | TIMESTAMP_TYPE_BIT
    buffer[position + 21 : position + 23] = attributes.to_bytes(2, "big")
    stamp_max_timestamp(buffer, position, now_ms)


def stamp_max_timestamp(buffer: bytearray | memoryview, position: int, latest: int) -> None:
    """Give the batch its largest timestamp, and a new CRC."""
    size = peek(buffer, position)[1]
    _MAX_TIMESTAMP.pack_into(buffer, position + 35, latest)
    _CRC.pack_into(buffer, position + 17, crc_of(buffer, position, size))


def build_batch(
    *,
    base_offset: int,
    body: Buffer,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
    leader_epoch: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """Return a batch with the records ``body``, which are encoded and perhaps compressed."""
    batch = bytearray(HEADER_SIZE)
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        HEADER_SIZE - LENGTH_OVERHEAD + len(body),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    batch += body
    _CRC.pack_into(batch, 17, crc_of(batch, 0, len(batch)))
    return batch


def rebuild_batch(header: BatchHeader, body: Buffer, **changes: int) -> bytearray:
    """Return the batch of a header with other records.

    Args:
        body: the records, encoded and compressed with the codec of the attributes.
        changes: fields of the header that are different.
    """
    fields: dict[str, Any] = header._asdict() | changes
    for computed in ("batch_length", "magic", "crc"):
        del fields[computed]
    return build_batch(body=body, **fields)


def empty_batch(base_offset: int, count: int, timestamp: int = NO_TIMESTAMP) -> bytearray:
    """Return a batch without records that takes ``count`` offsets, as compaction leaves it."""
    return build_batch(
        base_offset=base_offset,
        body=b"",
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        record_count=0,
    )
