"""Serves ASGI applications on several sockets, in one process and one event loop.

uvicorn speaks HTTP/1.1 with httptools, within the limits of ``connections``. Must not know: topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog
import uvicorn

from tidemill.errors import SettingsError
from tidemill.gateway.connections import KEEP_ALIVE_S, BoundedProtocol, TlsProtocol
from tidemill.net.handshake import Handshake
from tidemill.net.tls import ListenerTls

STOP_S = 5
RETRY_S = 2.0
"""How often it is tried again to listen on a port that is in use."""
WATCH_SECONDS = 5.0
"""How often the files of a certificate are looked at."""
_BACKLOG = 1024
_PLAIN_TEXT = ListenerTls("gateway", None, None)

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
        tls: Its certificate and key; without a certificate, it speaks plain text.
    """

    name: str
    app: Any
    host: str
    port: int
    connections: int
    slow_client_s: int = 30
    section: str = "gateway"
    tls: ListenerTls = _PLAIN_TEXT


class Address(NamedTuple):
    """The address of a listener, as bound."""

    scheme: str
    host: str
    port: int


class _Tls:
    """Makes the connections of a listener with TLS, and reads its certificate again.

    Raises:
        SettingsError: the certificate or the key can't be used.
    """

    def __init__(self, tls: ListenerTls, connection: type[TlsProtocol]) -> None:
        context = tls.context()
        assert context is not None
        self._tls, self._connection, self._context = tls, connection, context

    def __call__(self, **given: Any) -> asyncio.Protocol:
        """Return what takes an accepted connection, as uvicorn asks for it."""
        made = self._connection(**given)
        return Handshake(made, self._context, made.dismiss)

    async def watch(self) -> None:
        """Read certificate and key again when their files have changed."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._tls.has_changed():
                self._context = self._tls.reloaded() or self._context


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
    ready: Callable[[Mapping[str, Address]], None],
) -> None:
    """Serve applications until ``stop`` is set, then end open requests.

    A listener whose address can't be used is a warning, and is tried again while others serve.

    Args:
        ready: called with the address of each listener that serves.

    Raises:
        SettingsError: no address can be used, or a certificate can't.
    """
    for each in listeners:
        each.tls.context()
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
    ready({each.name: Address(_scheme(each), *bound.getsockname()[:2]) for each, bound in served})
    async with asyncio.TaskGroup() as group:
        for listener, bound in served:
            group.create_task(_serve(listener, bound, stop))
        for listener, _ in failed:
            group.create_task(_serve(listener, None, stop))


async def _serve(listener: Listener, bound: socket.socket | None, stop: asyncio.Event) -> None:
    """Serve a listener, which is tried to be bound until it is possible."""
    while bound is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                await stop.wait()
                return
        with contextlib.suppress(SettingsError):
            bound = bind(listener)
    host, port = bound.getsockname()[:2]
    log.info("gateway.listening", listener=listener.name, host=host, port=port)
    connection = _connection(listener)
    server = _server(listener, connection)
    serving = asyncio.create_task(server.serve([bound]))
    stopping = asyncio.create_task(stop.wait())
    watching = asyncio.create_task(connection.watch()) if isinstance(connection, _Tls) else None
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    for each in (stopping, watching):
        if each is not None:
            each.cancel()
    server.should_exit = True
    await serving


def _scheme(listener: Listener) -> str:
    return "https" if listener.tls.is_used else "http"


def _connection(listener: Listener) -> Any:
    """Return what makes the connections of a listener, with its limits."""
    limits = {
        "connections_limit": listener.connections,
        "slow_client_s": listener.slow_client_s,
    }
    if listener.tls.is_used:
        return _Tls(listener.tls, type("TlsConnection", (TlsProtocol,), limits))
    return type("Connection", (BoundedProtocol,), limits)


def _server(listener: Listener, connection: Any) -> _Server:
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
