"""Begin a connection with TLS.

The connection counts from its first byte, so that clients that never complete a handshake are
limited like all others. Knows sockets and TLS contexts, and no protocol.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Protocol, cast

import structlog

log = structlog.get_logger("tidemill.listener")

HANDSHAKE_SECONDS = 10.0
"""Longest TLS handshake."""
_PLAIN = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL"})
"""OpenSSL's reasons for first bytes that are not those of TLS, or of a TLS that is too old."""


class Begins(Protocol):
    """A connection that a handshake begins; also the protocol of what is within TLS."""

    @property
    def peer(self) -> str:
        """``host:port`` of the client."""

    def accepted(self, transport: asyncio.Transport) -> bool:
        """Count an accepted connection; return False, and close it, if there are too many."""

    def begin(self, transport: asyncio.Transport) -> None:
        """Take over after the handshake."""


class Handshake(asyncio.Protocol):
    """One accepted connection until its handshake is done.

    Args:
        link: the connection. It takes over after the handshake.
        dismiss: called if the handshake fails.
    """

    def __init__(self, link: Begins, context: ssl.SSLContext, dismiss: Callable[[], None]) -> None:
        self._link = link
        self._context = context
        self._dismiss = dismiss
        self._early = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and begin the handshake."""
        raw = cast("asyncio.Transport", transport)
        if self._link.accepted(raw):
            raw.pause_reading()
            self._task = asyncio.get_running_loop().create_task(self._run(raw))

    def data_received(self, data: bytes) -> None:
        """Keep bytes that came before the loop has given the socket to TLS (uvloop)."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that ended before its handshake began."""
        if self._task is not None:
            self._task.cancel()  # uvloop would never end the handshake of a closed connection
        self._dismiss()

    async def _run(self, raw: asyncio.Transport) -> None:
        if raw.is_closing():
            return  # connection_lost follows
        loop = asyncio.get_running_loop()
        upgrade = asyncio.ensure_future(
            loop.start_tls(
                raw,
                cast("asyncio.BaseProtocol", self._link),
                self._context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        )
        try:
            await self._replay(raw)
            tls = await upgrade
        except (OSError, ssl.SSLError, TimeoutError) as error:
            self._report(error)
            raw.abort()
            self._dismiss()
            return
        finally:
            upgrade.cancel()
        if tls is None or tls.is_closing():
            raw.abort()
            self._dismiss()
            return
        self._link.begin(tls)

    async def _replay(self, raw: asyncio.Transport) -> None:
        """Give early bytes to the protocol of TLS, as soon as it has the socket."""
        for _ in range(2):  # start_tls sets the protocol in one turn, and connects it in the next
            await asyncio.sleep(0)
        if self._early:
            protocol = cast("Any", raw.get_protocol())
            early, self._early = self._early, bytearray()
            while early and protocol is not None:  # it has none when it is closed (uvloop)
                buffer = protocol.get_buffer(len(early))
                count = min(len(early), len(buffer))
                buffer[:count] = early[:count]
                del early[:count]
                protocol.buffer_updated(count)

    def _report(self, error: Exception) -> None:
        if isinstance(error, ConnectionResetError):
            # A check whether the port is open. A client that rejects the certificate says so.
            log.debug("connection.closed", why="no TLS handshake", peer=self._link.peer)
            return
        reason = getattr(error, "reason", None) or ""
        hint = "The client must trust the certificate, and use the name that it is for."
        if reason in _PLAIN:
            hint = "Does the client use TLS at all? It needs security.protocol=SSL, or https://."
        log.warning(
            "connection.closed",
            why="TLS handshake failed",
            error=str(reason).lower().replace("_", " ") or str(error) or type(error).__name__,
            hint=hint,
            peer=self._link.peer,
        )
