"""Check batches before they are appended, and convert them to the form that is stored.

Checks the header, every record and the topic's configs, as Apache Kafka's ``LogValidator`` does.
What is accepted can be read as long as it is stored. A batch is refused as a whole, but the client
gets the index of each bad record (KIP-467), so that it can send the others again. Sizes come first:
nothing is decompressed and no record is looked at before the limits allow it. Knows no segments,
and no offsets but the deltas in a batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

from tidemill.log.config.definition import MAX_LONG
from tidemill.log.config.topic import LogConfig
from tidemill.log.errors import (
    BadRecord,
    BatchTooLargeError,
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
)
from tidemill.log.format.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    check_batch,
    iter_headers,
    parse_header,
    peek,
    rebuild_batch,
    stamp_append_time,
    stamp_max_timestamp,
)
from tidemill.log.format.compression import CODEC_NAMES, Codec, check_one_member, compress
from tidemill.log.format.crc import crc32c
from tidemill.log.format.records import (
    MEDIUM_OUTPUT,
    QUICK_OUTPUT,
    RawRecord,
    load_records,
    scan_records,
)
from tidemill.log.format.walk import Walked, walk_records
from tidemill.log.steps import Steps, elsewhere
from tidemill.native import extension

LOG_APPEND_TIME = "LogAppendTime"
BUILT_BYTES = 1 << 24
"""Largest batch in bytes that the broker builds itself. Readers load it into memory as a whole."""
MAX_RECORDS = 1 << 20
"""Most records in a batch of a client. librdkafka's producers have a limit of 1,000,000."""
DECOMPRESSED_FACTOR = 64
"""The records of a batch have at most this many times ``max.message.bytes`` when decompressed."""
MAX_DECOMPRESSED = 100_000_000
"""Most bytes of a batch's records when decompressed. librdkafka's consumers have the same limit by
default (``receive.message.max.bytes``)."""
MOST_NAMED = 10_000
"""Most records that are named. More would take longer to report than to send."""
_MIN_DECOMPRESSED = 1 << 20
_PAUSE_AFTER = 128
_NO_KEY = "it has no key: a compacted topic needs one"
_PRODUCER = "producer"
_NOT_FOR_CLIENTS = ~(CODEC_MASK | TRANSACTIONAL_BIT)
_SHORT_BYTES = 16_384
"""A CRC of more bytes is computed by the library, which uses wider instructions."""


class Checked(NamedTuple):
    """Batches that can be stored after offsets and leader epoch are stamped."""

    data: bytearray | memoryview
    headers: list[BatchHeader]
    config: LogConfig | None = None
    """The configs of the topic that a client's batch was checked against."""


class Limits(NamedTuple):
    """The limits of a topic's configs for a batch that is stored as it is.

    Attributes:
        most_bytes: its largest size.
        ahead_ms: how far a timestamp can be after the broker's time.
        behind_ms: how far a timestamp can be before the broker's time.
        needs_keys: whether all records must have a key.
    """

    most_bytes: int
    ahead_ms: int
    behind_ms: int
    needs_keys: bool


def limits_of(config: LogConfig) -> Limits | None:
    """Return the limits for ordinary batches; None if no batch is stored as it is."""
    if config.compression_type != _PRODUCER or config.message_timestamp_type == LOG_APPEND_TIME:
        return None
    return Limits(
        min(config.max_message_bytes, config.segment_bytes),
        config.message_timestamp_after_max_ms,
        config.message_timestamp_before_max_ms,
        config.compact,
    )


def decompressed_limit(config: LogConfig) -> int:
    """Return how many bytes the records of a batch can have after decompression."""
    wanted = DECOMPRESSED_FACTOR * config.max_message_bytes
    return min(max(wanted, _MIN_DECOMPRESSED), MAX_DECOMPRESSED)


def check_client_batch(records: Buffer, config: LogConfig, now_ms: int) -> Steps[Checked]:
    """Check a batch that a client sent, and prepare it for the append.

    This is a generator. A step takes about a millisecond, unless it yields work for another thread.
    A batch that is checked in one step yields nothing.

    Args:
        records: one batch. It is changed in place in the last step if a config requires it.

    Raises:
        CorruptBatchError, UnsupportedFormatError, UnsupportedCompressionError,
        InvalidRecordError: see ``batch.check_batch`` and ``walk.walk_records``. Also for more than
            one batch, for what only the broker can write, for records that decompress to more than
            ``decompressed_limit``, and for records without a key in a compacted topic.
        BatchTooLargeError: the batch is larger than ``max.message.bytes`` or than a segment.
        InvalidTimestampError: a timestamp is too far in the past or the future.
    """
    if not records:
        raise CorruptBatchError("no batch was sent")
    if len(records) >= HEADER_SIZE:
        _check_size(peek(records)[1], config)
    view = _writable(records)
    header = check_batch(view)
    if header.size != len(view):
        raise InvalidRecordError(
            f"a partition of a Produce request must hold one record batch, but "
            f"{len(view) - header.size} bytes follow it"
        )
    _check_header(header)
    body: Buffer = yield from load_records(view, header, decompressed_limit(config))
    if header.codec == Codec.GZIP:
        check_one_member(memoryview(view)[HEADER_SIZE:], body)
    if len(body) <= MEDIUM_OUTPUT:
        body = bytes(body)  # a byte of a memoryview takes longer to read than it takes to copy it
    walked = yield from walk_records(body, header.record_count)
    yield from _check_records(body, header, walked, config, now_ms)
    if config.compression_type != _PRODUCER:
        view = yield from _recompress(view, header, body, config)
        _check_size(len(view), config)
    latest = max(header.base_timestamp + walked.latest, NO_TIMESTAMP)
    if latest != header.max_timestamp and config.message_timestamp_type != LOG_APPEND_TIME:
        stamp_max_timestamp(view, 0, latest)
    return Checked(view, [parse_header(view)], config)


def check_quickly(records: Buffer, config: LogConfig, now_ms: int) -> Checked | None:
    """Check an ordinary batch in one call of the extension.

    Ordinary is a batch that is not compressed and not too large, has at most 8192 records, and is
    stored as it is.

    Returns:
        What ``check_client_batch`` returns; None for another batch, also if it is invalid.
    """
    size = len(records)
    if size > config.max_message_bytes or size > config.segment_bytes:
        return None
    crc = crc32c(memoryview(records)[CRC_START:]) if size > _SHORT_BYTES else -1
    found = extension.check_batch(records, crc)
    if found is None or config.compression_type != _PRODUCER:
        return None
    header = BatchHeader._make(found[0])
    earliest, latest = header.base_timestamp + found[1], header.base_timestamp + found[2]
    if config.message_timestamp_type != LOG_APPEND_TIME and (
        latest != header.max_timestamp
        or latest < NO_TIMESTAMP
        or latest - now_ms > config.message_timestamp_after_max_ms
        or now_ms - earliest > config.message_timestamp_before_max_ms
    ):
        return None
    if latest > MAX_LONG or earliest < -MAX_LONG - 1 or (config.compact and found[3]):
        return None
    return Checked(cast("bytearray | memoryview", records), [header], config)


def trusted_batches(records: Buffer) -> Checked:
    """Prepare batches that the broker built itself, without checks of their content.

    A batch can be larger than a segment, because state can't be split. It gets its own segment.

    Raises:
        BatchTooLargeError: a batch is larger than ``BUILT_BYTES``.
        CorruptBatchError: a batch is incomplete.
    """
    view = _writable(records)
    headers = [header for _, header in iter_headers(view)]
    if not headers or sum(header.size for header in headers) != len(view):
        raise CorruptBatchError("the data is not a sequence of complete batches")
    for header in headers:
        if header.size > BUILT_BYTES:
            raise BatchTooLargeError(
                f"an internal record of {header.size} bytes is too large: "
                f"the limit is {BUILT_BYTES}"
            )
    return Checked(view, headers)


def with_append_time(checked: Checked, now_ms: int) -> Checked:
    """Give a client's batch the timestamp type LogAppendTime, with the broker's time."""
    stamp_append_time(checked.data, 0, now_ms)
    return checked._replace(headers=[parse_header(checked.data)])


def _writable(records: Buffer) -> bytearray | memoryview:
    if isinstance(records, bytes) or (isinstance(records, memoryview) and records.readonly):
        return bytearray(records)
    return records


# --- the checks of a client's batch --------------------------------------------------------------


def _check_size(size: int, config: LogConfig) -> None:
    limit = min(config.max_message_bytes, config.segment_bytes)
    if size > limit:
        raise BatchTooLargeError(f"a batch of {size} bytes is too large: the limit is {limit}")


def _check_header(header: BatchHeader) -> None:
    attributes = header.attributes
    if attributes & _NOT_FOR_CLIENTS:
        if attributes & CONTROL_BIT:
            raise InvalidRecordError("clients can't write control batches")
        if attributes & DELETE_HORIZON_BIT:
            raise InvalidRecordError("only compaction can set a delete horizon (KIP-534)")
        if attributes & TIMESTAMP_TYPE_BIT:
            raise InvalidTimestampError("the timestamp type of a client's batch must be CreateTime")
        raise InvalidRecordError(f"unknown attributes {attributes & 0xFFFF:#06x} of a batch")
    if header.base_offset != 0:
        raise InvalidRecordError(
            f"the base offset of a client's batch must be 0, but it is {header.base_offset}"
        )
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise InvalidRecordError(
                f"producer {header.producer_id} sent epoch {header.producer_epoch} and sequence "
                f"{header.base_sequence}: an idempotent producer needs both"
            )
    elif attributes & TRANSACTIONAL_BIT:
        raise InvalidRecordError("a transactional batch needs a producer id")
    count = header.record_count
    if count != header.last_offset_delta + 1 or count <= 0:
        raise InvalidRecordError(
            f"{count} records with last offset delta {header.last_offset_delta}"
        )
    if count > MAX_RECORDS:
        raise InvalidRecordError(
            f"{count} records in a batch are too many: the limit is {MAX_RECORDS}",
            hint="Send smaller batches.",
        )


def _check_records(
    body: Buffer, header: BatchHeader, walked: Walked, config: LogConfig, now_ms: int
) -> Steps[None]:
    """Check what a topic requires of each record; name all that break a rule."""
    earliest = header.base_timestamp + walked.earliest
    latest = header.base_timestamp + walked.latest
    if latest > MAX_LONG or earliest < -MAX_LONG - 1:
        raise InvalidTimestampError(
            f"timestamps from {earliest} to {latest} do not fit into 64 bits"
        )
    ahead_ms: float = config.message_timestamp_after_max_ms
    behind_ms: float = config.message_timestamp_before_max_ms
    if config.message_timestamp_type == LOG_APPEND_TIME:
        ahead_ms = behind_ms = math.inf
    elif behind_ms == MAX_LONG:
        behind_ms = math.inf
    has_wrong_times = latest - now_ms > ahead_ms or now_ms - earliest > behind_ms
    if has_wrong_times or (config.compact and walked.without_key):
        rules = Rules(config.compact, behind_ms, ahead_ms, now_ms)
        yield from find_bad_records(body, header, rules)


# --- recompression -------------------------------------------------------------------------------


def _recompress(
    view: bytearray | memoryview, header: BatchHeader, body: Buffer, config: LogConfig
) -> Steps[bytearray | memoryview]:
    codec = CODEC_NAMES[config.compression_type]
    if header.codec == codec:
        return view
    level = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }.get(config.compression_type)

    def run() -> bytes:
        return compress(codec, body, level)

    stored = run() if len(body) <= QUICK_OUTPUT else (yield from elsewhere(run))
    return rebuild_batch(header, stored, attributes=(header.attributes & ~CODEC_MASK) | codec)


# --- the records that break a rule ---------------------------------------------------------------


class Rules(NamedTuple):
    """The rules that records of a batch can break."""

    require_keys: bool
    behind_ms: float
    """Most milliseconds that a timestamp can be behind the broker's clock."""
    ahead_ms: float
    """Most milliseconds that a timestamp can be ahead of the broker's clock."""
    now_ms: int
    """The broker's time."""


def find_bad_records(body: Buffer, header: BatchHeader, rules: Rules) -> Steps[None]:
    """Refuse the batch if records break a rule, and name the first ``MOST_NAMED`` of them.

    Args:
        body: the records, decompressed. They are well-formed.
    """
    bad: list[BadRecord] = []
    total = wrong_times = 0
    for index, raw in enumerate(scan_records(body, header.record_count)):
        wrong_time = None
        if rules.require_keys and raw.key_length < 0:
            reason = _NO_KEY
        else:
            wrong_time = _wrong_time(raw, header, rules)
            reason = wrong_time or ""
        if reason:
            total += 1
            wrong_times += wrong_time is not None
            if len(bad) < MOST_NAMED:
                bad.append(BadRecord(index, reason))
        if not (index + 1) % _PAUSE_AFTER:
            yield None
    if not bad:
        return
    text = f"record {bad[0].at}: {bad[0].reason}"
    if total > 1:
        text = f"{total} of {header.record_count} records are invalid, the first is {text}"
    if wrong_times:
        raise InvalidTimestampError(
            text,
            hint="Check the producer's clock, raise message.timestamp.before.max.ms or "
            "message.timestamp.after.max.ms on the topic, or use LogAppendTime.",
            bad_records=bad,
        )
    raise InvalidRecordError(
        text,
        hint="Send a key with each record, or drop 'compact' from cleanup.policy.",
        bad_records=bad,
    )


def _wrong_time(raw: RawRecord, header: BatchHeader, rules: Rules) -> str | None:
    timestamp = header.base_timestamp + raw.timestamp_delta
    if timestamp == NO_TIMESTAMP:
        return None
    if timestamp - rules.now_ms > rules.ahead_ms:
        return (
            f"timestamp {timestamp} is more than {rules.ahead_ms} ms ahead of the broker's clock "
            f"({rules.now_ms})"
        )
    if rules.now_ms - timestamp > rules.behind_ms:
        return (
            f"timestamp {timestamp} is more than {rules.behind_ms} ms behind the broker's clock "
            f"({rules.now_ms})"
        )
    return None
