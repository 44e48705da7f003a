"""A bridge that writes ZeroMQ's messages to a topic: those of pushers, or of publishers.

A message is delivered at most once: ZeroMQ has no acknowledgements, so what waits in its queues is
gone if this process is killed. While the producer is full, the bridge does not read: then pushers
wait, and publishers drop. Must not know: who sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from pydantic import Field

from tidemill.connect.direct.contract import Bridge, Counts, Place
from tidemill.connect.direct.errors import BridgeError, opening_failed
from tidemill.connect.direct.waiting import to_its_end
from tidemill.connect.direct.writing import Writer
from tidemill.connect.direct.zeromq import CurveOptions
from tidemill.direct.pubsub import PubSubError
from tidemill.direct.pubsub.errors import FrameError
from tidemill.direct.pubsub.options import MAX_CHANNELS, Options
from tidemill.direct.pubsub.sequences import Received
from tidemill.direct.pubsub.wire import MAGIC, Message, decode_frames
from tidemill.direct.pubsub.zeromq import ZeroMqSocket, check_installed

_WAIT_S = 0.05
_STOP_S = 5.0
_LAST_READ_S = 1.0


class ZeroMqInOptions(CurveOptions):
    """Options of a bridge that writes ZeroMQ's messages to a topic."""

    addresses: list[str] = Field(
        min_length=1, max_length=16, description="tcp://IP:PORT or ipc:///PATH, one or several."
    )
    socket: Literal["pull", "sub"] = Field(
        "pull", description="pull takes messages of PUSH sockets, sub those of PUB sockets."
    )
    bind: bool = Field(
        True, description="Whether the bridge binds the addresses. Otherwise it connects."
    )
    channels: list[str] = Field([""], description="Prefixes of channels that sub subscribes to.")
    queue_size: int = Field(
        1000, ge=1, le=1_000_000, description="Messages that wait in memory, of each sender."
    )
    max_message_bytes: int = Field(
        1 << 20, ge=1, le=1 << 30, description="Bytes of a message. A larger one is refused."
    )
    curve_server: str = Field(
        "", description="Public key of the other side, if the bridge connects to it."
    )


class ZeroMqInBridge(Bridge):
    """Writes a record for each message. The first of two frames is its key."""

    options_type = ZeroMqInOptions

    def __init__(self, place: Place, options: ZeroMqInOptions) -> None:
        check_installed()
        self._place = place
        self._options = options
        self._addresses = list(options.addresses)
        self._sockets = Options(
            options.queue_size,
            max_message_bytes=options.max_message_bytes,
            curve=options.curve(options.curve_server),
        )
        self._counts = Counts()
        self._sequences = Received(MAX_CHANNELS)
        self._writer: Writer | None = None
        self._pending: deque[tuple[bytes | None, bytes]] = deque()

    async def run(self, running: Callable[[], None]) -> None:
        """Receive and write until the task is cancelled."""
        place = self._place
        await asyncio.to_thread(
            place.kafka.create_topics, place.client, {place.topic: (place.partitions, {})}
        )
        with contextlib.ExitStack() as opened:
            try:
                socket = self._open()
            except PubSubError as error:
                raise opening_failed(error) from error
            opened.callback(socket.close)
            thread = opened.enter_context(ThreadPoolExecutor(1, f"bridge-{place.name}"))
            self._writer = writer = Writer(place)
            running()
            try:
                await self._work(socket, writer, thread)
            finally:
                with contextlib.suppress(BridgeError, TimeoutError):
                    await asyncio.wait_for(self._end(socket, writer), _STOP_S)
                self._counts.lost += len(self._pending) + await writer.close(_STOP_S)

    def _open(self) -> ZeroMqSocket:
        options = self._options
        socket = ZeroMqSocket(
            options.socket.upper(),
            self._addresses,
            self._sockets,
            bind=options.bind,
            prefixes=[each.encode() for each in options.channels if options.socket == "sub"],
        )
        self._addresses = socket.addresses
        return socket

    def counts(self) -> Counts:
        """Return what was counted since the start."""
        counts, writer = self._counts, self._writer
        if writer is None:
            return counts
        return Counts(
            received=counts.received,
            delivered=writer.written,
            lost=counts.lost + self._sequences.lost,
            refused=counts.refused + writer.refused,
        )

    def details(self) -> Mapping[str, Any]:
        """Return the addresses."""
        refusal = "" if self._writer is None else self._writer.last_refusal
        return {"addresses": self._addresses, "last_refusal": refusal}

    async def _work(self, socket: ZeroMqSocket, writer: Writer, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await to_its_end(_ended(loop.run_in_executor(thread, self._receive, socket, _WAIT_S)))
            await self._write(writer)

    async def _end(self, socket: ZeroMqSocket, writer: Writer) -> None:
        """Write what is in the queue at the end, as long as that does not take too long."""
        end = time.monotonic() + _LAST_READ_S
        while self._receive(socket, 0) and time.monotonic() < end:
            await self._write(writer)
        await self._write(writer)
        await writer.drain()

    def _receive(self, socket: ZeroMqSocket, timeout_s: float) -> int:
        """Receive some messages into memory, and return how many. A thread can do that."""
        before = self._counts.received
        for frames in socket.receive(timeout_s):
            self._counts.received += 1
            self._pending += self._rows(frames)
        return self._counts.received - before

    async def _write(self, writer: Writer) -> None:
        """Write what was received. If this is cancelled, the rest stays in memory."""
        now_ms = time.time_ns() // 1_000_000
        if self._pending:
            with self._place.span(len(self._pending)):
                while self._pending:
                    await writer.put(self._place.topic, *self._pending[0], now_ms)
                    self._pending.popleft()
        writer.poll()

    def _rows(self, frames: list[bytes]) -> Sequence[tuple[bytes | None, bytes]]:
        """Return the keys and values of a message."""
        if sum(map(len, frames)) <= self._options.max_message_bytes:
            if len(frames) <= 2:
                return [(frames[0] if len(frames) == 2 else None, frames[-1])]
            if frames[1].startswith(MAGIC):
                with contextlib.suppress(FrameError):
                    events = self._sequences.take(*decode_frames(frames))
                    return [(e.channel, e.payload) for e in events if isinstance(e, Message)]
        self._counts.refused += 1
        return []


async def _ended(work: asyncio.Future[int]) -> int:
    return await work
