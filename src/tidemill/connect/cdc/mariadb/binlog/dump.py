"""The stream of binary log events over a connection: what a replica would receive.

The server sends a heartbeat when it has had nothing to send for ``HEARTBEAT_S``, so that a lost
connection is noticed. Must not know rows, transactions or positions of capture.

Source: MariaDB documentation, "Replica registration" and "COM_BINLOG_DUMP".
"""

from __future__ import annotations

import select
import struct
from collections.abc import Callable
from typing import Any

import pymysql
from pymysql.constants.COMMAND import COM_BINLOG_DUMP

from tidemill.connect.cdc.errors import PositionLostError, SourceUnavailableError
from tidemill.connect.cdc.mariadb.binlog.events import Event, EventParser, FormatDescriptionEvent

HEARTBEAT_S = 5
SILENCE_S = 60
"""A connection without even a heartbeat for so long is lost, in seconds."""

_RECEIVE_BYTES = 1 << 18

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
        self._socket = _BufferedSocket(self._connection)
        self._connection._rfile = self._socket
        # The first events are made for the connection, and have checksums as the session asked.
        self._parser = EventParser(has_checksums=self._has_checksums)

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
        return self._socket.wait(timeout_s)

    def read(self) -> Event:
        """Return the next event; blocks until there is one, or a heartbeat.

        Raises:
            PositionLostError: the server has removed the files with the position.
            SourceUnavailableError: the connection was lost.
            BinlogError: an event is damaged.
        """
        try:
            packet = self._connection._read_packet()
        except pymysql.err.MySQLError as error:
            raise stream_error(error) from error
        except OSError as error:
            raise SourceUnavailableError(
                f"the connection to the database failed: {error}"
            ) from error
        data: bytes = packet.get_all_data()
        if packet.is_eof_packet():
            raise SourceUnavailableError("the server has ended the stream of its binary log")
        event = self._parser.parse(data[1:])
        if isinstance(event, FormatDescriptionEvent):
            self._has_checksums = event.has_checksums
        return event

    def close(self) -> None:
        """Close the connection."""
        # close() would send a command, which the server does not read any more.
        self._connection._force_close()


class _BufferedSocket:
    """Replaces the buffered reader of PyMySQL by one that tells whether it has data."""

    def __init__(self, connection: pymysql.Connection[Any]) -> None:
        self._socket = connection._sock
        self._buffer = bytearray()
        self._start = 0

    def wait(self, timeout_s: float) -> bool:
        if self._start < len(self._buffer):
            return True
        pending = getattr(self._socket, "pending", None)  # bytes that TLS has decrypted
        if pending is not None and pending():
            return True
        readable, _, _ = select.select([self._socket], [], [], timeout_s)
        return bool(readable)

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer if the connection was closed."""
        while len(self._buffer) - self._start < size:
            if self._start:
                del self._buffer[: self._start]
                self._start = 0
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                break
            self._buffer += data
        end = min(self._start + size, len(self._buffer))
        data = bytes(memoryview(self._buffer)[self._start : end])
        self._start = end
        if self._start == len(self._buffer):
            self._buffer.clear()
            self._start = 0
        return data

    def close(self) -> None:
        """Do nothing: the socket belongs to the connection."""


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
