"""Messages are decoded as the documentation lays them out, and broken ones are refused."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.connect.cdc.contract import Change, Table
from tidemill.connect.cdc.errors import CaptureError, PositionLostError
from tidemill.connect.cdc.postgres import slot
from tidemill.connect.cdc.postgres.decoding import messages
from tidemill.connect.cdc.postgres.decoding.shapes import Layouts, Shape, decoder, identity_decoder
from tidemill.connect.cdc.postgres.decoding.stream import Stream
from tidemill.connect.cdc.postgres.errors import ProtocolError
from tidemill.connect.cdc.postgres.lsn import Origin, Place, parse, place_of, show, to_json
from tidemill.connect.cdc.postgres.settings import Settings
from tidemill.connect.cdc.postgres.types import RULES, integer, text

OID = 16384
BEGINNING = Place(0)
TABLE = Table("d", "public", "t", (), ("id",))
COLUMNS = [("id", integer, True), ("v", text, False)]


class OneTable:
    """The tables of a stream with one table."""

    def __init__(self) -> None:
        self.described: list[messages.Relation] = []

    def __getitem__(self, oid: int) -> Shape:
        if oid != OID:
            raise ProtocolError("unknown table")
        plain = [(name, convert) for name, convert, _ in COLUMNS]
        relation = messages.Relation(OID, "public", "t", "d", ())
        decode = decoder(plain)
        rules = tuple((name, RULES.get(convert, 0), convert, key) for name, convert, key in COLUMNS)
        return Shape(relation, TABLE, ("id", "v"), decode, identity_decoder(COLUMNS), rules, 0)

    def layouts(self) -> Layouts:
        return Layouts({OID: self[OID]} if self.described else {})

    def describe(self, relation: messages.Relation, lsn: int, commit_lsn: int = 0) -> None:
        self.described.append(relation)


def stream(place: Place = BEGINNING) -> tuple[Stream, OneTable]:
    shapes: Any = OneTable()
    return Stream(shapes, place), shapes


def framed(lsn: int, content: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, lsn, 0) + content


def row(*values: str | None) -> bytes:
    parts = [
        b"n" if each is None else b"t" + struct.pack(">I", len(each)) + each.encode()
        for each in values
    ]
    return struct.pack(">H", len(values)) + b"".join(parts)


BEGIN = b"B" + struct.pack(">QqI", 900, 5_000, 77)
COMMIT = b"C" + struct.pack(">BQQq", 0, 900, 950, 5_000)
RELATION = (
    b"R" + struct.pack(">I", OID) + b"public\0t\0d" + struct.pack(">H", 2)
    + b"\1id\0" + struct.pack(">Ii", 23, -1) + b"\0v\0" + struct.pack(">Ii", 25, -1)
)  # fmt: skip
INSERT = b"I" + struct.pack(">I", OID) + b"N" + row("1", "a")
UPDATE = b"U" + struct.pack(">I", OID) + b"K" + row("1", None) + b"N" + row("2", "b")
DELETE = b"D" + struct.pack(">I", OID) + b"K" + row("2", None)
TRUNCATE = b"T" + struct.pack(">IB", 1, 0) + struct.pack(">I", OID)
MESSAGE = b"M" + struct.pack(">BQ", 1, 880) + b"note\0" + struct.pack(">I", 2) + b"hi"
ALL = [BEGIN, RELATION, INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE, COMMIT]


def brief(changes: Iterable[Change]) -> list[tuple[str, Any, Any]]:
    return [(each.op, each.before, each.after) for each in changes]


EXPECTED = [
    ("c", None, {"id": 1, "v": "a"}),
    ("u", {"id": 1}, {"id": 2, "v": "b"}),
    ("d", {"id": 2}, None),
    ("t", None, None),
    ("m", None, {"prefix": "note", "content": "aGk="}),
]


def test_a_transaction_is_decoded() -> None:
    made, shapes = stream()
    for number, each in enumerate(ALL):
        made.feed(framed(800 + number, each))
    assert brief(made.changes) == EXPECTED
    assert made.changes[0].source == {"lsn": 802, "commit_lsn": 900, "txId": 77}
    assert made.changes[0].ts_ms == 946_684_800_005
    assert [each.id for each in made.ended] == ["77:900"]
    assert made.place == Place(950)
    assert [each.name for each in shapes.described[0].columns] == ["id", "v"]
    assert made.truncated == ["public.t"]


@pytest.mark.parametrize("taken", range(6))
def test_what_was_delivered_of_a_transaction_is_skipped(taken: int) -> None:
    """Two changes can have one LSN: here all have."""
    first, _ = stream()
    places: list[Place] = []
    for each in ALL[:-1]:
        first.feed(framed(800, each))
        if len(first.changes) > len(places):
            places.append(first.place)
    place = Place(850) if taken == 0 else places[taken - 1]
    again, _ = stream(place_of(to_json(place, Origin("s", 1, "d", "x", 1))))
    for each in ALL:
        again.feed(framed(800, each))
    assert brief(again.changes) == EXPECTED[taken:]
    assert [each.id for each in again.ended] == ["77:900"]


def test_a_streamed_transaction_waits_for_its_commit() -> None:
    made, _ = stream()
    start = b"S" + struct.pack(">IB", 77, 1)

    def streamed(message: bytes, sub: int = 77) -> bytes:
        return framed(800, message[:1] + struct.pack(">I", sub) + message[1:])

    made.feed(framed(0, start))
    for message, sub in ((RELATION, 78), (INSERT, 78), (UPDATE, 77)):
        made.feed(streamed(message, sub))
    made.feed(framed(0, b"E"))
    made.keepalive(850)
    assert (list(made.changes), made.place) == ([], Place(850))
    made.feed(framed(0, b"A" + struct.pack(">II", 77, 78)))
    made.feed(framed(0, b"c" + struct.pack(">IBQQq", 77, 0, 900, 950, 0)))
    made.keepalive(5_000)  # not beyond a transaction that is being delivered
    assert made.place == Place(900)
    made.replay(100, 1 << 20)
    assert brief(made.changes) == EXPECTED[1:2]
    assert (made.is_replaying, made.place) == (False, Place(950))
    made.feed(framed(0, start))
    made.feed(streamed(INSERT))
    made.feed(framed(0, b"E"))
    made.feed(framed(0, b"A" + struct.pack(">II", 77, 77)))
    made.feed(framed(0, b"c" + struct.pack(">IBQQq", 77, 0, 990, 999, 0)))
    made.replay(100, 1 << 20)
    assert len(made.changes) == 1
    made.close()


@settings(max_examples=examples(150))
@given(st.sampled_from(ALL), st.data())
def test_a_message_that_is_cut_or_changed_is_refused_or_decoded(message: bytes, data: Any) -> None:
    """Nothing but typed errors comes out, whatever the bytes are."""
    end = data.draw(st.integers(1, len(message)))
    broken = bytearray(message[:end])
    place = data.draw(st.integers(0, end - 1))
    broken[place] = data.draw(st.integers(0, 255))
    made, _ = stream()
    made.feed(framed(1, BEGIN))
    with contextlib.suppress(CaptureError):
        made.feed(framed(2, bytes(broken)))
    made.close()


class Commands:
    """A replication connection that notes commands and gives the same answer."""

    def __init__(self, *answer: str | None) -> None:
        self.seen: list[str] = []
        self._answer = list(answer)

    def command(self, text: str, doing: str) -> list[list[str | None]]:
        self.seen.append(text)
        return [self._answer]


class OldCatalog:
    """A catalog of a server of some version, without slots."""

    def __init__(self, version: int) -> None:
        self.version = version

    def rows(self, *_: Any, **__: Any) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("version", "create", "start"),
    [
        (120000, "pgoutput EXPORT_SNAPSHOT", "(proto_version '1', publication_names '\"p\"')"),
        (140000, "pgoutput EXPORT_SNAPSHOT", "streaming 'on', messages 'true')"),
        (150000, "pgoutput (SNAPSHOT 'export')", "(proto_version '2', "),
        (170000, "(SNAPSHOT 'export', FAILOVER true)", "(proto_version '2', "),
    ],
)
def test_the_commands_fit_the_servers_version(version: int, create: str, start: str) -> None:
    replication: Any = Commands("s", "1/2", "snap", "pgoutput")
    catalog: Any = OldCatalog(version)
    how = Settings("", "s", True, "p", failover=True)
    assert slot.create(replication, catalog, how) == (parse("1/2"), "snap")
    slot.start_streaming(replication, version, how, parse("1/2"))
    assert create in replication.seen[0]
    assert start in replication.seen[1]
    assert "LOGICAL 1/2" in replication.seen[1]


HISTORY = "1\t0/5000\tno recovery target specified\n\n2\t0/9000\tno recovery target specified\n"


@pytest.mark.parametrize(
    ("timeline", "lsn", "text"),
    [
        (1, 0x5000, ""),
        (1, 0x5001, "lost changes in a failover"),
        (2, 0x8000, ""),
        (7, 1, "descend"),
    ],
)
def test_a_position_of_an_earlier_timeline_must_be_in_the_history(
    timeline: int, lsn: int, text: str
) -> None:
    replication: Any = Commands("00000003.history", HISTORY)
    origin = Origin("1", timeline, "d", "s", 1)
    here = slot.Server("1", 3, "d")
    if text:
        with pytest.raises(PositionLostError, match=text):
            slot._check_timeline(replication, Place(lsn), origin, here)
    else:
        slot._check_timeline(replication, Place(lsn), origin, here)


@pytest.mark.parametrize("lsn", [0, 1, 0xFFFFFFFF, 1 << 32, (1 << 64) - 1])
def test_lsns_are_written_as_postgresql_does(lsn: int) -> None:
    assert parse(show(lsn)) == lsn


@pytest.mark.parametrize("text", ["", "1", "x/y", "/"])
def test_an_invalid_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid"):
        parse(text)
