"""Rows of one transaction that stay messages of pgoutput until they are needed as changes.

``scan_pgoutput`` of the extension finds them: complete rows of captured tables that are new to the
reader. Must not know: connections, the catalog, Kafka.
"""

from __future__ import annotations

from collections.abc import Collection
from struct import Struct
from typing import NamedTuple

from tidemill.connect.cdc.contract import Change, Operation, Row, Table
from tidemill.connect.cdc.packed import Encoders
from tidemill.connect.cdc.postgres.decoding import messages
from tidemill.connect.cdc.postgres.decoding.shapes import Layouts, Shape
from tidemill.connect.cdc.postgres.errors import ProtocolError
from tidemill.native import extension

_u32 = Struct(">I").unpack_from
_u64 = Struct(">Q").unpack_from
_KIND = 25

_INSERT, _DELETE = messages.INSERT, messages.DELETE
_NEW, _OLD_KEY, _OLD_ROW = b"NKO"


class Transaction(NamedTuple):
    """The fields that the changes of a transaction have in common.

    Attributes:
        commit_lsn: The LSN of its commit.
        xid: Its number.
        id: Its id in the source.
        ts_ms: Time of its commit.
    """

    commit_lsn: int
    xid: int
    id: str
    ts_ms: int


class Scan(NamedTuple):
    """Rows that were found.

    Attributes:
        end: The place behind the last one.
        lsn: Its LSN.
        same: How many of the last rows have this LSN.
        size: Bytes of the messages.
    """

    end: int
    lsn: int
    same: int
    size: int


def decode_change(
    data: bytes, at: int, lsn: int, shape: Shape, table: Table, transaction: Transaction
) -> Change:
    """Return the change of a row message.

    Args:
        at: The place of its letter.
    """
    kind = data[at]
    at += 5
    before: Row | None = None
    after: Row | None = None
    part = data[at]
    if part == _OLD_ROW:
        before, at = shape.decode_old(data, at + 1)
    elif part == _OLD_KEY:
        before, at = shape.decode_identity(data, at + 1)
    op: Operation = "d"
    if kind != _DELETE:
        if data[at] != _NEW:
            raise ProtocolError(f"a row of {table.id} has no new values")
        after, _ = shape.decode(data, at + 1)
        op = "c" if kind == _INSERT else "u"
    source = {"lsn": lsn, "commit_lsn": transaction.commit_lsn, "txId": transaction.xid}
    return Change(table, op, before, after, transaction.ts_ms, source, transaction.id)


class Run:
    """Rows of one transaction, one after the other (``PackedChanges``).

    Args:
        received: Messages, among others.
        begin: The first row.
        end: The place behind the last one.
    """

    def __init__(
        self,
        layouts: Layouts,
        received: list[bytes],
        begin: int,
        end: int,
        transaction: Transaction,
    ) -> None:
        self._layouts = layouts
        self._received = received
        self._begin = begin
        self._end = end
        self._transaction = transaction
        self.ts_ms = transaction.ts_ms

    def __len__(self) -> int:
        return self._end - self._begin

    def tables(self) -> Collection[Table]:
        """Return the tables that the rows can be of."""
        return [shape.table for shape in self._layouts.shapes.values() if shape.table is not None]

    def unpack(self) -> list[Change]:
        """Return the changes."""
        shapes, found = self._layouts.shapes, []
        for data in self._received[self._begin : self._end]:
            shape = shapes[_u32(data, _KIND + 1)[0]]
            assert shape.table is not None
            lsn = _u64(data, 1)[0]
            found.append(decode_change(data, _KIND, lsn, shape, shape.table, self._transaction))
        return found

    def encode(self, encoders: Encoders, stamp_ms: int) -> int:
        """Encode the changes, and return the number of records."""
        transaction = self._transaction
        return int(
            extension.encode_pgoutput(
                self._layouts.encoders(encoders),
                *(self._received, self._begin, self._end, transaction.ts_ms),
                b',"commit_lsn":%d,"txId":%d}' % (transaction.commit_lsn, transaction.xid),
                stamp_ms,
            )
        )


def scan(counts: dict[int, int], received: list[bytes], begin: int) -> Scan:
    """Find the rows from a place on that need no work of Python.

    Args:
        counts: The number of columns of each captured table, by OID.
        received: Messages with their headers.
    """
    return Scan(*extension.scan_pgoutput(counts, received, begin))
