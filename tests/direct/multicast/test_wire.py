"""Packets of MoldUDP64 and envelopes of records, as bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.direct.multicast.envelope import Record, decode_record, encode_record
from tidemill.direct.multicast.errors import PacketError
from tidemill.direct.multicast.wire import (
    Packet,
    Request,
    decode_packet,
    decode_request,
    encode_packet,
    encode_request,
    pack,
    session_of,
)

SESSION = b"session1  "
GOLDEN = [
    # Written down from the specification.
    (
        Packet(SESSION, 5, [b"ab", b""]),
        SESSION + bytes.fromhex("0000000000000005 0002 0002 6162 0000"),
    ),
    (Packet(SESSION, 7), SESSION + bytes.fromhex("0000000000000007 0000")),
    (Packet(SESSION, 7, (), is_end=True), SESSION + bytes.fromhex("0000000000000007 ffff")),
]


@pytest.mark.parametrize(("packet", "data"), GOLDEN)
def test_a_packet_has_the_bytes_of_the_specification(packet: Packet, data: bytes) -> None:
    assert encode_packet(packet) == data
    found = decode_packet(data)
    assert (found.session, found.sequence, list(found.messages), found.is_end) == (
        packet.session,
        packet.sequence,
        list(packet.messages),
        packet.is_end,
    )


def test_a_request_has_the_bytes_of_the_specification() -> None:
    data = SESSION + bytes.fromhex("0000000000000009 fffe")
    assert encode_request(Request(SESSION, 9, 65534)) == data
    assert decode_request(data) == Request(SESSION, 9, 65534)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SESSION + bytes(9),
        SESSION + bytes.fromhex("0000000000000001 0001"),
        SESSION + bytes.fromhex("0000000000000001 0001 0005 61"),
        SESSION + bytes.fromhex("0000000000000001 0001 0001 6161"),
        SESSION + bytes.fromhex("0000000000000001 0000 61"),
        SESSION + bytes.fromhex("0000000000000001 fffe 0000"),
        SESSION + bytes.fromhex("0000000000000001 ffff 0000"),
        SESSION + bytes.fromhex("ffffffffffffffff 0002 0000 0000"),
    ],
)
def test_a_malformed_packet_is_refused(data: bytes) -> None:
    with pytest.raises(PacketError):
        decode_packet(data)


@pytest.mark.parametrize(
    "data",
    [
        SESSION + bytes.fromhex("0000000000000000 0001"),
        SESSION + bytes.fromhex("0000000000000001 0000"),
        SESSION + bytes.fromhex("0000000000000001 ffff"),
        SESSION + bytes.fromhex("0000000000000001 0001 00"),
        b"",
    ],
)
def test_a_malformed_request_is_refused(data: bytes) -> None:
    with pytest.raises(PacketError):
        decode_request(data)


@pytest.mark.parametrize("name", ["", "eleven-char", "ü", "a\n"])
def test_a_session_is_ten_characters_of_ascii(name: str) -> None:
    with pytest.raises(PacketError):
        session_of(name)


@given(st.binary(max_size=80))
def test_bytes_raise_no_error_but_the_typed_one(data: bytes) -> None:
    for decode in (decode_packet, decode_request, decode_record):
        with contextlib.suppress(PacketError):
            decode(data)
        with contextlib.suppress(PacketError):
            decode(SESSION + data)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=60), st.integers(100, 1500))
def test_messages_are_packed_within_the_size_and_in_order(messages: list[bytes], size: int) -> None:
    found: list[bytes] = []
    for data, count in pack(SESSION, 10, messages, size):
        packet = decode_packet(data)
        assert packet.sequence == 10 + len(found)
        assert len(packet.messages) == count
        assert len(data) <= size or count == 1
        found += packet.messages
    assert found == messages


_HEADERS = st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3
).map(tuple)


@given(
    st.builds(
        Record,
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=20),
        st.integers(-(2**63), 2**63 - 1),
        _HEADERS,
    )
)
def test_a_record_comes_out_of_its_envelope_as_it_was(record: Record) -> None:
    assert decode_record(encode_record(record)) == record


def test_an_empty_value_null_and_no_record_are_distinct() -> None:
    records = [
        Record(b"k", b"", 1),
        Record(b"k", None, 1),
        Record(b"k", None, 1, left_out=100_000),
    ]
    assert [decode_record(encode_record(each)) for each in records] == records
    assert decode_record(b"") is None
