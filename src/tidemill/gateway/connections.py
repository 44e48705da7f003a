"""A connection of HTTP: uvicorn's, with what it leaves open bounded.

Bounded are the size of a request's head, the time until it is complete, pipelined requests, idle
time, the time for which a client does not read, and the number of connections. Must not know: an
application, topics.
"""

from __future__ import annotations

import asyncio
import http

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES = 64 * 1024
"""The largest head of a request: its line and its headers."""
HEADERS = 100
HEAD_S = 10.0
"""How long a client can take for a head."""
KEEP_ALIVE_S = 75
"""How long a connection can be idle between two requests."""
PIPELINED = 32
"""The most requests of a connection that wait for their turn."""
_GOODBYE_S = 0.05
_LARGE_HEAD = "the headers are too large"


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's connection, with limits."""

    connections_limit = 1000
    slow_client_s = 30
    _head_bytes = 0
    _first_bytes = 0  # those that came with the beginning of the next head
    _is_in_head = False
    _head_timer: asyncio.TimerHandle | None = None
    _idle_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or refuse it if there are too many."""
        super().connection_made(transport)
        self._cycles: list[RequestResponseCycle] = []
        if len(self.connections) > self.connections_limit:
            self._refuse(503, "too many connections")
            return
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a client."""
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._head_bytes += len(data)
        is_body = self.cycle is not None and self.cycle.more_body
        self._first_bytes = 0 if is_body else len(data)
        super().data_received(data)
        if self.parser is None or self.transport.is_closing() or not self._is_in_head:
            return
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, _LARGE_HEAD)
        elif self._head_timer is None:
            self._await_head()

    def on_message_begin(self) -> None:
        """Note that a head begins."""
        self._is_in_head = True
        # Of a head behind another request, only the next bytes count.
        self._head_bytes, self._first_bytes = self._first_bytes, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        super().on_header(name, value)
        if len(self.headers) > HEADERS:
            raise ValueError("too many headers")

    def on_headers_complete(self) -> None:
        """Start or queue the request."""
        self._is_in_head = False
        for timer in (self._head_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._idle_timer = None
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > HEAD_BYTES:
            self._refuse(431, _LARGE_HEAD)
            raise ValueError(_LARGE_HEAD)
        if len(self.pipeline) >= PIPELINED:
            raise ValueError("too many pipelined requests")
        super().on_headers_complete()
        self._open_cycles().append(self.cycle)

    def on_response_complete(self) -> None:
        """Start the next request, or let the connection be idle, whatever bytes come meanwhile."""
        super().on_response_complete()
        if not self._open_cycles() and not self.transport.is_closing():
            self._idle_timer = self.loop.call_later(KEEP_ALIVE_S, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or what passes a limit of ``on_header`` and others."""
        self._refuse(400, "the request is not valid HTTP, or has too many headers")

    def pause_writing(self) -> None:
        """Wait for a client that does not take what was sent; but not for long."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.slow_client_s, self._give_up)

    def resume_writing(self) -> None:
        """Continue to send."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        for timer in (self._head_timer, self._idle_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._leave()  # also those that wait for their turn, which uvicorn forgets
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(
            HEAD_S, self._refuse, 408, "the request is too slow"
        )

    def _refuse(self, status: int, reason: str) -> None:
        """Answer an error and close. An answer that has begun is cut off.

        If an earlier request waits for its answer, its client would take the error for that.
        """
        if self.transport.is_closing():
            return
        waits = any(each.response_started or not each.more_body for each in self._open_cycles())
        self._leave()
        text = f"{reason}\n".encode()
        if not waits:
            self.transport.write(
                f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
                f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(text)}\r\n"
                f"connection: close\r\n\r\n".encode()
                + text
            )
        self.transport.close()

    def _give_up(self) -> None:
        """Close the connection of a client that does not read."""
        self._leave()
        self.transport.abort()

    def _open_cycles(self) -> list[RequestResponseCycle]:
        self._cycles = [each for each in self._cycles if not each.response_complete]
        return self._cycles

    def _leave(self) -> None:
        """Tell the requests under way that nothing can be sent any more."""
        for cycle in self._open_cycles():
            cycle.disconnected = True
            cycle.message_event.set()
        self.flow.resume_writing()


class TlsProtocol(BoundedProtocol):
    """A connection that begins with a handshake of TLS. It counts from the beginning."""

    _raw: asyncio.Transport | None = None
    _early = b""

    @property
    def peer(self) -> str:
        """``host:port`` of the client."""
        name = None if self._raw is None else self._raw.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "?"

    def accepted(self, transport: asyncio.Transport) -> bool:
        """Count an accepted connection; return False, and close it, if there are too many."""
        self._raw = transport
        self.connections.add(self)
        if len(self.connections) <= self.connections_limit:
            return True
        self.dismiss()
        transport.abort()
        return False

    def dismiss(self) -> None:
        """Forget a connection whose handshake has failed."""
        self.connections.discard(self)

    def begin(self, transport: asyncio.Transport) -> None:
        """Serve requests after the handshake."""
        self.connection_made(transport)
        if self._early:
            self.data_received(self._early)
            self._early = b""

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a client, which can come with the end of the handshake."""
        if self.transport is None:
            self._early += data
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, also within the handshake."""
        if self.transport is None:
            self.dismiss()
        else:
            super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection when its request is answered."""
        if self.transport is not None:
            super().shutdown()
            if self.transport.is_closing() and not self.transport.get_write_buffer_size():
                # Clients that are idle do not answer the end of TLS, for which it would wait.
                self.loop.call_later(_GOODBYE_S, self.transport.abort)
        elif self._raw is not None:
            self._raw.abort()
