"""Field tables: the types of RabbitMQ, pamqp's opinion, and bytes that are not a table."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import decode, encode

from tests.support.effort import examples
from tidemill.protocols.amqp.codec.tables import (
    MOST_NESTED,
    MOST_VALUES,
    Timestamp,
    decode_table,
    encode_table,
    entry_spans,
    long_string,
)
from tidemill.protocols.amqp.errors import MalformedError


def table(entries: bytes) -> bytes:
    return struct.pack(">I", len(entries)) + entries


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        (b"t\x01", True),
        (b"t\x00", False),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"U\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"I\xff\xff\xff\xff", -1),
        (b"i\xff\xff\xff\xff", 2**32 - 1),
        (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, -1),
        (b"f" + struct.pack(">f", 1.5), 1.5),
        (b"d" + struct.pack(">d", 1.1), 1.1),
        (b"D\x02\x00\x00\x00\x7b", Decimal("1.23")),
        (b"T" + struct.pack(">Q", 1_700_000_000), Timestamp(1_700_000_000)),
        (b"S\x00\x00\x00\x02\xc3\xa9", "é"),
        (b"S\x00\x00\x00\x01\xff", b"\xff"),
        (b"x\x00\x00\x00\x02ab", b"ab"),
        (b"V", None),
        (b"A\x00\x00\x00\x03t\x01V", [True, None]),
        (b"F\x00\x00\x00\x04\x01at\x01", {"a": True}),
    ],
)
def test_each_type(entry: bytes, value: object) -> None:
    data = table(b"\x01k" + entry)
    decoded, at = decode_table(data, 0, len(data))
    assert decoded == {"k": value}
    assert type(decoded["k"]) is type(value)
    assert at == len(data)
    assert entry_spans(data, 4, len(data)) == [(b"k", 4, len(data))]


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=20)
    | st.floats(allow_nan=False),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4)
    ),
    max_leaves=12,
)


@given(entries=st.dictionaries(st.text(max_size=20), VALUES, max_size=6))
@settings(max_examples=examples(200))
def test_what_is_encoded_is_decoded_here_and_by_pamqp(entries: dict[str, Any]) -> None:
    data = encode_table(entries)
    assert decode_table(data, 0, len(data)) == (entries, len(data))
    assert decode.field_table(data) == (len(data), entries)


@given(
    entries=st.dictionaries(
        st.text(min_size=1, max_size=20).filter(lambda name: len(name.encode()) < 128),
        st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9) | st.booleans(),
        max_size=6,
    )
)
@settings(max_examples=examples(100))
def test_what_pamqp_encodes_is_decoded(entries: dict[str, Any]) -> None:
    data = encode.field_table(entries)
    assert decode_table(data, 0, len(data)) == (entries, len(data))


def nested(depth: int) -> bytes:
    value = b"V"
    for _ in range(depth):
        value = b"A" + long_string(value)
    return table(b"\x01k" + value)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00",
        b"\x00\x00\x00\x01",
        table(b"\x05k"),
        table(b"\x01k"),
        table(b"\x01kI\x00"),
        table(b"\x01kS\xff\xff\xff\xffabc"),
        table(b"\x01kS\x00\x00"),
        table(b"\x01kA\x00\x00\x00\x09"),
        table(b"\x01kD\x00"),
        table(b"\x01k?"),
        table(b"\x01kA\x00\x00\x00\x02I\x00"),
        nested(MOST_NESTED + 1),
        table(b"\x00V" * (MOST_VALUES + 1)),
    ],
)
def test_what_is_not_a_table_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_table(data, 0, len(data))


def test_the_deepest_and_the_largest_table_are_accepted() -> None:
    for data in (nested(MOST_NESTED), table(b"\x00V" * MOST_VALUES)):
        assert decode_table(data, 0, len(data))[1] == len(data)


@given(data=st.binary(max_size=200))
@settings(max_examples=examples(300))
def test_any_bytes_are_a_table_or_refused(data: bytes) -> None:
    for stream in (data, table(data)):
        try:
            decode_table(stream, 0, len(stream))
        except MalformedError:
            continue
