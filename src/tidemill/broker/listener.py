"""The socket loop of every protocol: accept, receive, send, back-pressure, idle time, stop.

Knows sockets and bounds, and no protocol: what the bytes mean is a ``Session``'s business. A
session is told where to put what arrives and answers through its ``Link``.

A connection is not read while (a) its own unanswered requests take more than
``connection_inflight_bytes``, (b) those of all connections take more than
``total_inflight_bytes`` (see ``budget``), or (c) the client does not read what it is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from tidemill.broker.budget import Budget, Hold
from tidemill.errors import ProtocolError, TidemillError
from tidemill.settings import Limits
from tidemill.telemetry import get_logger

log = get_logger("listener")

GATHER_BYTES = 16_384
"""Answers to requests that arrived together are sent together, up to so many bytes."""
WRITE_HIGH_WATER = 1_048_576
"""Unsent bytes above which a connection is not read (and its queued requests not started)."""
STALL_SECONDS = 30.0
"""A client that stops in the middle of a request is closed after it."""
HANDSHAKE_SECONDS = 10.0
"""TLS handshakes that take longer are cut: they don't count as connections yet."""


class Session(Protocol):
    """One connection's protocol. All calls come from the event loop's thread."""

    @property
    def is_busy(self) -> bool:
        """Requests are unanswered."""

    @property
    def is_partial(self) -> bool:
        """A request has arrived in part."""

    def get_buffer(self) -> memoryview:
        """Where to receive into; never empty."""

    def received(self, count: int) -> None:
        """``count`` bytes stand in the last buffer.

        Raises:
            TidemillError: close the connection; the message goes to the log.
        """

    def writable(self) -> None:
        """The client has read what it was sent: go on."""

    def stop(self) -> None:
        """Take no new requests, hurry the open ones, and close the link when all is answered."""

    def closed(self) -> None:
        """The connection is gone; nothing can be written any more."""


class Link(asyncio.BufferedProtocol):
    """One accepted connection: the session's way to the socket."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self._holds = Hold.NONE
        self._own = 0
        self._gathering = False
        self._gathered: list[bytes | bytearray | memoryview] = []
        self._gathered_bytes = 0
        self.peer = "?"
        """``host:port`` of the client."""
        self.host = "?"
        self.last_receipt = 0.0
        """Loop time of the last byte."""

    # --- for the session -------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def is_partial(self) -> bool:
        """A request has arrived in part."""
        return self._session is not None and self._session.is_partial

    @property
    def is_congested(self) -> bool:
        """The client does not read what it is sent: start nothing new."""
        return self._holds is not Hold.NONE and bool(self._holds & Hold.WRITE)

    @property
    def response_room(self) -> int:
        """Bytes that may be sent before the clients that don't read hold too much memory."""
        return self._listener.response_room

    def write(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Send buffers in order; they must not be changed afterwards."""
        if not self._gathering:
            self._send(buffers)
            return
        self._gathered += buffers
        self._gathered_bytes += sum(map(len, buffers))
        if self._gathered_bytes > GATHER_BYTES:
            self._send_gathered()

    def _send(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(buffers)

    def _send_gathered(self) -> None:
        if self._gathered:
            buffers, self._gathered, self._gathered_bytes = self._gathered, [], 0
            self._send(buffers)

    def hold_request(self, size: int) -> None:
        """A whole request of ``size`` bytes waits for its answer."""
        self._own += size
        if self._own > self._limits.connection_inflight_bytes:
            self.hold(Hold.OWN)
        self._listener.budget.add(self, size, whole=True)

    def release_request(self, size: int) -> None:
        """It is answered."""
        self._own -= size
        if self._holds is not Hold.NONE and self._own <= self._limits.connection_inflight_bytes:
            self.unhold(Hold.OWN)
        self._listener.budget.remove(size, whole=True)

    def close(self) -> None:
        """Close after what is written has been sent."""
        self._send_gathered()
        if self._transport is not None:
            self._transport.close()

    def fail(self, error: BaseException, **about: object) -> None:
        """Close because the client broke the protocol (or we did), with one log line."""
        if self._transport is None or self._transport.is_closing():
            return
        self._send_gathered()
        about = {"peer": self.peer, **about}
        if isinstance(error, TidemillError):
            kind = "protocol error" if isinstance(error, ProtocolError) else type(error).__name__
            log.warning("connection closed", why=kind, error=str(error), hint=error.hint, **about)
        else:
            log.error("connection closed", why="broker fault", exc_info=error, **about)
        self._transport.close()

    # --- for the listener and the budget ---------------------------------------------------------

    def hold(self, why: Hold) -> None:
        was = self._holds
        self._holds = was | why
        if was is Hold.NONE and self._transport is not None and not self.is_closing:
            self._transport.pause_reading()

    def unhold(self, why: Hold) -> None:
        was = self._holds
        if not was & why:
            return
        self._holds = was & ~why
        if self._holds is Hold.NONE and self._transport is not None and not self.is_closing:
            self.last_receipt = self._listener.now()
            self._transport.resume_reading()

    def stop(self) -> None:
        """Ask the session to end."""
        if self._session is not None:
            self._session.stop()

    def abort(self) -> None:
        """Cut the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def check_idle(self, now: float) -> None:
        """Close a connection on which nothing has happened for too long."""
        session = self._session
        if session is None or session.is_busy or self.is_closing:
            return
        silent = now - self.last_receipt
        if session.is_partial and self._holds is Hold.NONE and silent > STALL_SECONDS:
            self.fail(ProtocolError(f"the client stopped in a request for {silent:.0f} s"))
        elif silent > self._limits.idle_seconds:
            log.info("idle connection closed", peer=self.peer, idle_seconds=round(silent))
            # Not close(): a client that does not read would keep it open.
            self.abort()

    # --- asyncio.BufferedProtocol ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peername = transport.get_extra_info("peername")
        if isinstance(peername, tuple):
            self.host, self.peer = str(peername[0]), f"{peername[0]}:{peername[1]}"
        self.last_receipt = self._listener.now()
        if not self._listener.admit(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self._session = self._listener.make_session(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        session = self._session
        return memoryview(bytearray(1)) if session is None else session.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        session = self._session
        if session is None or self.is_closing:
            return
        self.last_receipt = self._listener.now()
        self._gathering = True
        try:
            session.received(nbytes)
        except Exception as error:
            self.fail(error)
        finally:
            self._gathering = False
            self._send_gathered()

    def eof_received(self) -> bool:
        return False  # close

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._listener.count_unsent(self, self._transport.get_write_buffer_size())
        self.hold(Hold.WRITE)

    def resume_writing(self) -> None:
        self._listener.count_unsent(self, 0)
        self.unhold(Hold.WRITE)
        if self._session is not None:
            self._session.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._session is not None:
            self._session.closed()
            self._session = None
        self._listener.dismiss(self)


class Listener:
    """A listening socket and its connections.

    Args:
        name: for log lines.
        limits: bounds of the broker's settings.
        budget: request memory; shared where several listeners count together.
        make_session: called for each accepted connection.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        make_session: Callable[[Link], Session],
        *,
        budget: Budget | None = None,
    ) -> None:
        self.name = name
        self.limits = limits
        self.budget = budget or Budget(limits.total_inflight_bytes)
        self.make_session = make_session
        self._links: set[Link] = set()
        self._unsent: dict[Link, int] = {}
        self._unsent_total = 0
        self._loaded_total = 0
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._links)

    @property
    def response_room(self) -> int:
        """``total_inflight_bytes`` without responses in the making and what clients leave unread.

        A slow reader must not stop the others, so this is no reason to wait: where it is little,
        protocols answer with little.
        """
        return max(0, self.limits.total_inflight_bytes - self._unsent_total - self._loaded_total)

    def count_loaded(self, change: int) -> None:
        """Responses that are not written yet hold so many bytes more."""
        self._loaded_total += change

    def count_unsent(self, link: Link, size: int) -> None:
        """A connection is congested with ``size`` bytes, or (0) no longer."""
        self._unsent_total += size - self._unsent.pop(link, 0)
        if size:
            self._unsent[link] = size

    def now(self) -> float:
        """The event loop's time in seconds."""
        return self._loop.time() if self._loop is not None else 0.0

    async def start(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Bind and accept; returns host and port as bound.

        Raises:
            OSError: the address can't be bound.
        """
        self._loop = loop = asyncio.get_running_loop()
        if port == 0:
            # A name with several addresses would get a different free port on each.
            found = await loop.getaddrinfo(host, 0, type=1)
            host = str(found[0][4][0])
        self._server = await loop.create_server(
            lambda: Link(self),
            host,
            port,
            ssl=tls,
            backlog=1024,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if tls is not None else None,
        )
        bound = self._server.sockets[0].getsockname()
        self._sweeper = loop.create_task(self._sweep())
        return str(bound[0]), int(bound[1])

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more, let open requests end for at most ``grace_seconds``, close."""
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for link in list(self._links):
            link.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), grace_seconds)
        if self._links:
            log.warning("connections cut at stop", listener=self.name, count=len(self._links))
        for link in list(self._links):
            link.abort()
        await self._empty.wait()

    def admit(self, link: Link) -> bool:
        """Count a new connection, or refuse it."""
        if len(self._links) >= self.limits.connections:
            log.warning(
                "connection refused",
                listener=self.name,
                peer=link.peer,
                why=f"{self.limits.connections} connections are open",
                hint="Raise limits.connections.",
            )
            return False
        self._links.add(link)
        self._empty.clear()
        return True

    def dismiss(self, link: Link) -> None:
        """The connection is gone."""
        self._links.discard(link)
        self.count_unsent(link, 0)
        self.budget.forget(link)
        if not self._links:
            self._empty.set()

    async def _sweep(self) -> None:
        period = min(self.limits.idle_seconds / 2, STALL_SECONDS / 2)
        while True:
            await asyncio.sleep(period)
            now = self.now()
            for link in list(self._links):
                link.check_idle(now)
