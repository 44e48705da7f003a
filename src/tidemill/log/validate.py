"""What a batch must be before it is appended.

Proves batches against the topic's configs and brings them into the form that is stored. Knows no
segments and no offsets; records are decoded only where a config cannot be kept otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
)
from tidemill.log.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    build_batch,
    check_batch,
    parse_header,
    stamp_append_time,
)
from tidemill.log.compression import CODEC_NAMES, DEFAULT_LIMIT, compress, decompress
from tidemill.log.config import LogConfig
from tidemill.log.configdef import MAX_LONG
from tidemill.log.records import check_records, decode_records

LOG_APPEND_TIME = "LogAppendTime"
BUILT_BYTES = 1 << 24
"""Largest batch that the broker builds itself: readers take a batch into memory as a whole."""
_PRODUCER = "producer"
_NOT_FOR_CLIENTS = TIMESTAMP_TYPE_BIT | CONTROL_BIT | DELETE_HORIZON_BIT


class Checked(NamedTuple):
    """Batches that may be stored as they are, but for offsets and leader epoch."""

    data: bytearray | memoryview
    headers: list[BatchHeader]
    log_append_time_ms: int
    """-1 where records keep their own time."""


def check_client_batches(records: Buffer, config: LogConfig, now_ms: int) -> Checked:
    """Prove and prepare batches that a client sent.

    Args:
        records: one or more batches; changed in place where the config wants it.
        config: the topic's.
        now_ms: the broker's time.

    Raises:
        CorruptBatchError, UnsupportedFormatError, UnsupportedCompressionError,
        InvalidRecordError: see ``batch.check_batch``; also control batches, transactional ones
            without a producer, delete horizons, offsets with gaps, records without key in a
            compacted topic.
        BatchTooLargeError: larger than ``max.message.bytes`` or than a segment.
        InvalidTimestampError: too far in the past or the future.
    """
    view: bytearray | memoryview = _writable(records)
    headers = []
    position = 0
    while position < len(view):
        header = check_batch(view, position)
        _check_header(header, config, now_ms)
        if config.compact or config.message_timestamp_before_max_ms != MAX_LONG:
            _check_inside(view, header, position, config, now_ms)
        headers.append(header)
        position += header.size
    if not headers:
        raise CorruptBatchError("there is no batch")
    if config.compression_type != _PRODUCER:
        view, headers = _recompress(view, headers, config)
    limit = min(config.max_message_bytes, config.segment_bytes)
    for header in headers:
        if header.size > limit:
            raise BatchTooLargeError(f"a batch of {header.size} bytes: {limit} are allowed")
    if config.message_timestamp_type == LOG_APPEND_TIME:
        return Checked(view, _stamp_time(view, now_ms), now_ms)
    return Checked(view, headers, -1)


def trusted_batches(records: Buffer) -> Checked:
    """Batches that the broker built itself: only cut into headers. One that is larger than a
    segment has one for itself: the state that it holds can't be cut.

    Raises:
        BatchTooLargeError: larger than ``BUILT_BYTES``.
        CorruptBatchError: not whole.
    """
    view = _writable(records)
    headers = _headers(view)
    if not headers or sum(header.size for header in headers) != len(view):
        raise CorruptBatchError("these bytes are not whole batches")
    for header in headers:
        if header.size > BUILT_BYTES:
            raise BatchTooLargeError(
                f"a record of the broker's own takes {header.size} bytes: {BUILT_BYTES} are allowed"
            )
    return Checked(view, headers, -1)


def _writable(records: Buffer) -> bytearray | memoryview:
    if isinstance(records, bytes) or (isinstance(records, memoryview) and records.readonly):
        return bytearray(records)
    return records


def _check_header(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    attributes = header.attributes
    if attributes & _NOT_FOR_CLIENTS:
        if attributes & CONTROL_BIT:
            raise InvalidRecordError("clients may not write control batches")
        if attributes & DELETE_HORIZON_BIT:
            raise InvalidRecordError("only compaction gives a batch a delete horizon (KIP-534)")
        raise InvalidTimestampError("a client's batch must carry CreateTime")
    if attributes & TRANSACTIONAL_BIT and header.producer_id < 0:
        raise InvalidRecordError("a transactional batch needs a producer id")
    if header.record_count != header.last_offset_delta + 1 or header.record_count == 0:
        raise InvalidRecordError(
            f"{header.record_count} records with last offset delta {header.last_offset_delta}"
        )
    if (
        config.message_timestamp_type != LOG_APPEND_TIME
        and header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
    ):
        raise InvalidTimestampError(
            f"timestamp {header.max_timestamp} is more than "
            f"{config.message_timestamp_after_max_ms} ms ahead of the broker's clock ({now_ms})",
            hint="Check the producer's clock, or raise message.timestamp.after.max.ms.",
        )


def _check_inside(
    view: Buffer, header: BatchHeader, position: int, config: LogConfig, now_ms: int
) -> None:
    check_records(view, header, position, require_keys=config.compact)
    limit = config.message_timestamp_before_max_ms
    if limit == MAX_LONG or config.message_timestamp_type == LOG_APPEND_TIME:
        return
    oldest = min(record.timestamp for record in decode_records(view, position))
    if oldest != NO_TIMESTAMP and now_ms - oldest > limit:
        raise InvalidTimestampError(
            f"timestamp {oldest} is more than {limit} ms behind the broker's clock ({now_ms})",
            hint="Raise message.timestamp.before.max.ms on the topic, or use LogAppendTime.",
        )


def _headers(view: Buffer) -> list[BatchHeader]:
    headers = []
    position = 0
    while len(view) - position >= HEADER_SIZE:
        header = parse_header(view, position)
        if header.size < HEADER_SIZE:
            break
        headers.append(header)
        position += header.size
    return headers


def _stamp_time(view: bytearray | memoryview, now_ms: int) -> list[BatchHeader]:
    position = 0
    for header in _headers(view):
        stamp_append_time(view, position, now_ms)
        position += header.size
    return _headers(view)


def _recompress(
    view: bytearray | memoryview, headers: list[BatchHeader], config: LogConfig
) -> tuple[bytearray | memoryview, list[BatchHeader]]:
    codec = CODEC_NAMES[config.compression_type]
    if all(header.codec == codec for header in headers):
        return view, headers
    level = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }.get(config.compression_type)
    out = bytearray()
    position = 0
    for header in headers:
        batch = memoryview(view)[position : position + header.size]
        position += header.size
        if header.codec == codec:
            out += batch
            continue
        body = decompress(header.codec, batch[HEADER_SIZE:], DEFAULT_LIMIT)
        out += build_batch(
            base_offset=header.base_offset,
            body=compress(codec, body, level),
            attributes=(header.attributes & ~CODEC_MASK) | codec,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
            record_count=header.record_count,
            leader_epoch=header.leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
    return out, _headers(out)
