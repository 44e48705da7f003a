"""One channel of a connection: its methods, and what closes it.

It dispatches to ``topology``, ``publishing`` and ``consuming``. Knows no socket.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from typing import Any

from tidemill.engine.queues.api import ConsumerSpec
from tidemill.protocols.amqp import reply_to
from tidemill.protocols.amqp.channels import topology
from tidemill.protocols.amqp.channels.consuming import ChannelConsumer, Consuming, Settlement
from tidemill.protocols.amqp.channels.publishing import Publishing
from tidemill.protocols.amqp.channels.transactions import Transaction
from tidemill.protocols.amqp.codec.frames import PublishHead
from tidemill.protocols.amqp.codec.methods import Method
from tidemill.protocols.amqp.error_codes import precondition
from tidemill.protocols.amqp.errors import ConnectionClosedError
from tidemill.protocols.amqp.wire import Wire

MOST_CONSUMERS = 20_000
"""Consumers of a connection. When it closes, all of them end in one turn of the event loop."""


class Channel:
    """A channel that is open.

    Attributes:
        number: its number within the connection.
        last_queue: the queue that it declared last.
    """

    def __init__(self, number: int, wire: Wire) -> None:
        self.number = number
        self.wire = wire
        self.last_queue: str | None = None
        self.is_closed = False
        self.consuming = Consuming(number, wire)
        self.publishing = Publishing(number, wire, self.consuming)
        self.transaction: Transaction | None = None
        wire.shared.connections.channels_opened += 1

    @property
    def pending_bytes(self) -> int:
        """Bytes of messages that are not on disk yet."""
        waiting = self.transaction.pending_bytes if self.transaction is not None else 0
        return self.publishing.pending_bytes + waiting

    @property
    def is_disk_full(self) -> bool:
        """Whether its client must wait because the disk is full."""
        return self.publishing.is_disk_full

    def hold_ms(self) -> int:
        """Return how long its client must wait before it publishes more, in milliseconds."""
        return self.publishing.hold_ms()

    def reply(self, name: str, **arguments: object) -> None:
        """Send a method on this channel."""
        if not self.is_closed:
            self.wire.method(self.number, name, **arguments)

    def reply_unless_nowait(self, method: Method, name: str, **arguments: object) -> None:
        """Send a method on this channel, unless the client does not want an answer."""
        if not method.flag("nowait"):
            self.reply(name, **arguments)

    # --- each message ----------------------------------------------------------------------------

    def publish(self, head: PublishHead, properties: bytes, body: bytes) -> None:
        """Publish a message, or keep it for the commit."""
        if self.transaction is None:
            self.publishing.publish(head, properties, body)
        else:
            self.transaction.publish(head, properties, body)

    def acknowledge(self, tag: int, multiple: bool) -> None:
        """Acknowledge one delivery, or all up to it."""
        if self.transaction is None:
            self.consuming.acknowledge(tag, multiple)
        else:
            self.transaction.settle("acknowledge", tag, multiple)

    def flush(self) -> None:
        """Pass on what was collected while received bytes were processed."""
        self.consuming.flush()

    def _settle(self, how: Settlement, tag: int, *, multiple: bool) -> None:
        if self.transaction is None:
            self.consuming.settle_by_tag(how, tag, multiple)
        else:
            self.transaction.settle(how, tag, multiple)

    # --- methods ---------------------------------------------------------------------------------

    def handle(self, method: Method) -> Awaitable[None] | None:
        """Do what a method asks for. Return the rest of the work if it has to wait.

        Raises:
            AmqpError: the channel or the connection must be closed.
            TidemillError: an error of the engine.
        """
        self.consuming.flush()
        handler = topology.HANDLERS.get(method.name)
        if handler is not None:
            return handler(self, method)
        match method.name:
            case "basic.ack":
                self.acknowledge(method.number("delivery_tag"), method.flag("multiple"))
            case "basic.nack" | "basic.reject":
                how: Settlement = "release" if method.flag("requeue") else "reject"
                multiple = bool(method.arguments.get("multiple"))
                self._settle(how, method.number("delivery_tag"), multiple=multiple)
            case "basic.get":
                return self._get(method)
            case "basic.consume":
                return self._consume(method)
            case "basic.cancel":
                self._cancel(method)
            case "basic.qos":
                self._qos(method)
            case "basic.recover" | "basic.recover-async":
                self._recover(method)
            case "confirm.select":
                self._select_confirms(method)
            case "tx.select" | "tx.commit" | "tx.rollback":
                return self._transact(method.name)
            case "channel.flow":
                if not method.flag("active"):
                    raise ConnectionClosedError(540, "active=false")
                self.reply("channel.flow-ok", active=True)
            case "channel.flow-ok":
                pass
            case name:
                raise ConnectionClosedError(503, f"the broker does not handle {name}")
        return None

    async def _get(self, method: Method) -> None:
        queue, no_ack = topology.queue_name(self, method.text("queue")), method.flag("no_ack")
        await self.publishing.drained()
        got = await self.wire.queues.get(queue, self.wire.owner, no_ack=no_ack)
        if got is None:
            self.reply("basic.get-empty")
            if self.wire.shared.tally is not None:
                self.wire.shared.tally.empty += 1
        elif self.is_closed:
            if not no_ack:
                got.delivery.holder.release([got.delivery])
        else:
            self.consuming.send_got(got.delivery, got.remaining, no_ack=no_ack)

    async def _consume(self, method: Method) -> None:
        queue = topology.queue_name(self, method.text("queue"))
        tag = method.text("consumer_tag") or f"amq.ctag-{secrets.token_urlsafe(16)}"
        if tag in self.consuming.consumers:
            raise ConnectionClosedError(530, f"attempt to reuse consumer tag '{tag}'")
        if self.wire.consumers >= MOST_CONSUMERS:
            raise ConnectionClosedError(
                530, f"reached maximum ({MOST_CONSUMERS}) of consumers per connection"
            )
        no_ack = method.flag("no_ack")
        consumer = ChannelConsumer(
            self.consuming, tag, queue, no_ack=no_ack, limit=self.consuming.next_limit
        )
        if queue == reply_to.PSEUDO_QUEUE:
            self._consume_replies(method, consumer)
            return
        spec = ConsumerSpec(
            tag,
            self.wire.owner,
            no_ack=no_ack,
            exclusive=method.flag("exclusive"),
            arguments=method.table("arguments"),
        )
        started = await self.wire.queues.consume(queue, spec, consumer)
        if self.is_closed:
            started.cancel()
            return
        consumer.consumer = started
        self.consuming.add(consumer)
        self.reply_unless_nowait(method, "basic.consume-ok", consumer_tag=tag)

    def _consume_replies(self, method: Method, consumer: ChannelConsumer) -> None:
        if not consumer.no_ack:
            raise precondition("reply consumer cannot acknowledge")
        if self.consuming.reply_name is not None:
            raise precondition("reply consumer already set")
        self.consuming.add_reply_consumer(consumer)
        self.reply_unless_nowait(method, "basic.consume-ok", consumer_tag=consumer.tag)

    def _cancel(self, method: Method) -> None:
        tag = method.text("consumer_tag")
        consumer = self.consuming.remove(tag)
        if consumer is not None:
            consumer.end()
        self.reply_unless_nowait(method, "basic.cancel-ok", consumer_tag=tag)

    def _qos(self, method: Method) -> None:
        size, count = method.number("prefetch_size"), method.number("prefetch_count")
        if size:
            raise ConnectionClosedError(540, f"prefetch_size!=0 ({size})")
        if method.flag("global"):
            self.consuming.limit = count
            self.consuming.wake()
        else:
            self.consuming.next_limit = count
        self.reply("basic.qos-ok")

    def _recover(self, method: Method) -> None:
        if not method.flag("requeue"):
            raise ConnectionClosedError(540, "requeue=false")
        self.consuming.recover()
        if method.name == "basic.recover":
            self.reply("basic.recover-ok")

    def _select_confirms(self, method: Method) -> None:
        if self.transaction is not None:
            raise precondition("cannot switch from tx to confirm mode")
        self.publishing.select_confirms()
        self.reply_unless_nowait(method, "confirm.select-ok")

    async def _transact(self, name: str) -> None:
        if name == "tx.select":
            if self.publishing.confirms is not None:
                raise precondition("cannot switch from confirm to tx mode")
            if self.transaction is None:
                self.transaction = Transaction(self.publishing, self.consuming)
            self.reply("tx.select-ok")
            return
        if self.transaction is None:
            raise precondition("channel is not transactional")
        if name == "tx.commit":
            await self.transaction.commit()
            self.reply("tx.commit-ok")
        else:
            self.transaction.rollback()
            self.reply("tx.rollback-ok")

    def describe(self) -> dict[str, Any]:
        """Return the facts that a listing shows, with RabbitMQ's names."""
        transaction = self.transaction
        return {
            **self.consuming.describe(),
            "confirm": self.publishing.confirms is not None,
            "messages_unconfirmed": self.publishing.unconfirmed,
            "transactional": transaction is not None,
            "messages_uncommitted": transaction.published_count if transaction else 0,
            "acks_uncommitted": transaction.settled_count if transaction else 0,
        }

    def close(self) -> None:
        """End everything. What is not settled returns to its queues."""
        if not self.is_closed:
            self.wire.shared.connections.channels_closed += 1
        self.is_closed = True
        if self.transaction is not None:
            self.transaction.close()
        self.publishing.close()
        self.consuming.close()
