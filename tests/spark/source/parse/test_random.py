"""The parser gives the results of an oracle, also for damaged and random values."""

from __future__ import annotations

import json
import math
import mmap
import re
import struct
from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spark.source.parse import oracle
from tests.spark.source.parse.tables import ACCEPTED, REFUSED
from tests.support.effort import examples
from tidemill.native import extension
from tidemill.reading.parse import json_parser
from tidemill.reading.parse.json_parser import JsonParser
from tidemill.spark.errors import ParseLimitError
from tidemill.spark.source.parse import Parsed, ParseSchema, make_parser
from tidemill.spark.source.parse.ddl_schema import schema_of

DDL = (
    "a BOOLEAN, b TINYINT, c BIGINT, d FLOAT, e DOUBLE, f DECIMAL(9, 4), g STRING, h BINARY, "
    "i DATE, j TIMESTAMP, k TIMESTAMP_NTZ, l STRUCT<a: INT, b: STRUCT<c: STRING, d: DATE>>, "
    'm ARRAY<STRING>, n ARRAY<ARRAY<STRUCT<x: DOUBLE>>>, o MAP<STRING, ARRAY<INT>>, `é "` INT'
)
NAMES = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", 'é "', "x", "A"]
TEXTS = sorted({text for _, text, _ in ACCEPTED + REFUSED})


def same(values: list[bytes], **options: Any) -> Parsed:
    """Check that the parser gives the results of the oracle, and return them."""
    array = pa.array(values, pa.binary())
    schema = schema_of(DDL, **options)
    parser = make_parser(schema)
    found = parser.parse(array)
    assert parser.check(array) == found.reasons
    reasons = dict(found.reasons)
    accepted = [index not in reasons for index in range(len(values))]
    assert (found.accepted or pa.array(accepted)).to_pylist() == accepted
    for column, kind in zip(found.columns, schema.arrow.types, strict=True):
        column.validate(full=True)
        assert column.type == kind
    rows = iter(zip(*(column.to_pylist() for column in found.columns), strict=True))
    for index, value in enumerate(values):
        try:
            expected = oracle.parse(value, schema)
        except oracle.RefusedError as error:
            pattern = ".*; ".join(map(re.escape, error.args))
            assert re.fullmatch(f"{pattern}.*", reasons[index], re.DOTALL)
        else:
            assert _comparable(expected) == _comparable(list(next(rows)))
    assert next(rows, None) is None
    return found


def _comparable(value: Any) -> Any:
    """Return a value in which NaN is equal to itself, and 0.0 differs from -0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(each) for each in value]
    return value


_MOMENTS = st.from_regex(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([T ][0-9]{1,2}(:[0-9]{1,2}){0,2}(\.[0-9]{0,8})?"
    r"( ?(Z|[+-][0-9]{1,4}|[+-][0-9]{1,2}:[0-9]{2}))?)?",
    fullmatch=True,
)
_NUMBERS = st.one_of(
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
)
_SCALARS = st.one_of(
    st.sampled_from(TEXTS),
    _NUMBERS,
    st.text(max_size=40).map(json.dumps),
    st.text(max_size=40).map(lambda text: json.dumps(text, ensure_ascii=False)),
    _MOMENTS.map(json.dumps),
    st.binary(max_size=9).map(lambda raw: json.dumps(b64encode(raw).decode())),
)
_SPACE = st.sampled_from(["", "", "", " ", "\n\t"])


@st.composite
def _values(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0 or draw(st.integers(0, 3)):
        scalar: str = draw(_SCALARS)
        return scalar
    if draw(st.booleans()):
        return "[" + ",".join(draw(st.lists(_values(depth - 1), max_size=3))) + "]"
    made: str = draw(_objects(depth - 1))
    return made


@st.composite
def _objects(draw: st.DrawFn, depth: int = 3) -> str:
    fields = [
        draw(_SPACE) + json.dumps(name) + draw(_SPACE) + ":" + draw(_SPACE) + draw(_values(depth))
        for name in draw(st.lists(st.sampled_from(NAMES), max_size=8))
    ]
    return "{" + ",".join(fields) + draw(_SPACE) + "}"


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    value = bytearray(draw(_objects()).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(value)))
        what = draw(st.integers(0, 2))
        if what == 0:
            del value[at : at + draw(st.integers(1, 4))]
        elif what == 1:
            value[at:at] = draw(st.binary(min_size=1, max_size=3))
        else:
            value[at:at] = draw(st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"0"]))
    return bytes(value)


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(st.lists(_damaged(), min_size=1, max_size=12))
def test_random_values(values: list[bytes]) -> None:
    same(values, timestamp_format="epoch_ms")


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("bcdefgj"), _NUMBERS), min_size=1, max_size=20))
def test_random_numbers(fields: list[tuple[str, str]]) -> None:
    values = [f'{{"{name}": {text}}}'.encode() for name, text in fields]
    same(values, timestamp_format="epoch_s", event_time="j")
    same(values, timestamp_format="epoch_us")


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(_MOMENTS, min_size=1, max_size=20))
def test_random_moments(texts: list[str]) -> None:
    same([f'{{"{name}": "{text}"}}'.encode() for text in texts for name in "ijk"])


def test_each_text_of_the_tables_in_each_column() -> None:
    values = [f"{{{json.dumps(name)}: {text}}}".encode() for name in NAMES for text in TEXTS]
    found = same(values)
    assert 500 < len(found.columns[0]) < len(values)


def test_each_beginning_and_each_changed_byte_of_a_value() -> None:
    value = (
        '{"c": -12.5e1, "g": "a\\u00e9é\\n\U0001f600 and a longer text", "j": '
        '"2013-01-01T05:00:00.123Z", "l": {"b": {"c": [1, {"d": null}]}}, "m": ["x", null], '
        '"n": [[{"x": 1.5}], []], "o": {"k": [1, 2], "l": null}, "a": true, "y": [false, {}]}'
    ).encode()
    same([value[:end] for end in range(len(value) + 1)])
    changed = [
        value[:at] + bytes([byte]) + value[at + 1 :]
        for at in range(len(value))
        for byte in b'"\\{}[]:, 0e-.n\x00\x1f\x7f\x80\xc3\xff'
    ]
    same(changed)


def test_texts_of_every_length_around_the_end_of_the_data() -> None:
    same(
        [
            b'{"g":"' + b"x" * length + end
            for end in (b'"}', b'"', b"", b"\\")
            for length in range(50)
        ]
    )


def test_many_keys_of_a_map_may_not_repeat() -> None:
    keys = [f'"k{i}": [{i}]' for i in range(1000)]
    good = "{" + ", ".join(keys) + "}"
    bad = "{" + ", ".join([*keys, keys[500]]) + "}"
    found = same([f'{{"o": {good}}}'.encode(), f'{{"o": {bad}}}'.encode()])
    assert [row for row, _ in found.reasons] == [1]
    assert len(found.columns[14][0]) == 1000


def test_columns_grow_with_nested_values() -> None:
    many = ", ".join('{"x": 0.5}' for _ in range(5000))
    values = [f'{{"n": [[{many}], null, []], "g": "{"x" * 9999}"}}'.encode(), b"no", b"{}"] * 3
    found = same(values)
    assert len(found.columns[13].flatten().flatten()) == 15000


def test_columns_that_are_too_large_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = ", ".join(f"f{i}: BIGINT" for i in range(200))
    parser = make_parser(schema_of(f"x ARRAY<STRUCT<{fields}>>"))
    values = pa.array([b'{"x": [' + b"{}," * 2000 + b"{}]}"])
    assert parser.check(values) == []
    monkeypatch.setattr(json_parser, "LIMIT", 1_000_000)
    for work in (parser.parse, parser.check):
        with pytest.raises(ParseLimitError, match="can't parse 1 values in one step"):
            work(values)


def test_values_of_more_than_two_gigabytes_are_an_error() -> None:
    size = 2**31
    untouched = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    offsets = pa.py_buffer(struct.pack("=2q", 0, size))
    values = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(untouched)])
    parser = make_parser(schema_of("x INT"))
    with pytest.raises(ParseLimitError, match="more than 2 GiB"):
        parser.parse(values)


@pytest.mark.parametrize(
    ("valid", "offsets", "data", "first", "count"),
    [
        (None, struct.pack("=2i", 0, 3), b"{}", 0, 1),
        (None, struct.pack("=2i", 2, 0), b"{}", 0, 1),
        (None, struct.pack("=2i", -1, 2), b"{}", 0, 1),
        (None, struct.pack("=2i", 0, 2), b"{}", 0, 2),
        (None, struct.pack("=2i", 0, 2), b"{}", 1, 1),
        (None, struct.pack("=2i", 0, 2), b"{}", -1, 1),
        (None, struct.pack("=2i", 0, 2), b"{}", 0, -1),
        (None, struct.pack("=2i", 0, 2), b"{}", 2**62, 1),
        (None, struct.pack("=2i", 0, 2), b"{}", 0, 2**31),
        (None, b"", b"", 0, 0),
        (b"", struct.pack("=2i", 0, 2), b"{}", 0, 1),
    ],
)
def test_the_extension_refuses_buffers_that_do_not_fit(
    valid: bytes | None, offsets: bytes, data: bytes, first: int, count: int
) -> None:
    parser: Any = JsonParser(schema_of("x INT"), (True,))._parser
    with pytest.raises(ValueError, match="invalid buffers"):
        parser.parse(valid, offsets, data, False, first, count, False, 1 << 20)


@pytest.mark.parametrize(
    "row",
    [
        (b"", 99, 0, 0, 0, ()),
        (b"", 10, 0, 0, 0, ((b"x", 1, 3, 0, 0, ()),)),
        (b"", 10, 0, 0, 0, ((b"x", 3, 1, 0, 0, ()),)),
        (b"", 10, 0, 0, 0, ((b"x", 4, 16, 39, 0, ()),)),
        (b"", 10, 0, 0, 0, ((b"x", 11, 0, 0, 0, ()),)),
        (b"", 10, 0, 0, 0, ((b"x", 12, 0, 0, 0, ((b"k", 1, 4, 0, 0, ()),) * 2),)),
        (b"", 10, 0, 0, 0, ((b"x", 1, 4, 0, 0, ()), (b"X", 1, 4, 0, 0, ()))),
        (b"", 1, 4, 0, 0, ()),
    ],
)
def test_the_extension_refuses_schemas_that_make_no_sense(row: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"invalid|keys of a map|names of fields"):
        extension.JsonParser(row, (True,) * len(row[5]), -1, -1)


def test_a_schema_without_columns_counts_rows() -> None:
    found = make_parser(ParseSchema(())).parse(pa.array([b"{}", b"x", b'{"a": 1}']))
    assert found.columns == []
    assert found.reasons == [(1, "the value is not a JSON object")]
