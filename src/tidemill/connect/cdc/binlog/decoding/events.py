"""The events of a binary log that change capture needs, parsed from their bytes.

An event has a header of 19 bytes, a body, and a CRC-32 where the server writes checksums. Events
that are not listed here have no effect on captured tables and are parsed as ``OtherEvent``.

The classes are not frozen, because to make an object of a frozen one takes three times as long.

Must not know a connection, a table's definition or a row; ``table_map`` and ``rows`` read those.

Source: MariaDB documentation, "Replication protocol", pages "2-Binlog Event Header" and of each
event; MySQL source documentation, "Binary log event classes", "Gtid_event" and
"mysql::serialization library".
"""

from __future__ import annotations

import enum
import struct
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.connect.cdc.binlog.decoding.compression import uncompress
from tidemill.connect.cdc.binlog.decoding.payload import Payload, parse_payload
from tidemill.connect.cdc.binlog.decoding.reader import BinlogError, Reader

_LONGEST_TAG = 32


def parse_tagged_gtid(body: bytes) -> tuple[str, int]:
    """Return the id with a tag in the body of the event, and the time of its commit.

    The event is a list of fields, each with its number. Integers have a variable length: the number
    of one bits at the end of the first byte is that of the bytes behind it.

    Returns:
        The id as ``uuid:tag:number``, and microseconds since the epoch on the server where it was
        written.
    """
    reader = Reader(body)
    version = _unsigned(reader)
    if version != 1:
        raise BinlogError(f"a tagged GTID has the unknown version {version}")
    _unsigned(reader)  # the size of the message
    _unsigned(reader)  # the last field that must be understood
    source = tag = ""
    number = committed = 0
    while reader.remaining:
        match _unsigned(reader):
            case 0:
                _unsigned(reader)
            case 1:
                source = str(uuid.UUID(bytes=bytes(_unsigned(reader) & 0xFF for _ in range(16))))
            case 2:
                number = _signed(reader)
            case 3:
                tag = _tag(reader)
            case 4 | 5:
                _signed(reader)  # values of the clock of replication
            case 6 | 7:  # the second one is there if it was committed elsewhere first
                committed = _unsigned(reader) or committed
            case other if tag and other > 7:
                break
            case other:
                raise BinlogError(f"a tagged GTID has the unexpected field {other}")
    if not source or not tag or number < 1:
        raise BinlogError("a tagged GTID lacks its source, tag or number")
    return f"{source}:{tag}:{number}", committed


def _tag(reader: Reader) -> str:
    size = _unsigned(reader)
    if not 1 <= size <= _LONGEST_TAG:
        raise BinlogError(f"a tagged GTID has a tag of {size} bytes")
    return reader.raw(size).decode("ascii", "replace")


def _unsigned(reader: Reader) -> int:
    first = reader.uint(1)
    more = 0
    while more < 8 and first >> more & 1:
        more += 1
    if more == 8:
        return reader.uint(8)
    return first >> (more + 1) | reader.uint(more) << (7 - more)


def _signed(reader: Reader) -> int:
    value = _unsigned(reader)
    return -(value >> 1) - 1 if value & 1 else value >> 1


_HEADER = struct.Struct("<IBIIIH")
HEADER_BYTES = _HEADER.size
CHECKSUM_BYTES = 4

QUERY = 2
ROTATE = 4
FORMAT_DESCRIPTION = 15
XID = 16
TABLE_MAP = 19
EXECUTE_LOAD_QUERY = 18
INCIDENT = 26
HEARTBEAT = 27
MYSQL_GTID = 33
MYSQL_ANONYMOUS_GTID = 34
XA_PREPARE = 38
PARTIAL_UPDATE_ROWS = 39
TRANSACTION_PAYLOAD = 40
HEARTBEAT_V2 = 41
MYSQL_TAGGED_GTID = 42
MARIADB_GTID = 162
MARIADB_QUERY_COMPRESSED = 165


class RowsKind(enum.Enum):
    """The change that a rows event makes."""

    INSERT = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()


_ROWS: dict[int, tuple[RowsKind, int, bool]] = {
    23: (RowsKind.INSERT, 1, False),
    24: (RowsKind.UPDATE, 1, False),
    25: (RowsKind.DELETE, 1, False),
    30: (RowsKind.INSERT, 2, False),
    31: (RowsKind.UPDATE, 2, False),
    32: (RowsKind.DELETE, 2, False),
    166: (RowsKind.INSERT, 1, True),
    167: (RowsKind.UPDATE, 1, True),
    168: (RowsKind.DELETE, 1, True),
    169: (RowsKind.INSERT, 2, True),
    170: (RowsKind.UPDATE, 2, True),
    171: (RowsKind.DELETE, 2, True),
}
"""Event type -> kind, version, and whether MariaDB has compressed the rows."""


_CLOCK_BYTES = 1 + 8 + 8
"""Between the id and the time of the commit: the clock of replication, its kind and two values."""

_ELSEWHERE = 1 << 55
"""Bit of a commit time: that of the server where the transaction was written follows."""


@dataclass(slots=True)
class Event:
    """The common part of all events.

    Attributes:
        timestamp_s: when the statement began, in seconds since the epoch; 0 for events that the
            server makes for the connection.
        server_id: the server that wrote the event first.
        end_position: the position behind the event in its file; 0 if it is in no file.
    """

    timestamp_s: int
    server_id: int
    end_position: int


@dataclass(slots=True)
class RotateEvent(Event):
    """The stream continues in another file."""

    file: str
    position: int


@dataclass(slots=True)
class FormatDescriptionEvent(Event):
    """The first event of each file: the server's version, and whether events have checksums."""

    server_version: str
    has_checksums: bool


@dataclass(slots=True)
class GtidEvent(Event):
    """The begin of an event group: a transaction, or a single statement.

    Attributes:
        gtid: the id of the group: ``domain-server-number`` of MariaDB, ``uuid:number`` or
            ``uuid:tag:number`` of MySQL; empty if MySQL runs without ids.
        is_standalone: the group has one statement and no end event; None: its first statement says.
        is_xa: the group belongs to an XA transaction, as MariaDB says.
        committed_ms: when it was committed on the server where it was written, in milliseconds
            since the epoch, as MySQL says; 0: unknown.
    """

    gtid: str
    is_standalone: bool | None = None
    is_xa: bool = False
    committed_ms: int = 0


@dataclass(slots=True)
class PayloadEvent(Event):
    """The events of a transaction, compressed into one event."""

    payload: Payload


@dataclass(slots=True)
class QueryEvent(Event):
    """A statement in its text form.

    Attributes:
        database: the default database of the session.
        statement: the text, decoded as UTF-8.
        raw: its bytes, if they are not ASCII.
        collation: the id of a collation of the character set that the bytes are in; 0: unknown.
    """

    database: str
    statement: str
    raw: bytes = b""
    collation: int = 0


@dataclass(slots=True)
class XidEvent(Event):
    """The commit of a transaction."""

    xid: int


@dataclass(slots=True)
class XaPrepareEvent(Event):
    """The end of the group of an XA transaction that was prepared, and is not committed yet."""


@dataclass(slots=True)
class TableMapEvent(Event):
    """The definition of a table, for the rows events that follow. ``table_map`` parses the body."""

    body: bytes


@dataclass(slots=True)
class RowsEvent(Event):
    """Changed rows of one table, not decoded yet.

    Attributes:
        column_count: the number of columns of the table.
        present: for INSERT and DELETE one bitmap, for UPDATE two: the columns that the row images
            have.
        rows: the row images, one after the other.
    """

    kind: RowsKind
    table_id: int
    column_count: int
    present: tuple[bytes, ...]
    rows: bytes


@dataclass(slots=True)
class HeartbeatEvent(Event):
    """The server has nothing to send."""


@dataclass(slots=True)
class UnsupportedEvent(Event):
    """An event that carries changes in a form that is not supported.

    Attributes:
        what: names it.
        hint: what to do.
        table_id: the number of the table that it changes, if it says so.
    """

    what: str
    hint: str = ""
    table_id: int | None = None


@dataclass(slots=True)
class OtherEvent(Event):
    """An event without effect on captured tables."""

    event_type: int


class EventParser:
    """Parses events. It remembers what the last format description said about checksums.

    Attributes:
        has_checksums: whether the next event has a checksum.
    """

    def __init__(self, *, has_checksums: bool) -> None:
        self.has_checksums = has_checksums

    def parse(self, data: bytes) -> Event:
        """Parse one event.

        Args:
            data: the whole event, from its header to its checksum.
        """
        if len(data) < HEADER_BYTES:
            raise BinlogError(f"a binary log event has only {len(data)} bytes")
        timestamp_s, event_type, server_id, size, end, _ = _HEADER.unpack_from(data)
        if size != len(data):
            raise BinlogError(f"a binary log event has {len(data)} bytes, its header says {size}")
        base = (timestamp_s, server_id, end)
        if event_type == FORMAT_DESCRIPTION:
            event = _format_description(data, base)
            self.has_checksums = event.has_checksums
            return event
        body = self._body(data, event_type, end)
        rows = _ROWS.get(event_type)
        if rows is not None:
            return _rows(body, base, *rows)
        parse = _PARSERS.get(event_type)
        return OtherEvent(*base, event_type) if parse is None else parse(body, base)

    def _body(self, data: bytes, event_type: int, end: int) -> bytes:
        if not self.has_checksums:
            return data[HEADER_BYTES:]
        if len(data) < HEADER_BYTES + CHECKSUM_BYTES:
            raise BinlogError(f"a binary log event of {len(data)} bytes has no checksum")
        stored = int.from_bytes(data[-CHECKSUM_BYTES:], "little")
        if zlib.crc32(memoryview(data)[:-CHECKSUM_BYTES]) != stored:
            raise BinlogError(
                f"the binary log event (type {event_type}) that ends at position {end} is damaged: "
                "its checksum is wrong",
                hint="Check the server's disk and network; mariadb-binlog --verify-binlog-checksum "
                "reads the file on the server.",
            )
        return data[HEADER_BYTES:-CHECKSUM_BYTES]


_SHORT_COUNT = 0xFA
"""The greatest number that a length-encoded integer of one byte holds."""
_Base = tuple[int, int, int]
_Parse = Callable[[bytes, _Base], Event]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _format_description(data: bytes, base: _Base) -> FormatDescriptionEvent:
    reader = Reader(data, HEADER_BYTES)
    reader.raw(2)
    version = _text(reader.raw(50).rstrip(b"\0"))
    # The last five bytes are the checksum algorithm and the checksum of this event.
    algorithm = data[-CHECKSUM_BYTES - 1]
    return FormatDescriptionEvent(*base, version, algorithm == 1)


def _rotate(body: bytes, base: _Base) -> Event:
    reader = Reader(body)
    position = reader.uint(8)
    return RotateEvent(*base, _text(reader.rest()), position)


def _mariadb_gtid(body: bytes, base: _Base) -> Event:
    reader = Reader(body)
    sequence, domain, flags = reader.uint(8), reader.uint(4), reader.uint(1)
    return GtidEvent(
        *base,
        f"{domain}-{base[1]}-{sequence}",
        is_standalone=bool(flags & 1),
        is_xa=bool(flags & (64 | 128)),
    )


def _mysql_gtid(body: bytes, base: _Base) -> Event:
    reader = Reader(body)
    reader.raw(1)  # flags
    source = uuid.UUID(bytes=reader.raw(16))
    gtid = f"{source}:{reader.uint(8)}"
    reader.raw(_CLOCK_BYTES)
    committed_us = reader.uint(7)
    if committed_us & _ELSEWHERE:
        committed_us = reader.uint(7) or committed_us ^ _ELSEWHERE
    return GtidEvent(*base, gtid, committed_ms=committed_us // 1000)


def _mysql_tagged_gtid(body: bytes, base: _Base) -> Event:
    gtid, committed_us = parse_tagged_gtid(body)
    return GtidEvent(*base, gtid, committed_ms=committed_us // 1000)


def _mysql_anonymous_gtid(_: bytes, base: _Base) -> Event:
    return GtidEvent(*base, "")


def _payload(body: bytes, base: _Base) -> Event:
    return PayloadEvent(*base, parse_payload(body))


def _partial_update(body: bytes, base: _Base) -> Event:
    return UnsupportedEvent(
        *base,
        "a partial update of JSON (binlog_row_value_options)",
        "This change can't be captured. Let no session set binlog_row_value_options, and run: "
        "tidemill source restart NAME --resnapshot",
        Reader(body).uint(6),
    )


def _query(body: bytes, base: _Base) -> Event:
    return _query_event(base, *_statement(body))


def _compressed_query(body: bytes, base: _Base) -> Event:
    database, statement, collation = _statement(body)
    return _query_event(base, database, uncompress(statement), collation)


def _load_query(body: bytes, base: _Base) -> Event:
    """Parse LOAD DATA as a statement: it has the number of a file and three places more."""
    return _query_event(base, *_statement(body, more=13))


def _query_event(base: _Base, database: str, statement: bytes, collation: int) -> QueryEvent:
    if statement.isascii():  # the usual case
        return QueryEvent(*base, database, statement.decode("ascii"))
    return QueryEvent(*base, database, _text(statement), statement, collation)


def _statement(body: bytes, more: int = 0) -> tuple[str, bytes, int]:
    """Return the database, the statement, and its collation, of the body of a query event."""
    reader = Reader(body)
    reader.raw(8)  # thread id and execution time
    database_bytes = reader.uint(1)
    reader.raw(2)  # error code
    status_bytes = reader.uint(2)
    reader.raw(more)
    status = reader.raw(status_bytes)
    database = _text(reader.raw(database_bytes))
    reader.raw(1)
    statement = reader.rest()
    return database, statement, 0 if statement.isascii() else _client_collation(status)


_STATUS_BYTES = {0: 4, 1: 8, 3: 4}
"""The sizes of the status variables that come before the character set, by their codes."""


def _client_collation(status: bytes) -> int:
    """Return the id of a collation of the client's character set; 0 if it is not there."""
    reader = Reader(status)
    while reader.remaining:
        code = reader.uint(1)
        if code == 4:
            return reader.uint(2)
        if code == 6:  # a name
            reader.raw(reader.uint(1))
        elif code in _STATUS_BYTES:
            reader.raw(_STATUS_BYTES[code])
        else:
            break
    return 0


def _xid(body: bytes, base: _Base) -> Event:
    return XidEvent(*base, Reader(body).uint(8))


def _table_map(body: bytes, base: _Base) -> Event:
    return TableMapEvent(*base, body)


def _heartbeat(_: bytes, base: _Base) -> Event:
    return HeartbeatEvent(*base)


def _incident(_: bytes, base: _Base) -> Event:
    return UnsupportedEvent(
        *base,
        "an incident: the server could not write some changes",
        "Take a new snapshot: tidemill source restart NAME --resnapshot",
    )


def _rows(body: bytes, base: _Base, kind: RowsKind, version: int, compressed: bool) -> RowsEvent:
    images = 2 if kind is RowsKind.UPDATE else 1
    if version == 1 and not compressed and len(body) > 8 and body[8] <= _SHORT_COUNT:
        count = body[8]  # the usual case
        size = (count + 7) // 8
        at = 9 + images * size
        if len(body) >= at:
            ends = range(9 + size, at + 1, size)
            present = tuple(body[end - size : end] for end in ends)
            table_id = int.from_bytes(body[:6], "little")
            return RowsEvent(*base, kind, table_id, count, present, body[at:])
    reader = Reader(body)
    table_id = reader.uint(6)
    reader.raw(2)
    if version == 2:
        extra = reader.uint(2)  # includes its own two bytes
        reader.raw(extra - 2)
    count = reader.length()
    if count > 4096:
        raise BinlogError(f"a rows event says that its table has {count} columns")
    present = tuple(reader.raw((count + 7) // 8) for _ in range(images))
    rows = reader.rest()
    return RowsEvent(
        *base, kind, table_id, count, present, uncompress(rows) if compressed else rows
    )


_PARSERS: dict[int, _Parse] = {
    QUERY: _query,
    EXECUTE_LOAD_QUERY: _load_query,
    ROTATE: _rotate,
    XID: _xid,
    TABLE_MAP: _table_map,
    HEARTBEAT: _heartbeat,
    HEARTBEAT_V2: _heartbeat,
    XA_PREPARE: lambda _, base: XaPrepareEvent(*base),
    PARTIAL_UPDATE_ROWS: _partial_update,
    TRANSACTION_PAYLOAD: _payload,
    INCIDENT: _incident,
    MYSQL_GTID: _mysql_gtid,
    MYSQL_ANONYMOUS_GTID: _mysql_anonymous_gtid,
    MYSQL_TAGGED_GTID: _mysql_tagged_gtid,
    MARIADB_GTID: _mariadb_gtid,
    MARIADB_QUERY_COMPRESSED: _compressed_query,
}
