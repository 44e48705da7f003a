"""Requests about queues, exchanges and bindings. ``api`` has their types. Knows no protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import Callable

from tidemill.engine.queues.api import (
    Arguments,
    BindingDescription,
    Consumer,
    ConsumerSpec,
    ExchangeSpec,
    Got,
    OnSettled,
    Owner,
    Publisher,
    QueueDescription,
    QueueInfo,
    QueueSpec,
    Recipient,
)
from tidemill.engine.queues.core import QueueCore
from tidemill.engine.queues.errors import (
    NotSupportedByStreamError,
    PreconditionError,
    QueueInUseError,
    QueueNotEmptyError,
    ReservedNameError,
    ResourceLockedError,
    UnknownExchangeError,
    UnknownQueueError,
)
from tidemill.engine.queues.live.consumers import MayRead
from tidemill.engine.queues.live.queue import LiveQueue
from tidemill.state.internal_topics import is_internal
from tidemill.state.routing.arguments import (
    CONSUMER_ARGUMENTS,
    EXCHANGE_ARGUMENTS,
    QUEUE_ARGUMENTS,
    Policy,
    check_arguments,
    parse_policy,
)
from tidemill.state.routing.table import PREDECLARED
from tidemill.state.routing.types import (
    DEFAULT_EXCHANGE,
    Binding,
    Destination,
)

COLD_READ_S = 0.002
"""How long a get waits before it looks again, while messages are read from a cold disk."""


class QueueRequests:
    """Requests about queues. All raise ``BrokerStoppingError`` while the broker stops."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._registry = core.registry
        self._table = core.table

    # --- publish and consume ---------------------------------------------------------------------

    def publisher(
        self, on_settled: OnSettled | None, check: Callable[[str, str], None] | None = None
    ) -> Publisher:
        """Return the publisher of one channel.

        Args:
            on_settled: called with what was confirmed or refused; None: nothing is confirmed.
            check: called with the exchange and the routing key of each message. It raises if the
                client can't publish there.
        """
        self._core.check_running()
        return self._core.publisher(on_settled, check)

    async def consume(
        self,
        queue: str,
        spec: ConsumerSpec,
        recipient: Recipient,
        may_read: MayRead | None = None,
    ) -> Consumer:
        """Start a consumer.

        The first delivery comes in a later turn of the event loop.

        Args:
            may_read: returns whether the client may still read the queue. It is asked before
                messages are delivered; a consumer that must not is cancelled.

        Raises:
            UnknownQueueError, ResourceLockedError, ConsumerAccessError, InvalidQueueArgumentError
        """
        self._core.check_known("consumer", queue, spec.arguments, CONSUMER_ARGUMENTS)
        values = check_arguments("consumer", queue, spec.arguments, CONSUMER_ARGUMENTS)
        live = self._usable(queue, spec.owner)
        if live.policy.is_stream:
            start = values.get("x-stream-offset", "next")
            return live.add_stream_consumer(spec, recipient, start, may_read)
        priority = values.get("x-priority", 0)
        return live.add_consumer(
            spec, recipient, priority if isinstance(priority, int) else 0, may_read
        )

    async def get(self, queue: str, owner: Owner, *, no_ack: bool) -> Got | None:
        """Return the first message that is ready, or None. ``delivery.holder`` settles it.

        Raises:
            UnknownQueueError, ResourceLockedError, NotSupportedByStreamError
        """
        live = self._usable(queue, owner)
        if live.policy.is_stream:
            raise NotSupportedByStreamError(queue, "get")
        while True:
            found = live.get(no_ack=no_ack)
            if found is not None or not live.is_reading or live.is_deleted:
                return found
            await asyncio.sleep(COLD_READ_S)

    # --- exchanges -------------------------------------------------------------------------------

    async def declare_exchange(
        self, name: str, spec: ExchangeSpec, *, passive: bool = False
    ) -> None:
        """Create the exchange, or check that it exists with these arguments.

        Raises:
            UnknownExchangeError: passive, and it does not exist.
            PreconditionError, ReservedNameError, UnknownExchangeTypeError,
            InvalidQueueArgumentError, InvalidQueueNameError
        """
        self._core.check_running()
        if passive:
            if name not in self._table.exchanges:
                raise UnknownExchangeError(name)
            return
        if name not in self._table.exchanges or not name:
            _check_not_reserved("exchange", name)
        self._core.check_known("exchange", name, spec.arguments, EXCHANGE_ARGUMENTS)
        await self._core.declarations.declare_exchange(name, spec)

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete the exchange and its bindings. Return if it does not exist.

        Raises:
            QueueInUseError, ReservedNameError
        """
        self._core.check_running()
        _check_not_reserved("exchange", name)
        await self._core.declarations.delete_exchange(name, if_unused=if_unused)

    async def bind_exchange(
        self, source: str, destination: str, routing_key: str, arguments: Arguments
    ) -> None:
        """Bind the exchange ``destination`` to the exchange ``source``.

        Raises:
            UnknownExchangeError, ReservedNameError, InvalidQueueArgumentError
        """
        await self._core.declarations.bind(
            self._exchange_binding(source, destination, routing_key, arguments)
        )

    async def unbind_exchange(
        self, source: str, destination: str, routing_key: str, arguments: Arguments
    ) -> None:
        """Remove a binding between exchanges. Return if it does not exist.

        Raises:
            UnknownExchangeError, ReservedNameError
        """
        await self._core.declarations.unbind(
            self._exchange_binding(source, destination, routing_key, arguments)
        )

    def _exchange_binding(
        self, source: str, destination: str, routing_key: str, arguments: Arguments
    ) -> Binding:
        self._core.check_running()
        for name in (source, destination):
            if name == DEFAULT_EXCHANGE:
                raise ReservedNameError("exchange", name)
        return Binding(source, Destination("exchange", destination), routing_key, dict(arguments))

    # --- queues ----------------------------------------------------------------------------------

    async def declare_queue(
        self,
        name: str,
        spec: QueueSpec,
        owner: Owner,
        *,
        passive: bool = False,
        generated_name: str | None = None,
    ) -> QueueInfo:
        """Create the queue, or check that it exists with these arguments.

        Args:
            name: the queue; empty to let the broker choose a name (``amq.gen-...``).
            generated_name: the name that the broker chose; None to choose one now.
            passive: only check that it exists; ``spec`` is ignored.

        Raises:
            UnknownQueueError: passive, and it does not exist.
            PreconditionError, ResourceLockedError, ReservedNameError, InvalidQueueArgumentError,
            InvalidQueueNameError
        """
        self._core.check_running()
        if passive:
            return self._used(name, owner)
        if not name:
            name = generated_name or new_queue_name()
        elif name not in self._table.queues:
            _check_not_reserved("queue", name)
            if is_internal(name):
                raise ReservedNameError("queue", name)
        if name in self._table.queues:
            self._check_lock(name, owner)
        self._core.check_known("queue", name, spec.arguments, QUEUE_ARGUMENTS)
        policy = parse_policy(name, spec.arguments)
        _check_type(name, spec, policy)
        if spec.exclusive and name not in self._table.queues:
            self._core.owners.setdefault(name, owner)
        try:
            await self._core.declarations.declare_queue(name, spec, policy)
        except BaseException:
            if name not in self._table.queues:
                self._core.owners.pop(name, None)
            raise
        return self._used(name, owner)

    async def delete_queue(
        self, name: str, owner: Owner, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete the queue with its messages. Return how many were ready; 0 if it does not exist.

        Raises:
            QueueInUseError, QueueNotEmptyError, ResourceLockedError
        """
        self._core.check_running()
        if name not in self._table.queues or name in self._registry.deleting:
            return 0
        live = self._unlocked(name, owner)
        if if_unused and live.all_consumers:
            raise QueueInUseError("queue", name)
        ready = live.ready
        if if_empty and ready:
            raise QueueNotEmptyError(name)
        await self._core.delete(name)
        return ready

    async def purge(self, name: str, owner: Owner) -> int:
        """Drop all messages that are ready, and return how many these were.

        Raises:
            UnknownQueueError, ResourceLockedError, NotSupportedByStreamError
        """
        live = self._usable(name, owner)
        if live.policy.is_stream:
            raise NotSupportedByStreamError(name, "purge")
        return live.purge()

    async def bind(
        self, queue: str, exchange: str, routing_key: str, arguments: Arguments, owner: Owner
    ) -> None:
        """Bind the queue to the exchange.

        Raises:
            UnknownQueueError, UnknownExchangeError, ResourceLockedError, ReservedNameError,
            InvalidQueueArgumentError
        """
        binding = self._queue_binding(queue, exchange, routing_key, arguments, owner)
        await self._core.declarations.bind(binding)

    async def unbind(
        self, queue: str, exchange: str, routing_key: str, arguments: Arguments, owner: Owner
    ) -> None:
        """Remove a binding. Return if it, the queue or the exchange does not exist.

        Raises:
            ResourceLockedError, ReservedNameError
        """
        with contextlib.suppress(UnknownQueueError):
            binding = self._queue_binding(queue, exchange, routing_key, arguments, owner)
            await self._core.declarations.unbind(binding)

    def _queue_binding(
        self, queue: str, exchange: str, routing_key: str, arguments: Arguments, owner: Owner
    ) -> Binding:
        self._core.check_running()
        self._unlocked(queue, owner)
        if exchange == DEFAULT_EXCHANGE:
            raise ReservedNameError("exchange", exchange)
        return Binding(exchange, Destination("queue", queue), routing_key, dict(arguments))

    # --- listings --------------------------------------------------------------------------------

    def describe(self, queue: str) -> QueueDescription:
        """Describe one queue.

        Raises:
            UnknownQueueError
        """
        live, definition = self._registry.get(queue), self._table.queues.get(queue)
        counters, now_ms = live.counters, self._core.clock.now_ms()
        oldest = [found[1].timestamp for lane in live.lanes if (found := lane.head()) is not None]
        return QueueDescription(
            name=live.name,
            topic=live.lanes[0].log.tp.topic,
            # Without a definition it is a topic that is used as a queue.
            type="topic" if definition is None else live.policy.type.value,
            durable=definition is None or definition.durable,
            exclusive=definition is not None and definition.exclusive,
            auto_delete=definition is not None and definition.auto_delete,
            arguments={} if definition is None else definition.arguments,
            ready=live.ready,
            unacknowledged=live.unacknowledged,
            bytes=sum(lane.log.size_bytes for lane in live.lanes),
            oldest_age_ms=max(0, now_ms - min(oldest)) if oldest else None,
            published=counters.published,
            delivered=counters.delivered,
            acknowledged=counters.acknowledged,
            redelivered=counters.redelivered,
            dead=counters.dead,
            consumers=live.describe_consumers(),
        )

    def queues(self) -> list[QueueDescription]:
        """Describe all queues, ordered by name."""
        return [self.describe(each) for each in sorted(self.names())]

    def names(self) -> list[str]:
        """Return the names of all queues."""
        return list({*self._table.queues, *self._registry.queues} - self._registry.deleting)

    def version(self) -> int:
        """Return a number that grows with each change of exchanges, queues and bindings."""
        return self._table.version

    def exchanges(self) -> list[tuple[str, ExchangeSpec]]:
        """Return all exchanges, ordered by name."""
        return sorted(self._table.exchanges.items())

    def bindings(self) -> list[BindingDescription]:
        """Return all bindings, without those of the default exchange."""
        return [
            BindingDescription(
                each.source,
                each.destination.name,
                each.destination.kind,
                each.routing_key,
                each.arguments,
            )
            for each in self._table.bindings()
        ]

    async def stored(self) -> None:
        """Return when everything that was settled so far is on disk.

        Raises:
            BrokerStoppingError
        """
        self._core.check_running()
        await self._core.stored()

    # --- checks ----------------------------------------------------------------------------------

    def _usable(self, name: str, owner: Owner) -> LiveQueue:
        """Return a queue that a client reads."""
        self._core.check_running()
        return self._unlocked(name, owner)

    def _unlocked(self, name: str, owner: Owner) -> LiveQueue:
        live = self._registry.get(name)
        self._check_lock(name, owner)
        return live

    def _used(self, name: str, owner: Owner) -> QueueInfo:
        live = self._unlocked(name, owner)
        live.last_used_ms = self._core.clock.monotonic_ms()
        # A client expects basic.get to find the messages that ``on_disk`` counts.
        return QueueInfo(name, live.on_disk, len(live.all_consumers))

    def _check_lock(self, name: str, owner: Owner) -> None:
        holder = self._core.owners.get(name)
        if holder is not None and holder is not owner:
            raise ResourceLockedError(name)


def new_queue_name() -> str:
    """Return a name for a queue that gets none from its client."""
    return "amq.gen-" + base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")


def _check_not_reserved(kind: str, name: str) -> None:
    if name in PREDECLARED or name.startswith("amq."):
        raise ReservedNameError(kind, name)


def _check_type(name: str, spec: QueueSpec, policy: Policy) -> None:
    """Check what queues of the types quorum and stream can't be."""
    if policy.type.value == "classic":
        return
    if not spec.durable:
        raise PreconditionError("queue", name, "durable", True, False)
    if spec.exclusive:
        raise PreconditionError("queue", name, "exclusive", False, True)
    if spec.auto_delete and policy.is_stream:
        raise PreconditionError("queue", name, "auto_delete", False, True)
