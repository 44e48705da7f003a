"""Decodes the messages of the output plugin pgoutput that are not rows.

The layouts are those of "Logical Replication Message Formats" in PostgreSQL's documentation,
protocol versions 1 and 2. Rows are decoded by ``rows``, because they are the hot path.
Must not know: connections, the catalog, values.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error

from tidemill.connect.cdc.postgres.errors import ProtocolError
from tidemill.connect.cdc.postgres.lsn import POSTGRES_EPOCH_US

BEGIN, COMMIT, RELATION, TYPE, INSERT, UPDATE, DELETE, TRUNCATE, ORIGIN, MESSAGE = b"BCRYIUDTOM"
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = b"SEcA"

_begin = Struct(">QqI").unpack_from
_commit = Struct(">BQQq").unpack_from
_u32 = Struct(">I").unpack_from
_u16 = Struct(">H").unpack_from
_truncate = Struct(">IB").unpack_from
_message = Struct(">BQ").unpack_from
_stream_commit = Struct(">IBQQq").unpack_from
_two_u32 = Struct(">II").unpack_from


@dataclass(frozen=True, slots=True)
class Begin:
    """The start of a transaction.

    Attributes:
        commit_lsn: The LSN of its commit record.
        commit_us: The commit time in microseconds since 1970.
        xid: The number of the transaction.
    """

    commit_lsn: int
    commit_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction; ``end_lsn`` is the place behind its commit record."""

    commit_lsn: int
    end_lsn: int
    commit_us: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as the stream describes it.

    Attributes:
        name: The name of the column.
        type_oid: The OID of its type.
        is_identity: Whether it belongs to the replica identity. Under FULL every column does.
    """

    name: str
    type_oid: int
    is_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the stream describes it before its first row and after each change of it.

    Attributes:
        oid: The number by which rows name the table.
        identity: The replica identity: ``d`` default, ``f`` full, ``i`` index, ``n`` nothing.
    """

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message of ``pg_logical_emit_message``.

    Attributes:
        is_transactional: Whether it belongs to the transaction around it.
        lsn: Its LSN.
    """

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


def begin(data: bytes, at: int) -> Begin:
    """Decode a Begin message whose fields start at ``at``."""
    commit_lsn, commit_us, xid = _unpacked(_begin, data, at, "Begin")
    return Begin(commit_lsn, commit_us + POSTGRES_EPOCH_US, xid)


def commit(data: bytes, at: int) -> Commit:
    """Decode a Commit message."""
    _, commit_lsn, end_lsn, commit_us = _unpacked(_commit, data, at, "Commit")
    return Commit(commit_lsn, end_lsn, commit_us + POSTGRES_EPOCH_US)


def stream_commit(data: bytes, at: int) -> tuple[int, Commit]:
    """Decode a Stream Commit message to the transaction's number and its end."""
    xid, _, commit_lsn, end_lsn, us = _unpacked(_stream_commit, data, at, "Stream Commit")
    return xid, Commit(commit_lsn, end_lsn, us + POSTGRES_EPOCH_US)


def stream_abort(data: bytes, at: int) -> tuple[int, int]:
    """Decode a Stream Abort message to the transaction and the subtransaction that was aborted."""
    xid, sub = _unpacked(_two_u32, data, at, "Stream Abort")
    return xid, sub


def xid_of(data: bytes, at: int) -> int:
    """Return the number of a transaction at a place of a message."""
    return int(_unpacked(_u32, data, at, "a streamed message")[0])


def relation(data: bytes, at: int) -> Relation:
    """Decode a Relation message."""
    oid = xid_of(data, at)
    schema, at = _text(data, at + 4)
    name, at = _text(data, at)
    identity = chr(_unpacked(_byte, data, at, "Relation")[0])
    (count,) = _unpacked(_u16, data, at + 1, "Relation")
    at += 3
    columns = []
    for _ in range(count):
        (flags,) = _unpacked(_byte, data, at, "Relation")
        column, at = _text(data, at + 1)
        type_oid = xid_of(data, at)
        at += 8  # with the type modifier
        columns.append(RelationColumn(column, type_oid, bool(flags & 1)))
    # An empty schema means pg_catalog.
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def truncate(data: bytes, at: int) -> list[int]:
    """Decode a Truncate message to the OIDs of the truncated tables."""
    count, _ = _unpacked(_truncate, data, at, "Truncate")
    if count * 4 > len(data) - at:
        raise ProtocolError(f"a Truncate message announces {count} tables in {len(data)} bytes")
    return [xid_of(data, at + 5 + 4 * index) for index in range(count)]


def message(data: bytes, at: int) -> LogicalMessage:
    """Decode a Message message."""
    flags, lsn = _unpacked(_message, data, at, "Message")
    prefix, at = _text(data, at + 9)
    length = xid_of(data, at)
    content = data[at + 4 : at + 4 + length]
    if len(content) != length:
        raise ProtocolError(f"a Message message announces {length} bytes, but has {len(content)}")
    return LogicalMessage(bool(flags & 1), lsn, prefix, content)


_byte = Struct(">B").unpack_from


def _unpacked(unpack: object, data: bytes, at: int, what: str) -> tuple[int, ...]:
    try:
        return unpack(data, at)  # type: ignore[operator,no-any-return]
    except error:
        raise ProtocolError(f"a {what} message is cut after {len(data)} bytes") from None


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise ProtocolError("a name in a message of pgoutput does not end")
    return data[at:end].decode("utf-8", "backslashreplace"), end + 1
