"""Headers of record batches: decode, check and stamp them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden import tables
from tests.log.format.batches import batch_around
from tidemill.errors import TidemillError
from tidemill.log.errors import (
    CorruptBatchError,
    InvalidRecordError,
    UnsupportedCompressionError,
    UnsupportedFormatError,
)
from tidemill.log.format import batch as b
from tidemill.log.format.records import NewRecord, encode_batch

GOLDEN = tables.batches()
ONE = bytes(encode_batch([NewRecord(b"k", b"v")] * 3, timestamp_ms=1000, base_offset=5))


def test_the_batch_derived_by_hand_means_what_the_format_says() -> None:
    header = b.check_batch(tables.BY_HAND)
    assert header == b.BatchHeader(100, 75, 2, 2, 0x89D52D04, 0, 2, 1000, 1002, 7, 1, 10, 3)
    assert (header.size, header.last_offset, header.last_sequence) == (87, 102, 12)
    assert b.peek(tables.BY_HAND) == (100, 87)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: g.name)
def test_header_of_a_real_clients_batch(golden: tables.Golden) -> None:
    header = b.check_batch(golden.data)
    got = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "leader_epoch": header.leader_epoch,
        "codec": header.codec,
        "log_append_time": header.is_log_append_time,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.base_timestamp if header.has_delete_horizon else None,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "crc": header.crc,
        "count": header.record_count,
    }
    assert {name: got[name] for name in golden.meaning if name != "records"} == {
        name: value for name, value in golden.meaning.items() if name != "records"
    }
    assert header.size == len(golden.data)


def test_built_headers_are_decoded() -> None:
    batch = b.build_batch(
        base_offset=9,
        body=b"body",
        attributes=b.TRANSACTIONAL_BIT | b.CONTROL_BIT | b.DELETE_HORIZON_BIT | 4,
        last_offset_delta=6,
        base_timestamp=-1,
        max_timestamp=77,
        record_count=2,
        leader_epoch=3,
        producer_id=8,
        producer_epoch=1,
        base_sequence=0,
    )
    header = b.check_batch(batch)
    assert header.is_transactional
    assert header.is_control
    assert header.has_delete_horizon
    assert not header.is_log_append_time
    assert (header.codec, header.size, header.last_offset) == (4, 65, 15)


def test_stamping_append_time_sets_type_and_time_and_renews_the_crc() -> None:
    buffer = bytearray(b"xx") + ONE + bytearray(b"yy")
    b.stamp_append_time(buffer, 2, 123_456)
    assert bytes(buffer[:2] + buffer[-2:]) == b"xxyy"
    header = b.check_batch(buffer, 2)
    assert header.is_log_append_time
    assert (header.max_timestamp, header.base_timestamp) == (123_456, 1000)


def test_last_sequence_wraps_at_31_bits() -> None:
    batch = encode_batch(
        [NewRecord(b"", b"")] * 4,
        timestamp_ms=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=2**31 - 2,
    )
    assert b.parse_header(batch).last_sequence == 1


@pytest.mark.parametrize("size", [0, 1, 16, 60, 61, len(ONE) - 1])
def test_a_torn_batch_is_refused(size: int) -> None:
    with pytest.raises(CorruptBatchError):
        b.check_batch(ONE[:size])


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [34, 61, 200])
def test_old_message_formats_are_distinguished_from_damage(magic: int, size: int) -> None:
    data = bytearray(size)
    data[16] = magic
    with pytest.raises(UnsupportedFormatError):
        b.check_batch(data)


@given(st.integers(min_value=b.CRC_START * 8, max_value=len(ONE) * 8 - 1))
def test_every_flipped_bit_behind_the_crc_is_found(bit: int) -> None:
    data = bytearray(ONE)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptBatchError):
        b.check_batch(data)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_a_typed_error(data: bytes) -> None:
    with pytest.raises(TidemillError):
        b.check_batch(data)


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1, -(2**31)])
def test_absurd_lengths_are_refused(length: int) -> None:
    data = bytearray(ONE)
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(CorruptBatchError):
        b.check_batch(data)


@pytest.mark.parametrize(("delta", "count"), [(-1, 0), (1, 3), (0, -1)])
def test_counts_that_contradict_each_other_are_refused(delta: int, count: int) -> None:
    data = batch_around(b"", count, last_delta=delta)
    with pytest.raises(InvalidRecordError):
        b.check_batch(data)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec: int) -> None:
    data = batch_around(b"", 1, attributes=codec)
    with pytest.raises(UnsupportedCompressionError):
        b.check_batch(data)


def test_a_partial_last_batch_is_left_out_of_the_walk() -> None:
    buffer = ONE + ONE + ONE[:-1]
    assert [position for position, _ in b.iter_headers(buffer)] == [0, len(ONE)]
    assert [position for position, _ in b.iter_headers(buffer, len(ONE))] == [len(ONE)]
    assert list(b.iter_headers(b"\0" * 100)) == []
