"""A whole engine on files in memory, and requests to its handlers, without a server."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

import pytest

from tests.protocols.kafka.messages import from_kio, kio_bytes, kio_read
from tests.protocols.kafka.trees import Tree
from tests.support.faultyfs import FaultyFileSystem
from tidemill.clock import ManualClock
from tidemill.engine.api import CommittedOffset, NewTopic, TopicInfo
from tidemill.engine.engine import Engine
from tidemill.kafka_codec.messages import decode_request, encode_response
from tidemill.kafka_codec.schema import request_type, response_type
from tidemill.net.response_budget import ResponseBudget
from tidemill.net.responses import ResponseMemory
from tidemill.protocols.kafka.apis import (
    REGISTRY,
    VERSIONS,
    ConnectionState,
    RequestContext,
    load_handlers,
)
from tidemill.protocols.kafka.node import Node
from tidemill.settings import Settings

load_handlers()

T = TypeVar("T")
DATA = "/tmp"
"""The data folder. The file system in memory has its files; the broker asks the real one how large
the disk is, so the folder must exist."""
NOW_MS = 1_700_000_000_000
MISSING_ID = UUID("99999999-9999-9999-9999-999999999999")
NO_ID = UUID(int=0)


def versions(api_key: int, since: int = 0, until: int = 99) -> range:
    """The versions that are offered of an API, from one on and to one."""
    _, oldest, newest = VERSIONS[api_key]
    return range(max(oldest, since), min(newest, until) + 1)


def each_version(api_key: int, since: int = 0, until: int = 99) -> pytest.MarkDecorator:
    """Run a test with each of these versions."""
    return pytest.mark.parametrize("version", versions(api_key, since, until))


def partition_codes(answer: Tree) -> list[list[int]]:
    """Return the error codes of the partitions of each topic in an answer."""
    return [[part["error_code"] for part in topic["partitions"]] for topic in answer["topics"]]


class Broker:
    """An engine that has started, with a door for an anonymous client.

    Attributes:
        engine, door, clock, fs: the engine and what it stands on.
    """

    def __init__(self, fs: FaultyFileSystem | None = None, **settings: object) -> None:
        self.clock = ManualClock(NOW_MS)
        self.fs = fs or FaultyFileSystem()
        values = {"data_dir": DATA, "groups": {"initial_rebalance_delay_ms": 0}} | settings
        self.engine = Engine(Settings.model_validate(values), self.clock, self.fs)
        self._runner = asyncio.Runner()
        self.run(self.engine.start())
        self.door = self.engine.door()

    def close(self) -> None:
        """Stop the engine."""
        self.run(self.engine.stop())
        self._runner.close()

    def run(self, work: Awaitable[T]) -> T:
        """Wait for something on the engine's loop."""

        async def bounded() -> T:
            return await asyncio.wait_for(work, 60)

        return self._runner.run(bounded())

    def create(self, name: str, partitions: int = 1, **configs: str) -> TopicInfo:
        """Create a topic; names of configs have _ for a dot."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        new = [NewTopic(name, partitions, configs=named)]
        (topic,) = self.run(self.engine.inner_door().topics.create(new))
        assert isinstance(topic, TopicInfo), topic
        return topic

    def topic_id(self, name: str) -> UUID:
        """Return the id of a topic."""
        return self.engine.topics.get(name).topic_id

    def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic, without internal ones."""
        return {t.name: t.partitions for t in self.engine.topics.all() if not t.internal}

    def configs(self, topic: str) -> dict[str, str | None]:
        """Return what is set on a topic itself."""
        entries = self.engine.configs.of_topic(topic)
        return {each.name: each.value for each in entries if each.source.name == "DYNAMIC_TOPIC"}

    def committed(self, group: str) -> dict[tuple[str, int], tuple[int, int, str]]:
        """Return offset, leader epoch and metadata of the committed offsets of a group."""
        found = self.engine.groups.committed(group, None)
        return {
            at: (each.offset, each.leader_epoch, each.metadata)
            for at, each in found.items()
            if isinstance(each, CommittedOffset)
        }

    def fail(self, part: str, method: str, error: Exception) -> None:
        """Let a method of a part of the door raise an error that is hard to bring about."""
        owner = getattr(self.door, part)
        setattr(owner, method, _raising(getattr(owner, method), error))

    def call(self, api_key: int, version: int, tree: Tree) -> Tree:
        """Send a request tree and return the answer as a tree, both with kio's names.

        A request takes its whole way but for the socket: bytes from kio's writer, our decoder, the
        handler, the engine, our encoder, kio's reader. Fields that the version lacks are left out.
        """
        return self.run(self.answer(api_key, version, tree))

    async def answer(self, api_key: int, version: int, tree: Tree) -> Tree:
        """Do the same on the engine's loop."""
        frame = kio_bytes(request_type(api_key, version), tree)
        ctx = RequestContext(
            door=self.door,
            node=Node(1, "broker.example", 9092),
            api_key=api_key,
            api_version=version,
            correlation_id=7,
            client_id="client",
            connection=ConnectionState("10.0.0.7", ResponseBudget(ResponseMemory(1 << 30))),
        )
        reply = REGISTRY[api_key].handler(ctx, decode_request(api_key, version, frame, 0))
        if inspect.isawaitable(reply):
            reply = await reply
        assert isinstance(reply, dict)
        body = encode_response(api_key, version, reply)
        return from_kio(kio_read(response_type(api_key, version), bytes(body)))


def _raising(method: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    async def fail_later(*_: object, **__: object) -> None:
        raise error

    return fail_later if inspect.iscoroutinefunction(method) else fail
