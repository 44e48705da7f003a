"""Methods that declare, bind and delete: decode, call the engine, answer.

Each handler takes the channel and the decoded method. Knows no rules of queues and exchanges.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from tidemill.engine.queues.api import ExchangeSpec, QueueSpec
from tidemill.engine.queues.errors import ReservedNameError
from tidemill.protocols.amqp import reply_to
from tidemill.protocols.amqp.channels.consuming import Consuming
from tidemill.protocols.amqp.channels.publishing import Publishing
from tidemill.protocols.amqp.codec.methods import Method
from tidemill.protocols.amqp.error_codes import not_found
from tidemill.protocols.amqp.wire import Wire


class DeclaringChannel(Protocol):
    """A channel, as these handlers use it."""

    wire: Wire
    last_queue: str | None

    @property
    def publishing(self) -> Publishing: ...

    @property
    def consuming(self) -> Consuming: ...

    def reply(self, name: str, **arguments: object) -> None:
        """Send a method on this channel."""

    def reply_unless_nowait(self, method: Method, name: str, **arguments: object) -> None:
        """Send a method on this channel, unless the client does not want an answer."""


Handler = Callable[[DeclaringChannel, Method], Awaitable[None]]


def queue_name(channel: DeclaringChannel, name: str) -> str:
    """Return the queue that a method means: empty is the last one that the channel declared."""
    if name:
        return name
    if channel.last_queue is None:
        raise not_found("previously declared queue", "")
    return channel.last_queue


async def exchange_declare(channel: DeclaringChannel, method: Method) -> None:
    """Declare an exchange."""
    spec = ExchangeSpec(
        method.text("type"),
        durable=method.flag("durable"),
        auto_delete=method.flag("auto_delete"),
        internal=method.flag("internal"),
        arguments=method.table("arguments"),
    )
    name, passive = _clean(method.text("exchange")), method.flag("passive")
    if not name:
        raise ReservedNameError("exchange", name)
    await channel.wire.queues.declare_exchange(name, spec, passive=passive)
    channel.reply_unless_nowait(method, "exchange.declare-ok")


async def exchange_delete(channel: DeclaringChannel, method: Method) -> None:
    """Delete an exchange."""
    await channel.wire.queues.delete_exchange(
        _clean(method.text("exchange")), if_unused=method.flag("if_unused")
    )
    channel.reply_unless_nowait(method, "exchange.delete-ok")


async def exchange_bind(channel: DeclaringChannel, method: Method) -> None:
    """Bind an exchange to another one."""
    await channel.wire.queues.bind_exchange(*_exchange_binding(method))
    channel.reply_unless_nowait(method, "exchange.bind-ok")


async def exchange_unbind(channel: DeclaringChannel, method: Method) -> None:
    """Remove a binding between exchanges."""
    await channel.wire.queues.unbind_exchange(*_exchange_binding(method))
    channel.reply_unless_nowait(method, "exchange.unbind-ok")


def _exchange_binding(method: Method) -> tuple[str, str, str, dict[str, object]]:
    return (
        _clean(method.text("source")),
        _clean(method.text("destination")),
        method.text("routing_key"),
        method.table("arguments"),
    )


async def queue_declare(channel: DeclaringChannel, method: Method) -> None:
    """Declare a queue, or look at one."""
    name, passive = _clean(method.text("queue")), method.flag("passive")
    if name.startswith(reply_to.PREFIX) or name == reply_to.PSEUDO_QUEUE:
        _declare_reply_queue(channel, method, name)
        return
    if passive:
        name = queue_name(channel, name)
    spec = QueueSpec(
        durable=method.flag("durable"),
        exclusive=method.flag("exclusive"),
        auto_delete=method.flag("auto_delete"),
        arguments=method.table("arguments"),
    )
    await channel.publishing.drained()
    info = await channel.wire.queues.declare_queue(name, spec, channel.wire.owner, passive=passive)
    channel.last_queue = info.name
    if channel.wire.shared.tally is not None:
        channel.wire.shared.tally.declared += 1
    channel.reply_unless_nowait(
        method,
        "queue.declare-ok",
        queue=info.name,
        message_count=min(info.messages, 2**32 - 1),
        consumer_count=info.consumers,
    )


def _declare_reply_queue(channel: DeclaringChannel, method: Method, name: str) -> None:
    """Answer whether a client still waits for direct replies."""
    if name != reply_to.PSEUDO_QUEUE and channel.wire.shared.replies.find(name) is None:
        raise not_found("queue", name)
    channel.reply_unless_nowait(method, "queue.declare-ok", queue=name, consumer_count=1)


async def queue_bind(channel: DeclaringChannel, method: Method) -> None:
    """Bind a queue to an exchange."""
    await channel.wire.queues.bind(*_queue_binding(channel, method), channel.wire.owner)
    channel.reply_unless_nowait(method, "queue.bind-ok")


async def queue_unbind(channel: DeclaringChannel, method: Method) -> None:
    """Remove a binding of a queue."""
    await channel.wire.queues.unbind(*_queue_binding(channel, method), channel.wire.owner)
    channel.reply("queue.unbind-ok")


def _queue_binding(
    channel: DeclaringChannel, method: Method
) -> tuple[str, str, str, dict[str, object]]:
    named, key = method.text("queue"), method.text("routing_key")
    queue = queue_name(channel, named)
    return (
        queue,
        _clean(method.text("exchange")),
        queue if not named and not key else key,
        method.table("arguments"),
    )


async def queue_purge(channel: DeclaringChannel, method: Method) -> None:
    """Drop the messages of a queue that are ready."""
    await channel.publishing.drained()
    count = await channel.wire.queues.purge(
        queue_name(channel, method.text("queue")), channel.wire.owner
    )
    channel.reply_unless_nowait(method, "queue.purge-ok", message_count=count)


async def queue_delete(channel: DeclaringChannel, method: Method) -> None:
    """Delete a queue. The channel's consumers of it are cancelled after the answer (RabbitMQ)."""
    await channel.publishing.drained()
    with channel.consuming.cancelled_later():
        count = await channel.wire.queues.delete_queue(
            queue_name(channel, method.text("queue")),
            channel.wire.owner,
            if_unused=method.flag("if_unused"),
            if_empty=method.flag("if_empty"),
        )
        channel.reply_unless_nowait(method, "queue.delete-ok", message_count=count)


def _clean(name: str) -> str:
    """Return a name without line breaks, which RabbitMQ removes too."""
    return name.replace("\r", "").replace("\n", "")


HANDLERS: dict[str, Handler] = {
    "exchange.declare": exchange_declare,
    "exchange.delete": exchange_delete,
    "exchange.bind": exchange_bind,
    "exchange.unbind": exchange_unbind,
    "queue.declare": queue_declare,
    "queue.bind": queue_bind,
    "queue.unbind": queue_unbind,
    "queue.purge": queue_purge,
    "queue.delete": queue_delete,
}
