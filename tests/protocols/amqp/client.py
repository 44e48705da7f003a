"""A client in memory: a session on a fake link, and pamqp that reads what the broker sends.

So a test sees every frame, in order, and can send any bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from pamqp import frame as pamqp_frame
from pamqp.base import Frame
from pamqp.header import ContentHeader

from tests.protocols.amqp.fake_queues import FakeEngine, FakeQueues
from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError
from tidemill.net.link import Link
from tidemill.net.responses import ResponseMemory
from tidemill.net.room import ResponseRoom
from tidemill.protocols.amqp.codec import hot, methods
from tidemill.protocols.amqp.handshake import HEADER
from tidemill.protocols.amqp.server import AmqpServer
from tidemill.protocols.amqp.session import AmqpSession
from tidemill.settings import Settings

CAPABILITIES = {
    "capabilities": {
        "authentication_failure_close": True,
        "basic.nack": True,
        "connection.blocked": True,
        "consumer_cancel_notify": True,
        "publisher_confirms": True,
    }
}


class FakeLink:
    """Collects what is sent, and the error that closed it."""

    peer, host = "127.0.0.1:1", "127.0.0.1"
    sends_files = False

    def __init__(self) -> None:
        self.room = ResponseRoom(ResponseMemory(1 << 30))
        self.is_closing = False
        self.is_finished = False
        self.is_congested = False
        self.is_held = False
        self.is_partial = False
        self.error: BaseException | None = None
        self.held = 0
        self.holds: set[Any] = set()
        self.sent = bytearray()
        self.last_receipt = 0.0

    def write(self, buffers: Iterable[bytes]) -> None:
        self.sent += b"".join(buffers)

    def hold_request(self, size: int) -> None:
        self.held += size

    def release_request(self, size: int) -> None:
        self.held -= size

    def gather(self) -> None: ...

    def send(self) -> None: ...

    def hold(self, why: Any) -> None:
        self.holds.add(why)

    def unhold(self, why: Any) -> None:
        self.holds.discard(why)

    def release(self, why: Any) -> None:
        self.holds.discard(why)

    def close(self) -> None:
        self.is_closing = True

    def finish(self) -> None:
        self.is_finished = True

    def abort(self) -> None:
        self.is_closing = True

    def fail(self, error: BaseException, **about: object) -> None:
        self.is_closing, self.error = True, error


class Client:
    """One connection to a server in memory.

    Attributes:
        link: the fake link.
        session: the session under test.
        server: the server; several clients can share one.
    """

    def __init__(self, server: AmqpServer | None = None, settings: Settings | None = None) -> None:
        self.server = server or make_server(settings)
        self.link = FakeLink()
        self.session = AmqpSession(self.server.shared, cast(Link, self.link))
        self._read = 0

    @property
    def queues(self) -> FakeQueues:
        """The fake engine's queues."""
        return cast(FakeEngine, self.server.engine).fake

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
        """Let everything happen that is due now."""
        for _ in range(20):
            await asyncio.sleep(0)

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
        self.say(channel, name, **arguments)
        await self.settle()
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


def make_server(settings: Settings | None = None) -> AmqpServer:
    """Return a server on a fake engine. It does not listen."""
    return AmqpServer(cast(Engine, FakeEngine()), settings or Settings())


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
