"""Batches of clients: the ones that a broker must refuse, and why."""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise

import cramjam
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.log.format.batches import batch_around
from tests.log.format.test_records import GOOD, MALFORMED, new_records
from tests.support.effort import examples
from tidemill.errors import TidemillError
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import (
    BadRecordsError,
    BatchTooLargeError,
    CorruptBatchError,
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    UnsupportedCompressionError,
    UnsupportedFormatError,
)
from tidemill.log.format.batch import HEADER_SIZE, parse_header
from tidemill.log.format.compression import Codec, compress
from tidemill.log.format.crc import crc32c
from tidemill.log.format.records import NewRecord, decode_records, encode_batch, encode_record
from tidemill.log.format.validate import (
    DECOMPRESSED_FACTOR,
    MAX_DECOMPRESSED,
    MAX_RECORDS,
    MOST_NAMED,
    Checked,
    check_client_batch,
    check_quickly,
    decompressed_limit,
)
from tidemill.log.format.walk import PAUSE_AFTER
from tidemill.log.steps import run_steps

NOW = 1_700_000_000_000
THREE = [NewRecord(b"a", b"1"), NewRecord(None, b"2"), NewRecord(b"c", None, (("h", b"x"),))]


def check(batch: bytes | bytearray, **configs: str) -> Checked:
    """Check a batch, and compare with the short check, which takes some of the valid ones."""
    config = parse_config({name.replace("_", "."): value for name, value in configs.items()})
    quick = check_quickly(bytearray(batch), config, NOW)
    try:
        checked = run_steps(check_client_batch(bytearray(batch), config, NOW))
    except TidemillError:
        assert quick is None
        raise
    assert quick in (None, checked)
    return checked


def batch(body: bytes | bytearray, count: int, codec: int = 0) -> bytearray:
    return batch_around(body, count, attributes=codec, at=NOW)


def changed(
    position: int, layout: str, *values: int, records: Sequence[NewRecord] = THREE
) -> bytearray:
    """Return a valid batch with other values in its header, and the CRC for them."""
    out = encode_batch(records, timestamp_ms=NOW)
    struct.pack_into(layout, out, position, *values)
    if position >= 21:
        renew_crc(out)
    return out


def renew_crc(sent: bytearray) -> None:
    struct.pack_into(">I", sent, 17, crc32c(memoryview(sent)[21:]))


def with_deltas(*deltas: int) -> bytes:
    body = bytearray()
    for delta in deltas:
        encode_record(body, delta, 0, b"k", b"v")
    return bytes(body)


# --- the short check ---------------------------------------------------------------------------

ORDINARY = [
    encode_batch(THREE, timestamp_ms=NOW),
    encode_batch([NewRecord(None, bytes(100_000))], timestamp_ms=NOW),
    encode_batch([NewRecord(b"k", b"v", (), NOW + each) for each in (5, -7, 3)], timestamp_ms=NOW),
    encode_batch(THREE, timestamp_ms=NOW, producer_id=7, producer_epoch=0, base_sequence=9),
]


@pytest.mark.parametrize("sent", ORDINARY)
def test_ordinary_batches_take_the_short_check(sent: bytearray) -> None:
    found = check_quickly(memoryview(bytearray(sent)), parse_config({}), NOW)
    assert found is not None
    assert found.headers == check(sent).headers


@settings(max_examples=examples(150))
@given(data=st.data())
def test_the_short_check_accepts_nothing_that_the_long_one_refuses(data: st.DataObject) -> None:
    sent = bytearray(data.draw(st.sampled_from([ORDINARY[0], ORDINARY[2], ORDINARY[3]])))
    for _ in range(data.draw(st.integers(1, 3))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    renew_crc(sent)
    compact = data.draw(st.sampled_from(["compact", "delete"]))
    with suppress(TidemillError):
        check(sent, cleanup_policy=compact)


# --- headers -------------------------------------------------------------------------------------

COUNT, LAST_DELTA, ATTRIBUTES, MAX_TIMESTAMP = 57, 23, 21, 35
HEADERS: list[tuple[str, bytes | bytearray, type[TidemillError]]] = [
    ("nothing", b"", CorruptBatchError),
    ("a part of a header", encode_batch(THREE, timestamp_ms=NOW)[:60], CorruptBatchError),
    ("a cut batch", encode_batch(THREE, timestamp_ms=NOW)[:-1], CorruptBatchError),
    ("length 0", changed(8, ">i", 0), CorruptBatchError),
    ("length -1", changed(8, ">i", -1), CorruptBatchError),
    ("length 48", changed(8, ">i", 48), CorruptBatchError),
    ("one byte short", changed(8, ">i", len(changed(8, ">i", 0)) - 13), CorruptBatchError),
    ("length 2**31 - 1", changed(8, ">i", 2**31 - 1), BatchTooLargeError),
    ("magic 1", changed(16, ">b", 1), UnsupportedFormatError),
    ("magic 3", changed(16, ">b", 3), CorruptBatchError),
    ("CRC", changed(17, ">I", 1), CorruptBatchError),
    ("base offset 1", changed(0, ">q", 1), InvalidRecordError),
    ("base offset -1", changed(0, ">q", -1), InvalidRecordError),
    ("base offset 2**63 - 1", changed(0, ">q", 2**63 - 1), InvalidRecordError),
    ("codec 5", changed(ATTRIBUTES, ">h", 5), UnsupportedCompressionError),
    ("codec 7", changed(ATTRIBUTES, ">h", 7), UnsupportedCompressionError),
    ("LogAppendTime", changed(ATTRIBUTES, ">h", 0x08), InvalidTimestampError),
    ("transaction without producer", changed(ATTRIBUTES, ">h", 0x10), InvalidRecordError),
    ("control batch", changed(ATTRIBUTES, ">h", 0x20), InvalidRecordError),
    ("delete horizon", changed(ATTRIBUTES, ">h", 0x40), InvalidRecordError),
    ("unknown attribute", changed(ATTRIBUTES, ">h", 0x80), InvalidRecordError),
    ("highest attribute", changed(ATTRIBUTES, ">h", -0x8000), InvalidRecordError),
    ("no records", changed(COUNT, ">i", 0), InvalidRecordError),
    ("count -1", changed(COUNT, ">i", -1), InvalidRecordError),
    ("count 2", changed(COUNT, ">i", 2), InvalidRecordError),
    ("count 4", changed(COUNT, ">i", 4), InvalidRecordError),
    ("count 2**31 - 1", changed(COUNT, ">i", 2**31 - 1), InvalidRecordError),
    ("last offset delta -1", changed(LAST_DELTA, ">i", -1), InvalidRecordError),
    ("last offset delta 1", changed(LAST_DELTA, ">i", 1), InvalidRecordError),
    ("last offset delta 3", changed(LAST_DELTA, ">i", 3), InvalidRecordError),
    ("2**31 - 1 records", batch(GOOD, 2**31 - 1), InvalidRecordError),
    ("one record more than is there", batch(GOOD, 2), InvalidRecordError),
    ("too many records", batch(bytes(100), MAX_RECORDS + 1), InvalidRecordError),
    ("producer without epoch", changed(43, ">qhi", 7, -1, 0), InvalidRecordError),
    ("producer without sequence", changed(43, ">qhi", 7, 0, -1), InvalidRecordError),
    ("two batches", encode_batch(THREE, timestamp_ms=NOW) * 2, InvalidRecordError),
    ("bytes behind", encode_batch(THREE, timestamp_ms=NOW) + b"x", InvalidRecordError),
]


@pytest.mark.parametrize(
    ("data", "error"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS]
)
def test_headers_that_are_refused(data: bytes, error: type[TidemillError]) -> None:
    with pytest.raises(error) as raised:
        check(data)
    assert type(raised.value) is error


def test_the_header_of_a_producer_is_accepted() -> None:
    for fields in ((7, 0, 0), (7, 3, 2**31 - 1), (-1, -1, -1), (-5, 3, 4)):
        assert check(changed(43, ">qhi", *fields)).headers[0].producer_id == fields[0]


# --- records -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("body", MALFORMED)
def test_malformed_records_are_refused(body: str, codec: int) -> None:
    assert check(batch(compress(codec, GOOD), 1, codec)).headers[0].record_count == 1
    with pytest.raises(InvalidRecordError):
        check(batch(compress(codec, bytes.fromhex(body)), 1, codec))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("deltas", [(0, 0, 0), (0, 2), (1, 2), (0, 2**31 - 1), (1, 0), (0, -1)])
def test_offsets_that_do_not_count_up_are_refused(deltas: tuple[int, ...], codec: int) -> None:
    body = compress(codec, with_deltas(*deltas))
    with pytest.raises(InvalidRecordError, match="offset delta"):
        check(batch(body, len(deltas), codec))


@pytest.mark.parametrize("codec", list(Codec)[1:])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"\0" * 50,
    ],
    ids=["cut", "half", "empty", "zeros"],
)
def test_damaged_compression_is_refused(codec: int, damage: Callable[[bytes], bytes]) -> None:
    body = compress(codec, with_deltas(*range(200)))
    assert check(batch(body, 200, codec)).headers[0].last_offset_delta == 199
    with pytest.raises(InvalidRecordError):
        check(batch(damage(body), 200, codec))


@pytest.mark.parametrize("cuts", [(3,), (0,), (-1,), (0, 3, 3)])
def test_gzip_data_with_several_members_is_refused(cuts: tuple[int, ...]) -> None:
    """librdkafka reads the first member only, and then asks for the same batch without an end."""
    body = with_deltas(*range(20))
    ends = [at % (len(body) + 1) for at in cuts]
    members = [body[start:end] for start, end in pairwise([0, *ends, len(body)])]
    with pytest.raises(InvalidRecordError, match="member"):
        check(batch(b"".join(map(gzip.compress, members)), 20, Codec.GZIP))


@pytest.mark.parametrize("flags", [0x02, 0x20, 0x80])
def test_gzip_data_with_a_header_that_zlib_refuses_is_refused(flags: int) -> None:
    packed = bytearray(gzip.compress(with_deltas(0, 1)))
    packed[3] = flags
    with pytest.raises(InvalidRecordError):
        check(batch(packed[:10] + b"\0\0" * (flags == 0x02) + packed[10:], 2, Codec.GZIP))


def test_gzip_data_can_have_a_name_in_its_header() -> None:
    packed = io.BytesIO()
    with gzip.GzipFile("a" * 1000, "wb", fileobj=packed) as file:
        file.write(with_deltas(0, 1))
    assert check(batch(packed.getvalue(), 2, Codec.GZIP)).headers[0].record_count == 2


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_bytes_behind_the_compressed_records_are_refused(codec: int) -> None:
    body = compress(codec, with_deltas(0, 1))
    with pytest.raises(InvalidRecordError):
        check(batch(body + b"more", 2, codec))
    with pytest.raises(InvalidRecordError):
        check(batch(body + compress(codec, b"more"), 2, codec))


def test_lz4_that_java_can_not_read_is_refused() -> None:
    linked = cramjam.lz4.Compressor(level=3, content_checksum=True, block_linked=True)
    linked.compress(with_deltas(0, 1))
    with pytest.raises(InvalidRecordError, match="blocks depend on each other"):
        check(batch(bytes(linked.finish()), 2, Codec.LZ4))
    first, second = compress(Codec.LZ4, with_deltas(0)), compress(Codec.LZ4, with_deltas(0, 1)[10:])
    with pytest.raises(InvalidRecordError, match="lz4 data is damaged"):
        check(batch(first + second, 2, Codec.LZ4))


# --- sizes come first ----------------------------------------------------------------------------


def test_a_batch_above_the_limit_is_refused_before_its_crc_is_computed() -> None:
    with pytest.raises(BatchTooLargeError):
        check(changed(17, ">I", 1), max_message_bytes="80")


def test_the_limit_of_decompressed_records_is_a_multiple_of_the_largest_batch() -> None:
    def limit(size: int) -> int:
        return decompressed_limit(parse_config({"max.message.bytes": str(size)}))

    assert limit(1_048_588) == DECOMPRESSED_FACTOR * 1_048_588
    assert limit(100) == 1 << 20
    assert limit(1 << 30) == MAX_DECOMPRESSED


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])  # snappy expands 22-fold
def test_a_decompression_bomb_is_refused(codec: int) -> None:
    body = bytearray()
    encode_record(body, 0, 0, b"k", bytes(2 << 20))
    bomb = batch(compress(codec, body), 1, codec)
    assert check(bomb).headers[0].record_count == 1
    with pytest.raises(DecompressedTooLargeError, match="more than the limit of 1048576 bytes"):
        check(bomb, max_message_bytes="16000")


def test_large_compressed_records_are_decompressed_on_a_thread_and_others_in_the_call() -> None:
    def works(size: int) -> list[int]:
        sent = encode_batch([NewRecord(b"k", bytes(size))], timestamp_ms=NOW, codec=Codec.ZSTD)
        steps = check_client_batch(sent, parse_config({}), NOW)
        return [work.holds for work in steps if work is not None]

    assert works(1000) == []
    assert works(1_000_000) == [8 << 20]
    assert works(9_000_000) == [8 << 20, decompressed_limit(parse_config({}))]


def test_a_million_tiny_records_are_checked_in_steps() -> None:
    body = bytearray()
    for index in range(100_000):
        encode_record(body, index, 0, b"%d" % (index % 7), b"" if index % 3 else b"x")
    sent = batch(compress(Codec.ZSTD, body), 100_000, Codec.ZSTD)
    steps = check_client_batch(sent, parse_config({}), NOW)
    assert sum(1 for _ in steps) >= 100_000 // PAUSE_AFTER


# --- configs of the topic ------------------------------------------------------------------------


def test_every_record_without_a_key_is_named_in_a_compacted_topic() -> None:
    records = [NewRecord(None if index % 10 == 3 else b"k", b"v") for index in range(100)]
    for codec in Codec:
        sent = encode_batch(records, timestamp_ms=NOW, codec=codec)
        assert check(sent).headers[0].record_count == 100
        with pytest.raises(InvalidRecordError, match="10 of 100 records are invalid") as raised:
            check(sent, cleanup_policy="compact")
        assert [bad.at for bad in raised.value.bad_records] == list(range(3, 100, 10))
        assert {bad.reason for bad in raised.value.bad_records} == {
            "it has no key: a compacted topic needs one"
        }


def test_every_record_with_a_wrong_time_is_named() -> None:
    times = [NOW, NOW + 5000, NOW - 9000, -1, NOW + 900, NOW - 900]
    records = [NewRecord(b"k" if at != NOW else None, b"v", (), at) for at in times]
    sent = encode_batch(records, timestamp_ms=NOW)
    limits = {"message_timestamp_after_max_ms": "1000", "message_timestamp_before_max_ms": "1000"}
    with pytest.raises(InvalidTimestampError) as raised:
        check(sent, **limits)
    first, second = raised.value.bad_records
    assert (first.at, "ms ahead" in first.reason) == (1, True)
    assert (second.at, "ms behind" in second.reason) == (2, True)
    # As in Apache Kafka, both kinds are named and the timestamp decides about the code.
    with pytest.raises(InvalidTimestampError) as both:
        check(sent, cleanup_policy="compact", **limits)
    assert [bad.at for bad in both.value.bad_records] == [0, 1, 2]
    stamped = check(sent, message_timestamp_type="LogAppendTime", **limits)
    assert stamped.headers[0].record_count == 6


def test_the_header_can_not_hide_a_timestamp() -> None:
    records = [NewRecord(b"k", b"v", (), at) for at in (NOW, NOW + 10_000_000)]
    with pytest.raises(InvalidTimestampError, match="record 1"):
        check(changed(MAX_TIMESTAMP, ">q", NOW, records=records))


@pytest.mark.parametrize("claimed", [-1, 0, NOW + 50, 2**62, -(2**63)])
def test_the_largest_timestamp_is_stored_as_it_is_in_the_records(claimed: int) -> None:
    records = [NewRecord(b"k", b"v", (), at) for at in (NOW, NOW + 7, NOW + 3)]
    (header,) = check(changed(MAX_TIMESTAMP, ">q", claimed, records=records)).headers
    assert header.max_timestamp == NOW + 7


def test_timestamps_beyond_64_bits_are_refused() -> None:
    body = bytearray()
    encode_record(body, 0, 2**63 - 1, b"k", b"v")
    with pytest.raises(InvalidTimestampError):
        check(batch(body, 1))


def test_the_records_that_are_named_are_limited() -> None:
    sent = encode_batch([NewRecord(None, b"")] * (MOST_NAMED + 5), timestamp_ms=NOW)
    with pytest.raises(BadRecordsError, match=f"{MOST_NAMED + 5} of {MOST_NAMED + 5}") as raised:
        check(sent, cleanup_policy="compact")
    assert len(raised.value.bad_records) == MOST_NAMED


def test_a_record_that_is_cut_in_a_header_with_others_behind_it_is_refused() -> None:
    record = NewRecord(None, None, (("\x80", bytes(9)),), None)
    sent = encode_batch([record, record], timestamp_ms=NOW)
    with pytest.raises(InvalidRecordError, match="exceeds"):
        check(batch(sent[HEADER_SIZE : HEADER_SIZE + 16], 2))


# --- what is accepted is readable ----------------------------------------------------------------


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.filter_too_much])
@given(new_records, st.sampled_from(Codec), st.data())
def test_changed_batches_are_refused_or_readable(
    records: list[NewRecord], codec: int, data: st.DataObject
) -> None:
    sent = encode_batch(records, timestamp_ms=NOW, codec=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["byte", "header", "cut"]))
        if kind == "cut" and len(sent) > HEADER_SIZE:
            del sent[data.draw(st.integers(HEADER_SIZE, len(sent) - 1)) :]
        else:
            first, last = (0, HEADER_SIZE - 1) if kind == "header" else (0, len(sent) - 1)
            sent[data.draw(st.integers(first, last))] = data.draw(st.integers(0, 255))
    struct.pack_into(">i", sent, 8, len(sent) - 12)
    renew_crc(sent)
    try:
        checked = check(sent, message_timestamp_after_max_ms=str(2**62))
    except TidemillError:
        return
    header = parse_header(checked.data)
    found = decode_records(checked.data)
    assert [record.offset for record in found] == list(range(header.last_offset_delta + 1))
    assert header.max_timestamp == max(-1, *(record.timestamp for record in found))
