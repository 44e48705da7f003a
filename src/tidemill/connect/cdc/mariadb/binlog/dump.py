"""The stream of binary log events over a connection: what a replica would receive.

The server sends a heartbeat when it has had nothing to send for ``HEARTBEAT_S``, so that a lost
connection is noticed. Must not know rows, transactions or positions of capture.

Source: MariaDB documentation, "Replica registration" and "COM_BINLOG_DUMP".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pymysql
from pymysql.constants.COMMAND import COM_BINLOG_DUMP

from tidemill.connect.cdc.errors import PositionLostError, SourceUnavailableError
from tidemill.connect.cdc.mariadb.binlog.events import Event, EventParser
from tidemill.connect.cdc.mariadb.binlog.packets import END, ERROR, PacketReader

HEARTBEAT_S = 5
SILENCE_S = 60
"""A connection without even a heartbeat for so long is lost, in seconds."""

_CAN_GTID = 4
"""``@mariadb_slave_capability``: this replica understands GTID events."""

_FATAL_READING = 1236
"""ER_MASTER_FATAL_ERROR_READING_BINLOG: for example, the position was purged."""


class BinlogStream:
    """Reads events from a position on. Not safe for several threads.

    Args:
        connect: opens a new connection.
        gtid: the ids of the last event groups that were read, one per domain, separated by
            commas; empty for the beginning of the first file that exists.
        server_id: the id of this replica. It must differ from those of the server and its replicas:
            the server ends an older stream with the same id.

    Attributes:
        received: packets: a zero byte and an event each. Packets that were read stay as they are.
        place: the first one that was not read.

    Raises:
        SourceUnavailableError: the connection was lost.
    """

    def __init__(
        self, connect: Callable[..., pymysql.Connection[Any]], gtid: str, server_id: int
    ) -> None:
        self._connection = connect(read_timeout=SILENCE_S)
        try:
            self._request(gtid, server_id)
        except BaseException:
            self.close()
            raise
        self._packets = PacketReader(self._connection._sock, SILENCE_S)
        self.received: list[bytes] = []
        self.place = 0
        # The first events are made for the connection, and have checksums as the session asked.
        self._parser = EventParser(has_checksums=self._has_checksums)

    @property
    def has_checksums(self) -> bool:
        """Whether the next event has a checksum."""
        return self._parser.has_checksums

    def _request(self, gtid: str, server_id: int) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
            cursor.execute("SELECT @@global.binlog_checksum")
            self._has_checksums = cursor.fetchone()[0] != "NONE"
            cursor.execute("SET @master_heartbeat_period = %s", (int(HEARTBEAT_S * 1e9),))
            cursor.execute("SET @mariadb_slave_capability = %s", (_CAN_GTID,))
            cursor.execute("SET @slave_connect_state = %s", (gtid,))
            cursor.execute("SET @slave_gtid_strict_mode = 1")
            cursor.execute("SET @slave_gtid_ignore_duplicates = 0")
        body = struct.pack("<IHI", 4, 0, server_id)  # position, flags, id; no file name
        # PyMySQL has no method for this command. These two are what its own commands call.
        self._connection._execute_command(COM_BINLOG_DUMP, body)

    def wait(self, timeout_s: float) -> bool:
        """Return whether data arrives within the time."""
        return self.place < len(self.received) or self._packets.wait(timeout_s)

    def fill(self) -> None:
        """Receive packets if all were read; blocks until there is one, or a heartbeat.

        Raises:
            SourceUnavailableError: the connection was lost.
        """
        if self.place < len(self.received):
            return
        try:
            self.received, self.place = self._packets.receive(), 0
        except (OSError, ValueError) as error:
            raise SourceUnavailableError(
                f"the connection to the database failed: {error}"
            ) from error

    def read(self) -> Event:
        """Return the next event; blocks until there is one, or a heartbeat.

        Raises:
            PositionLostError: the server has removed the files with the position.
            SourceUnavailableError: the connection was lost.
            BinlogError: an event is damaged.
        """
        self.fill()
        packet = self.received[self.place]
        if packet[:1] == ERROR:
            try:
                pymysql.err.raise_mysql_exception(packet)
            except pymysql.err.MySQLError as error:
                raise stream_error(error) from error
        if packet[:1] == END:
            raise SourceUnavailableError("the server has ended the stream of its binary log")
        self.place += 1
        return self._parser.parse(packet[1:])

    def close(self) -> None:
        """Close the connection."""
        # close() would send a command, which the server does not read any more.
        self._connection._force_close()


def stream_error(error: pymysql.err.MySQLError) -> Exception:
    """Return the typed error for an error while the binary log is read."""
    code = error.args[0] if error.args else 0
    text = error.args[1] if len(error.args) > 1 else str(error)
    if code == _FATAL_READING:
        return PositionLostError(
            f"the server can't send its binary log from the stored position: {text}",
            hint="The files were purged (see binlog_expire_logs_seconds), or the server was "
            "replaced. Take a new snapshot: tidemill source restart NAME --resnapshot",
        )
    return SourceUnavailableError(f"the connection to the database was lost: {text} ({code})")
