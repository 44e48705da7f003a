"""Rows of the binary log that stay packed become the same records as unpacked ones."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.connect.cdc.mariadb.test_binlog import event
from tests.connect.cdc.test_packed import STAMP, both
from tests.support.effort import examples
from tidemill.connect.cdc.binlog import packed_rows
from tidemill.connect.cdc.binlog.decoding import table_map as types
from tidemill.connect.cdc.binlog.decoding.columns import codec_of
from tidemill.connect.cdc.binlog.decoding.reader import BinlogError
from tidemill.connect.cdc.binlog.decoding.rows import RowDecoder
from tidemill.connect.cdc.binlog.decoding.scalars import decimal_bytes
from tidemill.connect.cdc.binlog.decoding.table_map import ColumnMap, TableMap
from tidemill.connect.cdc.binlog.packed_rows import Run, Scan, Transaction
from tidemill.connect.cdc.binlog.shapes import Packable, shape_of
from tidemill.connect.cdc.contract import Column, Table
from tidemill.native import extension

BODY = b"\1\0the map of a table"
TRANSACTION = Transaction("0-1-5", 'binlog".000001')
Values = st.SearchStrategy[bytes]


def text_of(name: str, character_set: str | None, size: int = 50, code: int = 15) -> ColumnMap:
    return ColumnMap(code, size=size, name=name, character_set=character_set)


def of(*sizes: int) -> Values:
    return st.one_of(*(st.binary(min_size=size, max_size=size) for size in sizes))


def decimal(precision: int, decimals: int) -> tuple[ColumnMap, Values]:
    column = ColumnMap(types.NEWDECIMAL, precision=precision, decimals=decimals)
    return column, of(decimal_bytes(precision, decimals))


def timed(code: int, size: int, decimals: int) -> tuple[ColumnMap, Values]:
    return ColumnMap(code, decimals=decimals), of(size + (decimals + 1) // 2)


VALID_DATETIME = st.integers(0x8000000000, 0x99FFFFFFFF).map(lambda n: n.to_bytes(5, "big"))
VALID_TIMES = {
    "datetime": (ColumnMap(types.DATETIME2), VALID_DATETIME),
    "timestamp": (ColumnMap(types.TIMESTAMP2, decimals=6),
                  st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 999_999)).map(
                      lambda t: t[0].to_bytes(4, "big") + t[1].to_bytes(3, "big"))),
    "datetime 3": (ColumnMap(types.DATETIME2, decimals=3),
                   st.tuples(VALID_DATETIME, st.integers(0, 9_999)).map(
                       lambda t: t[0] + t[1].to_bytes(2, "big"))),
}  # fmt: skip
utf8 = st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace"))
COLUMNS: dict[str, tuple[ColumnMap, Values]] = {
    **{
        f"integer {code} {unsigned}": (ColumnMap(code, is_unsigned=unsigned), of(size))
        for code, size in ((1, 1), (2, 2), (9, 3), (3, 4), (8, 8))
        for unsigned in (False, True)
    },
    "float": (
        ColumnMap(types.FLOAT),
        st.one_of(st.floats(width=32), st.sampled_from([3.4028234663852886e38, 1.5e-45])).map(
            lambda n: struct.pack("<f", n)
        ),
    ),
    "double": (ColumnMap(types.DOUBLE), st.floats().map(lambda n: struct.pack("<d", n))),
    **{
        f"decimal {precision} {decimals}": decimal(precision, decimals)
        for precision, decimals in ((1, 0), (5, 5), (10, 2), (18, 9), (19, 9), (30, 30), (65, 38))
    },
    "year": (ColumnMap(types.YEAR), of(1)),
    "date": (ColumnMap(types.DATE), of(3)),
    **{
        f"{name} any {decimals}": timed(code, size, decimals)
        for name, code, size in (("time", 19, 3), ("datetime", 18, 5), ("timestamp", 17, 4))
        for decimals in (0, 1, 4, 6)
    },
    **VALID_TIMES,
    "old time": (ColumnMap(types.TIME), of(3)),
    "old datetime": (ColumnMap(types.DATETIME), of(8)),
    "old timestamp": (ColumnMap(types.TIMESTAMP), of(4)),
    "bit": (ColumnMap(types.BIT, precision=1), of(1)),
    "bits": (ColumnMap(types.BIT, precision=13), of(2)),
    "enum": (
        ColumnMap(types.ENUM, size=1, labels=["a", "é"]),
        st.sampled_from([b"\0", b"\1", b"\2"]),
    ),
    "set": (ColumnMap(types.SET, size=1, labels=["a", "é"]), of(1)),
    "utf8": (text_of("", "utf8mb4"), utf8),
    "long utf8": (text_of("", "utf8mb3", 900), utf8.map(lambda raw: raw * 20)),
    "latin1": (text_of("", "latin1"), st.binary(max_size=20)),
    "greek": (text_of("", "greek"), st.text("abc\"\\\n", max_size=20).map(str.encode)),
    "utf16": (text_of("", "utf16"), st.text(max_size=9).map(
        lambda text: text.encode("utf-16-be", "replace"))),
    "binary": (text_of("", None, 20, types.STRING), st.binary(max_size=20)),
    "varbinary": (text_of("", "binary"), st.binary(max_size=20)),
    "blob": (ColumnMap(types.BLOB, size=3), st.binary(max_size=20)),
    "text": (text_of("", "utf8mb4", 4, types.BLOB), utf8),
    "compressed": (text_of("", "utf8mb4", 50, types.VARCHAR_COMPRESSED), utf8.map(
        lambda raw: b"\0" + raw)),
    "ke\"y": (ColumnMap(types.LONG), of(4)),
}  # fmt: skip
for _name, (_column, _) in COLUMNS.items():
    _column.name = _name
KEY = len(COLUMNS) - 1


def framed(kind: int, body: bytes, *, checksum: bool = True) -> bytes:
    return b"\0" + event(kind, body, checksum=checksum)


def packable(columns: Sequence[ColumnMap]) -> Packable:
    decoder = RowDecoder(TableMap(1, "d", "t", list(columns), []), {})
    found = tuple(Column(each.name, "x", "text") for each in columns)
    shape = shape_of(Table("d", "d", "t", found, (columns[-1].name,)), decoder)
    return Packable(BODY, shape.layout, shape)


TABLES = {7: packable([column for column, _ in COLUMNS.values()]), 8: Packable(BODY, b"", None)}


def scan(tables: dict[int, Packable], packets: list[bytes], begin: int, *, checksums: bool) -> Scan:
    return packed_rows.scan(tables, packets, begin, checksums=checksums, most=1_000)


@st.composite
def images(draw: Callable[[Any], Any]) -> bytes:
    """Return the image of a row: a bitmap of nulls, and the values."""
    nulls, values = 0, b""
    for place, (column, strategy) in enumerate(COLUMNS.values()):
        if place != KEY and draw(st.integers(0, 9)) == 0:
            nulls |= 1 << place
            continue
        value = draw(strategy)
        size = codec_of(column, "", "").size
        assert size < 0 or len(value) == size
        values += (len(value).to_bytes(-size, "little") if size < 0 else b"") + value
    return nulls.to_bytes((len(COLUMNS) + 7) // 8, "little") + values


def rows_event(
    kind: int, rows: bytes, *, table: int = 7, count: int = len(COLUMNS), extra: bytes = b""
) -> bytes:
    present = bytes([0xFF] * ((count + 7) // 8)) * (2 if kind in (24, 31) else 1)
    head = table.to_bytes(6, "little") + b"\1\0"
    if kind >= 30:
        head += struct.pack("<H", len(extra) + 2) + extra
    return framed(kind, head + bytes([count]) + present + rows)


EVENTS = st.one_of(
    st.tuples(st.sampled_from([23, 25, 30, 32]), images()).map(lambda e: rows_event(*e)),
    st.tuples(st.sampled_from([24, 31]), images(), images()).map(
        lambda e: rows_event(e[0], e[1] + e[2])
    ),
    st.just(framed(160, b"INSERT INTO t VALUES (1)")),
    st.just(framed(29, b"\x18INSERT INTO t VALUES (1)")),
    st.just(framed(19, (7).to_bytes(6, "little") + BODY)),
    st.just(rows_event(23, b"whatever", table=8)),
)


def records_of(found: Scan, packets: list[bytes], plain: bool) -> tuple[list[Any], list[Any]]:
    """Return the records of the compiled encoder and of the one in Python."""
    run = Run(found, packets, True, TRANSACTION)
    envelope, producer, encoders = both(plain)
    expected = [record for each in run.unpack() for record in envelope.encode(each)]
    assert len(run) == len(run.unpack())
    assert run.encode(encoders, STAMP) == len(expected)
    return (producer.taken() if expected else []), expected


@given(st.lists(EVENTS, min_size=1, max_size=3), st.booleans())
@settings(max_examples=examples(20), deadline=None)
def test_rows_are_encoded_as_changes_are(packets: list[bytes], plain: bool) -> None:
    try:
        found = scan(TABLES, packets, 0, checksums=True)
        assert found.end == len(packets)
        taken, expected = records_of(found, packets, plain)
    except BinlogError:  # a random time is out of range
        return
    assert taken == expected


@pytest.mark.parametrize("name", list(COLUMNS))
def test_each_type_is_encoded_as_python_decodes_it(name: str) -> None:
    column, strategy = COLUMNS[name]
    size = codec_of(column, "", "").size
    key = ColumnMap(types.TINY, name="the key")
    tables = {7: packable([column, key])}

    @given(strategy)
    @settings(max_examples=examples(10), deadline=None)
    def check(value: bytes) -> None:
        length = len(value).to_bytes(-size, "little") if size < 0 else b""
        packets = [rows_event(23, b"\0" + length + value + b"\1", count=2)]
        found = scan(tables, packets, 0, checksums=True)
        assert (found.end, found.changes, found.first_s) == (1, 1, 1_700_000_000)
        run = Run(found, packets, True, TRANSACTION)
        envelope, producer, encoders = both(plain=True)
        try:
            (change,) = run.unpack()
        except BinlogError:
            with pytest.raises(BinlogError, match="can't be decoded"):
                run.encode(encoders, STAMP)
            return
        run.encode(encoders, STAMP)
        assert producer.taken() == envelope.encode(change)

    check()


ROW = bytes((len(COLUMNS) + 7) // 8 - 1) + b"\0"
SMALL = {7: packable([ColumnMap(types.LONG, name="i"), text_of("s", "utf8mb4")])}


def small(kind: int, rows: bytes) -> bytes:
    return rows_event(kind, rows, count=2)


GOOD = small(23, b"\0" + struct.pack("<i", -5) + b"\2hi")


@pytest.mark.parametrize(
    ("what", "packet"),
    [
        ("a cut row", small(23, b"\0\1\0\0\0\3hi")),
        ("a cut bitmap", small(24, b"\0\1\0\0\0\2hi")),
        ("a null key with a cut value", small(23, b"\1\5hi")),
        ("another number of columns", rows_event(23, b"", count=3)),
        ("no columns", rows_event(23, b"abc", count=0)),
        ("an unknown table", rows_event(23, b"", table=9, count=2)),
        ("not all columns", GOOD[:29] + b"\1" + GOOD[30:]),
        ("a wrong checksum", GOOD[:-1] + bytes([GOOD[-1] ^ 1])),
        ("an error", b"\xff" + GOOD[1:]),
        ("another table map", framed(19, (7).to_bytes(6, "little") + BODY + b"x")),
        ("a short table map", framed(19, b"\7")),
        ("a commit", framed(16, bytes(8))),
        ("compressed rows", rows_event(166, b"", count=2)),
        ("extra data beyond the end", framed(30, bytes(8) + b"\xff\xff" + b"\2")),
        ("too few extra bytes", framed(30, bytes(8) + b"\1\0" + b"\2")),
        ("an absurd number of columns", framed(23, bytes(8) + b"\xfe" + b"\xff" * 8)),
        ("a null number of columns", framed(23, bytes(8) + b"\xfb")),
        ("nothing", b""),
    ],
)
def test_python_gets_what_needs_a_decision(what: str, packet: bytes) -> None:
    found = scan(SMALL, [GOOD, packet, GOOD], 0, checksums=True)
    assert found[:4] == (1, 1, 1, 1_700_000_000), what
    assert scan(SMALL, [GOOD, packet], 1, checksums=True)[:4] == (1, 0, 0, 0), what
    for size in range(len(packet)):
        assert scan(SMALL, [packet[:size]], 0, checksums=False).end == 0, what


def test_a_scan_ends_at_the_event_that_reaches_the_limit() -> None:
    packets = [small(23, b"\0\1\0\0\0\0" * 3), GOOD, GOOD]
    for most, end, changes in ((1, 1, 3), (3, 1, 3), (4, 2, 4), (9, 3, 5), (0, 0, 0)):
        assert packed_rows.scan(SMALL, packets, 0, checksums=True, most=most)[:2] == (end, changes)


def test_rows_without_checksums_are_found() -> None:
    packet = framed(23, (7).to_bytes(6, "little") + b"\1\0\2\3\0\5\0\0\0\0", checksum=False)
    found = scan(SMALL, [packet], 0, checksums=False)
    assert found[:3] == (1, 1, 1)
    run = Run(found, [packet], False, TRANSACTION)
    assert [each.after for each in run.unpack()] == [{"i": 5, "s": ""}]


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_damaged_events_do_no_harm(data: st.DataObject) -> None:
    packet = bytearray(data.draw(EVENTS))
    for _ in range(data.draw(st.integers(1, 4))):
        packet[data.draw(st.integers(20, len(packet) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(20, len(packet)))
    packet[10:14] = (cut - 1).to_bytes(4, "little")
    packets = [bytes(packet[:cut])]
    found = scan(TABLES, packets, 0, checksums=False)
    if not found.changes:
        return
    run = Run(found, packets, False, TRANSACTION)
    envelope, producer, encoders = both(plain=False)
    try:
        expected = [record for each in run.unpack() for record in envelope.encode(each)]
    except BinlogError:
        with pytest.raises(BinlogError):
            run.encode(encoders, STAMP)
        return
    assert run.encode(encoders, STAMP) == len(expected)
    assert producer.taken() == expected


@pytest.mark.parametrize("layout", [b"", b"\1", struct.pack("<hh", 4, -5), bytes(6)])
def test_a_layout_that_does_not_fit_is_not_used(layout: bytes) -> None:
    shape = SMALL[7].shape
    assert shape is not None
    if layout:
        assert scan({7: Packable(BODY, layout, shape)}, [GOOD], 0, checksums=True).end == 0
    _, _, encoders = both(plain=True)
    found = {7: (encoders.of(shape.table, shape.columns), layout)}
    with pytest.raises(ValueError, match="don't fit"):
        extension.encode_binlog(found, [GOOD], (b"", b""), True, STAMP)
    with pytest.raises(KeyError):
        extension.encode_binlog({}, [GOOD], (b"", b""), True, STAMP)


def packet(content: bytes, number: int) -> bytes:
    return len(content).to_bytes(3, "little") + bytes([number & 0xFF]) + content


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 255), st.data())
@settings(max_examples=examples(40), deadline=None)
def test_packets_are_split(contents: list[bytes], first: int, data: st.DataObject) -> None:
    whole = b"".join(packet(each, first + n) for n, each in enumerate(contents))
    filled = data.draw(st.integers(0, len(whole)))
    buffer = bytearray(whole + b"\0" * 9)
    ends = list(itertools.accumulate(4 + len(each) for each in contents))
    complete = sum(end <= filled for end in ends)
    end = ends[complete - 1] if complete else 0
    number = (first + complete) & 0xFF
    assert extension.split_packets(buffer, filled, first) == (contents[:complete], end, number)


def test_the_parts_of_a_long_packet_are_joined() -> None:
    split = extension.split_packets
    long, rest = bytes(0xFFFFFF), b"rest"
    buffer = bytearray(packet(long, 255) + packet(rest, 0) + packet(b"next", 1) + b"\0")
    found, end, number = split(buffer, len(buffer), 255)
    assert (end, number) == (len(buffer) - 1, 2)
    assert [len(each) for each in found] == [0xFFFFFF + 4, 4]
    assert found[0].endswith(rest)
    assert split(buffer, 0xFFFFFF + 7, 255) == ([], 0, 255)
    exact = bytearray(packet(long, 3) + packet(b"", 4))
    assert [len(each) for each in split(exact, len(exact), 3)[0]] == [0xFFFFFF]


def test_a_packet_out_of_order_is_refused() -> None:
    buffer = bytearray(packet(b"a", 1) + packet(b"b", 3))
    with pytest.raises(ValueError, match="out of order"):
        extension.split_packets(buffer, len(buffer), 1)
