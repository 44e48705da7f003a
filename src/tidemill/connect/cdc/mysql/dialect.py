"""The dialect of MySQL: sets of transaction ids, bound to the identity of the server.

Must not know: events, or Kafka. Source: MySQL source documentation, "COM_BINLOG_DUMP_GTID"; MySQL
manual, "Replication with Global Transaction Identifiers".
"""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager, suppress
from typing import Any

import pymysql

from tidemill.connect.cdc.binlog.catalog import query
from tidemill.connect.cdc.binlog.decoding.table_map import MYSQL
from tidemill.connect.cdc.contract import Capture, Finding, Position
from tidemill.connect.cdc.errors import PositionLostError
from tidemill.connect.cdc.mysql.check import check_server
from tidemill.connect.cdc.mysql.gtids import GtidSet
from tidemill.connect.cdc.mysql.position import MySqlPosition
from tidemill.connect.cdc.mysql.snapshot import (
    exact_snapshot,
    snapshot_after,
    wait_until_executed,
)
from tidemill.connect.cdc.mysql.status import server_uuid

_COM_BINLOG_DUMP_GTID = 0x1E
_THROUGH_GTID = 4
_FIRST_EVENT = 4
_COMMIT_WAIT_S = 5
"""How long a transaction that was read already may take to become visible, in seconds."""

_RESNAPSHOT = "Take a new snapshot: tidemill source restart NAME --resnapshot"


class MySql:
    """MySQL 8.0.23 and newer (``Dialect``)."""

    name = "MySQL"
    map_rules = MYSQL
    collations = "SELECT id, character_set_name FROM information_schema.collations"

    def parse(self, position: Position) -> MySqlPosition:
        """Read a stored position; see ``MySqlPosition.parse``."""
        return MySqlPosition.parse(position)

    def prepare(self, connection: pymysql.Connection[Any]) -> None:
        """Let the catalog show primary keys that the server has made."""
        with suppress(pymysql.err.OperationalError), connection.cursor() as cursor:
            cursor.execute("SET SESSION show_gipk_in_create_table_and_information_schema = ON")

    def check(self, connection: pymysql.Connection[Any], capture: Capture) -> list[Finding]:
        """Find what the server lacks for capture."""
        return check_server(connection, capture)

    def present(self, connection: pymysql.Connection[Any]) -> MySqlPosition:
        """Return the transactions that are visible. The place in the file comes with the stream:
        the end of the log can be behind a transaction that is not visible yet."""
        ((executed,),) = query(connection, "SELECT @@global.gtid_executed")
        return MySqlPosition(GtidSet.parse(executed), server_uuid(connection))

    def resume(self, connection: pymysql.Connection[Any], position: MySqlPosition) -> MySqlPosition:
        """Return where a stream continues.

        Raises:
            PositionLostError: the server lacks transactions of the position, or has removed
                transactions behind it from its binary log.
        """
        server = server_uuid(connection)
        ((executed, purged),) = query(
            connection, "SELECT @@global.gtid_executed, @@global.gtid_purged"
        )
        if server != position.server and (not position.ids.intervals or position.skip):
            raise PositionLostError(
                f"the position is one of another server ({position.server}), this one is {server}",
                hint=_RESNAPSHOT,
            )
        has_all = GtidSet.parse(executed).contains(position.ids)
        if not has_all and server == position.server:
            has_all = wait_until_executed(connection, position.ids, _COMMIT_WAIT_S)
        if not has_all:
            raise PositionLostError(
                f"the server {server} lacks transactions that were captured already: the position "
                f"is {position.gtid!r}, the server has {executed!r}",
                hint="The server was restored from a backup, or is another one. " + _RESNAPSHOT,
            )
        if not position.ids.contains(GtidSet.parse(purged)):
            raise PositionLostError(
                f"the server has removed transactions from its binary log that were not captured: "
                f"the position is {position.gtid!r}, gtid_purged is {purged!r}",
                hint="Keep the files longer (binlog_expire_logs_seconds). " + _RESNAPSHOT,
            )
        return MySqlPosition(position.ids, server, skip=position.skip)

    def request(
        self, connection: pymysql.Connection[Any], position: MySqlPosition, server_id: int
    ) -> tuple[int, bytes]:
        """Set up a session for the stream; return the command that starts it, and its body."""
        with connection.cursor() as cursor:
            cursor.execute("SET @source_binlog_checksum = @@global.binlog_checksum")
            cursor.execute("SET @source_heartbeat_period = @master_heartbeat_period")
        ids = position.ids.encode()
        # Flags, the id, the length of no file's name, a place, the ids.
        head = struct.pack("<HIIQI", _THROUGH_GTID, server_id, 0, _FIRST_EVENT, len(ids))
        return _COM_BINLOG_DUMP_GTID, head + ids

    def snapshot(
        self, connection: pymysql.Connection[Any], delivered: MySqlPosition | None
    ) -> AbstractContextManager[MySqlPosition]:
        """Open a transaction that sees at least what the stream has delivered."""
        return snapshot_after(connection, delivered)

    def exact_snapshot(
        self, connection: pymysql.Connection[Any]
    ) -> AbstractContextManager[MySqlPosition]:
        """Open a transaction that sees exactly what is committed at the position it gives."""
        return exact_snapshot(connection)
