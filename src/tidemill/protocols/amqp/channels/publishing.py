"""Publishes for a channel: checks, routing, returns and confirms.

A confirm means that the message is on disk in all of its queues. A mandatory message's return
precedes its confirm. Knows no queue's state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from tidemill.engine.queues.api import Message, OnSettled, Publisher
from tidemill.parts import Part
from tidemill.protocols.amqp import management, reply_to
from tidemill.protocols.amqp.channels.confirms import Confirms
from tidemill.protocols.amqp.channels.consuming import Consuming
from tidemill.protocols.amqp.codec import hot
from tidemill.protocols.amqp.codec.frames import PublishHead
from tidemill.protocols.amqp.codec.properties import NONE, with_value
from tidemill.protocols.amqp.error_codes import precondition
from tidemill.protocols.amqp.errors import ConnectionClosedError
from tidemill.protocols.amqp.messages import Published, read
from tidemill.protocols.amqp.wire import Wire

NO_ROUTE = 312
MOST_ANSWERS = 8
"""Questions of a channel that are answered at the same time."""


class Publishing:
    """The publishing side of a channel.

    Attributes:
        confirms: confirms messages; None without confirm.select.
        observer: gets what is settled; used by a transaction.
    """

    def __init__(self, number: int, wire: Wire, consuming: Consuming) -> None:
        self._number = number
        self._wire = wire
        self._consuming = consuming
        self._publisher: Publisher | None = None
        self._unsettled = 0
        self._drained: asyncio.Future[None] | None = None
        self._answers: set[asyncio.Future[bytes]] = set()
        self.confirms: Confirms | None = None
        self.observer: OnSettled | None = None
        self._tally = wire.shared.tally

    @property
    def pending_bytes(self) -> int:
        """Bytes of messages that are not on disk yet."""
        return 0 if self._publisher is None else self._publisher.pending_bytes

    @property
    def unconfirmed(self) -> int:
        """The number of messages that are published with confirms, and not confirmed yet."""
        return 0 if self.confirms is None else self._unsettled

    @property
    def is_disk_full(self) -> bool:
        """Whether its client must wait because the disk is full."""
        return self._publisher is not None and self._publisher.is_disk_full

    def hold_ms(self) -> int:
        """Return how long its client must wait before it publishes more, in milliseconds."""
        return 0 if self._publisher is None else self._publisher.hold_ms()

    def select_confirms(self) -> None:
        """Confirm every message from now on."""
        if self.confirms is None:
            self.confirms = Confirms(self._number, self._wire)

    def close(self) -> None:
        """Report nothing any more. What was published is written."""
        if self._publisher is not None:
            self._publisher.close()
            if self._tally is not None:
                self._tally.publishers -= 1
                self._tally = None  # a channel is closed once, and counts nothing any more
        if self._drained is not None:
            self._drained.cancel()

    async def drained(self) -> None:
        """Wait until all that the channel has published is in its queues.

        A client that publishes and then gets or counts messages, expects to find its own.
        """
        if self._unsettled:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _settled(self, ok: list[int], refused: list[int]) -> None:
        self._unsettled -= len(ok) + len(refused)
        if not self._unsettled and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self.confirms is not None:
            self._confirm(ok, refused)
        elif self.observer is not None:
            self.observer(ok, refused)

    def _confirm(self, ok: list[int], refused: list[int]) -> None:
        assert self.confirms is not None
        self.confirms.settle(ok, refused)
        if self._tally is not None:
            self._tally.confirmed += len(ok) - ok.count(0)  # 0: from before confirm.select

    def publish(self, head: PublishHead, properties: bytes, body: bytes) -> None:
        """Publish a message."""
        published = self.check(head, properties)
        tag = 0 if self.confirms is None else self.confirms.begin()
        routed = self.route(tag, head, published, body)
        if not routed and self.confirms is not None:
            self._confirm([tag], [])

    def check(self, head: PublishHead, properties: bytes) -> Published:
        """Check a message and translate its properties."""
        if head.immediate:
            raise ConnectionClosedError(540, "immediate=true")
        published = self._wire.shared.reader.read(properties)
        if published.user_id is not None and published.user_id != self._wire.user:
            raise precondition(
                f"user_id property set to '{published.user_id}' but authenticated user was "
                f"'{self._wire.user}'"
            )
        if published.wants_direct_reply:
            name = self._consuming.reply_name
            if name is None:
                raise precondition("fast reply consumer does not exist")
            data = with_value(published.properties.data, "reply_to", name.encode())
            return read(data)
        return published

    def route(self, tag: int, head: PublishHead, published: Published, body: bytes) -> bool:
        """Pass a message on; return it to the client if it is mandatory and has no queue.

        Returns:
            Whether the engine will report that the message is settled.
        """
        if not head.exchange and head.routing_key.startswith(reply_to.PREFIX):
            self._reply(head, published, body)
            return False
        if (
            not head.exchange
            and head.routing_key == management.KEY
            and self._manage(published, body)
        ):
            return False
        if self._publisher is None:
            self._publisher = self._wire.queues.publisher(self._settled)
            self._publisher.on_drained = self._wire.count_pending
            if self._tally is not None:
                self._tally.publishers += 1
        properties = published.properties
        message = Message(
            body,
            head.key,
            published.headers,
            published.priority,
            published.ttl_ms,
            published.delay_ms,
            (lambda: properties.headers) if properties.headers else None,
        )
        routed = self._publisher.publish(
            tag, head.exchange, head.routing_key, message, published.more_keys
        )
        if self._tally is not None:
            has_confirms = self.confirms is not None
            self._tally.published(
                len(body), confirms=has_confirms, routed=routed, mandatory=head.mandatory
            )
        if routed:
            self._unsettled += 1
        elif head.mandatory:
            self._return(head, properties.data, body)
        return routed

    def _reply(self, head: PublishHead, published: Published, body: bytes) -> None:
        target = self._wire.shared.replies.find(head.routing_key)
        data = published.properties.data
        if target is not None:
            target.deliver_reply(head.exchange, head.key, data, body)
        elif head.mandatory:
            self._return(head, data, body)

    def _manage(self, published: Published, question: bytes) -> bool:
        """Answer a question of the command line; return False without a direct reply-to."""
        name = published.properties.values.get("reply_to", b"")
        target = (
            self._wire.shared.replies.find(name.decode(errors="replace"))
            if isinstance(name, bytes)
            else None
        )
        if target is None:
            return False
        key = management.KEY.encode()
        if management.is_closing(question):
            closed = management.close(
                self._wire.shared.connections, self._wire.access, self._wire.user, question
            )
            return target.deliver_reply("", key, NONE, closed)
        if len(self._answers) >= MOST_ANSWERS:
            return target.deliver_reply("", key, NONE, management.TOO_MANY)
        if management.is_change(question):
            work = management.change(self._wire.security, question)
        else:
            work = management.answer(self._wire.queues, self._wire.security, question)
        said = asyncio.ensure_future(work)
        self._answers.add(said)
        said.add_done_callback(self._answers.discard)
        said.add_done_callback(
            lambda done: done.cancelled() or target.deliver_reply("", key, NONE, done.result())
        )
        return True

    def _return(self, head: PublishHead, properties: bytes, body: bytes) -> None:
        route = hot.route(head.exchange.encode("utf-8", "surrogateescape"), head.key)
        parts = hot.returned(
            self._number, NO_ROUTE, b"NO_ROUTE", route, properties, body, self._wire.frame_max
        )
        self._wire.send(cast("Sequence[Part]", parts))
