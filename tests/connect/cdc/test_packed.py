"""Packed changes and rows become the same records as unpacked ones, byte by byte."""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.connect.cdc.contract import Change, Column, Table
from tidemill.connect.cdc.envelope import Encoder, Record, source_tail
from tidemill.connect.cdc.packed import Changes, ColumnRule, PackedRows
from tidemill.connect.cdc.postgres import types
from tidemill.connect.cdc.postgres.decoding.messages import Relation
from tidemill.connect.cdc.postgres.decoding.packed_rows import Run, Transaction, scan
from tidemill.connect.cdc.postgres.decoding.shapes import Layouts, Shape, decoder, identity_decoder
from tidemill.connect.cdc.postgres.reading.chunks import _copied_rows
from tidemill.connect.cdc.sqlite import rows as cells
from tidemill.connect.cdc.sqlite.changelog import Layout
from tidemill.connect.cdc.sqlite.logged import LoggedChanges, value_columns
from tidemill.connect.cdc.writer import CompiledEncoders
from tidemill.log.format.batch import check_batch
from tidemill.log.format.records import decode_records
from tidemill.native import extension

OID, STAMP = 16384, 1_790_000_000_123
array = partial(types.array, convert=int, delimiter=b",")
PG_COLUMNS: list[tuple[str, Callable[[bytes], Any], bool]] = [
    ("id", int, True),
    ('na"me', types.text, False),
    ("ok", types.boolean, False),
    ("at", types.timestamp, False),
    ("utc", types.timestamptz, False),
    ("raw", types.binary, False),
    ("real", types.floating, False),
    ("list", array, False),
    ("zoned", types.timetz, False),
    ("ключ", types.text, True),
]
RULES: tuple[ColumnRule, ...] = tuple(
    (name, types.RULES.get(convert, 0), convert, is_key) for name, convert, is_key in PG_COLUMNS
)


def table_of(names: Sequence[str], key: tuple[str, ...]) -> Table:
    return Table("d%b", "pub", "t", tuple(Column(each, "x", "text") for each in names), key)


PG_TABLE = table_of([name for name, _, _ in PG_COLUMNS], ("ключ", "id"))


class Taken:
    """A producer that keeps the records."""

    def __init__(self, record_bytes: int = 1 << 24) -> None:
        self._encoder = extension.RecordEncoder(1, 100_000, record_bytes, 1 << 25, 1, 0)

    def begin(self) -> None: ...

    def encoder(self, topic: str) -> Any:
        self.topic = topic
        return self._encoder

    def taken(self) -> list[Record]:
        found = []
        for _, count, base, most, body in self._encoder.take():
            records = decode_body(bytes(body), count, base)
            assert max(each.ts_ms for each in records) == most
            found += [each._replace(topic=self.topic) for each in records]
        return found


def decode_body(body: bytes, count: int, base: int) -> list[Record]:
    """Decode with the log's decoder, which knows nothing of the encoder."""
    from tidemill.kafka_client.producing.record_batch import Batch

    batch = Batch(0, "t", 0, count, base, base, body, 0, 0.0)
    whole = batch.header((-1, -1), transactional=False) + body
    check_batch(whole)
    return [Record("", each.key, each.value, each.timestamp) for each in decode_records(whole)]


def both(plain: bool, *, record_bytes: int = 1 << 24) -> tuple[Encoder, Taken, CompiledEncoders]:
    envelope = Encoder("postgres", "shöp", plain=plain, now_ms=lambda: STAMP)
    producer: Any = Taken(record_bytes)
    return envelope, producer, CompiledEncoders(producer, envelope, lambda topic: None)


def framed(lsn: int, content: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, lsn, 0) + content


def pg_row(values: Sequence[bytes | None]) -> bytes:
    parts = [b"n" if v is None else b"t" + struct.pack(">I", len(v)) + v for v in values]
    return struct.pack(">H", len(values)) + b"".join(parts)


def pg_layouts() -> Layouts:
    relation = Relation(OID, "pub", "t", "d", ())
    decode = decoder([(name, convert) for name, convert, _ in PG_COLUMNS])
    names = tuple(name for name, _, _ in PG_COLUMNS)
    shape = Shape(relation, PG_TABLE, names, decode, identity_decoder(PG_COLUMNS), RULES, 0)
    return Layouts({OID: shape})


text_bytes = st.one_of(
    st.text(max_size=30).map(lambda each: each.encode("utf-8", "replace")),
    st.binary(max_size=12),
    st.sampled_from(
        [b"", b'"', b"\\", b"\x00\x1f\x7f", b"a" * 40 + b"\n", "é😀".encode(), b"\xc3("]
    ),
)
numbers = st.integers(-(2**63), 2**63 - 1).map(lambda each: str(each).encode())
PG_VALUES = st.tuples(
    numbers,
    st.none() | text_bytes,
    st.sampled_from([None, b"t", b"f"]),
    st.sampled_from(
        [None, b"2026-11-22 10:00:00.5", b"infinity", b"0044-03-15 10:00:00 BC", b"12026-01-01"]
    ),
    st.sampled_from(
        [None, b"2026-11-22 10:00:00.123456+00", b"-infinity", b"0044-03-15 10:00:00+00 BC"]
    ),
    st.none() | st.binary(max_size=9).map(lambda each: b"\\x" + each.hex().encode()),
    st.none() | st.floats().map(lambda each: repr(each).encode()),
    st.sampled_from([None, b"{1,2,NULL}", b"{}"]),
    st.sampled_from([None, b"10:00:00+01", b"10:00:00.5-03:30"]),
    text_bytes,
)  # fmt: skip
MESSAGE = st.one_of(
    PG_VALUES.map(lambda new: b"I" + struct.pack(">I", OID) + b"N" + pg_row(new)),
    PG_VALUES.map(lambda new: b"U" + struct.pack(">I", OID) + b"N" + pg_row(new)),
    st.tuples(st.sampled_from(b"KO"), PG_VALUES, PG_VALUES).map(
        lambda e: b"U" + struct.pack(">I", OID) + bytes([e[0]]) + pg_row(e[1]) + b"N" + pg_row(e[2])
    ),
    st.tuples(st.sampled_from(b"KO"), PG_VALUES).map(
        lambda e: b"D" + struct.pack(">I", OID) + bytes([e[0]]) + pg_row(e[1])
    ),
)


@given(st.lists(MESSAGE, min_size=1, max_size=5), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_rows_of_pgoutput_are_encoded_as_changes_are(contents: list[bytes], plain: bool) -> None:
    received = [framed(2**63 + at // 2, each) for at, each in enumerate(contents)]
    layouts = pg_layouts()
    found = scan(layouts.counts, received, 0)
    assert found.end == len(received)
    assert (found.lsn, found.size) == (2**63 + (len(received) - 1) // 2, sum(map(len, received)))
    assert found.same == 2 - len(received) % 2
    run = Run(layouts, received, 0, found.end, Transaction(99, 7, "7:99", 1_790_000_000_000))
    envelope, producer, encoders = both(plain)
    expected = [record for each in run.unpack() for record in envelope.encode(each)]
    assert run.encode(encoders, STAMP) == len(expected)
    assert producer.taken() == expected


def test_a_run_ends_before_a_message_that_python_must_see() -> None:
    values: list[bytes | None] = [b"1", *[None] * 8, b"k"]
    insert = framed(5, b"I" + struct.pack(">I", OID) + b"N" + pg_row(values))
    toast = insert.replace(b"tk"[:0] + b"nnnnnnnn", b"nunnnnnn")
    others = {
        "commit": framed(5, b"C" + bytes(25)),
        "unknown table": framed(5, b"I" + struct.pack(">I", OID + 1) + b"N" + pg_row(values)),
        "another number of columns": framed(
            5, b"I" + struct.pack(">I", OID) + b"N" + pg_row([b"1"])
        ),
        "unchanged value": toast,
        "insert with an old row": insert.replace(b"\x40\x00N", b"\x40\x00K"),
        "empty": b"w",
    }
    for what, other in others.items():
        assert scan({OID: 10}, [insert, insert, other], 0).end == 2, what
        assert scan({OID: 10}, [insert, insert, other], 2)[:3] == (2, 0, 0), what
    for size in range(len(insert)):
        assert scan({OID: 10}, [insert[:size]], 0).end == 0, size


COPY_ESCAPES = {8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 92: b"\\\\"}


def copy_line(values: Sequence[bytes | None]) -> bytes:
    fields = [
        b"\\N" if each is None else b"".join(COPY_ESCAPES.get(b, bytes([b])) for b in each)
        for each in values
    ]
    return b"\t".join(fields) + b"\n"


@given(st.lists(PG_VALUES, max_size=4), st.booleans())
@settings(max_examples=examples(50), deadline=None)
def test_lines_of_copy_are_encoded_as_rows_are(
    values: list[tuple[bytes | None, ...]], plain: bool
) -> None:
    lines = [copy_line(each) for each in values]
    converts = [(name, convert) for name, convert, _ in PG_COLUMNS]
    rows = PackedRows(
        lines, RULES, extension.encode_copy, partial(_copied_rows, lines, converts), 9
    )
    check_snapshot(rows, PG_TABLE, plain)
    wanted = [
        [
            None if v is None else convert(v)
            for v, (_, convert, _) in zip(each, PG_COLUMNS, strict=True)
        ]
        for each in values
    ]
    assert [list(row.values()) for row in rows] == wanted or any(
        isinstance(v, float) and math.isnan(v) for row in wanted for v in row
    )


def check_snapshot(rows: PackedRows, table: Table, plain: bool) -> None:
    source = {"lsn": 12}
    envelope, producer, encoders = both(plain)
    count = rows.encode(encoders, table, 1_000, source_tail(source), STAMP)
    assert rows.is_packed
    expected = [
        record
        for row in rows
        for record in envelope.encode(Change(table, "r", None, row, 1_000, source), snapshot="true")
    ]
    assert count == len(expected)
    assert producer.taken() == expected


@pytest.mark.parametrize(
    "line", [b"1\t2", b"1\n", b"1\t2\t3\n", b"\\x\t2\n", b"1\t\\", b"1\t\\\n", b"", b"\n"]
)
def test_a_damaged_line_of_copy_is_refused(line: bytes) -> None:
    _, _, encoders = both(plain=False)
    table = table_of(["a", "b"], ("a",))
    columns = tuple((name, 1, types.text, False) for name in ("a", "b"))
    with pytest.raises(ValueError, match="invalid line of COPY"):
        extension.encode_copy(encoders.of(table, columns), [line], 1, b"}", 1)


SQLITE_VALUE = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.binary(max_size=10),
)


@given(
    st.lists(
        st.tuples(st.sampled_from("cud"), st.lists(SQLITE_VALUE, min_size=6, max_size=6)),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_rows_of_the_change_log_are_encoded_as_changes_are(
    logged: list[tuple[str, list[Any]]], plain: bool
) -> None:
    one = Layout(1, table_of(["a", "b"], ("b",)), ("a", "b"))
    two = Layout(2, table_of(["a", "b", "c"], ("a", "b", "c")), ("a", "b", "c"))
    found = [
        (number, 1 + number % 2, op, 1_000 - number, *values)
        for number, (op, values) in enumerate(logged, 5)
    ]
    packed = LoggedChanges(found, {1: one, 2: two}.__getitem__)
    envelope, producer, encoders = both(plain)
    expected = [record for each in packed.unpack() for record in envelope.encode(each)]
    assert packed.encode(encoders, STAMP) == len(expected)
    assert producer.taken() == expected
    rows = [values[:2] for values in ([*row[4:]] for row in found)]
    tuples = [tuple(each) for each in rows]
    unpacked = [dict(zip("ab", cells.json_cells(each), strict=True)) for each in tuples]
    check_snapshot(
        PackedRows(tuples, value_columns(["a", "b"]), extension.encode_rows, lambda: unpacked, 9),
        one.table,
        plain,
    )


@pytest.mark.parametrize("char", [chr(number) for number in range(0x100)])
def test_each_character_is_escaped_as_orjson_does(char: str) -> None:
    _, producer, encoders = both(plain=True)
    table = table_of(["a"], ("a",))
    for before, after in itertools.product(["", "x", "abcdefgh"], repeat=2):
        text = before + char + after
        extension.encode_rows(encoders.of(table, value_columns(["a"])), [(text,)], 1, b"}", 1)
        assert producer.taken()[0].value == orjson.dumps({"a": text})


def test_other_objects_are_given_to_orjson() -> None:
    _, producer, encoders = both(plain=True)
    values = (2**70, True, [1, None], 1e16, 1e-7, -0.0, math.inf, -math.inf, math.nan)
    names = [f"c{number}" for number in range(len(values))]
    table = table_of(names, ("c0",))
    extension.encode_rows(encoders.of(table, value_columns(names)), [values], 1, b"}", 1)
    (record,) = producer.taken()
    rest = ["Infinity", "-Infinity", "NaN"]
    assert record.value == orjson.dumps(
        dict(zip(names, [str(2**70), *values[1:6], *rest], strict=True))
    )
    assert json.loads(record.key or b"") == {"c0": str(2**70)}


def test_a_record_that_is_too_large_is_refused_with_its_size() -> None:
    _, _, encoders = both(plain=True, record_bytes=1_000)
    table = table_of(["a"], ("a",))
    with pytest.raises(OverflowError, match="4016"):
        extension.encode_rows(
            encoders.of(table, value_columns(["a"])), [("x" * 2_000,)], 1, b"}", 1
        )


def test_reading_one_change_unpacks_all_once() -> None:
    layout = Layout(1, table_of(["a"], ("a",)), ("a",))
    changes = Changes()
    single = Change(layout.table, "t", None, None, 3, {})
    changes.append(single)
    changes.add(LoggedChanges([(5, 1, "c", 4, 1), (6, 1, "c", 4, 2)], lambda number: layout))
    changes.append(single)
    assert (len(changes), len(changes.parts), changes.ts_ms) == (4, 3, 3)
    changes[1].after = {"a": "changed"}
    assert [each.after for each in changes] == [None, {"a": "changed"}, {"a": 2}, None]
    assert len(changes.parts) == 1
