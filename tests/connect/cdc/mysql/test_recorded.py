"""Events that a MySQL server 9.7.4 wrote, byte by byte, and what they mean."""

from __future__ import annotations

from base64 import b64decode
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.connect.cdc.binlog.decoding import payload as payloads
from tidemill.connect.cdc.binlog.decoding.events import (
    EventParser,
    GtidEvent,
    PayloadEvent,
    QueryEvent,
    RowsEvent,
    TableMapEvent,
    XidEvent,
    parse_tagged_gtid,
)
from tidemill.connect.cdc.binlog.decoding.jsonb import json_text
from tidemill.connect.cdc.binlog.decoding.payload import Payload, parse_payload, unpack_payload
from tidemill.connect.cdc.binlog.decoding.reader import BinlogError
from tidemill.connect.cdc.binlog.decoding.rows import UNDECODABLE, RowDecoder
from tidemill.connect.cdc.binlog.decoding.table_map import MYSQL, parse_table_map

GTID = b64decode(
    "gDuxaiEBAAAATwAAAJtcBgAAAADAwnoy51cR8bBQAvwAAAABKgAAAAAAAAACIgAAAAAAAAAjAAAAAAAAAI0r2Ff0"
    "YAb8AQJQYgEATZsbKw=="
)
TAGGED = b64decode(
    "gDuxaioBAAAAUQAAADFhBgAAAAJ0AAAAAgEDCQP0ZJ0DriLFA8ECoATxAwAAAAIECAYMdGFnZ2VkCJAKlAx/mTrY"
    "V/RgBhDNBxKDEgt58xAv"
)
BEGIN = b64decode(
    "gDuxagIBAAAAUwAAAO5cBgAIACAAAACGMlMABAAAJQAAAAAAAAEgAKBFAAAAAAYDc3RkBP8A/wD/AAUGU1lTVEVN"
    "Ev8Ac2hvcABCRUdJTkitHNM="
)
TABLE_MAP = b64decode(
    "gDuxahMBAAAAhQAAAHNdBgAAAIIAAAAAAAEABHNob3AAAXQADAMNA/8P8vz1/vYSAwsECQAEAgT3AQkDA/4PAQFg"
    "AwUIP/z/AAcBAQ0BAgQcAmlkAXkBdQFwAWEBbgFzAWoBZQFkAmF0A2hpZAoD/P8ABgYCAXgCw6kIAQAMAv/gDTKB"
    "qw=="
)
INSERT = b64decode(
    "gDuxah4BAAAAuwAAAC5eBgAAAIIAAAAAABEAAgAM//8AAAEAAAB4AChr7hkAAAAAAAAAAQEAAAAAAAAAAADwPwAA"
    "AAAAAABAAekIAAAAAACAPwAAAEAGAMOp8J+YgEQAAAAAAgBDABIAAQATAAQADxcAAiAAa2xpc3T2BwsCgAAAAQoF"
    "ACMABQEADxMABAEABAAADxkA9gQCAX36CggAAAAAAESlGQJ///P+C5m7bhCDE4gHAAAAP/sWMQ=="
)
UPDATE = b64decode(
    "gDuxah8BAAAATAEAAMFgBgAAAIIAAAAAABEAAgAM/////wAAAQAAAHgAKGvuGQAAAAAAAAABAQAAAAAAAAAAAPA/"
    "AAAAAAAAAEAB6QgAAAAAAIA/AAAAQAYAw6nwn5iARAAAAAACAEMAEgABABMABAAPFwACIABrbGlzdPYHCwKAAAAB"
    "CgUAIwAFAQAPEwAEAQAEAAAPGQD2BAIBffoKCAAAAAAARKUZAn//8/4LmbtuEIMTiAcAAABAAAEAAAB4AChr7hkA"
    "AAAAAAAAAQEAAAAAAAAAAADwPwAAAAAAAABAAekIAAAAAACAPwAAAEBEAAAAAAIAQwASAAEAEwAEAA8XAAIgAGts"
    "aXN09gcLAoAAAAEKBQAjAAUBAA8TAAQBAAQAAA8ZAPYEAgF9+goIAAAAAABEpRkCf//z/guZu24QgxOIBwAAAPzk"
    "YvQ="
)
DELETE = b64decode(
    "gDuxaiABAAAAswAAALRiBgAAAIIAAAAAABEAAgAM//9AAAEAAAB4AChr7hkAAAAAAAAAAQEAAAAAAAAAAADwPwAA"
    "AAAAAABAAekIAAAAAACAPwAAAEBEAAAAAAIAQwASAAEAEwAEAA8XAAIgAGtsaXN09gcLAoAAAAEKBQAjAAUBAA8T"
    "AAQBAAQAAA8ZAPYEAgF9+goIAAAAAABEpRkCf//z/guZu24QgxOIBwAAAP47Ac8="
)
COMMIT = b64decode("gDuxahABAAAAHwAAAE1eBgAAAD6fAAAAAAAAyVFCmA==")
PAYLOAD = b64decode(
    "gDuxaigBAAAAdwEAAJlkBgAAAAIBAAMD/KIBAQP8UgEAKLUv/WCiAEUKAPbSRD0wxSqNAWjAe/7x390IQ0EBEfLE"
    "dCjM8qAW5lgR7DEA1qNMwbAbDmusxBdThSxTXTjLmXCdh2tLGiF7b5kCMwA4ADEAmcWlr8d3eKDrM0Y8OIwYVmGY"
    "wisHYjRBoiBt2pV+Yji3EcmePeHppAWQ3zO3xL8SdH3GVTYv38k0xZL81mLBDTe1pVVtxmrsd5IGVK5mt3KVgTht"
    "Vux2szktS4BKuoViJic2GyAL0NWpmQHeO+eGpWgUYcFar7fQyKVsCAR79zsAUAqvfvm1ZpYPmPx7ALo+I0qVmZdr"
    "veRq5bYd/88SFWz+Soj3sUmdjGBmAiqH7JSILgU2VtLYnW7pXvdqI6xd9keJqcTE8HSB2iMn6KYHFQCgBOLSWWBW"
    "DCLSimIzumYwcHNLHk0RuXOD8NnUgaGT1DmW5sCFUtiR28iyXiDqAOYh+CLL"
)

SETS = {8: "latin1", 255: "utf8mb4", 63: "binary"}
SERVER = "c0c27a32-e757-11f1-b050-02fc00000001"
ROW = {
    "id": 1,
    "y": 2020,
    "u": 4000000000,
    "p": "AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA==",
    "a": "é",
    "n": "AACAPwAAAEA=",
    "s": "é😀",
    "j": '{"k": 1.10, "list": [1, -2.5, true, null, "2020-01-02"]}',
    "e": "é",
    "d": "-12.500",
    "at": "2026-11-23T01:02:03.500",
    "hid": 7,
}


def parse(data: bytes) -> Any:
    return EventParser(has_checksums=True).parse(data)


def decoder() -> RowDecoder:
    event = parse(TABLE_MAP)
    assert isinstance(event, TableMapEvent)
    return RowDecoder(parse_table_map(event.body, SETS, MYSQL), {})


def test_the_begin_and_the_end_of_a_transaction() -> None:
    gtid = parse(GTID)
    assert isinstance(gtid, GtidEvent)
    assert (gtid.gtid, gtid.is_standalone, gtid.is_xa) == (f"{SERVER}:42", None, False)
    assert gtid.committed_ms == 1_795_452_422_335
    begin = parse(BEGIN)
    assert isinstance(begin, QueryEvent)
    assert (begin.database, begin.statement) == ("shop", "BEGIN")
    assert isinstance(parse(COMMIT), XidEvent)


def test_a_tagged_id() -> None:
    event = parse(TAGGED)
    assert isinstance(event, GtidEvent)
    assert event.gtid == f"{SERVER}:tagged:2"
    assert event.committed_ms == 1_795_452_422_339


def test_a_transaction_of_another_server_has_the_time_of_its_first_commit() -> None:
    there = 1_700_000_000_123_456
    first = bytearray(GTID)
    place = first.index(b"\x8d\x2b\xd8\x57\xf4\x60\x06")
    first[place + 6] |= 0x80
    first[place + 7 : place + 7] = there.to_bytes(7, "little")
    first[9:13] = len(first).to_bytes(4, "little")  # the size in the header
    event = EventParser(has_checksums=False).parse(bytes(first))
    assert isinstance(event, GtidEvent)
    assert event.committed_ms == there // 1000


def test_a_table_map_has_names_keys_signs_and_character_sets() -> None:
    table = parse_table_map(parse(TABLE_MAP).body, SETS, MYSQL)
    assert (table.database, table.name, table.key) == ("shop", "t", [0])
    assert [each.name for each in table.columns] == list(ROW)
    assert [each.name for each in table.columns if each.is_unsigned] == ["y", "u"]
    sets = {each.name: each.character_set for each in table.columns if each.character_set}
    assert sets == {"a": "latin1", "n": "binary", "s": "utf8mb4", "e": "utf8mb4"}
    assert table.columns[8].labels == ["x", "é"]


def test_rows_of_all_operations() -> None:
    decode = decoder().decode
    assert decode(parse(INSERT)) == [(None, ROW, None)]
    changed = {**ROW, "s": None}
    assert decode(parse(UPDATE)) == [(ROW, changed, None)]
    assert decode(parse(DELETE)) == [(changed, None, None)]


def events_of(payload: Payload, begin: int, end: int) -> list[Any]:
    parser = EventParser(has_checksums=False)
    packets = [each for part in unpack_payload(payload, begin, end) for each in part]
    return [parser.parse(each[1:]) for each in packets]


@pytest.mark.parametrize("in_memory", [0, 1 << 20])
def test_a_compressed_transaction(in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "IN_MEMORY_BYTES", in_memory)
    event = parse(PAYLOAD)
    assert isinstance(event, PayloadEvent)
    begin, end = event.end_position - len(PAYLOAD), event.end_position
    found = events_of(event.payload, begin, end)
    assert [type(each) for each in found] == [QueryEvent, TableMapEvent, RowsEvent, XidEvent]
    assert decoder().decode(found[2]) == [(None, {**ROW, "id": 2}, None)]
    places = [each.end_position for each in found]
    assert places == [begin + 1, begin + 2, begin + 3, end]


def test_a_transaction_in_the_format_without_compression() -> None:
    inner = [data[:-4] for data in (BEGIN, TABLE_MAP, INSERT, COMMIT)]
    whole = b"".join(each[:9] + len(each).to_bytes(4, "little") + each[13:] for each in inner)
    size = len(whole).to_bytes(2, "little")
    payload = parse_payload(b"\1\3\xfc" + size + b"\2\3\xfc\xff\0" + b"\0" + whole)
    assert payload.compression == 255
    assert decoder().decode(events_of(payload, 5, 7)[2]) == [(None, ROW, None)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 5}, "damaged"),
        ({"size": 10_000}, "says|damaged"),
        ({"data": b"nothing"}, "damaged"),
        ({"compression": 255, "data": bytes(40), "size": 40}, "says that it has 0 bytes"),
        ({"compression": 255, "data": b"\1" * 5, "size": 5}, "holds 5 bytes"),
    ],
)
def test_damaged_compressed_transactions_are_refused(change: dict[str, Any], message: str) -> None:
    payload = parse(PAYLOAD).payload
    kept = {"compression": payload.compression, "size": payload.size, "data": payload.data}
    with pytest.raises(BinlogError, match=message):
        events_of(Payload(**{**kept, **change}), 0, 500)


@given(data=st.binary(max_size=80))
def test_no_bytes_raise_anything_but_a_typed_error(data: bytes) -> None:
    with suppress(*UNDECODABLE):
        json_text(data)
    with suppress(BinlogError):
        parse_tagged_gtid(data)
    with suppress(BinlogError):
        parse_payload(data)
    with suppress(BinlogError):
        parse_table_map(parse(TABLE_MAP).body[:60] + data, SETS, MYSQL)


def recorded_json() -> bytes:
    rows = parse(INSERT).rows
    start = rows.index(b"\0\2\0")  # an object of two members; its size comes next
    return bytes(rows[start : start + 1 + int.from_bytes(rows[start + 3 : start + 5], "little")])


@given(at=st.integers(0, 200), value=st.integers(0, 255))
def test_a_changed_byte_of_json_does_no_harm(at: int, value: int) -> None:
    document = bytearray(recorded_json())
    assert json_text(bytes(document)) == ROW["j"]
    document[at % len(document)] = value
    with suppress(*UNDECODABLE):
        json_text(bytes(document))
