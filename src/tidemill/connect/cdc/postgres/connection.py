"""One replication connection: commands, the stream of messages, and status updates.

It speaks PostgreSQL's streaming replication protocol over psycopg's libpq connection ("Streaming
Replication Protocol" in PostgreSQL's documentation). Must not know: pgoutput, tables, the catalog.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any

from tidemill.connect.cdc.errors import CaptureError, PositionLostError, SourceUnavailableError
from tidemill.connect.cdc.postgres.errors import ProtocolError, translating
from tidemill.connect.cdc.postgres.lsn import POSTGRES_EPOCH_US

HEADER = 25
"""Bytes of a message before those of the output plugin: a letter, two LSNs and a time."""
_DATA, _KEEPALIVE = b"wk"
_keepalive = Struct(">QqB").unpack_from
_status = Struct(">BQQQqB").pack
_STATUS_INTERVAL_S = 10.0
"""``wal_sender_timeout`` is 60 s by default."""
_CONFIRM_INTERVAL_S = 1.0
_NO_PUBLICATION = "42704"
"""undefined_object: the output plugin finds no publication of this name at a place in the log."""
_UNCHECKED, _CHECKED = b"SET client_encoding = 'SQL_ASCII'", b"SET client_encoding = 'UTF8'"


def has_no_encoding(connection: Any) -> bool:
    """Return whether the database has the encoding SQL_ASCII: its texts can be any bytes."""
    return bool(connection.pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII")


@contextmanager
def unchecked_texts(connection: Any) -> Iterator[None]:
    """Let the server send texts of a database without an encoding, which it else refuses as UTF-8.

    After an error, the end of the transaction around it undoes this too.
    """
    if not has_no_encoding(connection):
        yield
        return
    connection.pgconn.exec_(_UNCHECKED)
    try:
        yield
    finally:
        connection.pgconn.exec_(_CHECKED)


class ReplicationConnection:
    """A connection in replication mode. Open it with ``connect``.

    Attributes:
        server_end: The place up to which the server has sent everything, from its keepalives.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._pg = connection.pgconn
        self._get = self._pg.get_copy_data
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._is_streaming = self._is_over = False
        self._flushed = 0
        self._next_status = self._last_status = 0.0
        self.server_end = 0

    @classmethod
    def connect(cls, conninfo: str) -> ReplicationConnection:
        """Connect in replication mode."""
        import psycopg

        with translating("can't open a replication connection"):
            connection = psycopg.connect(conninfo, replication="database", autocommit=True)
            if has_no_encoding(connection):
                connection.pgconn.exec_(_UNCHECKED)
            return cls(connection)

    def command(self, text: str, doing: str) -> list[list[str | None]]:
        """Run a replication command and return its rows."""
        from psycopg import pq
        from psycopg.errors import error_from_result

        with translating(doing):
            result = self._pg.exec_(text.encode())
            if result.status == pq.ExecStatus.COPY_BOTH:
                self._is_streaming = True
                self._pg.nonblocking = 1
                return []
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                raise error_from_result(result)
        return [
            [_plain(result.get_value(row, column)) for column in range(result.nfields)]
            for row in range(result.ntuples)
        ]

    def receive(self) -> bytes | None:
        """Return the next message of the output plugin with its header; None if there is none."""
        import psycopg

        while True:
            try:
                length, data = self._get(1)
            except psycopg.Error as fault:
                raise self._broken(str(fault)) from None
            if length > 0:
                message = bytes(data)
                if message[0] == _DATA and length > HEADER:
                    return message
                self._keepalive(message)
            elif length == 0:
                return None
            else:
                raise self._ended()

    def receive_many(self, most: int) -> list[bytes]:
        """Return the messages that are there, at most so many, each as ``receive`` does."""
        import psycopg

        if self._is_over:
            raise self._ended()
        found: list[bytes] = []
        get, add = self._get, found.append
        try:
            while len(found) < most:
                length, data = get(1)
                if length > HEADER and data[0] == _DATA:
                    add(bytes(data))
                elif length > 0:
                    self._keepalive(bytes(data))
                elif length == 0:
                    return found
                else:
                    self._is_over = True
                    break
        except psycopg.Error as fault:
            raise self._broken(str(fault)) from None
        if self._is_over and not found:
            raise self._ended()
        return found

    def wait(self, timeout_s: float) -> bool:
        """Wait for bytes from the server and read them; return whether there were any."""
        import psycopg

        try:
            if not self._poll.poll(max(0.0, timeout_s) * 1000):
                return False
            self._pg.consume_input()
        except psycopg.Error as fault:
            raise self._broken(str(fault)) from None
        return True

    def confirm(self, lsn: int) -> None:
        """Take note that everything below ``lsn`` is durable; a status says so within a second."""
        if lsn > self._flushed:
            self._flushed = lsn
            self._next_status = min(self._next_status, self._last_status + _CONFIRM_INTERVAL_S)

    def send_status_if_due(self) -> None:
        """Send a status update if the last one is some seconds ago."""
        if time.monotonic() >= self._next_status:
            self.send_status()

    def send_status(self) -> None:
        """Send what is durable to the server: the slot moves up to there."""
        import psycopg

        if not self._is_streaming:
            return
        now_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        lsn = self._flushed
        try:
            self._pg.put_copy_data(_status(ord("r"), lsn, lsn, lsn, now_us, 0))
            self._pg.flush()
        except psycopg.Error as fault:
            raise self._broken(str(fault)) from None
        self._last_status = time.monotonic()
        self._next_status = self._last_status + _STATUS_INTERVAL_S

    def close(self) -> None:
        """Close the connection. The server frees the slot when it notices."""
        self._connection.close()

    def _keepalive(self, message: bytes) -> None:
        if message[0] != _KEEPALIVE or len(message) < 18:
            raise ProtocolError(f"unknown replication message {message[:1]!r}")
        end, _, wants_reply = _keepalive(message, 1)
        self.server_end = max(self.server_end, end)
        if wants_reply:
            self.send_status()

    def _ended(self) -> CaptureError:
        from psycopg import pq
        from psycopg.errors import error_from_result

        from tidemill.connect.cdc.postgres.errors import translated

        result = self._pg.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            fault = error_from_result(result)
            if fault.sqlstate == _NO_PUBLICATION and "publication" in str(fault):
                return PositionLostError(
                    f"the server ended the stream: {str(fault).strip()}, so changes are lost",
                    hint="Run: tidemill source restart NAME --resnapshot.",
                )
            return translated(fault, "the server ended the stream")
        return self._broken("the server closed the connection")

    @staticmethod
    def _broken(reason: str) -> SourceUnavailableError:
        plain = reason.strip().replace("\n", " ")
        return SourceUnavailableError(f"the replication connection broke: {plain}")


def _plain(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
