"""Tables of bytes: events, compressed values, decimals, times. Damage is an error."""

from __future__ import annotations

import fcntl
import resource
import socket
import struct
import zlib
from contextlib import ExitStack, suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.connect.cdc.binlog.decoding import table_map as types
from tidemill.connect.cdc.binlog.decoding.character_sets import SUPPORTED, text_decoder
from tidemill.connect.cdc.binlog.decoding.columns import shortest_float
from tidemill.connect.cdc.binlog.decoding.compression import uncompress_value
from tidemill.connect.cdc.binlog.decoding.events import (
    EventParser,
    GtidEvent,
    OtherEvent,
    QueryEvent,
    RotateEvent,
    RowsEvent,
    RowsKind,
    TableMapEvent,
)
from tidemill.connect.cdc.binlog.decoding.reader import BinlogError
from tidemill.connect.cdc.binlog.decoding.rows import RowDecoder
from tidemill.connect.cdc.binlog.decoding.scalars import (
    decimal_bytes,
    decode_decimal,
    decode_time,
)
from tidemill.connect.cdc.binlog.decoding.table_map import ColumnMap, TableMap, parse_table_map
from tidemill.connect.cdc.binlog.dump import PacketReader
from tidemill.connect.cdc.errors import PermanentCaptureError, PositionLostError
from tidemill.connect.cdc.mariadb import dialect
from tidemill.connect.cdc.mariadb.dialect import GtidPosition, MariaDb, parse_gtid

ANY_BYTES = st.binary(max_size=300)


def event(
    kind: int, body: bytes, *, checksum: bool = True, server: int = 1, end: int = 99
) -> bytes:
    """Return an event as the server sends it."""
    size = 19 + len(body) + (4 if checksum else 0)
    data = struct.pack("<IBIIIH", 1_700_000_000, kind, server, size, end, 0) + body
    return data + zlib.crc32(data).to_bytes(4, "little") if checksum else data


def test_the_events_of_a_transaction_are_parsed() -> None:
    parser = EventParser(has_checksums=True)
    gtid = parser.parse(event(162, struct.pack("<QIB", 7, 3, 0b100), server=5))
    assert isinstance(gtid, GtidEvent)
    assert (gtid.gtid, gtid.is_standalone, gtid.is_xa) == ("3-5-7", False, False)
    query = parser.parse(event(2, bytes(8) + b"\x04" + bytes(2) + b"\x01\x00x" + b"shop\0BEGIN"))
    assert isinstance(query, QueryEvent)
    assert (query.database, query.statement) == ("shop", "BEGIN")
    rotate = parser.parse(event(4, struct.pack("<Q", 4) + b"binlog.000002"))
    assert isinstance(rotate, RotateEvent)
    assert (rotate.file, rotate.position) == ("binlog.000002", 4)
    assert isinstance(parser.parse(event(200, b"?")), OtherEvent)


def test_a_format_description_switches_checksums() -> None:
    parser = EventParser(has_checksums=False)
    body = struct.pack("<H", 4) + b"10.11.1-MariaDB".ljust(50, b"\0") + bytes(5) + b"\x13"
    parser.parse(event(15, body + bytes(20) + b"\x01"))
    with pytest.raises(BinlogError, match="checksum is wrong"):
        parser.parse(event(16, bytes(8))[:-1] + b"\xff")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has only 0 bytes"),
        (event(16, bytes(8))[:-1], "its header says"),
        (event(16, bytes(3)), "cut off"),
        (event(30, bytes(6) + b"\0\0" + b"\x02\0" + b"\xfe" + b"\xff" * 8), "columns"),
        (event(2, bytes(8) + b"\xff" + bytes(4)), "cut off"),
    ],
)
def test_damaged_events_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(BinlogError, match=message):
        EventParser(has_checksums=True).parse(data)


@given(kind=st.integers(0, 255), body=ANY_BYTES)
def test_no_bytes_of_an_event_raise_anything_but_a_typed_error(kind: int, body: bytes) -> None:
    parser = EventParser(has_checksums=False)
    with suppress(BinlogError):
        parsed = parser.parse(event(kind, body, checksum=False))
        if isinstance(parsed, TableMapEvent):
            parse_table_map(parsed.body, {8: "latin1", 33: "utf8mb3", 63: "binary"})


INT, TEXT = 3, 15
COLUMNS = [ColumnMap(INT, name="i"), ColumnMap(TEXT, size=9, name="s", character_set="utf8mb4")]
SMALL = TableMap(1, "d", "t", COLUMNS, [0])


@given(rows=ANY_BYTES, kind=st.sampled_from(RowsKind))
def test_no_rows_raise_anything_but_a_typed_error(rows: bytes, kind: RowsKind) -> None:
    present = (b"\x03",) * (2 if kind is RowsKind.UPDATE else 1)
    with suppress(BinlogError):
        RowDecoder(SMALL, {}).decode(RowsEvent(0, 1, 0, kind, 1, 2, present, rows))


def test_rows_are_decoded() -> None:
    rows = b"\0" + struct.pack("<i", -5) + b"\x02hi" + b"\x02" + struct.pack("<i", 6)
    inserted = RowDecoder(SMALL, {}).decode(
        RowsEvent(0, 1, 0, RowsKind.INSERT, 1, 2, (b"\x03",), rows)
    )
    assert inserted == [(None, {"i": -5, "s": "hi"}, None), (None, {"i": 6, "s": None}, None)]
    (updated,) = RowDecoder(SMALL, {}).decode(
        RowsEvent(0, 1, 0, RowsKind.UPDATE, 1, 2, (b"\x03", b"\x03"), rows)
    )
    assert updated == ({"i": -5, "s": "hi"}, {"i": 6, "s": None}, None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x70\x01\x05x", "unknown header"),
        (b"\x81\xffxx", "damaged"),
        (b"\x81\x05" + zlib.compress(b"four"), "holds 4 bytes instead of 5"),
        (b"\x81\x03" + zlib.compress(b"four"), "holds 4 bytes instead of 3"),
        (b"\x84\xff\xff\xff\xff" + zlib.compress(b"four"), "says that it holds"),
    ],
)
def test_damaged_compressed_values_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(BinlogError, match=message):
        uncompress_value(data)


@pytest.mark.parametrize(
    ("precision", "decimals", "data", "text"),
    [
        (14, 4, "810DFB38D204D2", "1234567890.1234"),
        (14, 4, "7EF204C72DFB2D", "-1234567890.1234"),
        (5, 2, "807B2D", "123.45"),
        (2, 2, "85", "0.05"),
        (3, 0, "8007", "7"),
    ],
)
def test_decimals_are_exact_text(precision: int, decimals: int, data: str, text: str) -> None:
    raw = bytes.fromhex(data)
    assert decimal_bytes(precision, decimals) == len(raw)
    assert decode_decimal(raw, precision, decimals) == text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_single_precision_keeps_its_value_with_few_digits(value: float) -> None:
    short = shortest_float(value)
    assert struct.pack("<f", short) == struct.pack("<f", value)
    assert len(repr(short)) <= len(repr(value))


def test_times_can_be_negative_with_a_fraction() -> None:
    assert decode_time(bytes.fromhex("7fffffff"), 1) == "-00:00:00.0"
    assert decode_time(bytes.fromhex("7fffff9d"), 2) == "-00:00:00.99"
    assert decode_time(bytes.fromhex("800000"), 0) == "00:00:00"


def test_positions_compare_in_all_domains() -> None:
    at = GtidPosition(parse_gtid("0-1-10,1-2-5"))
    assert at.gtid == "0-1-10,1-2-5"
    assert at.reached(GtidPosition(parse_gtid("0-9-10")))
    assert not at.reached(GtidPosition(parse_gtid("0-1-11")))
    assert not at.reached(GtidPosition(parse_gtid("2-1-1")))
    assert at.after("1-3-6", "binlog.000001", 99).stored() == {"gtid": "0-1-10,1-3-6", "skip": 0}


def test_a_position_within_a_transaction_is_of_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica can write the rows of a transaction into more or fewer events."""
    server, connection, here = MariaDb(), cast(Any, None), [1]
    monkeypatch.setattr(dialect, "query", lambda *_: ((here[0],),))
    at = server.resume(connection, GtidPosition(parse_gtid("0-1-10")))
    within = server.parse(at.within(3).stored())
    assert server.resume(connection, within).stored() == within.stored()
    here[0] = 2
    server.resume(connection, at)  # between transactions it is of all servers
    with pytest.raises(PositionLostError, match="within a large transaction of the server 1"):
        server.resume(connection, within)


@pytest.mark.parametrize("position", [{}, {"gtid": "1-2"}, {"gtid": "a-b-c"}, {"gtid": 5}])
def test_wrong_positions_are_refused(position: dict[str, int | str]) -> None:
    with pytest.raises(PermanentCaptureError):
        GtidPosition.parse(position)


@pytest.mark.parametrize(
    ("character_set", "raw", "text"),
    [
        ("latin1", b"\x80\x81\xe9", "€\x81é"),  # Windows-1252 with control characters
        ("euckr", b"\x8c\x63a", "똠a"),  # Windows-949
        ("cp1256", b"\x8aa", "?a"),  # no character for the server
        ("utf8mb4", b"a\xed\xa0\x80", "a\\xed\\xa0\\x80"),  # half of a pair
        ("ucs2", b"\0a\xd8\0", "a\\xed\\xa0\\x80"),
        ("ucs2", b"\0a\0", "a\\x00"),
        ("utf32", b"\0\0\0a\0\0\xd8\0", "a\\xed\\xa0\\x80"),
        ("utf32", b"\0\x11\0\0", "\\x00\\x11\\x00\\x00"),
        ("sjis", b"\x81\x5f\xff", "\\\\xff"),
        ("big5", b"\xa2\xcc\xa4\x51\xa1", "\ufffd十\\xa1"),
        ("ujis", b"\x8f\xf5\xa1\x8f\xf5", "\ue3ac\\x8f\\xf5"),
    ],
)
def test_text_of_any_bytes_is_decoded(character_set: str, raw: bytes, text: str) -> None:
    decode = text_decoder(character_set)
    assert decode is not None
    assert decode(raw) == text


@given(st.sampled_from(sorted(SUPPORTED)), st.binary(max_size=20))
def test_no_text_fails(character_set: str, raw: bytes) -> None:
    decode = text_decoder(character_set)
    assert decode is not None
    decode(raw).encode()


def test_a_value_that_can_not_be_decoded_takes_only_its_row() -> None:
    columns = [
        ColumnMap(types.LONG, name="i"),
        ColumnMap(types.ENUM, size=1, name="e", labels=["x", "y"]),
        ColumnMap(types.VARCHAR, size=40, name="s", character_set="utf8mb4"),
    ]
    rows = b"".join(
        b"\0" + struct.pack("<iB", number, label) + b"\x02hi"
        for number, label in [(1, 1), (2, 9), (3, 2)]
    )
    found = RowDecoder(TableMap(1, "d", "t", columns, [0]), {}).decode(
        RowsEvent(0, 1, 0, RowsKind.INSERT, 1, 3, (b"\x07",), rows)
    )
    for row, number, label in ((found[0], 1, "x"), (found[2], 3, "y")):
        assert row == (None, {"i": number, "e": label, "s": "hi"}, None)
    assert found[1][:2] == (None, {"i": 2, "s": "hi"})
    assert found[1][2] == "column e can't be decoded: list index out of range"


def test_packets_are_waited_for_in_a_process_with_many_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1200, hard), hard))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        server, client = map(opened.enter_context, socket.socketpair())
        number = fcntl.fcntl(client, fcntl.F_DUPFD, 1024)
        packets = PacketReader(opened.enter_context(socket.socket(fileno=number)), 1)
        assert not packets.wait(0)
        server.sendall(b"\x01\0\0\x01x")
        assert packets.wait(10)
        assert packets.receive() == [b"x"]
