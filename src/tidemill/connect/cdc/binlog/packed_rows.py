"""Rows of one transaction that stay events of the binary log until they are needed as changes.

``scan_binlog`` of the extension finds them: complete rows of tables whose definition is known.
Must not know connections, the catalog, Kafka.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import orjson

from tidemill.connect.cdc.binlog.decoding.events import EventParser, RowsEvent, RowsKind
from tidemill.connect.cdc.binlog.decoding.rows import UNDECODABLE
from tidemill.connect.cdc.binlog.shapes import Packable, Shape
from tidemill.connect.cdc.contract import Change, Operation, Table
from tidemill.connect.cdc.errors import UndecodableRowError
from tidemill.connect.cdc.packed import Encoders
from tidemill.native import extension

OPERATIONS: dict[RowsKind, Operation] = {
    RowsKind.INSERT: "c",
    RowsKind.UPDATE: "u",
    RowsKind.DELETE: "d",
}


class Transaction(NamedTuple):
    """The fields that the changes of an event group have in common.

    Attributes:
        gtid: the id of the group.
        file: the name of the binary log's file.
        committed_ms: when it was committed, in milliseconds since the epoch; 0: each event has a
            time, that of its statement in seconds.
    """

    gtid: str
    file: str
    committed_ms: int = 0


class Scan(NamedTuple):
    """Events that were found.

    Attributes:
        end: the place behind the last one.
        changes: the number of rows.
        events: the number of rows events, also of those of tables that are not captured.
        first_s: the time of the first row's event in seconds since 1970.
        used: the tables of the rows events, by their numbers.
    """

    end: int
    changes: int
    events: int
    first_s: int
    used: dict[int, Packable]


def scan(
    tables: dict[int, Packable],
    received: list[bytes],
    begin: int,
    *,
    checksums: bool,
    most: int,
) -> Scan:
    """Find the events from a place on that need no decision.

    Args:
        tables: the tables whose definition is known, by their numbers.
        most: the number of changes at which to stop, at the end of an event.
    """
    return Scan(*extension.scan_binlog(tables, received, begin, most, checksums))


def decode_rows(event: RowsEvent, shape: Shape, transaction: Transaction) -> list[Change]:
    """Return the changes of a rows event."""
    op, table = OPERATIONS[event.kind], shape.table
    ts_ms = transaction.committed_ms or event.timestamp_s * 1000
    source = {
        "gtid": transaction.gtid,
        "server_id": event.server_id,
        "file": transaction.file,
        "pos": event.end_position,
    }
    return [
        Change(table, op, before, after, ts_ms, {**source, "row": row}, transaction.gtid, error)
        for row, (before, after, error) in enumerate(shape.decoder.decode(event))
    ]


class Run:
    """Events of one transaction, one after the other (``PackedChanges``)."""

    def __init__(
        self, found: Scan, packets: list[bytes], checksums: bool, transaction: Transaction
    ) -> None:
        self._count = found.changes
        self._used = found.used
        self._packets = packets
        self._checksums = checksums
        self._transaction = transaction
        self.ts_ms = transaction.committed_ms or found.first_s * 1000

    def __len__(self) -> int:
        return self._count

    def tables(self) -> Collection[Table]:
        """Return the tables that the rows can be of."""
        return [shape.table for _, _, shape in self._used.values() if shape is not None]

    def unpack(self) -> list[Change]:
        """Return the changes."""
        parser, changes = EventParser(has_checksums=self._checksums), []
        for packet in self._packets:
            event = parser.parse(packet[1:])
            if isinstance(event, RowsEvent):
                shape = self._used[event.table_id].shape
                if shape is not None:
                    changes += decode_rows(event, shape, self._transaction)
        return changes

    def encode(self, encoders: Encoders, stamp_ms: int) -> int:
        """Encode the changes, and return the number of records."""
        found = {
            number: None if shape is None else (encoders.of(shape.table, shape.columns), layout)
            for number, (_, layout, shape) in self._used.items()
        }
        parts = (
            b',"gtid":' + orjson.dumps(self._transaction.gtid) + b',"server_id":',
            b',"file":' + orjson.dumps(self._transaction.file) + b',"pos":',
        )
        committed_ms = self._transaction.committed_ms
        try:
            return int(
                extension.encode_binlog(
                    found, self._packets, parts, self._checksums, stamp_ms, committed_ms
                )
            )
        except OverflowError:
            raise  # a record is too large
        except UNDECODABLE as error:
            names = " or ".join(each.id for each in self.tables())
            raise UndecodableRowError(f"rows of {names} can't be decoded: {error}") from error
