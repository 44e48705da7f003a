"""Received bytes as packets of MariaDB's protocol.

The compiled extension splits them several times as fast as the edition in Python. Must not know
what packets hold. Source: MariaDB documentation, "0 - packet".
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from tidemill import native

ERROR, END = b"\xff", b"\xfe"
"""The first byte of a packet that is not an event."""

RECEIVE_BYTES = 1 << 19
_HEADER_BYTES = 4
_LONGEST = 0xFFFFFF

Split = Callable[[bytearray, int, int], tuple[list[bytes], int, int]]


def split_packets(buffer: bytearray, filled: int, number: int) -> tuple[list[bytes], int, int]:
    """Split received bytes into packets: the edition in Python of ``split_packets``.

    Args:
        buffer: the bytes.
        filled: how many of them were received.
        number: the number of the next packet: 0 to 255.

    Returns:
        The complete packets, how many bytes they take with their headers, and the number of the
        next one. The parts of a long packet are joined.

    Raises:
        ValueError: a packet does not have the next number.
    """
    packets: list[bytes] = []
    at = done = 0
    next_number = number
    content = bytearray()
    while filled - at >= _HEADER_BYTES:
        length = int.from_bytes(buffer[at : at + 3], "little")
        if buffer[at + 3] != next_number:
            raise ValueError("a packet is out of order")
        if length > filled - at - _HEADER_BYTES:
            break
        start = at + _HEADER_BYTES
        at = start + length
        content += buffer[start:at]
        next_number = (next_number + 1) & 0xFF
        if length < _LONGEST:
            packets.append(bytes(content))
            content.clear()
            done, number = at, next_number
    return packets, done, number


def fastest_split() -> Split:
    """Return the compiled edition, or the one in Python where that was not built."""
    extension = native.load()
    return split_packets if extension is None else extension.split_packets


class PacketReader:
    """Reads packets from a connection. The first one has the number 1: it answers a command.

    Args:
        connection: a connected socket.
        timeout_s: how long the other side can be silent.
    """

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._socket = connection
        self._socket.settimeout(timeout_s)
        self._split = fastest_split()
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
            packets, end, self._number = self._split(self._buffer, self._filled, self._number)
            if end:
                self._drop(end)
                return packets

    def _drop(self, end: int) -> None:
        rest = self._buffer[end : self._filled]
        self._filled = len(rest)
        if len(self._buffer) > RECEIVE_BYTES >= self._filled:
            self._buffer = bytearray(RECEIVE_BYTES)
        self._buffer[: self._filled] = rest
