"""A client in memory: a session on a fake link, and pamqp that reads what the broker sends.

So a test sees every frame, in order, and can send any bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

from pamqp import frame as pamqp_frame
from pamqp.base import Frame
from pamqp.header import ContentHeader

from tests.engine.queues.harness import Client as QueueClient
from tests.protocols.link import MemoryLink
from tests.support.faultyfs import HeldDisk
from tidemill.clock import ManualClock
from tidemill.engine.engine import Engine
from tidemill.engine.queues.api import QueueDescription
from tidemill.errors import TidemillError
from tidemill.net.link import Link
from tidemill.protocols.amqp.codec import hot, methods
from tidemill.protocols.amqp.handshake import HEADER
from tidemill.protocols.amqp.server import AmqpServer
from tidemill.protocols.amqp.session import AmqpSession
from tidemill.protocols.logins.settings import LoginSettings
from tidemill.settings import Settings

T = TypeVar("T")
CAPABILITIES = {
    "capabilities": {
        "authentication_failure_close": True,
        "basic.nack": True,
        "connection.blocked": True,
        "consumer_cancel_notify": True,
        "publisher_confirms": True,
    }
}


class Broker:
    """An engine on files in memory and a server that does not listen, on the loop of a runner.

    Attributes:
        engine, disk: the engine and its disk.
        server: the server of clients that name no other.
    """

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.disk = HeldDisk()
        settings = Settings(
            data_dir=Path("/tmp"),  # in memory
            sections=(LoginSettings(failed_delay_ms=0),),
        )
        self.engine = Engine(settings, ManualClock(1_700_000_000_000), self.disk)
        self.run(self.engine.start())
        self.server = self.server_with(settings)

    def server_with(self, settings: Settings) -> AmqpServer:
        """Return another server on the same engine."""
        return AmqpServer(self.engine, settings)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the engine's loop."""
        return self._runner.run(asyncio.wait_for(work, 300))

    def client(self, server: AmqpServer | None = None) -> Client:
        """Return a new connection, which has sent nothing."""
        return Client(self, server or self.server)

    async def client_with_queue(self, **arguments: object) -> Client:
        """Return a client with one channel, which has declared the queue ``q``."""
        client = await self.client().open()
        await client.ask(1, "queue.declare", queue="q", arguments=arguments)
        return client

    @property
    def written(self) -> int:
        """The number of records in all logs."""
        logs = self.engine._store.partitions.values()
        return sum(log.log_end_offset for log in logs)

    def queue(self, name: str = "q") -> QueueDescription:
        """Return how a queue is."""
        return self.engine.queues.describe(name)

    def names(self) -> set[str]:
        """Return the names of all queues."""
        return {queue.name for queue in self.engine.queues.queues()}

    async def values(self, queue: str = "q") -> list[bytes]:
        """Take the messages that wait in a queue."""
        return await QueueClient(self.engine).drain(queue)

    def close(self) -> None:
        """Stop the engine."""
        self.disk.release()
        self.run(self.engine.stop())


class Client:
    """One connection to a server in memory.

    Attributes:
        link: the link in memory.
        session: the session under test.
        server: the server; several clients can share one.
    """

    def __init__(self, broker: Broker, server: AmqpServer) -> None:
        self._broker = broker
        self.server = server
        self.link = MemoryLink()
        self.session = AmqpSession(self.server.shared, cast(Link, self.link))
        self._read = 0

    def feed(self, data: bytes) -> None:
        """Let bytes arrive."""
        at = 0
        while at < len(data) and not self.link.is_closing:
            buffer = self.session.get_buffer()
            count = min(len(buffer), len(data) - at)
            buffer[:count] = data[at : at + count]
            at += count
            try:
                self.session.received(count)
            except TidemillError as error:
                self.link.fail(error)

    def say(self, channel: int, name: str, **arguments: object) -> None:
        """Send a method."""
        self.feed(methods.encode(channel, name, **arguments))

    async def tell(self, channel: int, name: str, **arguments: object) -> None:
        """Send a method, and let everything happen that is due then."""
        self.say(channel, name, **arguments)
        await self.settle()

    def publish(
        self,
        channel: int,
        exchange: str,
        key: str,
        body: bytes,
        properties: bytes = b"\0\0",
        **more: object,
    ) -> None:
        """Send a message."""
        self.feed(publish_bytes(channel, exchange, key, body, properties, **more))

    async def settle(self) -> None:
        """Let everything happen that is due now, unless the disk is held."""
        quiet, seen = 0, None
        while quiet < 3:
            for _ in range(10):
                await asyncio.sleep(0)
            state = len(self.link.sent), self._broker.written
            quiet, seen = (quiet + 1 if state == seen else 0), state
            if not self._broker.disk.is_held:
                await self._broker.engine._flusher.drain()
                if self.server.shared.tasks:  # a method waits for other threads
                    await asyncio.sleep(0.001)
                    quiet = 0

    def heard(self) -> list[tuple[str, Any]]:
        """Return (name, frame) of what the broker has sent since the last call."""
        found: list[tuple[str, Any]] = []
        while self._read < len(self.link.sent):
            count, _, frame = pamqp_frame.unmarshal(bytes(self.link.sent[self._read :]))
            self._read += count
            found.append((_name(frame), frame))
        return found

    def names(self) -> list[str]:
        """Return the names of the frames that the broker has sent since the last call."""
        return [name for name, _ in self.heard()]

    async def ask(self, channel: int, name: str, **arguments: object) -> Any:
        """Send a method and return the last frame that the broker answers with."""
        await self.tell(channel, name, **arguments)
        heard = self.heard()
        assert heard, f"no answer to {name}"
        return heard[-1][1]

    async def open(self, channels: int = 1, **tune: object) -> Client:
        """Connect as guest, and open channels."""
        self.feed(HEADER)
        self.say(
            0,
            "connection.start-ok",
            client_properties=CAPABILITIES,
            mechanism="PLAIN",
            response=b"\0guest\0guest",
            locale="en_US",
        )
        self.say(0, "connection.tune-ok", **{"channel_max": 2047, "frame_max": 131_072, **tune})
        self.say(0, "connection.open", virtual_host="/")
        for number in range(1, channels + 1):
            self.say(number, "channel.open")
        await self.settle()
        names = self.names()
        assert names[:3] == ["Connection.Start", "Connection.Tune", "Connection.OpenOk"], names
        assert names[3:] == ["Channel.OpenOk"] * channels
        return self

    async def closed(self) -> None:
        """End the connection as the link does."""
        self.session.closed()
        await self.settle()


def publish_bytes(
    channel: int, exchange: str, key: str, body: bytes, properties: bytes = b"\0\0", **more: object
) -> bytes:
    """Return the frames of a message."""
    start = methods.encode(channel, "basic.publish", exchange=exchange, routing_key=key, **more)
    return b"".join(hot.content(start, channel, properties, body, 131_072))


def _name(frame: Any) -> str:
    if isinstance(frame, Frame):
        return frame.name
    return "header" if isinstance(frame, ContentHeader) else type(frame).__name__.lower()
