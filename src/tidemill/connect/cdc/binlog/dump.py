"""The stream of binary log events over a connection: what a replica would receive.

The server sends a heartbeat when it has had nothing to send for ``HEARTBEAT_S``, so that a lost
connection is noticed. The events of a compressed transaction come in its place. Must not know rows,
transactions or positions of capture.

Source: MariaDB documentation, "Replica registration" and "COM_BINLOG_DUMP".
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Generator
from typing import Any

import pymysql

from tidemill.connect.cdc.binlog.decoding.events import (
    Event,
    EventParser,
    PayloadEvent,
)
from tidemill.connect.cdc.binlog.decoding.payload import unpack_payload
from tidemill.connect.cdc.binlog.decoding.reader import BinlogError
from tidemill.connect.cdc.errors import PositionLostError, SetupError, SourceUnavailableError
from tidemill.native import extension

ERROR, END = b"\xff", b"\xfe"
"""The first byte of a packet that is not an event."""

RECEIVE_BYTES = 1 << 19


class PacketReader:
    """Reads packets from a connection. The first one has the number 1: it answers a command.

    Args:
        connection: a connected socket.
        timeout_s: how long the other side can be silent.
    """

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._socket = connection
        self._socket.settimeout(timeout_s)
        self._buffer = bytearray(RECEIVE_BYTES)
        self._filled = 0
        self._number = 1
        self._poll = select.poll()  # select() takes no file descriptor above 1023
        self._poll.register(connection, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Return whether data arrives within the time."""
        pending = getattr(self._socket, "pending", None)  # bytes that TLS has decrypted
        if pending is not None and pending():
            return True
        return bool(self._poll.poll(max(0.0, timeout_s) * 1000))

    def receive(self) -> list[bytes]:
        """Return the next packets, at least one. Blocks until one is complete.

        Raises:
            OSError: the connection was lost, or the other side was silent for too long.
            ValueError: a packet does not have the next number.
        """
        while True:
            if self._filled == len(self._buffer):
                self._buffer += bytes(self._filled)
            with memoryview(self._buffer) as view:
                count = self._socket.recv_into(view[self._filled :])
            if not count:
                raise ConnectionResetError("the server has closed it")
            self._filled += count
            packets, end, self._number = extension.split_packets(
                self._buffer, self._filled, self._number
            )
            if end:
                self._drop(end)
                return packets

    def _drop(self, end: int) -> None:
        rest = self._buffer[end : self._filled]
        self._filled = len(rest)
        if len(self._buffer) > RECEIVE_BYTES >= self._filled:
            self._buffer = bytearray(RECEIVE_BYTES)
        self._buffer[: self._filled] = rest


HEARTBEAT_S = 5
SILENCE_S = 60
"""A connection without even a heartbeat for so long is lost, in seconds."""

_FATAL_READING = 1236
"""ER_MASTER_FATAL_ERROR_READING_BINLOG: for example, the position was purged."""
_SAME_ID = "with the same server_uuid/server_id"


class BinlogStream:
    """Reads events from a position on. Not safe for several threads.

    Args:
        connect: opens a new connection.
        request: sets up the session, and returns the command that starts the stream, and its body.

    Attributes:
        received: packets: a zero byte and an event each. Packets that were read stay as they are.
        place: the first one that was not read.
    """

    def __init__(
        self,
        connect: Callable[..., pymysql.Connection[Any]],
        request: Callable[[pymysql.Connection[Any]], tuple[int, bytes]],
    ) -> None:
        self._payload: Generator[list[bytes], None, None] | None = None
        self._connection = connect(read_timeout=SILENCE_S)
        try:
            self._request(request)
        except BaseException:
            self.close()
            raise
        self._packets = PacketReader(self._connection._sock, SILENCE_S)
        self.received: list[bytes] = []
        self.place = 0
        # The first events are made for the connection, and have checksums as the session asked.
        self._parser = EventParser(has_checksums=self._has_checksums)
        self._outer: tuple[list[bytes], int, EventParser] = ([], 0, self._parser)

    @property
    def has_checksums(self) -> bool:
        """Whether the next event has a checksum."""
        return self._parser.has_checksums

    def _request(self, request: Callable[[pymysql.Connection[Any]], tuple[int, bytes]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
            cursor.execute("SELECT @@global.binlog_checksum")
            self._has_checksums = cursor.fetchone()[0] != "NONE"
            cursor.execute("SET @master_heartbeat_period = %s", (int(HEARTBEAT_S * 1e9),))
        command, body = request(self._connection)
        # PyMySQL has no method for this command. These two are what its own commands call.
        self._connection._execute_command(command, body)

    def wait(self, timeout_s: float) -> bool:
        """Return whether data arrives within the time."""
        if self.place < len(self.received) or self._payload is not None:
            return True
        return self._packets.wait(timeout_s)

    def fill(self) -> None:
        """Receive packets if all were read; blocks until there is one, or a heartbeat."""
        if self.place < len(self.received):
            return
        if self._payload is not None:
            packets = next(self._payload, None)
            if packets is not None:
                self.received, self.place = packets, 0
                return
            self._payload = None
            self.received, self.place, self._parser = self._outer
            if self.place < len(self.received):
                return
        try:
            self.received, self.place = self._packets.receive(), 0
        except (OSError, ValueError) as error:
            raise SourceUnavailableError(
                f"the connection to the database failed: {error}"
            ) from error

    def read(self) -> Event:
        """Return the next event; blocks until there is one, or a heartbeat."""
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
        event = self._parser.parse(packet[1:])
        if isinstance(event, PayloadEvent):
            self._open(event, len(packet) - 1)
        return event

    def _open(self, event: PayloadEvent, size: int) -> None:
        """Continue with the events of a compressed transaction."""
        if self._payload is not None:
            raise BinlogError("a compressed transaction holds another one")
        begin = max(0, event.end_position - size)
        self._outer = (self.received, self.place, self._parser)
        self._payload = unpack_payload(event.payload, begin, event.end_position)
        self._parser = EventParser(has_checksums=False)
        self.received, self.place = [], 0

    def close(self) -> None:
        """Close the connection."""
        if self._payload is not None:
            self._payload.close()
        # close() would send a command, which the server does not read any more.
        self._connection._force_close()


def stream_error(error: pymysql.err.MySQLError) -> Exception:
    """Return the typed error for an error while the binary log is read."""
    code = error.args[0] if error.args else 0
    text = error.args[1] if len(error.args) > 1 else str(error)
    if _SAME_ID in text:  # 1236, or 4052 since MariaDB 10.11
        return SetupError(
            f"another replica has connected with the server id of this source: {text}",
            hint="Set another server_id in [database] of the definition, and run: tidemill source "
            "create --replace FILE",
        )
    if code == _FATAL_READING:
        return PositionLostError(
            f"the server can't send its binary log from the stored position: {text}",
            hint="The files were purged (see binlog_expire_logs_seconds), or the server was "
            "replaced. Take a new snapshot: tidemill source restart NAME --resnapshot",
        )
    return SourceUnavailableError(f"the connection to the database was lost: {text} ({code})")
