"""Compare the places of two changes in the log of their database.

A position is read from the envelope's ``source`` block. Positions of one server are ordered; those
of different servers can't be compared, and then the order of the topic counts. Must not know:
envelopes, rows, topics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

_LIMIT = 1 << 63
_FILE = re.compile(r".*\.([0-9]{1,9})")
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_POS_BITS = 32
"""Bits of a position in a binlog file: the server's own limit is 4 GiB (``max_binlog_size`` is
1 GiB, and a transaction may pass it)."""


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a change in its database's log.

    Attributes:
        origin: connector and logical name of the source.
        server: number of the server, if the source block has one.
        order: numbers that grow from change to change of one key.
        number: ``order`` as one number below 2**63, for sinks.
        is_loose: whether the change may be older than ``order`` says. PostgreSQL's snapshot rows
            are: a transaction that is open during the snapshot writes at a lower LSN, and commits
            after it.
    """

    origin: str
    server: int | None
    order: tuple[int, ...]
    number: int
    is_loose: bool = False

    def is_before(self, other: Position) -> bool:
        """Whether this change is older than another one. False if they can't be compared."""
        if self.origin != other.origin or len(self.order) != len(other.order):
            return False
        if self.server != other.server and None not in (self.server, other.server):
            return False
        return self.order < other.order


def position_of(source: Mapping[str, Any], op: str) -> Position | None:
    """Return the position in a source block; None if it has none that is known.

    Args:
        source: the block ``source`` of an envelope.
        op: the envelope's operation.

    Source: the ``source`` structures of Debezium's connectors for PostgreSQL, MySQL and MariaDB,
    and those of tidemill's own capture, which adds SQLite.
    """
    connector = source.get("connector")
    origin = f"{connector}/{source.get('name')}"
    if connector in ("mysql", "mariadb"):
        return _of_binlog(source, origin)
    if connector == "postgresql":
        return _of_wal(source, origin, op)
    if connector == "sqlite":
        number = _natural(source.get("change_id"))
        return None if number is None else Position(origin, None, (number,), number)
    return None


def _of_binlog(source: Mapping[str, Any], origin: str) -> Position | None:
    found = _FILE.fullmatch(str(source.get("file") or ""))
    pos = _natural(source.get("pos"))
    if found is None or pos is None or pos >> _POS_BITS:
        return None
    file, row = int(found[1]), _natural(source.get("row")) or 0
    # Debezium gives the snapshot's rows the server 0.
    server = _natural(source.get("server_id")) or None
    return Position(origin, server, (file, pos, row), file << _POS_BITS | pos)


def _of_wal(source: Mapping[str, Any], origin: str, op: str) -> Position | None:
    """Return a position in PostgreSQL's log.

    Transactions arrive in the order of their commits, so commit LSNs grow from change to change.
    The LSN of the change itself grows too, as far as one row is concerned: a row is locked until
    the transaction that wrote it ends.
    """
    lsn = _lsn(source.get("lsn"))
    commit = _lsn(source.get("commit_lsn"))
    if commit is not None:
        return Position(origin, None, (commit, lsn or 0), commit)
    if lsn is None:
        return None
    is_loose = op == "r"
    return Position(origin, None, (lsn,), 0 if is_loose else lsn, is_loose)


def _lsn(value: Any) -> int | None:
    if isinstance(value, str) and (found := _LSN.fullmatch(value)):
        return _natural(int(found[1], 16) << 32 | int(found[2], 16))
    return _natural(value)


def _natural(value: Any) -> int | None:
    """Return a number from 0 to 2**63 - 1, also if it is written as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LIMIT:
        return None
    return value


def source_text(source: Mapping[str, Any]) -> str:
    """Return a source block as JSON text."""
    return orjson.dumps(source).decode()
