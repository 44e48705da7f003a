"""The dialect of MySQL: sets of transaction ids, bound to the identity of the server.

MySQL does not say to which place of its binary log a transaction corresponds. But it keeps an
order: it gives an id to a transaction (``gtid_owned``), writes it to the binary log, makes it
visible, and only then adds the id to ``gtid_executed`` and removes it from ``gtid_owned``. So

- what is in ``gtid_executed`` before a snapshot begins is visible in it;
- what is visible in a snapshot is before the end of the binary log as it is read afterwards;
- if the end of the log is the same before and after, and no id was owned in between, then the
  snapshot sees exactly what the log has.

The first two are enough for a part of a table that is joined with the stream. The third is for
tables that are read as a whole. On a server that never rests it does not come true; then a short
lock helps (``FLUSH TABLES WITH READ LOCK``), which needs the privilege RELOAD.

Must not know: events, or Kafka. Source: MySQL source documentation, "COM_BINLOG_DUMP_GTID"; MySQL
manual, "Replication with Global Transaction Identifiers" and "GTID Life Cycle".
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymysql

from tidemill.connect.cdc.binlog.catalog import query
from tidemill.connect.cdc.binlog.decoding.table_map import MYSQL
from tidemill.connect.cdc.binlog.reading import read_view
from tidemill.connect.cdc.errors import PositionLostError, SourceUnavailableError
from tidemill.connect.cdc.mysql.check import check_server, log_status, server_uuid
from tidemill.connect.cdc.mysql.position import GtidSet, MySqlPosition

SNAPSHOT_WAIT_S = 10
"""How long a snapshot may be behind the stream, in seconds. It is behind for the moment between
the write of a transaction to the binary log and its commit in the storage engine."""

REST_S = 5.0
"""How long to wait for a moment without a commit before the tables are locked, in seconds."""


def _wait_until_executed(connection: pymysql.Connection[Any], ids: GtidSet, seconds: int) -> bool:
    """Wait until transactions are visible; return whether they are."""
    ((late,),) = query(
        connection, "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", str(ids), int(seconds)
    )
    return str(late) == "0"


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
    parse = staticmethod(MySqlPosition.parse)
    check = staticmethod(check_server)

    def prepare(self, connection: pymysql.Connection[Any]) -> None:
        """Let the catalog show primary keys that the server has made."""
        with suppress(pymysql.err.OperationalError), connection.cursor() as cursor:
            cursor.execute("SET SESSION show_gipk_in_create_table_and_information_schema = ON")

    def present(self, connection: pymysql.Connection[Any]) -> MySqlPosition:
        """Return the transactions that are visible. The place in the file comes with the stream:
        the end of the log can be behind a transaction that is not visible yet."""
        ((executed,),) = query(connection, "SELECT @@global.gtid_executed")
        return MySqlPosition(GtidSet.parse(executed), server_uuid(connection))

    def resume(self, connection: pymysql.Connection[Any], position: MySqlPosition) -> MySqlPosition:
        """Return where a stream continues."""
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
            has_all = _wait_until_executed(connection, position.ids, _COMMIT_WAIT_S)
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

    @contextmanager
    def snapshot(
        self, connection: pymysql.Connection[Any], delivered: MySqlPosition | None
    ) -> Iterator[MySqlPosition]:
        """Open a transaction that sees at least what the stream has delivered."""
        server = server_uuid(connection)
        if delivered is not None:
            if server != delivered.server:
                raise SourceUnavailableError(
                    f"two connections to one address reached two servers, {delivered.server} and "
                    f"{server}; use an address that always leads to the same server"
                )
            if not _wait_until_executed(connection, delivered.ids, SNAPSHOT_WAIT_S):
                raise SourceUnavailableError(
                    f"a snapshot stays behind the binary log: the stream is at {delivered.gtid!r}"
                )
        with read_view(connection):
            end = log_status(connection)
            yield MySqlPosition(GtidSet.parse(end.executed), server, end.file, end.end)

    @contextmanager
    def exact_snapshot(self, connection: pymysql.Connection[Any]) -> Iterator[MySqlPosition]:
        """Open a transaction that sees exactly what is committed at the position it gives."""
        server = server_uuid(connection)
        deadline = time.monotonic() + REST_S
        while time.monotonic() < deadline:
            before = log_status(connection)
            ((owned,),) = query(connection, "SELECT @@global.gtid_owned")
            if owned:
                continue
            with read_view(connection):
                after = log_status(connection)
                if (before.file, before.end) == (after.file, after.end):
                    yield MySqlPosition(GtidSet.parse(after.executed), server)
                    return
        _lock(connection)
        with read_view(connection):
            executed = log_status(connection).executed
            query(connection, "UNLOCK TABLES")
            yield MySqlPosition(GtidSet.parse(executed), server)


def _lock(connection: pymysql.Connection[Any]) -> None:
    """Lock all tables against commits. The end of the connection ends the lock too."""
    try:
        query(connection, f"SET SESSION lock_wait_timeout = {SNAPSHOT_WAIT_S}")
        query(connection, "FLUSH TABLES WITH READ LOCK")
    except pymysql.err.OperationalError as error:
        raise SourceUnavailableError(
            f"the server commits so often that no moment between two commits was found within "
            f"{REST_S} s, and the tables can't be locked: {error.args[1]}. Grant RELOAD, or try "
            "again when the server is less busy."
        ) from error
