"""``door.queues`` in memory: enough of it to test the protocol without an engine.

Routing is direct, fanout and topic; nothing is stored. What a test must control is a method here:
``settle`` confirms, and ``hold`` keeps methods waiting.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.engine.queues.api import (
    Arguments,
    ConsumerSpec,
    Delivery,
    ExchangeSpec,
    Got,
    Message,
    OnSettled,
    Owner,
    QueueInfo,
    QueueSpec,
    Recipient,
)
from tidemill.engine.queues.errors import (
    ConsumerAccessError,
    PreconditionError,
    QueueInUseError,
    QueueNotEmptyError,
    ReservedNameError,
    ResourceLockedError,
    UnknownExchangeError,
    UnknownExchangeTypeError,
    UnknownQueueError,
)


@dataclass(eq=False)
class FakeQueue:
    """A queue: what is ready, and its consumers."""

    name: str
    spec: QueueSpec
    owner: Owner | None
    ready: deque[Delivery] = field(default_factory=deque)
    consumers: list[FakeConsumer] = field(default_factory=list)
    out: dict[int, tuple[Delivery, object]] = field(default_factory=dict)


class FakeConsumer:
    """A consumer of a fake queue."""

    def __init__(
        self, broker: FakeQueues, queue: FakeQueue, spec: ConsumerSpec, recipient: Recipient
    ) -> None:
        self.broker, self.queue, self.spec, self.recipient = broker, queue, spec, recipient
        self.settled: list[tuple[str, list[int]]] = []

    def wake(self) -> None:
        self.broker.dispatch_later()

    def _settle(self, how: str, deliveries: Sequence[Delivery]) -> None:
        self.settled.append((how, [delivery.offset for delivery in deliveries]))
        for delivery in deliveries:
            del self.queue.out[delivery.offset]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._settle("acknowledge", deliveries)

    def reject(self, deliveries: Sequence[Delivery]) -> None:
        self._settle("reject", deliveries)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self._settle("release", deliveries)
        for delivery in deliveries:
            delivery.redelivered, delivery.delivery_count = True, delivery.delivery_count + 1
        self.queue.ready = deque(
            sorted([*self.queue.ready, *deliveries], key=lambda delivery: delivery.offset)
        )
        self.broker.dispatch_later()

    def cancel(self) -> None:
        if self in self.queue.consumers:
            self.queue.consumers.remove(self)
            if self.queue.spec.auto_delete and not self.queue.consumers:
                self.broker.drop(self.queue)


class FakePublisher:
    """A publisher: settles in the next turn, unless the broker holds confirms."""

    def __init__(self, broker: FakeQueues, on_settled: OnSettled | None) -> None:
        self.broker, self.on_settled = broker, on_settled
        self.pending_bytes = 0
        self.on_drained: Any = None
        self.tags: list[int] = []
        self.pending: list[tuple[FakeQueue, Message, str]] = []

    @property
    def is_disk_full(self) -> bool:
        return self.broker.is_disk_full

    def hold_ms(self) -> int:
        return self.broker.hold_ms

    def publish(
        self,
        tag: int,
        exchange: str,
        routing_key: str,
        message: Message,
        more_keys: Sequence[str] = (),
    ) -> bool:
        self.broker.published.append((exchange, routing_key, message))
        queues = dict.fromkeys(
            queue for key in (routing_key, *more_keys) for queue in self.broker.route(exchange, key)
        )
        if not queues:
            return False
        self.pending_bytes += len(message.value)
        if not self.tags:
            asyncio.get_running_loop().call_soon(self.settle)
        self.tags.append(tag)
        self.pending += [(queue, message, exchange) for queue in queues]
        return True

    def settle(self) -> None:
        if self.broker.holds_confirms:
            self.broker.held.append(self.settle)
            return
        pending, self.pending = self.pending, []
        for queue, message, exchange in pending:
            self.broker.append(queue, message, exchange)
        tags, self.tags, self.pending_bytes = self.tags, [], 0
        refused = [tag for tag in tags if tag in self.broker.refused]
        if self.on_settled is not None:
            self.on_settled([tag for tag in tags if tag not in refused], refused)
        if self.on_drained is not None:
            self.on_drained()

    def close(self) -> None:
        self.on_settled = self.on_drained = None


class FakeQueues:
    """Implements ``engine.queues.contract.QueueDoor``, but for what no test needs."""

    def __init__(self) -> None:
        self.queues: dict[str, FakeQueue] = {}
        self.types: dict[str, ExchangeSpec] = {
            "": ExchangeSpec("direct"),
            "amq.direct": ExchangeSpec("direct"),
            "amq.fanout": ExchangeSpec("fanout"),
            "amq.topic": ExchangeSpec("topic"),
        }
        self.bindings: list[tuple[str, str, str]] = []
        self.published: list[tuple[str, str, Message]] = []
        self.hold_ms = 0
        self.is_disk_full = False
        """How long publishers have to wait."""
        self.holds_confirms = False
        self.held: list[Any] = []
        self.refused: set[int] = set()
        self.gate: asyncio.Event | None = None
        self._offsets = itertools.count()
        self._names = itertools.count()
        self._will_dispatch = False

    # --- for tests -------------------------------------------------------------------------------

    def release_confirms(self) -> None:
        """Confirm what was held."""
        self.holds_confirms = False
        held, self.held = self.held, []
        for settle in held:
            settle()

    async def _pass(self) -> None:
        if self.gate is not None:
            await self.gate.wait()

    # --- messages --------------------------------------------------------------------------------

    def route(self, exchange: str, key: str) -> list[FakeQueue]:
        if exchange not in self.types:
            raise UnknownExchangeError(exchange)
        if not exchange:
            return [self.queues[key]] if key in self.queues else []
        kind = self.types[exchange].type
        return [
            self.queues[queue]
            for source, queue, pattern in self.bindings
            if source == exchange and _matches(kind, pattern, key)
        ]

    def append(self, queue: FakeQueue, message: Message, exchange: str) -> None:
        delivery = Delivery(
            queue.name,
            0,
            next(self._offsets),
            0,
            False,
            bytes(message.value),
            message.key,
            message.headers,
            0,
            exchange,
            FakeConsumer(self, queue, None, None),  # type: ignore[arg-type]
        )
        queue.ready.append(delivery)
        self.dispatch_later()

    def dispatch_later(self) -> None:
        if not self._will_dispatch:
            self._will_dispatch = True
            asyncio.get_running_loop().call_soon(self.dispatch)

    def dispatch(self) -> None:
        self._will_dispatch = False
        for queue in list(self.queues.values()):
            for consumer in list(queue.consumers):
                room = consumer.recipient.room()
                batch = [queue.ready.popleft() for _ in range(min(room, len(queue.ready), 50))]
                for delivery in batch:
                    delivery.holder = consumer
                    if not consumer.spec.no_ack:
                        queue.out[delivery.offset] = (delivery, consumer.spec.owner)
                if batch:
                    consumer.recipient.deliver(batch)
                    self.dispatch_later()

    def publisher(self, on_settled: OnSettled | None) -> FakePublisher:
        return FakePublisher(self, on_settled)

    async def consume(self, queue: str, spec: ConsumerSpec, recipient: Recipient) -> FakeConsumer:
        await self._pass()
        found = self._find(queue, spec.owner)
        if found.consumers and (spec.exclusive or found.consumers[0].spec.exclusive):
            raise ConsumerAccessError("exclusive", queue)
        consumer = FakeConsumer(self, found, spec, recipient)
        found.consumers.append(consumer)
        self.dispatch_later()
        return consumer

    async def get(self, queue: str, owner: Owner, *, no_ack: bool) -> Got | None:
        await self._pass()
        found = self._find(queue, owner)
        if not found.ready:
            return None
        delivery = found.ready.popleft()
        if not no_ack:
            found.out[delivery.offset] = (delivery, owner)
        return Got(delivery, len(found.ready))

    # --- topology --------------------------------------------------------------------------------

    def _find(self, name: str, owner: Owner) -> FakeQueue:
        queue = self.queues.get(name)
        if queue is None:
            raise UnknownQueueError(name)
        if queue.owner not in (None, owner):
            raise ResourceLockedError(name)
        return queue

    def drop(self, queue: FakeQueue) -> None:
        if self.queues.pop(queue.name, None) is None:
            return
        self.bindings = [b for b in self.bindings if b[1] != queue.name]
        consumers, queue.consumers = queue.consumers, []
        for consumer in consumers:
            consumer.recipient.cancelled("deleted")

    async def declare_exchange(
        self, name: str, spec: ExchangeSpec, *, passive: bool = False
    ) -> None:
        await self._pass()
        current = self.types.get(name)
        if passive and current is None:
            raise UnknownExchangeError(name)
        if passive:
            return
        if spec.type not in ("direct", "fanout", "topic", "headers"):
            raise UnknownExchangeTypeError(name, spec.type)
        if current is None and name.startswith("amq."):
            raise ReservedNameError("exchange", name)
        if current is not None and current.type != spec.type:
            raise PreconditionError("exchange", name, "type", current.type, spec.type)
        self.types[name] = spec

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        if not name or name.startswith("amq."):
            raise ReservedNameError("exchange", name)
        if if_unused and any(source == name for source, _, _ in self.bindings):
            raise QueueInUseError("exchange", name)
        self.types.pop(name, None)

    async def bind_exchange(
        self, source: str, destination: str, routing_key: str, arguments: Arguments
    ) -> None:
        self.route(source, "")
        self.route(destination, "")

    async def unbind_exchange(
        self, source: str, destination: str, routing_key: str, arguments: Arguments
    ) -> None:
        self.route(source, "")

    async def declare_queue(
        self, name: str, spec: QueueSpec, owner: Owner, *, passive: bool = False
    ) -> QueueInfo:
        await self._pass()
        name = name or f"amq.gen-{next(self._names)}"
        if passive or name in self.queues:
            queue = self._find(name, owner)
            for field_ in ("durable", "auto_delete", "exclusive"):
                now, asked = getattr(queue.spec, field_), getattr(spec, field_)
                if not passive and now != asked:
                    raise PreconditionError("queue", name, field_, now, asked)
        else:
            queue = FakeQueue(name, spec, owner if spec.exclusive else None)
            self.queues[name] = queue
        return QueueInfo(name, len(queue.ready), len(queue.consumers))

    async def delete_queue(
        self, name: str, owner: Owner, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        if name not in self.queues:
            return 0
        queue = self._find(name, owner)
        if if_unused and queue.consumers:
            raise QueueInUseError("queue", name)
        if if_empty and queue.ready:
            raise QueueNotEmptyError(name)
        self.drop(queue)
        return len(queue.ready)

    async def purge(self, name: str, owner: Owner) -> int:
        queue = self._find(name, owner)
        count = len(queue.ready)
        queue.ready.clear()
        return count

    async def bind(
        self, queue: str, exchange: str, routing_key: str, arguments: Arguments, owner: Owner
    ) -> None:
        self._find(queue, owner)
        self.route(exchange, "")
        if (exchange, queue, routing_key) not in self.bindings:
            self.bindings.append((exchange, queue, routing_key))

    async def unbind(
        self, queue: str, exchange: str, routing_key: str, arguments: Arguments, owner: Owner
    ) -> None:
        self._find(queue, owner)
        self.route(exchange, "")
        self.bindings = [b for b in self.bindings if b != (exchange, queue, routing_key)]

    async def stored(self) -> None:
        await asyncio.sleep(0)

    async def connection_closed(self, owner: Owner) -> None:
        for queue in list(self.queues.values()):
            for consumer in list(queue.consumers):
                if consumer.spec.owner is owner:
                    consumer.cancel()
            left = [delivery for delivery, by in queue.out.values() if by is owner]
            if left:
                FakeConsumer(self, queue, None, None).release(left)  # type: ignore[arg-type]
            if queue.owner is owner:
                self.drop(queue)


class FakeDoor:
    """A door with queues."""

    def __init__(self, queues: FakeQueues) -> None:
        self.queues = queues


class FakeEngine:
    """An engine whose doors have queues."""

    def __init__(self) -> None:
        self.fake = FakeQueues()

    def door(self, principal: object) -> FakeDoor:
        return FakeDoor(self.fake)


def _matches(kind: str, pattern: str, key: str) -> bool:
    if kind == "fanout":
        return True
    if kind == "direct":
        return pattern == key
    return _topic(pattern.split("."), key.split("."))


def _topic(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_topic(pattern[1:], words[i:]) for i in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _topic(pattern[1:], words[1:])


Headers = Mapping[str, object]
