"""A raw client: requests as trees in, responses as trees out, over asyncio streams."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any, Self, cast

from tests.protocols.kafka.fake_engine import FakeEngine
from tests.protocols.kafka.messages import from_kio, kio_bytes, kio_read
from tidemill.engine.engine import Engine
from tidemill.kafka_codec.schema import (
    API_VERSIONS,
    is_flexible,
    request_type,
    response_type,
)
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.settings import Limits, Settings


def request_bytes(
    key: int, version: int, body: bytes, correlation_id: int = 1, client_id: str | None = "test"
) -> bytes:
    """A framed request around an encoded body."""
    name = (
        b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    )
    header = struct.pack(">hhi", key, version, correlation_id) + name
    if is_flexible(key, version):
        header += b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def request(key: int, version: int, tree: dict[str, Any], correlation_id: int = 1) -> bytes:
    """A framed request around a tree."""
    return request_bytes(key, version, kio_bytes(request_type(key, version), tree), correlation_id)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._correlation = 100

    @classmethod
    async def connect(cls, address: tuple[str, int], **options: Any) -> Self:
        return cls(*await asyncio.open_connection(*address, **options))

    def send(self, key: int, version: int, tree: dict[str, Any]) -> int:
        """Write a request; returns its correlation id."""
        self._correlation += 1
        self.writer.write(request(key, version, tree, self._correlation))
        return self._correlation

    async def raw_response(self) -> bytes:
        async with asyncio.timeout(300):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def response(self, key: int, version: int) -> tuple[int, dict[str, Any]]:
        """The next response: correlation id and tree."""
        content = await self.raw_response()
        (correlation,) = struct.unpack_from(">i", content)
        start = 4
        if key != API_VERSIONS and is_flexible(key, version):
            assert content[4] == 0
            start = 5
        return correlation, from_kio(kio_read(response_type(key, version), content[start:]))

    async def call(self, key: int, version: int, tree: dict[str, Any]) -> dict[str, Any]:
        sent = self.send(key, version, tree)
        correlation, answer = await self.response(key, version)
        assert correlation == sent
        return answer

    async def is_closed(self) -> bool:
        """Wait for the server to close, without another byte."""
        async with asyncio.timeout(300):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.close()


class Serving:
    """A server over a fake engine."""

    def __init__(self, server: KafkaServer, broker: FakeEngine, address: tuple[str, int]) -> None:
        self.server, self.broker, self.address = server, broker, address

    async def client(self, **options: Any) -> Client:
        return await Client.connect(self.address, **options)


@contextlib.asynccontextmanager
async def serving(
    broker: FakeEngine | None = None, kafka: KafkaListener | None = None, **limits: int
) -> AsyncIterator[Serving]:
    """Serve on a free port of loopback."""
    settings = Settings(sections=(kafka or KafkaListener(port=0),), limits=Limits(**limits))
    broker = broker or FakeEngine(settings)
    broker.settings = settings
    server = KafkaServer(cast(Engine, broker), settings)
    address = await server.start()
    broker.port = address[1]
    try:
        yield Serving(server, broker, address)
    finally:
        await server.stop(grace_seconds=1)
        assert server.listener.connections == 0
        assert server.listener.budget.used == 0
        assert server.listener.budget.unanswered == 0


async def eventually(condition: Any, what: str = "") -> None:
    """Wait until ``condition()`` holds."""
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.002)
