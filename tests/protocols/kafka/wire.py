"""A raw client: requests as trees in, responses as trees out, over asyncio streams."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from tests.protocols.kafka.messages import from_kio, kio_bytes, kio_read
from tests.support.faultyfs import HeldDisk
from tidemill.engine.api import NewTopic, ReadQuery, ReadResult, TopicInfo
from tidemill.engine.authorize import Authorizer
from tidemill.engine.engine import Engine
from tidemill.kafka_codec.declared import API_VERSIONS, is_flexible
from tidemill.kafka_codec.schema import request_type, response_type
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.protocols.kafka.node import cluster_id_text
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.settings import Groups, Limits, Section, Security, Settings


def request_bytes(
    key: int, version: int, body: bytes, correlation_id: int = 1, client_id: str | None = "test"
) -> bytes:
    """A framed request around an encoded body."""
    name = None if client_id is None else client_id.encode()
    header = struct.pack(">hhi", key, version, correlation_id)
    header += b"\xff\xff" if name is None else struct.pack(">h", len(name)) + name
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
    """A server over an engine on files in memory.

    Attributes:
        reads: the reads that the engine has begun.
    """

    def __init__(
        self, server: KafkaServer, engine: Engine, disk: HeldDisk, address: tuple[str, int]
    ) -> None:
        self.server, self.engine, self.disk, self.address = server, engine, disk, address
        self.reads: list[ReadQuery] = []
        self._note_reads()

    def _note_reads(self) -> None:
        reader = self.engine._services.records.reader
        read, read_now = reader.read, reader.read_now

        async def noted(query: ReadQuery) -> list[ReadResult]:
            self.reads.append(query)
            return await read(query)

        def noted_now(query: ReadQuery) -> list[ReadResult] | None:
            found = read_now(query)
            if found is not None:
                self.reads.append(query)
            return found

        reader.read, reader.read_now = noted, noted_now  # type: ignore[method-assign]

    async def client(self, **options: Any) -> Client:
        return await Client.connect(self.address, **options)

    async def make_topic(self, name: str, partitions: int = 1, **configs: str) -> TopicInfo:
        """Create a topic for batches of any size; names of configs have _ for a dot."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(name, partitions, configs={"max.message.bytes": "100000000"} | named)
        (topic,) = await self.engine.topics.create([new])
        assert isinstance(topic, TopicInfo), topic
        return topic

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        return self.engine._store.get(TopicPartition(topic, partition))

    def topic_id(self, name: str) -> UUID:
        return self.engine.topics.get(name).topic_id

    @property
    def cluster_id(self) -> str:
        """The cluster id, as clients get it."""
        return cluster_id_text(self.engine.storage.cluster_id)

    @property
    def appended(self) -> int:
        """The records in all topics of clients."""
        logs = self.engine._store.partitions.values()
        return sum(log.log_end_offset for log in logs if not log.tp.topic.startswith("__"))


@contextlib.asynccontextmanager
async def serving(
    *sections: Section,
    groups: Groups | None = None,
    super_users: str = "",
    authorizer: Authorizer | None = None,
    **limits: int,
) -> AsyncIterator[Serving]:
    """Serve on a free port of loopback.

    Args:
        sections: with them a test sets a listener of its own; without, it is an open one.
    """
    settings = Settings(
        data_dir=Path("/tmp"),  # in memory
        sections=sections or (KafkaListener(port=0),),
        limits=Limits(**limits),
        groups=groups or Groups(initial_rebalance_delay_ms=0),
        security=Security(super_users=super_users),
    )
    disk = HeldDisk()
    engine = Engine(settings, fs=disk, authorizer=authorizer)
    await engine.start()
    server = KafkaServer(engine, settings)
    try:
        yield Serving(server, engine, disk, await server.start())
    finally:
        disk.release()
        await server.stop(grace_seconds=1)
        await engine.stop()
        assert server.listener.connections == 0
        assert server.listener.budget.used == 0
        assert server.listener.budget.unanswered == 0


@contextlib.asynccontextmanager
async def talking(**options: Any) -> AsyncIterator[tuple[Serving, Client]]:
    """Serve a topic ``t`` of two partitions, and connect a client."""
    async with serving(**options) as s:
        await s.make_topic("t", 2)
        client = await s.client()
        yield s, client
        client.close()


async def eventually(condition: Callable[..., object]) -> None:
    """Wait until ``condition()`` holds."""
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.002)
