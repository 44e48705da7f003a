"""The sockets of every protocol: accept, limit, sweep, stop.

Knows sockets and limits, and no protocol. ``link`` moves the bytes of one connection, ``handshake``
begins those with TLS, and ``budget`` and ``responses`` limit their memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable

import structlog

from tidemill.net.budget import Budget
from tidemill.net.handshake import Handshake
from tidemill.net.link import STALL_SECONDS, Link, Session
from tidemill.net.responses import Client, ResponseMemory
from tidemill.net.tls import ListenerTls
from tidemill.settings import Settings
from tidemill.settings.section import ListenerSection

log = structlog.get_logger("tidemill.listener")

RELIEF_SECONDS = 0.1
"""How often clients are measured while memory is short."""
WATCH_SECONDS = 5.0
REPORT_SECONDS = 1.0
"""Shortest time between two reports of refused connections."""
KEEPALIVE = {"TCP_KEEPIDLE": 300, "TCP_KEEPINTVL": 60, "TCP_KEEPCNT": 5}
"""The kernel asks a client that is silent for five minutes whether it is there, for five more. An
AMQP client can do without heartbeats, and one that has vanished would keep what it has for ever."""
OTHER_LOOPBACK = {"127.0.0.1": "::1", "::1": "127.0.0.1"}
"""Loopback addresses of the other IP version: clients that connect to localhost try one first."""


class Listener:
    """A listening socket and its connections.

    Args:
        settings: the broker's settings: the host to bind, and the limits.
        section: those of the listener: the port. Its key or name is the name for log lines.
        make_session: called for each accepted connection.
        budget: memory of requests; several listeners can share one.
        tls: its certificate and key; None: plain text.
        on_strange_certificate: called when a new certificate is in use that clients refuse until
            they have read its file again.

    Attributes:
        accepted, refused: connections since the start.
        failed: connections that were closed with an error, by its type.
    """

    def __init__(
        self,
        settings: Settings,
        section: ListenerSection,
        make_session: Callable[[Link], Session],
        *,
        budget: Budget | None = None,
        tls: ListenerTls | None = None,
    ) -> None:
        self.name = section.entry_name or section.key
        self.limits = limits = settings.limits
        self.budget = budget or Budget(limits.total_inflight_bytes)
        self.responses = ResponseMemory(limits.total_inflight_bytes, self.relieve_later)
        self.tls = tls or ListenerTls(self.name, None, None)
        self.address = (section.bind_host(settings.host), section.port)
        self._context: ssl.SSLContext | None = None
        self._make_session = make_session
        self._links: set[Link] = set()
        self._relief: asyncio.TimerHandle | None = None
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.watch_seconds = WATCH_SECONDS
        """How often the files of the certificate are looked at."""
        self.on_strange_certificate: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.accepted = self.refused = 0
        self.failed: dict[str, int] = {}
        self._refused = 0
        """Connections that were refused since the last report."""
        self._next_report = 0.0
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._links)

    def make_session(self, link: Link) -> Session:
        """Return the session of a new connection."""
        return self._make_session(link)

    def now(self) -> float:
        """Return the event loop's time in seconds."""
        return self._loop.time() if self._loop is not None else 0.0

    async def start(self) -> tuple[str, int]:
        """Bind and accept connections.

        The host 127.0.0.1 or localhost stands for the loopback addresses of both IP versions, where
        the machine has both.

        Returns:
            Host and port as bound; with port 0 in the settings, the port that was free.

        Raises:
            OSError: the address can't be bound.
            SettingsError: the certificate or the key can't be used.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._context = self.tls.context()
        host, port = self.address
        if port == 0:
            # Each address of a name would get a different free port.
            found = await loop.getaddrinfo(host, 0, type=1)
            host = str(found[0][4][0])
        server = await self._listen(host, port)
        self._servers = [server]
        bound = server.sockets[0].getsockname()
        if self.address[0] in ("127.0.0.1", "localhost") and len(server.sockets) == 1:
            await self._bind_too(OTHER_LOOPBACK[bound[0]], bound[1])
        self._sweeper = loop.create_task(self._sweep())
        if self.tls.is_used:
            self._watcher = loop.create_task(self._watch_files())
        return str(bound[0]), int(bound[1])

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        assert self._loop is not None
        server = await self._loop.create_server(self._accept, host, port, backlog=1024)
        for each in server.sockets:  # what is accepted has the same options
            each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(socket, name):
                    each.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return server

    async def _bind_too(self, host: str, port: int) -> None:
        """Listen on a second address, if the machine has it and it is free."""
        try:
            second = await self._listen(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                log.warning(
                    "listener.address_in_use",
                    listener=self.name,
                    host=host,
                    port=port,
                    hint="Clients that connect to localhost can reach another program.",
                )
        else:
            self._servers.append(second)

    def _accept(self) -> asyncio.BaseProtocol:
        link = Link(self)
        if self._context is None:
            return link
        return Handshake(link, self._context, lambda: self.dismiss(link))

    def reload_tls(self) -> None:
        """Read certificate and key again, for new connections. Invalid ones don't replace them."""
        context = self.tls.reloaded()
        if context is not None:
            self._context = context
            if self.tls.is_strange:
                self.on_strange_certificate()

    async def _watch_files(self) -> None:
        """Read certificate and key again when their files have changed."""
        while True:
            await asyncio.sleep(self.watch_seconds)
            if self.tls.has_changed():
                self.reload_tls()

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more connections, wait up to ``grace_seconds`` for open requests, and close."""
        for server in self._servers:
            server.close()
        for task in (self._sweeper, self._watcher):
            if task is not None:
                task.cancel()
        if self._relief is not None:
            self._relief.cancel()
        for link in list(self._links):
            link.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), grace_seconds)
        if self._links:
            log.warning("connections.aborted", listener=self.name, count=len(self._links))
        for link in list(self._links):
            link.abort()
        await self._empty.wait()

    def admit(self, link: Link) -> bool:
        """Count a new connection; return False if there are too many."""
        if self.budget.connections >= self.limits.connections:
            self._report_refused(link)
            return False
        self.accepted += 1
        self._links.add(link)
        self.budget.connections += 1
        self._empty.clear()
        return True

    def _report_refused(self, link: Link) -> None:
        """Log that connections were refused, once in a while: clients can try again and again."""
        self.refused += 1
        self._refused += 1
        now = self.now()
        if now < self._next_report:
            return
        log.warning(
            "connection.refused",
            listener=self.name,
            peer=link.peer,
            count=self._refused,
            why=f"{self.limits.connections} connections are open",
            hint="Raise limits.connections, and the limit of open files (ulimit -Hn) with it.",
        )
        self._refused, self._next_report = 0, now + REPORT_SECONDS

    def count_failure(self, kind: str) -> None:
        """Count a connection that is closed because of an error of this type."""
        self.failed[kind] = self.failed.get(kind, 0) + 1

    def dismiss(self, link: Link) -> None:
        """Forget a closed connection."""
        if link in self._links:
            self._links.discard(link)
            self.budget.connections -= 1
        self.responses.forget(link)
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

    # --- clients that do not read, or send too little --------------------------------------------

    def relieve_later(self) -> None:
        """Look soon for clients that take memory for which others wait."""
        if self._relief is None and self._loop is not None:
            self._relief = self._loop.call_later(RELIEF_SECONDS, self._relieve)

    def _relieve(self) -> None:
        self._relief = None
        self.responses.relieve(self.now(), self._evict)
        self.budget.relieve(self.now())
        if self.responses.needs_relief or self.budget.is_short:
            self.relieve_later()

    def _evict(self, client: Client, unread: int, seconds: float) -> None:
        assert isinstance(client, Link)
        log.warning(
            "connection.not_reading",
            peer=client.peer,
            unread_bytes=unread,
            seconds=round(seconds, 1),
            why="responses take limits.total_inflight_bytes, and other clients wait",
            hint="The client can connect again. If this is frequent, raise the limit, or lower "
            "the clients' fetch.max.bytes.",
        )
        client.abort()
