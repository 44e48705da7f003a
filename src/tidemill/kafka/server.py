"""The Kafka protocol on the socket loop: requests to handlers, answers in order.

Per connection, Produce requests may overlap one another: each is appended when it arrives, and its
answer waits for the disk. Any other request starts when all before it are answered. Sockets,
limits and back-pressure are ``broker.listener``'s; bytes are ``connection``'s and ``codec``'s.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from tidemill.broker.budget import Budget
from tidemill.broker.listener import Link, Listener
from tidemill.errors import ProtocolError, TidemillError
from tidemill.kafka import codec
from tidemill.kafka.apis import (
    PARKED,
    Api,
    Body,
    Buffer,
    ConnectionState,
    Reply,
    RequestContext,
    load_handlers,
)
from tidemill.kafka.connection import SCRATCH_BYTES, BufferPool, Frame, FrameReader
from tidemill.kafka.handlers.versions import unsupported_version_body
from tidemill.kafka.schema import API_VERSIONS
from tidemill.telemetry import get_logger

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.settings import Settings

log = get_logger("kafka")

WILDCARDS = frozenset({"0.0.0.0", "::", ""})
FRAME_OVERHEAD = 512
"""Counted per unanswered request besides its bytes."""


class KafkaServer:
    """Serves a broker to Kafka clients.

    Usage: ``host, port = await server.start()`` ... ``await server.stop()``.
    """

    def __init__(self, broker: Broker, settings: Settings, *, budget: Budget | None = None) -> None:
        self.broker = broker
        self.settings = settings
        self.apis: Mapping[int, Api] = load_handlers()
        self.tasks: set[asyncio.Future[Reply]] = set()
        """Requests that wait, kept alive here (the event loop itself holds them weakly)."""
        self.pool = BufferPool()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.listener = Listener(
            "kafka", settings.limits, lambda link: KafkaSession(self, link), budget=budget
        )

    async def start(self) -> tuple[str, int]:
        """Bind, and tell the broker what address to advertise.

        Returns:
            Host and port as bound (the port is the free one where 0 was asked for).

        Raises:
            OSError: the address can't be bound.
            ssl.SSLError: certificate and key do not fit.
        """
        kafka = self.settings.kafka
        tls = None
        if kafka.tls_cert is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(kafka.tls_cert, kafka.tls_key)
        host, port = await self.listener.start(self.settings.host, kafka.port, tls=tls)
        self.broker.advertised_host = kafka.advertised_host or _reachable(self.settings.host)
        self.broker.advertised_port = kafka.advertised_port or port
        return host, port

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Accept no more, answer what is open (long polls at once), close."""
        await self.listener.stop(grace_seconds)


def _reachable(host: str) -> str:
    """What clients are told to connect to: not the wildcard, which means nothing elsewhere."""
    return socket.gethostname() if host in WILDCARDS else host


class _Slot:
    """A request that has started: its place in the order of answers."""

    __slots__ = ("api", "buffers", "ctx", "done", "size", "task")

    def __init__(self, api: Api, ctx: RequestContext, size: int) -> None:
        self.api = api
        self.ctx = ctx
        self.size = size
        self.done = False
        self.buffers: list[Buffer] = []
        self.task: asyncio.Future[Reply] | None = None


class KafkaSession:
    """One connection."""

    def __init__(self, server: KafkaServer, link: Link) -> None:
        self._server = server
        self._link = link
        self._reader = FrameReader(
            server.settings.limits.request_bytes, server.scratch, server.pool
        )
        self._state = ConnectionState(
            peer=link.peer,
            client_host=link.host,
            response_room=lambda: link.response_room,
            count_loaded=server.listener.count_loaded,
        )
        self._slots: deque[_Slot] = deque()
        self._queue: deque[Frame] = deque()
        self._partial = 0
        self._flushing = False

    # --- from the listener -----------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return bool(self._slots or self._queue)

    @property
    def is_partial(self) -> bool:
        return self._reader.is_partial

    def get_buffer(self) -> memoryview:
        return self._reader.get_buffer()

    def received(self, count: int) -> None:
        frames = self._reader.received(count)
        self._count_partial()
        for frame in frames:
            self._link.hold_request(len(frame.view) + FRAME_OVERHEAD)
            if not self._queue and self._may_start(frame):
                self._start(frame)
            else:
                self._queue.append(_kept(frame))
            if self._link.is_closing:
                return

    def _count_partial(self) -> None:
        partial = self._reader.partial_bytes
        budget = self._server.listener.budget
        if partial > self._partial:
            budget.add(self._link, partial - self._partial, whole=False)
        elif partial < self._partial:
            budget.remove(self._partial - partial, whole=False)
        self._partial = partial

    def writable(self) -> None:
        self._pump()

    def stop(self) -> None:
        self._state.stopping = True
        for slot in self._slots:
            if slot.api.cancellable and slot.task is not None:
                slot.task.cancel()
        self._close_when_done()

    def closed(self) -> None:
        budget = self._server.listener.budget
        for slot in self._slots:
            if slot.api.cancellable and slot.task is not None:
                slot.task.cancel()
            budget.remove(slot.size, whole=True)
        for frame in self._queue:
            budget.remove(len(frame.view) + FRAME_OVERHEAD, whole=True)
        self._state.loaded(0)
        self._slots.clear()
        self._queue.clear()
        self._reader.close()
        budget.remove(self._partial, whole=False)
        self._partial = 0

    # --- starting --------------------------------------------------------------------------------

    def _may_start(self, frame: Frame) -> bool:
        if self._link.is_congested or self._state.stopping:
            return False
        if not self._slots:
            return True
        api = self._server.apis.get(int.from_bytes(frame.view[:2], "big"))
        return api is not None and api.pipelined and self._slots[-1].api.pipelined

    def _pump(self) -> None:
        """Start what may start."""
        while self._queue and self._may_start(self._queue[0]) and not self._link.is_closing:
            self._start(self._queue.popleft())
        if self._state.stopping:
            self._close_when_done()

    def _close_when_done(self) -> None:
        # Requests that have not started get no answer: their clients try again elsewhere.
        if all(slot.api.key in PARKED for slot in self._slots):
            self._link.close()

    def _start(self, frame: Frame) -> None:
        """Decode one request and run its handler."""
        view = frame.view
        size = len(view) + FRAME_OVERHEAD
        about: tuple[int, int, str] | None = None
        try:
            key, version, correlation_id = codec.peek_header(view)
            about = (key, version, "")
            api = self._server.apis.get(key)
            if api is None or not api.min_version <= version <= api.max_version:
                self._refuse_version(api, key, version, correlation_id, size)
                return
            client_id, body = codec.parse_header(view, key, version)
            about = (key, version, client_id)
            if api.decode is not None:
                request = api.decode(view, body, version)
            else:
                request = codec.decode_request(key, version, view, body)
            ctx = RequestContext(
                self._server.broker, key, version, correlation_id, client_id, self._state
            )
            self._answer(api, ctx, size, api.handler(ctx, request))
        except Exception as error:
            self._fail(error, about)
            self._link.release_request(size)
        finally:
            if frame.owner is not None:
                self._server.pool.give(frame.owner)

    def _refuse_version(
        self, api: Api | None, key: int, version: int, correlation_id: int, size: int
    ) -> None:
        """ApiVersions says what there is (KIP-511); anything else closes, as Kafka does."""
        if api is None or key != API_VERSIONS:
            what = f"API key {key}" if api is None else api.name
            raise ProtocolError(
                f"{what} version {version} is not offered",
                hint="Use a client that asks for the versions first (ApiVersions).",
            )
        body = unsupported_version_body(self._server.apis)
        self._link.write(codec.frame_response(API_VERSIONS, 0, correlation_id, [body]))
        self._link.release_request(size)

    def _fail(self, error: BaseException, header: tuple[int, int, str] | None) -> None:
        """Close with a line that says who (peer, client id, software), at what, and why."""
        about: dict[str, Any] = {}
        if header is not None:
            key, about["version"], about["client_id"] = header
            api = self._server.apis.get(key)
            about["api"] = api.name if api is not None else key
        if self._state.software:
            about["software"] = self._state.software
        self._link.fail(error, **about)

    # --- answering -------------------------------------------------------------------------------

    def _answer(
        self, api: Api, ctx: RequestContext, size: int, reply: Reply | Awaitable[Reply]
    ) -> None:
        if reply is None or isinstance(reply, bytes | dict | Body):
            buffers = _encode(ctx, reply)
            if not self._slots:
                if buffers:
                    self._link.write(buffers)
                self._link.release_request(size)
                return
            slot = _Slot(api, ctx, size)
            slot.buffers, slot.done = buffers, True
            self._slots.append(slot)
            return
        slot = _Slot(api, ctx, size)
        slot.task = task = asyncio.ensure_future(reply)
        self._server.tasks.add(task)
        self._slots.append(slot)
        task.add_done_callback(lambda done: self._finished(slot, done))

    def _finished(self, slot: _Slot, task: asyncio.Future[Reply]) -> None:
        self._server.tasks.discard(task)
        slot.task = None
        cancelled = ProtocolError("the request was cancelled")
        error: BaseException | None = cancelled if task.cancelled() else task.exception()
        if error is None and not self._link.is_closing:
            try:
                slot.buffers = _encode(slot.ctx, task.result())
            except Exception as failure:
                error = failure
        if error is not None:
            self._fail_later(slot, error)
        elif not self._link.is_closing:
            slot.done = True
            if slot is self._slots[0]:
                self._flush_soon()

    def _fail_later(self, slot: _Slot, error: BaseException) -> None:
        ctx = slot.ctx
        if not self._link.is_closing:
            self._fail(error, (ctx.api_key, ctx.api_version, ctx.client_id))
        elif not isinstance(error, TidemillError):
            log.error("request failed after its client left", api=slot.api.name, exc_info=error)

    def _flush_soon(self) -> None:
        # One sync answers many requests, one after the other in this turn of the loop: they are
        # sent together in the next.
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send what is answered, in order, and start what waited for it."""
        self._flushing = False
        buffers: list[Buffer] = []
        while self._slots and self._slots[0].done:
            slot = self._slots.popleft()
            buffers += slot.buffers
            self._link.release_request(slot.size)
        if buffers:
            self._link.write(buffers)
            self._state.loaded(0)
        self._pump()


def _encode(ctx: RequestContext, reply: Reply) -> list[Buffer]:
    """The framed response; nothing where there is none."""
    if reply is None:
        return []
    body: list[Buffer]
    if isinstance(reply, dict):
        body = [codec.encode_response(ctx.api_key, ctx.api_version, reply)]
    elif isinstance(reply, Body):
        body = reply.buffers
    else:
        body = [reply]
    return codec.frame_response(ctx.api_key, ctx.api_version, ctx.correlation_id, body)


def _kept(frame: Frame) -> Frame:
    """A frame that outlives this call."""
    if frame.owner is not None:
        return frame
    return Frame(memoryview(bytearray(frame.view)), None)
