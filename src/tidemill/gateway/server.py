"""Serves ASGI applications on several sockets, in one process and one event loop.

uvicorn speaks HTTP/1.1 with httptools. What it leaves open is bounded here: the size of a request's
head, the time until it is complete, pipelined requests, and connections. Must not know: topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tidemill.errors import SettingsError

HEAD_BYTES = 64 * 1024
"""The largest head of a request: its line and its headers."""
HEADERS = 100
HEAD_S = 10.0
"""How long a client can take for a head."""
KEEP_ALIVE_S = 75
"""How long a connection can be idle between two requests."""
PIPELINED = 32
"""The most requests of a connection that wait for their turn."""
STOP_S = 5
RETRY_S = 2.0
"""How often it is tried again to listen on a port that is in use."""
_BACKLOG = 1024
_LARGE_HEAD = "the headers are too large"

log = structlog.get_logger("tidemill.gateway")


class PortInUseError(SettingsError):
    """Another process listens on the port of the gateway."""


@dataclass(frozen=True)
class Listener:
    """An application and the address where it is served.

    Attributes:
        name: For the log, like ``topics``.
        app: An ASGI application.
        connections: The most open connections.
        slow_client_s: How long a client can take to accept what fills its buffers, in seconds.
        section: The section of the settings with its port, for errors.
    """

    name: str
    app: Any
    host: str
    port: int
    connections: int
    slow_client_s: int = 30
    section: str = "gateway"


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


class _Server(uvicorn.Server):
    """A server of uvicorn whose signals are handled elsewhere."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(listener: Listener) -> socket.socket:
    """Return a socket that listens at a listener's address.

    Raises:
        PortInUseError: another process listens there.
        SettingsError: the address can't be used.
    """
    host, port = listener.host, listener.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
            bound.listen(_BACKLOG)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        where = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"another process listens on {where}",
                hint=f"Stop it, or use another port: --set {listener.section}.port=0 picks a free "
                "one.",
            ) from error
        number = error.errno or 0  # negative if a name can't be resolved
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise SettingsError(f"can't listen on {where}: {reason.lower()}") from error
    return bound


async def serve(
    listeners: Sequence[Listener],
    stop: asyncio.Event,
    ready: Callable[[Mapping[str, tuple[str, int]]], None],
) -> None:
    """Serve applications until ``stop`` is set, then end open requests.

    A listener whose address can't be used is a warning, and is tried again while others serve.

    Args:
        ready: called with the address of each listener that serves.

    Raises:
        SettingsError: no address can be used.
    """
    served: list[tuple[Listener, socket.socket]] = []
    failed: list[tuple[Listener, SettingsError]] = []
    for each in listeners:
        try:
            served.append((each, bind(each)))
        except SettingsError as error:
            failed.append((each, error))
    if failed and not served:
        raise failed[0][1]
    for listener, why in failed:
        log.warning("gateway.not_listening", listener=listener.name, error=str(why), hint=why.hint)
    ready({each.name: bound.getsockname()[:2] for each, bound in served})
    async with asyncio.TaskGroup() as group:
        for listener, bound in served:
            group.create_task(_serve(listener, bound, stop))
        for listener, _ in failed:
            group.create_task(_serve_when_free(listener, stop))


async def _serve(listener: Listener, bound: socket.socket, stop: asyncio.Event) -> None:
    host, port = bound.getsockname()[:2]
    log.info("gateway.listening", listener=listener.name, host=host, port=port)
    server = _server(listener)
    serving = asyncio.create_task(server.serve([bound]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving


async def _serve_when_free(listener: Listener, stop: asyncio.Event) -> None:
    """Try to listen until it is possible, and serve."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(RETRY_S):
                await stop.wait()
        except TimeoutError:
            with contextlib.suppress(SettingsError):
                await _serve(listener, bind(listener), stop)


def _server(listener: Listener) -> _Server:
    limits = {
        "connections_limit": listener.connections,
        "slow_client_s": listener.slow_client_s,
    }
    connection = type("Connection", (BoundedProtocol,), limits)
    config = uvicorn.Config(
        listener.app,
        http=connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        backlog=_BACKLOG,
    )
    return _Server(config)
