"""Received bytes as packets of MariaDB's protocol.

Must not know what packets hold. Source: MariaDB documentation, "0 - packet".
"""

from __future__ import annotations

import select
import socket

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

    def wait(self, timeout_s: float) -> bool:
        """Return whether data arrives within the time."""
        pending = getattr(self._socket, "pending", None)  # bytes that TLS has decrypted
        if pending is not None and pending():
            return True
        readable, _, _ = select.select([self._socket], [], [], timeout_s)
        return bool(readable)

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
