"""One accepted connection: receive, send, holds, idle time.

Knows a socket's transport and limits, and no protocol: a ``Session`` knows what the bytes mean. It
provides the buffers to receive into, and answers through its ``Link``.

A connection is not read while (a) its own unanswered requests take more than
``connection_inflight_bytes``, (b) those of all connections take more than
``total_inflight_bytes`` (see ``budget``), or (c) the client does not read its responses. What is
unread also counts in ``responses``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, Protocol, cast

import structlog

from tidemill import system
from tidemill.errors import ProtocolError, TidemillError
from tidemill.net.budget import Budget, Hold
from tidemill.net.outgoing.outbox import Outbox
from tidemill.net.response_budget import ResponseBudget
from tidemill.net.responses import UNCOUNTED_BYTES, ResponseMemory
from tidemill.parts import Part, has_files, memory_of
from tidemill.settings import Limits

log = structlog.get_logger("tidemill.listener")

GATHER_BYTES = 16_384
"""Answers to requests that arrived together are sent together, up to this many bytes."""
WRITE_HIGH_WATER = 1_048_576
"""Unsent bytes above which a connection is not read (and its queued requests not started)."""
STALL_SECONDS = 30.0
"""The connection of a client that stops in the middle of a request is closed after this time."""
SMALL_WINDOW_BYTES = 65_536
"""Receive buffer of a connection whose client floods the broker with short requests."""
EARLY_BYTES = 65_536
"""Bytes in the buffer of a connection that has no session yet."""
_CONGESTED = Hold.WRITE | Hold.UNREAD | Hold.LAG
_BROKER = Hold.OWN | Hold.QUEUE | Hold.LAG
"""Reasons that end when the broker has done something, and not when the client has."""


class Session(Protocol):
    """The protocol of one connection. All calls come from the event loop's thread."""

    @property
    def is_busy(self) -> bool:
        """Whether requests are unanswered."""

    @property
    def is_partial(self) -> bool:
        """Whether a request has arrived in part."""

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into. It is never empty."""

    def received(self, count: int) -> None:
        """Process ``count`` bytes in the last buffer.

        Raises:
            TidemillError: the listener logs it and closes the connection.
        """

    def writable(self) -> None:
        """Continue: the client has read its responses."""

    def stop(self) -> None:
        """Start no more requests, end long polls, and close the link when all is answered."""

    def closed(self) -> None:
        """Clean up: the connection is closed and nothing can be written any more."""


class Owner(Protocol):
    """The listener, as its connections see it."""

    @property
    def limits(self) -> Limits: ...

    @property
    def budget(self) -> Budget: ...

    @property
    def responses(self) -> ResponseMemory: ...

    def now(self) -> float:
        """Return the event loop's time in seconds."""

    def relieve_later(self) -> None:
        """Look soon for clients that take memory for which others wait."""

    def make_session(self, link: Link) -> Session: ...

    def admit(self, link: Link) -> bool:
        """Count a new connection; return False if there are too many."""

    def count_failure(self, kind: str) -> None:
        """Count a connection that is closed because of an error of this type."""

    def dismiss(self, link: Link) -> None:
        """Forget a closed connection."""


class Link(asyncio.BufferedProtocol):
    """One accepted connection, as its session uses it."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._limits = owner.limits
        self._transport: asyncio.Transport | None = None
        self._is_asyncio = False
        self._under: asyncio.Transport | None = None
        """The transport of the bytes on the wire; not that of TLS."""
        self._early = bytearray()
        self._early_buffer: bytearray | None = None
        self._session: Session | None = None
        self._holds = Hold.NONE
        self._own = 0
        self._gathering = False
        self._is_broken = False
        self._is_shut = False
        self._is_finished = False
        """Whether the client has got the end of the stream."""
        self._has_small_window = False
        self._outbox: Outbox | None = None
        """Sends everything since the first response with a range of a file."""
        self.sends_files = False
        """Whether parts of responses can be ranges of files."""
        self._gathered: list[Part] = []
        self._gathered_bytes = 0
        self.peer = "?"
        """``host:port`` of the client."""
        self.host = "?"
        self.last_receipt = 0.0
        """Loop time of the last byte."""
        self.received_bytes = 0
        """Bytes that were read since the connection was opened."""
        self.budget = ResponseBudget(owner.responses)
        """Memory for the response in the making."""

    # --- for the session -------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self._transport is None or self._is_shut or self._transport.is_closing()

    @property
    def is_partial(self) -> bool:
        """Whether a request has arrived in part."""
        return self._session is not None and self._session.is_partial

    @property
    def is_congested(self) -> bool:
        """Whether no request should start.

        The client does not read its responses, or its consumers are too far behind.
        """
        holds = self._holds  # compared first, because this is asked for each request
        return holds is not Hold.NONE and bool(holds & _CONGESTED)

    @property
    def local(self) -> str:
        """The address of the broker that the client has reached, as ``host:port``."""
        name = None if self._under is None else self._under.get_extra_info("sockname")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?:0"

    @property
    def is_encrypted(self) -> bool:
        """Whether the bytes on the wire are those of TLS."""
        return self._transport is not self._under

    @property
    def is_held(self) -> bool:
        """Whether the connection is not read, for any reason."""
        return self._holds is not Hold.NONE

    def gather(self) -> None:
        """Keep what is written from now on, up to ``GATHER_BYTES``, until ``send``."""
        self._gathering = True

    def send(self) -> None:
        """Send what was gathered, with one system call. From now on, writes are sent directly."""
        self._gathering = False
        self._send_gathered()

    def write(self, buffers: Sequence[Part]) -> None:
        """Send buffers in order. The caller must not change them afterwards."""
        if not self._gathering:
            self._send(buffers)
            return
        self._gathered += buffers
        self._gathered_bytes += sum(map(len, buffers))
        if self._gathered_bytes > GATHER_BYTES:
            self._send_gathered()

    def _send(self, parts: Sequence[Part]) -> None:
        if self._transport is None or self.is_closing or self._is_finished:
            return
        if self._outbox is None and self.sends_files and has_files(parts):
            self._outbox = Outbox(self._transport, self._all_sent, self._send_failed)
        if self._outbox is not None:
            self._outbox.add(parts)
            if self._outbox.unsent > WRITE_HIGH_WATER:
                self.hold(Hold.WRITE)
        else:
            buffers: Any = parts
            if self._is_asyncio:
                # writelines() of asyncio in Python 3.12 and 3.13 does not pause a connection whose
                # client does not read; write() does.
                self._transport.writelines(buffers[:-1])
                self._transport.write(buffers[-1] if buffers else b"")
            else:
                self._transport.writelines(buffers)
        self._count_unread(parts)

    def _all_sent(self) -> None:
        """Continue when the outbox is empty."""
        if self._is_shut and self._transport is not None:
            self._transport.close()
        elif self._holds & Hold.WRITE:
            self.release(Hold.WRITE)

    def _send_failed(self, error: OSError) -> None:
        """Close the connection: the client is gone, or a file can't be read."""
        if not isinstance(error, ConnectionError):
            log.error("connection.closed", why="sending failed", error=str(error), peer=self.peer)
        self.abort()

    def _count_unread(self, buffers: Sequence[Part]) -> None:
        unread = self.unread_bytes
        responses = self._owner.responses
        if unread > UNCOUNTED_BYTES or (unread and responses.has_unread(self)):
            self.budget.has_read = False
            responses.wrote(self, memory_of(buffers), self._owner.now())
            if responses.blocks(self):
                self.hold(Hold.UNREAD)
        elif not self.budget.has_read and sum(map(len, buffers)) > UNCOUNTED_BYTES:
            self.budget.has_read = True

    def _send_gathered(self) -> None:
        if self._gathered:
            buffers, self._gathered, self._gathered_bytes = self._gathered, [], 0
            self._send(buffers)

    def limit_window(self) -> None:
        """Let the kernel receive only a little ahead, for as long as the connection lives.

        By default it receives several megabytes while the connection is not read. That is tens of
        thousands of short requests, and the client does not notice that it has to wait.
        """
        if self._has_small_window or self._under is None:
            return
        self._has_small_window = True
        sock = self._under.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW_BYTES)

    def hold_request(self, size: int) -> None:
        """Count a request of ``size`` bytes that waits for its answer."""
        self._own += size
        if self._own > self._limits.connection_inflight_bytes:
            self.hold(Hold.OWN)
        self._owner.budget.add(self, size)

    def release_request(self, size: int) -> None:
        """Count a request of ``size`` bytes as answered."""
        self._own -= size
        if self._holds is not Hold.NONE and self._own <= self._limits.connection_inflight_bytes:
            self.unhold(Hold.OWN)
        self._owner.budget.remove(size)

    def close(self) -> None:
        """Send what is written, and close."""
        self._send_gathered()
        self._shut()

    def finish(self) -> None:
        """Send what is written, and say that nothing follows. The client is to close.

        What is written later is discarded.

        The caller continues to receive, and calls ``close`` after some time: a socket that closes
        while data arrives is reset, and then the client possibly never reads what it was sent.
        """
        self._send_gathered()
        transport = self._transport
        if transport is None or self.is_closing or (self._outbox and self._outbox.unsent):
            return
        self._is_finished = True
        if transport.can_write_eof():  # TLS can't
            transport.write_eof()

    def _shut(self) -> None:
        """Close the transport when the outbox is empty."""
        if self._transport is None or self._is_shut:
            return
        if self._outbox is not None and self._outbox.unsent:
            self._is_shut = True
            self._transport.pause_reading()
        else:
            self._transport.close()

    def fail(self, error: BaseException, **about: object) -> None:
        """Close because the client violated the protocol, or the broker has a bug; log one line."""
        if self._transport is None or self.is_closing:
            return
        self._send_gathered()
        self._owner.count_failure(type(error).__name__)
        about = {"peer": self.peer, **about}
        if isinstance(error, MemoryError):
            log.error(
                "connection.closed",
                why="out of memory",
                error="the machine has no memory left for this client's request or response",
                hint="Lower limits.total_inflight_bytes, or give the broker more memory.",
                **about,
            )
        elif isinstance(error, TidemillError):
            kind = "protocol error" if isinstance(error, ProtocolError) else type(error).__name__
            log.warning("connection.closed", why=kind, error=str(error), hint=error.hint, **about)
        else:
            log.error("connection.closed", why="internal error", exc_info=error, **about)
        self._shut()

    # --- for the listener and the budget ---------------------------------------------------------

    def hold(self, why: Hold) -> None:
        """Stop reading, for one more reason."""
        was = self._holds
        self._holds = was | why
        if was is Hold.NONE and self._transport is not None and not self.is_closing:
            self._transport.pause_reading()
        if why is Hold.TOTAL:
            self._owner.relieve_later()

    def unhold(self, why: Hold) -> None:
        """Remove a reason. Read again if no other is left."""
        was = self._holds
        if not was & why:
            return
        self._holds = was & ~why
        if self._holds is Hold.NONE and self._transport is not None and not self.is_closing:
            self.last_receipt = self._owner.now()
            self._transport.resume_reading()

    def release(self, why: Hold) -> None:
        """Remove a reason not to read, and let the session continue with what it has."""
        self.unhold(why)
        self._continue()

    @property
    def queued_bytes(self) -> int:
        """Bytes that have arrived and are not read."""
        sock = self._under.get_extra_info("socket") if self._under is not None else None
        return system.queued_bytes(sock.fileno()) if sock is not None else 0

    @property
    def waits_for_broker(self) -> bool:
        """Whether it is not read because the broker has work to do first."""
        return bool(self._holds & _BROKER)

    def close_slow(self, held: int, rate: float) -> None:
        """Close the connection: it holds ``held`` bytes and sends ``rate`` in a second."""
        log.warning(
            "connection.too_slow",
            peer=self.peer,
            held_bytes=held,
            bytes_per_second=round(rate),
            why="unfinished requests take limits.total_inflight_bytes, and other clients wait",
            hint="The client can connect again. If this is frequent, raise the limit, or let "
            "clients send smaller requests.",
        )
        self.abort()

    @property
    def unread_bytes(self) -> int:
        """Bytes that are written and that the kernel has not taken."""
        size = 0
        if self._transport is not None:
            size = self._transport.get_write_buffer_size()
        if self._under is not None and self._under is not self._transport:
            size += self._under.get_write_buffer_size()  # TLS: encrypted and not sent
        if self._outbox is not None:
            size += self._outbox.unsent_memory
        return size

    def has_read(self) -> None:
        """Note that the client has read its responses; continue if that was waited for."""
        self.budget.has_read = True
        if self._holds & Hold.UNREAD:
            self.unhold(Hold.UNREAD)
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        if self._session is not None:
            self._session.writable()

    def stop(self) -> None:
        """Ask the session to end."""
        if self._session is not None:
            self._session.stop()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection now. Unsent bytes are lost."""
        if self._outbox is not None:
            self._outbox.close()
        if self._transport is not None:
            self._transport.abort()
        elif self._under is not None:
            self._under.abort()

    def check_idle(self, now: float) -> None:
        """Close the connection if nothing has happened on it for too long."""
        session = self._session
        if session is None or session.is_busy or self.is_closing:
            return
        silent = now - self.last_receipt
        if session.is_partial and self._holds is Hold.NONE and silent > STALL_SECONDS:
            self.fail(
                ProtocolError(f"the client stopped in the middle of a request for {silent:.0f} s")
            )
        elif silent > self._limits.idle_seconds:
            log.info("connection.idle_closed", peer=self.peer, idle_seconds=round(silent))
            # Not close(): a client that does not read would keep it open.
            self.abort()

    # --- asyncio.BufferedProtocol ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.accepted(cast("asyncio.Transport", transport)):
            self.begin(cast("asyncio.Transport", transport))

    def accepted(self, transport: asyncio.Transport) -> bool:
        """Count a connection; close it and return False if there are too many."""
        peername = transport.get_extra_info("peername")
        if isinstance(peername, tuple):
            self.host, self.peer = str(peername[0]), f"{peername[0]}:{peername[1]}"
        self._under = transport
        if self._owner.admit(self):
            return True
        transport.abort()
        return False

    def begin(self, transport: asyncio.Transport) -> None:
        """Start the session on a transport that is ready: with TLS, after the handshake."""
        self._transport = transport
        self._is_asyncio = type(transport).__module__.startswith("asyncio.")
        self.last_receipt = self._owner.now()
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.sends_files = transport is self._under and system.can_send_files()
        early, self._early, self._early_buffer = self._early, bytearray(), None
        try:
            self._session = self._owner.make_session(self)
        except TidemillError as error:
            self.fail(error)
            return
        self._feed(early)

    def hand_over(self, session: Session, rest: bytearray) -> None:
        """Continue with another session, after a login.

        Args:
            rest: bytes that have arrived and that the first session has not used.
        """
        self._session = session
        self._feed(rest)

    def _feed(self, data: bytearray) -> None:
        """Give the session bytes that arrived before it was there."""
        while data and self._session is not None and not self.is_closing:
            buffer = self._session.get_buffer()
            count = min(len(data), len(buffer))
            buffer[:count] = data[:count]
            del data[:count]
            self.buffer_updated(count)

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The certificate that the client has shown, as the module ``ssl`` has it."""
        if self._transport is None:
            return None
        return self._transport.get_extra_info("peercert") or None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._session is not None and not self._is_broken and not self.is_closing:
            try:
                return self._session.get_buffer()
            except Exception as error:
                # The loop is about to receive: uvloop crashes if the socket is closed here.
                self._is_broken = True
                asyncio.get_running_loop().call_soon(self.fail, error)
        # TLS: the client's first bytes can come with the end of its handshake.
        self._early_buffer = bytearray(EARLY_BYTES if self._session is None else 1)
        return memoryview(self._early_buffer)

    def buffer_updated(self, nbytes: int) -> None:
        session = self._session
        if session is None and self._early_buffer is not None:
            self._early += memoryview(self._early_buffer)[:nbytes]
        if session is None or self._is_broken or self.is_closing:
            return
        self.last_receipt = self._owner.now()
        self.received_bytes += nbytes
        self.gather()
        try:
            session.received(nbytes)
        except Exception as error:
            self.fail(error)
        finally:
            self.send()

    def pause_writing(self) -> None:
        self.hold(Hold.WRITE)

    def resume_writing(self) -> None:
        if self._outbox is not None and self._outbox.unsent > WRITE_HIGH_WATER:
            return  # ``_all_sent`` continues
        self.release(Hold.WRITE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._under = None
        if self._outbox is not None:
            self._outbox.close()
            self._outbox = None  # it refers to this connection
        if self._session is not None:
            self._session.closed()
            self._session = None
        self._owner.dismiss(self)
