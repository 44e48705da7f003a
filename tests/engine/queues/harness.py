"""A broker's queues in one process, with a client that publishes, consumes and settles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.engine.support import running, until
from tidemill.clock import Clock
from tidemill.engine.engine import Engine
from tidemill.engine.queues.api import (
    Consumer,
    ConsumerSpec,
    Delivery,
    Header,
    Message,
    Owner,
    QueueInfo,
    QueueSpec,
)
from tidemill.engine.queues.live.queue import LiveQueue


class Client:
    """One connection: publishes with confirms, and consumes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.queues = engine.door().queues
        self.owner = Owner("client")
        self._tag = 0
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self.publisher = self.queues.publisher(self._settled)

    def _settled(self, accepted: list[int], refused: list[int]) -> None:
        for tag in accepted:
            self._waiting.pop(tag).set_result(True)
        for tag in refused:
            self._waiting.pop(tag).set_result(False)

    def send(
        self,
        key: str,
        value: bytes = b"",
        *,
        exchange: str = "",
        headers: Sequence[Header] = (),
        more_keys: Sequence[str] = (),
        routing_headers: dict[str, object] | None = None,
        **options: int,
    ) -> asyncio.Future[bool] | None:
        """Publish; return a future of whether it was accepted, or None if it was not routed."""
        self._tag += 1
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        message = Message(
            value,
            key.encode(),
            list(headers),
            routing_headers=None if routing_headers is None else lambda: routing_headers,
            **options,
        )
        self._waiting[self._tag] = done
        if not self.publisher.publish(self._tag, exchange, key, message, more_keys):
            del self._waiting[self._tag]
            return None
        return done

    async def publish(self, key: str, *values: bytes, **options: object) -> list[bool]:
        """Publish and wait until all are settled; return which ones were accepted."""
        waiting = [self.send(key, value, **options) for value in values]  # type: ignore[arg-type]
        return [await each for each in waiting if each is not None]

    async def declare(
        self, name: str, arguments: dict[str, object] | None = None, **options: bool
    ) -> QueueInfo:
        """Declare a queue."""
        spec = QueueSpec(arguments=arguments or {}, **options)
        return await self.queues.declare_queue(name, spec, self.owner)

    async def fill(self, *values: bytes, arguments: dict[str, object] | None = None) -> None:
        """Declare the queue ``jobs``, and publish messages to it."""
        await self.declare("jobs", arguments)
        await self.publish("jobs", *values)

    async def declare_jobs(self, arguments: dict[str, object] | None = None) -> None:
        """Declare the queue ``jobs``, and ``dead``, which gets its dead letters."""
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        await self.declare("dead")
        await self.declare("jobs", {**letters, **(arguments or {})})

    async def consume(
        self,
        queue: str,
        prefetch: int = 100,
        arguments: dict[str, object] | None = None,
        **options: bool,
    ) -> Reader:
        """Start a consumer."""
        reader = Reader(prefetch)
        spec = ConsumerSpec("tag", self.owner, arguments=arguments or {}, **options)
        reader.consumer = await self.queues.consume(queue, spec, reader)
        return reader

    async def take(self, count: int, queue: str = "jobs") -> tuple[Reader, list[Delivery]]:
        """Start a consumer with space for so many messages, and wait until it has them."""
        reader = await self.consume(queue, prefetch=count)
        return reader, await reader.wait(count)

    async def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        """Get one message."""
        found = await self.queues.get(queue, self.owner, no_ack=no_ack)
        return None if found is None else found.delivery

    async def drain(self, queue: str) -> list[bytes]:
        """Get and acknowledge all messages that are ready; return their values."""
        values = []
        while (delivery := await self.get(queue, no_ack=True)) is not None:
            values.append(bytes(delivery.value))
        return values

    def live(self, queue: str) -> LiveQueue:
        """Return a queue at work."""
        return self.engine._queues.registry.get(queue)

    def ready(self, queue: str) -> int:
        """Return how many messages wait."""
        return self.queues.describe(queue).ready

    async def close(self) -> None:
        """Close the connection."""
        await self.queues.connection_closed(self.owner)


class Reader:
    """A recipient that keeps what it gets."""

    consumer: Consumer

    shares_credit = False

    def __init__(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self.got: list[Delivery] = []
        self.out = 0
        self.ended: list[str] = []

    def credit(self) -> int:
        return self.prefetch - self.out

    def deliver(self, deliveries: list[Delivery]) -> None:
        assert 0 < len(deliveries) <= self.credit()
        self.got += deliveries
        self.out += len(deliveries)

    def cancelled(self, why: str) -> None:
        self.ended.append(why)

    @property
    def values(self) -> list[bytes]:
        """The values that came, in order."""
        return [bytes(each.value) for each in self.got]

    async def wait(self, count: int) -> list[Delivery]:
        """Wait until so many came since the last call, and take them."""
        await until(lambda: len(self.got) >= count, lambda: f"got {self.values}")
        taken, self.got = self.got, []
        return taken

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self.out -= len(deliveries)
        self.consumer.acknowledge(deliveries)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self.out -= len(deliveries)
        self.consumer.release(deliveries)

    def reject(self, deliveries: Sequence[Delivery]) -> None:
        self.out -= len(deliveries)
        self.consumer.reject(deliveries)


def numbers(count: int) -> list[bytes]:
    """Return the values of so many messages: 0, 1, ..."""
    return [b"%d" % number for number in range(count)]


async def turns(count: int = 5) -> None:
    """Let the event loop run a few turns, for what must not happen."""
    for _ in range(count):
        await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def connected(
    folder: Path, clock: Clock | None = None, *, strict: bool = False
) -> AsyncIterator[Client]:
    """Run a broker, and connect to it.

    Args:
        strict: unknown arguments of queues are refused.
    """
    async with running(folder, clock=clock, queues={"strict_arguments": strict}) as engine:
        yield Client(engine)
