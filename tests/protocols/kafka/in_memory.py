"""Connections without sockets: a session on a link that collects what it is sent.

Thousands of requests are tried in seconds, and only the broker's work is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from tests.protocols.link import MemoryLink
from tests.support.faultyfs import FaultyFileSystem
from tidemill.clock import Clock
from tidemill.engine.api import NewTopic
from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError
from tidemill.net.link import Link
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.protocols.kafka.session import KafkaSession
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.settings import Settings


class Connection:
    """One connection to a server."""

    def __init__(self, server: KafkaServer) -> None:
        self.link = MemoryLink(server.listener.budget)
        self.session = KafkaSession(server.shared, cast(Link, self.link))

    async def deliver(self, stream: bytes) -> None:
        """Let bytes arrive as fast as the session takes them, one receive in each turn."""
        position = 0
        while position < len(stream) and not self.link.is_closing:
            await asyncio.sleep(0)
            # All connections share the buffer: it is filled and taken in one step.
            buffer = self.session.get_buffer()
            count = min(len(buffer), len(stream) - position)
            buffer[:count] = stream[position : position + count]
            position += count
            try:
                self.session.received(count)
            except TidemillError as error:
                self.link.fail(error)

    async def answered(self, within: float = 60.0) -> bytes:
        """Wait until nothing is unanswered; return what was sent since the last call."""
        async with asyncio.timeout(within):
            while self.session.is_busy and not self.link.is_closing:
                await asyncio.sleep(0)
        sent = bytes(self.link.sent)
        self.link.sent.clear()
        return sent

    async def settle(self, turns: int, seconds: float = 0) -> None:
        """Wait for the answers for some turns of the loop: a fetch may be told to wait for weeks.

        Args:
            seconds: what a turn takes at least.
        """
        for _ in range(turns):
            if not self.session.is_busy or self.link.is_closing:
                return
            await asyncio.sleep(seconds)

    def close(self) -> None:
        """End the connection, whatever is unanswered."""
        self.link.is_closing = True
        self.session.closed()
        assert self.link.error is None or isinstance(self.link.error, TidemillError), repr(
            self.link.error
        )


@asynccontextmanager
async def running(
    folder: Path,
    *topics: NewTopic,
    fs: FaultyFileSystem | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[KafkaServer]:
    """Run an engine with topics, and a server that listens nowhere."""
    config = Settings(data_dir=folder, sections=(KafkaListener(port=0),), **settings)
    engine = Engine(config, clock, fs)
    await engine.start()
    try:
        created = await engine.topics.create(topics)
        assert not [each for each in created if isinstance(each, Exception)]
        yield KafkaServer(engine, config)
    finally:
        await engine.stop()
