"""The signatures of ``door.queues``, for protocols.

Knows the data types only.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

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


class QueueDoor(Protocol):
    """The signatures of ``door.queues``, which ``engine.queues.queues.Queues`` implements.

    Every method raises ``AuthorizationError`` if the principal is not allowed to do it, and
    ``BrokerStoppingError`` while the broker stops.
    """

    def publisher(self, on_settled: OnSettled | None) -> Publisher:
        """Return the publisher of one channel. ``on_settled`` None: nothing is confirmed."""

    async def consume(self, queue: str, spec: ConsumerSpec, recipient: Recipient) -> Consumer:
        """Start a consumer.

        The first delivery comes in a later turn of the event loop.

        Raises:
            UnknownQueueError, ResourceLockedError, ConsumerAccessError, InvalidQueueArgumentError
        """

    async def get(self, queue: str, owner: Owner, *, no_ack: bool) -> Got | None:
        """Return the first message that is ready, or None. ``delivery.holder`` settles it.

        Raises:
            UnknownQueueError, ResourceLockedError, NotSupportedByStreamError
        """

    async def declare_exchange(
        self, name: str, spec: ExchangeSpec, *, passive: bool = False
    ) -> None:
        """Create the exchange, or check that it exists with these arguments.

        Raises:
            UnknownExchangeError: passive, and it does not exist.
            PreconditionError, ReservedNameError, UnknownExchangeTypeError,
            InvalidQueueArgumentError, InvalidQueueNameError
        """

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete the exchange and its bindings. Return if it does not exist.

        Raises:
            QueueInUseError, ReservedNameError
        """

    async def bind_exchange(
        self, source: str, destination: str, routing_key: str, arguments: Arguments
    ) -> None:
        """Bind the exchange ``destination`` to the exchange ``source``.

        Raises:
            UnknownExchangeError, ReservedNameError, InvalidQueueArgumentError
        """

    async def unbind_exchange(
        self, source: str, destination: str, routing_key: str, arguments: Arguments
    ) -> None:
        """Remove a binding between exchanges. Return if it does not exist.

        Raises:
            UnknownExchangeError, ReservedNameError
        """

    async def declare_queue(
        self, name: str, spec: QueueSpec, owner: Owner, *, passive: bool = False
    ) -> QueueInfo:
        """Create the queue, or check that it exists with these arguments.

        Args:
            name: the queue; empty to let the broker choose a name (``amq.gen-...``).
            passive: only check that it exists; ``spec`` is ignored.

        Raises:
            UnknownQueueError: passive, and it does not exist.
            PreconditionError, ResourceLockedError, ReservedNameError, InvalidQueueArgumentError,
            InvalidQueueNameError
        """

    async def delete_queue(
        self, name: str, owner: Owner, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete the queue with its messages. Return how many were ready; 0 if it does not exist.

        Raises:
            QueueInUseError, QueueNotEmptyError, ResourceLockedError
        """

    async def purge(self, name: str, owner: Owner) -> int:
        """Drop all messages that are ready, and return how many these were.

        Raises:
            UnknownQueueError, ResourceLockedError, NotSupportedByStreamError
        """

    async def bind(
        self, queue: str, exchange: str, routing_key: str, arguments: Arguments, owner: Owner
    ) -> None:
        """Bind the queue to the exchange.

        Raises:
            UnknownQueueError, UnknownExchangeError, ResourceLockedError, ReservedNameError,
            InvalidQueueArgumentError
        """

    async def unbind(
        self, queue: str, exchange: str, routing_key: str, arguments: Arguments, owner: Owner
    ) -> None:
        """Remove a binding. Return if it does not exist.

        Raises:
            UnknownQueueError, UnknownExchangeError, ResourceLockedError, ReservedNameError
        """

    def describe(self, queue: str) -> QueueDescription:
        """Describe one queue.

        Raises:
            UnknownQueueError
        """

    def queues(self) -> list[QueueDescription]:
        """Describe all queues that the principal can see, ordered by name."""

    def exchanges(self) -> list[tuple[str, ExchangeSpec]]:
        """Return all exchanges that the principal can see, ordered by name."""

    def bindings(self) -> list[BindingDescription]:
        """Return all bindings, without those of the default exchange."""

    def stored(self) -> Awaitable[None]:
        """Return when everything that was settled so far is on disk.

        Raises:
            BrokerStoppingError
        """

    def connection_closed(self, owner: Owner) -> Awaitable[None]:
        """Cancel the connection's consumers, return what was out, and delete exclusive queues."""
