"""The dialect of MariaDB: global transaction ids by domain, and a snapshot that knows its position.

Must not know: events, or Kafka. Source: MariaDB documentation, "Global Transaction ID" and "Replica
registration".
"""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager
from typing import Any

import pymysql
from pymysql.constants.COMMAND import COM_BINLOG_DUMP

from tidemill.connect.cdc.binlog.catalog import query
from tidemill.connect.cdc.binlog.decoding.table_map import MARIADB
from tidemill.connect.cdc.contract import Capture, Finding, Position
from tidemill.connect.cdc.mariadb.check import check_server
from tidemill.connect.cdc.mariadb.position import GtidPosition, parse_gtid
from tidemill.connect.cdc.mariadb.snapshot import consistent_snapshot, snapshot_after

_CAN_GTID = 4
"""``@mariadb_slave_capability``: this replica understands GTID events."""


class MariaDb:
    """MariaDB 10.5 and newer (``Dialect``)."""

    name = "MariaDB"
    map_rules = MARIADB
    collations = (
        "SELECT id, character_set_name FROM information_schema.collation_character_set_"
        "applicability WHERE id IS NOT NULL"
    )

    def parse(self, position: Position) -> GtidPosition:
        """Read a stored position; see ``GtidPosition.parse``."""
        return GtidPosition.parse(position)

    def prepare(self, connection: pymysql.Connection[Any]) -> None:
        """Do nothing: MariaDB needs no more settings."""

    def check(self, connection: pymysql.Connection[Any], capture: Capture) -> list[Finding]:
        """Find what the server lacks for capture."""
        return check_server(connection, capture)

    def present(self, connection: pymysql.Connection[Any]) -> GtidPosition:
        """Return the position of the last transaction."""
        ((gtid,),) = query(connection, "SELECT @@global.gtid_binlog_pos")
        return GtidPosition(parse_gtid(gtid or ""))

    def resume(self, connection: pymysql.Connection[Any], position: GtidPosition) -> GtidPosition:
        """Return the position itself: the server refuses it when the stream is read."""
        return position

    def request(
        self, connection: pymysql.Connection[Any], position: GtidPosition, server_id: int
    ) -> tuple[int, bytes]:
        """Set up a session for the stream; return the command that starts it, and its body."""
        with connection.cursor() as cursor:
            cursor.execute("SET @mariadb_slave_capability = %s", (_CAN_GTID,))
            cursor.execute("SET @slave_connect_state = %s", (position.gtid,))
            cursor.execute("SET @slave_gtid_strict_mode = 1")
            cursor.execute("SET @slave_gtid_ignore_duplicates = 0")
        # The place in a file, flags, the id; no file name.
        return COM_BINLOG_DUMP, struct.pack("<IHI", 4, 0, server_id)

    def snapshot(
        self, connection: pymysql.Connection[Any], delivered: GtidPosition | None
    ) -> AbstractContextManager[GtidPosition]:
        """Open a transaction that sees at least what the stream has delivered."""
        return snapshot_after(connection, delivered)

    def exact_snapshot(
        self, connection: pymysql.Connection[Any]
    ) -> AbstractContextManager[GtidPosition]:
        """Open a transaction that sees exactly what is committed at the position it gives."""
        return consistent_snapshot(connection)
