"""The compiled decoder: stored batches become Arrow columns, and damage a ValueError."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reading.batches import (
    OLD_FORMAT,
    RANGE_READ,
    SET_READ,
    batch,
    decode,
    offsets,
    rows,
    sparse,
)
from tidemill.log.format.batch import build_batch, crc_of
from tidemill.log.format.markers import Marker, encode_marker
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.native import extension

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_records_of_several_batches(codec: int) -> None:
    stored = batch(b"ab", None, b"", codec=codec) + batch(b"x" * 300, base=3, codec=codec)
    found, position, ended = decode(stored)
    assert (position, ended) == (4, SET_READ)
    assert [row["value"] for row in rows(found)] == [b"ab", None, b"", b"x" * 300]
    assert [row["key"] for row in rows(found)] == [b"a", None, b"", b"x"]
    assert offsets(found) == [0, 1, 2, 3]
    assert [row["timestamp"].timestamp() for row in rows(found)] == [1.0] * 4
    assert [row["timestampType"] for row in rows(found)] == [0] * 4


@pytest.mark.parametrize("millis", [2**63 - 1, 1_795_000_000_000_000_000, -(2**62)])
def test_a_time_that_microseconds_cannot_express_is_the_nearest_one(millis: int) -> None:
    record = [NewRecord(None, b"v", timestamp=millis)]
    (table,) = decode(encode_batch(record, timestamp_ms=millis))[0]
    (micros,) = table.column("timestamp").cast(pa.int64()).to_pylist()
    assert micros == (9223372036854775000 if millis > 0 else -9223372036854775000)


def test_timestamps_of_the_broker() -> None:
    stored = encode_batch(
        [NewRecord(None, b"v", timestamp=5)], timestamp_ms=9000, log_append_time=True
    )
    (row,) = rows(decode(stored)[0])
    assert (row["timestamp"].timestamp(), row["timestampType"]) == (9.0, 1)


@pytest.mark.parametrize(
    ("first", "end", "expected", "position", "why"),
    [
        (0, 10, list(range(10)), 10, RANGE_READ),
        (0, 11, list(range(10)), 10, SET_READ),
        (3, 7, [3, 4, 5, 6], 7, RANGE_READ),
        (4, 5, [4], 5, RANGE_READ),
        (5, 5, [], 5, RANGE_READ),
        (9, 20, [9], 10, SET_READ),
        (12, 20, [], 12, SET_READ),
    ],
)
def test_a_range_inside_of_batches(
    first: int, end: int, expected: list[int], position: int, why: int
) -> None:
    stored = batch(*[b"v"] * 5) + batch(*[b"v"] * 5, base=5)
    found, reached, ended = decode(stored, first, end)
    assert (offsets(found), reached, ended) == (expected, position, why)


def test_an_incomplete_batch_at_the_end_is_left_for_the_next_response() -> None:
    whole, cut = batch(b"a", b"b"), batch(b"c", base=2)
    for size in (0, 1, 16, 17, 30, 61, len(cut) - 1):
        found, position, ended = decode(whole + cut[:size])
        assert (offsets(found), position, ended) == ([0, 1], 2, SET_READ)
        assert extension.scan_batches(whole + cut[:size]) == (2, len(whole))
    assert decode(b"") == ([], 0, SET_READ)
    assert extension.scan_batches(b"") == (-1, 0)


def test_what_compaction_leaves() -> None:
    stored = sparse([2, 5], base=10, last_delta=9) + sparse([], base=20, last_delta=4)
    found, position, ended = decode(stored, 10)
    assert (offsets(found), position, ended) == ([12, 15], 25, SET_READ)
    assert decode(stored, 16)[1:] == (25, SET_READ)
    assert decode(stored, 16, 22)[1:] == (22, RANGE_READ)
    # The batch begins after the end of the range, because everything before it was removed.
    assert decode(sparse([0], base=50, last_delta=0), 10, 20) == ([], 20, RANGE_READ)


@pytest.mark.parametrize("codec", [0, 4])
def test_limits_of_rows_and_bytes(codec: int) -> None:
    stored = batch(*[b"v" * 100] * 50, codec=codec) + batch(*[b"w" * 100] * 50, base=50)
    found, position, _ = decode(stored, max_rows=7)
    assert [len(each) for each in found] == [7] * 14 + [2]
    assert offsets(found) == list(range(100))
    found, position, _ = decode(stored, max_bytes=1000)
    assert offsets(found) == list(range(100))
    assert max(len(each) for each in found) == 9
    found, position, _ = decode(stored, 3, 97, max_bytes=1)  # one record is always decoded
    assert [len(each) for each in found] == [1] * 94
    assert offsets(found) == list(range(3, 97))
    assert position == 97


def test_headers() -> None:
    many = (("a", b"1"), ("b", None), ("a", b""), ("ä", b"\xff"))
    stored = encode_batch(
        [
            NewRecord(None, b"v", headers=many),
            NewRecord(None, b"w"),
            NewRecord(None, b"x", headers=many[:1]),
        ],
        timestamp_ms=0,
    )
    first, last = (
        [{"key": key, "value": value} for key, value in each] for each in (many, many[:1])
    )
    for max_rows in (1, 1000):
        found = rows(decode(stored, max_rows=max_rows, headers=True)[0])
        assert [row["headers"] for row in found] == [first, None, last]
    assert len(rows(decode(stored)[0])) == 3


def test_a_header_key_that_is_not_utf8_is_replaced() -> None:
    stored = encode_batch([NewRecord(None, b"v", headers=(("a\udcff", b"1"),))], timestamp_ms=0)
    ((header,),) = (row["headers"] for row in rows(decode(stored, headers=True)[0]))
    assert header == {"key": "a\ufffd", "value": b"1"}


def marker(base: int, producer: int, *, commit: bool) -> bytearray:
    stored = encode_marker(Marker(producer, 0, commit), timestamp_ms=0)
    stored[:8] = base.to_bytes(8, "big")
    return stored


def written(base: int, producer: int, count: int = 1, **fields: Any) -> bytearray:
    """A batch of a transaction."""
    values = [b"v"] * count
    return batch(*values, base=base, producer_id=producer, transactional=True, **fields)


def test_transactions() -> None:
    stored = (
        written(0, 7)
        + written(1, 8)
        + batch(b"alone", base=2)
        + marker(3, 7, commit=False)
        + written(4, 7)  # the same producer, the next transaction
        + marker(5, 8, commit=True)
        + marker(6, 7, commit=True)
        + written(7, 8, codec=4)
        + marker(8, 8, commit=False)
    )
    assert offsets(decode(stored)[0]) == [0, 1, 2, 4, 7]
    found, position, _ = decode(stored, aborted=[(7, 0), (8, 7)])
    assert (offsets(found), position) == ([1, 2, 4], 9)
    assert offsets(decode(stored, aborted=[])[0]) == [0, 1, 2, 4, 7]
    assert decode(stored, 5, 7, aborted=[])[:2] == ([], 7)
    with pytest.raises((TypeError, ValueError)):
        decode(stored, aborted=[(7, "x")])  # type: ignore[list-item]


def test_a_damaged_transaction_marker_is_reported() -> None:
    stored = written(0, 7) + damage(marker(1, 7, commit=False), 61, b"\0")
    with pytest.raises(ValueError, match=r"batch at offset 1 .*transaction marker"):
        decode(stored, aborted=[(7, 0)])


def test_old_message_formats_are_left_to_librdkafka() -> None:
    old = struct.pack(">qiIbbi", 2, 20, 0, 1, 0, 0) + bytes(20)
    found, position, ended = decode(batch(b"a", b"b") + old)
    assert (offsets(found), position, ended) == ([0, 1], 2, OLD_FORMAT)


def damage(stored: bytearray, at: int, new: bytes) -> bytearray:
    """Return the batch with other bytes, and with their CRC."""
    copy = bytearray(stored)
    copy[at : at + len(new)] = new
    copy[17:21] = crc_of(copy, 0, len(copy)).to_bytes(4, "big")
    return copy


PLAIN = batch(b"abc", b"def")
"""Its first record is at 61: length, attributes, timestamp, offset, key length, key, and so on."""


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        (PLAIN[:70] + b"\0" + PLAIN[71:], "CRC-32C is"),
        (damage(PLAIN, 8, b"\0\0\0\x10"), "can't have length 16"),
        (damage(PLAIN, 8, b"\xff\xff\xff\xff"), "can't have length -1"),
        (damage(PLAIN, 16, b"\x03"), "unknown message format 3"),
        (damage(PLAIN, 16, b"\xff"), "unknown message format -1"),
        (damage(PLAIN, 0, b"\xff"), "contradict"),
        (damage(PLAIN, 23, b"\xff\xff\xff\xff"), "contradict"),
        (damage(PLAIN, 57, b"\xff\xff\xff\xff"), "contradict"),
        (damage(PLAIN, 57, b"\x7f\xff\xff\xff"), "contradict"),
        (damage(damage(PLAIN, 23, b"\x7f\xff\xff\xff"), 57, b"\x7f\xff\xff\xff"), "fewer bytes"),
        (damage(PLAIN, 57, b"\0\0\0\x01"), "bytes after the last record"),
        (damage(PLAIN, 61, b"\x00"), "record 0, byte 0 .*length of the record"),
        (damage(PLAIN, 61, b"\xff\xff\xff\xff\xff\xff"), "length of the record"),
        (damage(PLAIN, 61, b"\x80\x80\x80\x80\x7f"), "length of the record"),
        (damage(PLAIN, 63, b"\xff" * 8), "record 0"),
        (damage(PLAIN, 64, b"\x01"), "offset delta"),
        (damage(PLAIN, 64, b"\x06"), "offset delta"),
        (damage(PLAIN, 65, b"\x03"), "length of the key"),
        (damage(PLAIN, 65, b"\x7e"), "length of the key"),
        (damage(PLAIN, 67, b"\x7e"), "length of the value"),
        (damage(PLAIN, 71, b"\x02"), "number of headers"),
        (damage(PLAIN, 71, b"\x01"), "number of headers"),
        (damage(PLAIN, 22, b"\x05"), "unknown compression codec 5"),
        (damage(PLAIN, 22, b"\x04"), "zstd data is damaged"),
        (damage(PLAIN, 22, b"\x03"), "lz4 data is damaged"),
        (damage(PLAIN, 22, b"\x02"), "snappy data is damaged"),
        (damage(PLAIN, 22, b"\x01"), "gzip data is damaged"),
        (batch(b"a", base=5) + batch(b"b", base=4), "offsets up to 5 came before"),
    ],
)
def test_damage_is_reported_with_its_place(stored: bytearray, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode(stored)


def test_the_crc_is_not_checked_on_request() -> None:
    stored = bytearray(PLAIN)
    stored[-2] ^= 1  # in the last value
    with pytest.raises(ValueError, match="CRC"):
        decode(stored)
    assert len(rows(decode(stored, check_crcs=False)[0])) == 2


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_is_too_large_when_decompressed(codec: int) -> None:
    stored = batch(bytes(500_000), codec=codec)
    assert len(rows(decode(stored, limit=1_000_000)[0])) == 1
    with pytest.raises(ValueError, match="more than the limit of 100000 bytes"):
        decode(stored, limit=100_000)


def test_misuse_is_an_error() -> None:
    decoder: Any = extension.Decoder(False, True, lambda *_: b"")
    with pytest.raises(RuntimeError, match="no records"):
        decoder.read(0, 1, 1, 1)
    with pytest.raises(TypeError):
        decoder.feed(PLAIN, (1, 2))
    with pytest.raises(TypeError):
        decoder.feed("text", None)
    decoder.feed(PLAIN, None)
    with pytest.raises(RuntimeError, match="limit"):
        decoder.read(0, 1, 0, 1)


def test_the_decompressed_records_must_be_bytes() -> None:
    for answer, error in ((None, TypeError), ("x", TypeError), (b"", ValueError)):
        decoder = extension.Decoder(False, True, lambda *_, found=answer: found)
        decoder.feed(batch(b"a", codec=4), None)
        with pytest.raises(error):
            decoder.read(0, 1, 10, 10)


gaps = st.integers(0, 9)
record = st.tuples(
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    st.integers(0, 2**41),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(record, min_size=1, max_size=20), st.sampled_from(range(5)), st.integers(0, 9)
        ),
        max_size=4,
    ),
    st.integers(0, 40),
    st.integers(0, 90),
    st.integers(1, 30),
    st.integers(1, 500),
)
def test_any_records_in_any_range(
    groups: list[Any], first: int, size: int, max_rows: int, max_bytes: int
) -> None:
    stored, base, model = bytearray(), 0, []
    for records, codec, gap in groups:
        base += gap
        new = [NewRecord(k, v, tuple(h), ts) for k, v, h, ts in records]
        stored += encode_batch(new, timestamp_ms=0, base_offset=base, codec=codec)
        model += [(base + i, *each) for i, each in enumerate(records)]
        base += len(records)
    end = first + size
    found, position, _ = decode(
        stored, first, end, headers=True, max_rows=max_rows, max_bytes=max_bytes
    )
    wanted = [each for each in model if first <= each[0] < end]
    assert offsets(found) == [each[0] for each in wanted]
    assert position == max(first, min(end, base))
    for row, (_, key, value, headers, millis) in zip(rows(found), wanted, strict=True):
        assert (row["key"], row["value"]) == (key, value)
        assert row["headers"] == ([{"key": k, "value": v} for k, v in headers] or None)
        assert round(row["timestamp"].timestamp() * 1000) == millis


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(range(5)), st.booleans())
def test_mutated_bytes_give_records_or_an_error(
    rng: random.Random, codec: int, with_crc: bool
) -> None:
    headers = (("k", b"v"), ("ö", None))
    records = [NewRecord(b"k" * i, b"v" * (i * 7 % 90), headers=headers[: i % 3]) for i in range(9)]
    one = encode_batch(records, timestamp_ms=0, codec=codec, producer_id=7, transactional=True)
    stored = bytearray(one)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(stored))
        stored[at] = rng.randrange(256)
    if rng.random() < 0.3:
        del stored[rng.randrange(len(stored)) :]
    if with_crc and len(stored) > 61:
        stored[17:21] = crc_of(stored, 0, len(stored)).to_bytes(4, "big")
    stored += encode_batch(records, timestamp_ms=0, base_offset=9)
    extension.scan_batches(stored)
    try:
        found, position, _ = decode(
            stored, headers=True, check_crcs=with_crc, aborted=[(7, 0)], max_rows=4
        )
    except ValueError:
        return
    assert position <= 2**62
    assert all(offset < 2**62 for offset in offsets(found))


def test_random_bytes_with_a_valid_crc() -> None:
    rng = random.Random(5)
    for _ in range(3000):
        body = rng.randbytes(rng.randrange(80))
        stored = build_batch(
            base_offset=0,
            body=body,
            attributes=rng.choice([0, 0, 0, 1, 2, 3, 4, 5, 8, 16, 32, 48]),
            last_offset_delta=rng.choice([0, 1, 5, 2**31 - 1]),
            base_timestamp=rng.choice([0, 2**63 - 1, -1]),
            max_timestamp=0,
            record_count=rng.choice([0, 1, 2, 5]),
            producer_id=7,
        )
        for aborted in (None, [(7, 0)]):
            try:
                decode(stored, headers=True, aborted=aborted)
            except ValueError as error:
                assert str(error)  # noqa: PT017
