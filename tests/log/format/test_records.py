"""The records inside a batch: bytes of real clients, and malformed records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from tests.golden import tables
from tests.log.format.batches import batch_around
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidRecordError
from tidemill.log.format.batch import check_batch, parse_header
from tidemill.log.format.records import (
    VARLONG,
    NewRecord,
    Record,
    decode_records,
    encode_batch,
    encode_record,
    read_varint,
    scan_records,
    write_varint,
)

GOLDEN = tables.batches()
FROM_PRODUCERS = [
    each
    for each in GOLDEN
    # Compressors differ in their bytes, and only a broker stamps LogAppendTime.
    if not each.meaning["codec"] and not each.meaning["log_append_time"]
]

new_records = st.lists(
    st.builds(
        NewRecord,
        st.none() | st.binary(max_size=70),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3).map(
            tuple
        ),
        st.none() | st.integers(0, 2**45),
    ),
    min_size=1,
    max_size=20,
)


def _plain(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": None if record.key is None else record.key.hex(),
        "value": None if record.value is None else record.value.hex(),
        "headers": [
            [name.encode().hex(), None if value is None else value.hex()]
            for name, value in record.headers
        ],
    }


# --- what real clients write ---------------------------------------------------------------------


def test_the_records_derived_by_hand() -> None:
    assert decode_records(tables.BY_HAND) == [
        Record(100, 1000, b"a", b"b"),
        Record(101, 1002, None, None),
        Record(102, 999, b"", b"", (("h", None),)),
    ]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: g.name)
def test_records_of_a_real_clients_batch(golden: tables.Golden) -> None:
    assert [_plain(each) for each in decode_records(golden.data)] == golden.meaning["records"]


@pytest.mark.parametrize("golden", FROM_PRODUCERS, ids=lambda g: g.name)
def test_uncompressed_batches_are_encoded_to_the_same_bytes_as_real_clients(
    golden: tables.Golden,
) -> None:
    header = parse_header(golden.data)
    ours = encode_batch(
        [
            NewRecord(each.key, each.value, each.headers, each.timestamp)
            for each in decode_records(golden.data)
        ],
        timestamp_ms=0,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
    )
    assert ours == golden.data


@pytest.mark.parametrize("codec", [0, 1])
def test_kafka_python_reads_what_is_encoded_here(codec: int) -> None:
    batch = encode_batch(
        [NewRecord(b"k", b"v" * 500, (("h", b"x"),), 7), NewRecord(None, None)],
        timestamp_ms=9,
        base_offset=3,
        codec=codec,
    )
    theirs = DefaultRecordBatch(bytes(batch))
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in theirs] == [
        (3, 7, b"k", b"v" * 500, [("h", b"x")]),
        (4, 9, None, None, []),
    ]


# --- round trips ---------------------------------------------------------------------------------


@given(new_records, st.integers(0, 4), st.integers(0, 2**60), st.integers(0, 2**45))
def test_encoded_records_are_decoded(
    records: list[NewRecord], codec: int, base_offset: int, now: int
) -> None:
    batch = encode_batch(records, timestamp_ms=now, base_offset=base_offset, codec=codec)
    header = check_batch(batch)
    times = [now if each.timestamp is None else each.timestamp for each in records]
    assert decode_records(batch) == [
        Record(base_offset + index, time, each.key, each.value, each.headers)
        for index, (each, time) in enumerate(zip(records, times, strict=True))
    ]
    assert (header.base_timestamp, header.max_timestamp) == (times[0], max(times))


def test_log_append_time_is_the_time_of_all_records() -> None:
    batch = encode_batch(
        [NewRecord(b"a", b"1", timestamp=5), NewRecord(b"b", b"2", timestamp=9)],
        timestamp_ms=70,
        log_append_time=True,
    )
    assert [each.timestamp for each in decode_records(batch)] == [70, 70]


def test_header_names_that_are_not_utf8_keep_their_bytes() -> None:
    out = bytearray()
    encode_record(out, 0, 0, None, None, (("\udcff\x00x", b"v"),))
    assert b"\xff\x00x" in out
    record = decode_records(batch_around(bytes(out), 1))[0]
    again = bytearray()
    encode_record(again, 0, 0, record.key, record.value, record.headers)
    assert again == out


def test_a_batch_at_a_position_inside_a_larger_buffer() -> None:
    batch = encode_batch([NewRecord(b"k", b"v")], timestamp_ms=1, codec=1)
    buffer = memoryview(bytes(13) + bytes(batch) + bytes(batch))
    assert decode_records(buffer, 13) == [Record(0, 1, b"k", b"v")]


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([], timestamp_ms=0)


@pytest.mark.parametrize("attributes", [0, 1, 4])
def test_a_batch_that_compaction_emptied_has_no_records(attributes: int) -> None:
    batch = batch_around(b"", 0, attributes=attributes, last_delta=6)
    assert decode_records(batch) == []


# --- varints -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (300, "d804"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_zigzag_varints(value: int, data: str) -> None:
    out = bytearray()
    write_varint(out, value)
    assert out.hex() == data
    assert read_varint(b"\xff" + out, 1) == (value, 1 + len(out))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlongs_are_decoded(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    assert len(out) <= 10
    assert read_varint(out, 0, VARLONG) == (value, len(out))


@pytest.mark.parametrize("data", ["ffffffff1f", "8080808080", "808080808000"])
def test_varints_beyond_32_bits_are_refused(data: str) -> None:
    with pytest.raises(InvalidRecordError):
        read_varint(bytes.fromhex(data), 0)


def test_varlongs_beyond_64_bits_are_refused() -> None:
    with pytest.raises(InvalidRecordError):
        read_varint(b"\xff" * 9 + b"\x7f", 0, VARLONG)


# --- malformed records ---------------------------------------------------------------------------

GOOD = bytes.fromhex("10 00 00 00 0261 0262 00")


MALFORMED = [
    pytest.param("", id="nothing"),
    pytest.param("10 00 00 00 0261 0262", id="cut"),
    pytest.param("0e 00 00 00 0261 0262 00", id="length too small"),
    pytest.param("12 00 00 00 0261 0262 00", id="length too large"),
    pytest.param("01 00 00 00 0261 0262 00", id="negative length"),
    pytest.param("10 00 00 00 0361 0262 00", id="key length -2"),
    pytest.param("10 00 00 00 ff7f61 62 00", id="key beyond the end"),
    pytest.param("10 00 00 00 0261 0362 00", id="value length -2"),
    pytest.param("10 00 00 00 0261 6062 00", id="value beyond the end"),
    pytest.param("10 00 00 00 0261 0262 01", id="-1 headers"),
    pytest.param("10 00 00 00 0261 0262 02", id="a header that is not there"),
    pytest.param("14 00 00 00 0261 0262 02 0168", id="header name null"),
    pytest.param("14 00 00 00 0261 0262 02 2068", id="header name beyond the end"),
    pytest.param("16 00 00 00 0261 0262 02 0268 03", id="header value length -2"),
    pytest.param("16 00 00 00 0261 0262 02 0268 40", id="header value beyond the end"),
    pytest.param("12 00 00 00 0261 0262 00 00", id="bytes behind the headers"),
    pytest.param("10 00 00 00 0261 0262 00 00", id="bytes behind the records"),
    pytest.param("14 00 00 00 0261 0262 feffffff0f", id="two thousand million headers"),
]


@pytest.mark.parametrize("body", MALFORMED)
def test_malformed_records_are_refused(body: str) -> None:
    assert decode_records(batch_around(GOOD, 1)) == [Record(0, 0, b"a", b"b")]
    with pytest.raises(InvalidRecordError):
        decode_records(batch_around(bytes.fromhex(body), 1))


@pytest.mark.parametrize("count", [0, 2, 3, 2**31 - 1])
def test_a_wrong_record_count_is_refused(count: int) -> None:
    with pytest.raises(InvalidRecordError):
        decode_records(batch_around(GOOD, count))


@given(st.binary(max_size=120), st.integers(0, 4), st.integers(0, 5))
def test_arbitrary_bodies_decode_or_give_a_typed_error(body: bytes, codec: int, count: int) -> None:
    batch = batch_around(body, count, attributes=codec)
    try:
        assert len(decode_records(batch)) == count
    except TidemillError:
        return


def test_records_may_not_decompress_beyond_the_limit() -> None:
    batch = encode_batch([NewRecord(b"k", bytes(100_000))], timestamp_ms=0, codec=4)
    assert len(batch) < 1000
    with pytest.raises(InvalidRecordError, match="limit"):
        decode_records(batch, limit=50_000)


def test_scanning_returns_the_positions_of_the_parts() -> None:
    body = bytearray()
    encode_record(body, 0, 5, b"key", b"value", (("h", b""),))
    encode_record(body, 1, 0, None, None)
    first, second = scan_records(bytes(body), 2)
    assert body[first.key_start : first.key_start + first.key_length] == b"key"
    assert body[first.value_start : first.value_start + first.value_length] == b"value"
    assert (first.start, first.end, second.end) == (0, second.start, len(body))
    assert (second.key_length, second.value_length) == (-1, -1)
    assert (first.timestamp_delta, second.offset_delta) == (5, 1)
