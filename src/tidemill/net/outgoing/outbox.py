"""Send the responses of one connection, of which some parts are ranges of files (sendfile).

The transport of an event loop can't send a range of a file between buffers. So a connection with
such a response gets an ``Outbox``, which sends everything from then on, with a duplicate of the
socket's descriptor. The order is that of ``add``.

The kernel must not read a disk while the event loop waits. Before each piece of a file is sent,
the kernel is asked whether it is in the page cache (``sending``); if not, a thread reads it first.

Knows a socket and file descriptors, and no protocol.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterable
from typing import cast

from tidemill import system
from tidemill.net.outgoing.sending import (
    FILE_PIECE_BYTES,
    SHORT_BYTES,
    Ended,
    Known,
    send_parts,
)
from tidemill.parts import FilePart, Part, memory_of

TURN_BYTES = 1_048_576
"""Bytes that one connection sends in one turn of the event loop."""
RETRY_SECONDS = 0.001
"""How often the buffer of the transport is looked at, which must be empty before the first send."""


class Outbox:
    """Sends parts on a socket that a transport of the event loop reads.

    Args:
        transport: the transport. Nothing may be written to it any more.
        drained: called when everything is sent, not during ``add``.
        failed: called with the error if the connection or a file fails.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        drained: Callable[[], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._socket.setblocking(False)
        self._drained = drained
        self._failed = failed
        self._parts: list[Part] = []
        self._sent = 0  # of the first part
        self._waits_for_socket = False
        self._is_scheduled = False
        self._known = Known.NONE  # PIECE: a thread has read the next one
        self._reading: asyncio.Future[None] | None = None
        self._closed = False
        self.unsent = 0
        """Bytes that the kernel has not taken."""
        self.unsent_memory = 0
        """The part of them that is not in files, counted until a buffer is sent completely."""

    def add(self, parts: Iterable[Part]) -> None:
        """Send parts behind all others. Ranges of files must be in the page cache.

        Buffers must not be changed afterwards.
        """
        was_empty = not self._parts
        for part in parts:
            self._append(part)
        if was_empty and self._parts:
            self._pump(during_add=True)

    def _append(self, part: Part) -> None:
        size = len(part)
        if not size:
            return
        self.unsent += size
        self.unsent_memory += memory_of((part,))
        is_short = size < SHORT_BYTES and isinstance(part, bytes | bytearray)
        last = self._parts[-1] if self._parts and is_short else None
        if len(self._parts) == 1 and self._sent:
            last = None  # it is sent in part
        if isinstance(last, bytes) and len(last) < SHORT_BYTES:
            self._parts[-1] = b"".join((last, cast("bytes", part)))
        else:
            self._parts.append(bytes(cast("bytearray", part)) if is_short else part)

    def close(self) -> None:
        """Send nothing more, and release all files. The socket is closed if the transport is."""
        if self._closed:
            return
        self._closed = True
        self._stop_waiting()
        self._parts.clear()
        self.unsent = self.unsent_memory = 0
        self._socket.close()

    # --- inside ----------------------------------------------------------------------------------

    def _pump(self, *, during_add: bool = False) -> None:
        self._is_scheduled = False
        if self._closed or self._reading is not None:
            return
        if self._transport.get_write_buffer_size():
            self._loop.call_later(RETRY_SECONDS, self._pump)
            return
        ended = self._send(Known.ALL if during_add else self._known)
        if ended is None:
            return
        self._known = Known.NONE
        if not self._parts:
            self._stop_waiting()
            if during_add:
                self._loop.call_soon(self._report_drained)
            else:
                self._drained()
        elif ended is Ended.FULL:
            self._wait_for_socket()
        elif ended is Ended.UNCACHED:
            self._read_first()
        else:
            self._continue_soon()

    def _report_drained(self) -> None:
        if not self._closed and not self._parts:
            self._drained()

    def _send(self, known: Known) -> Ended | None:
        """Send what the kernel takes in one turn; None if that failed."""
        left, ended = TURN_BYTES, Ended.MORE
        try:
            while self._parts and left > 0 and ended is Ended.MORE:
                taken, ended = send_parts(self._socket, self._parts, self._sent, left, known)
                self._took(taken)
                left -= taken
                known = known if known is Known.ALL else Known.NONE
        except OSError as error:
            self._failed(error.with_traceback(None))  # its frames keep the file open
            return None
        if ended is Ended.CUT:
            self._failed(OSError(errno.EIO, "a log file is shorter than before"))
            return None
        return ended

    def _took(self, count: int) -> None:
        """Drop the parts that are sent."""
        self.unsent -= count
        self._sent += count
        done = 0
        for part in self._parts:
            size = len(part)
            if self._sent < size:
                break
            self._sent -= size
            self.unsent_memory -= memory_of((part,))
            done += 1
        del self._parts[:done]

    def _read_first(self) -> None:
        """Let a thread read the next piece of a file into the page cache."""
        self._stop_waiting()
        part = cast("FilePart", self._parts[0])
        position = part.position + self._sent
        count = min(len(part) - self._sent, FILE_PIECE_BYTES)
        reading = self._loop.run_in_executor(None, system.fill_cache, part.fd, position, count)
        self._reading = reading

        def done(_: asyncio.Future[None], keep: FilePart = part) -> None:
            self._reading = None
            error = reading.exception() if not reading.cancelled() else None
            if self._closed:
                return
            if isinstance(error, OSError):
                self._failed(error.with_traceback(None))  # its frames keep the file open
                return
            self._known = Known.PIECE
            self._pump()

        reading.add_done_callback(done)

    def _continue_soon(self) -> None:
        if not self._waits_for_socket and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def _wait_for_socket(self) -> None:
        if not self._waits_for_socket:
            self._waits_for_socket = True
            self._loop.add_writer(self._socket.fileno(), self._pump)

    def _stop_waiting(self) -> None:
        if self._waits_for_socket:
            self._waits_for_socket = False
            self._loop.remove_writer(self._socket.fileno())
