"""The consumers of a channel: prefetch, deliveries, and what settles them.

It translates between delivery tags and the engine's deliveries, and knows no queue's state.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from operator import itemgetter
from typing import Any, Literal, cast

from tidemill.engine.queues.api import Consumer, Delivery, Holder
from tidemill.parts import Part
from tidemill.protocols.amqp.codec import hot
from tidemill.protocols.amqp.codec.tables import short_string
from tidemill.protocols.amqp.error_codes import precondition
from tidemill.protocols.amqp.wire import Wire

MOST_OUT = 65_535
"""Deliveries without an acknowledgement that a consumer without a prefetch limit can have."""
MOST_SHOWN = 100
"""Consumers of a channel that a listing shows."""
MOST_AT_ONCE = 1000
"""Deliveries in one turn."""

Settlement = Literal["acknowledge", "release", "reject"]


class ChannelConsumer:
    """One consumer. Implements ``engine.queues.api.Recipient``."""

    __slots__ = ("_encoded_tag", "_parent", "consumer", "limit", "no_ack", "out", "queue", "tag")

    def __init__(
        self, parent: Consuming, tag: str, queue: str, *, no_ack: bool, limit: int
    ) -> None:
        self._parent = parent
        self.tag = tag
        self.queue = queue
        self._encoded_tag = short_string(tag)
        self.no_ack = no_ack
        self.limit = limit
        """Prefetch count; 0 for no limit."""
        self.out = 0
        """Deliveries that are not settled."""
        self.consumer: Consumer | None = None

    @property
    def shares_credit(self) -> bool:
        """Whether the channel has a limit for all its consumers."""
        return self._parent.limit > 0

    def credit(self) -> int:
        """Return how many more messages the client takes now."""
        return self._parent.credit(self)

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send messages."""
        self._parent.send(self, self._encoded_tag, deliveries)

    def end(self) -> None:
        """End the engine's consumer. The two refer to each other no more."""
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            consumer.cancel()

    def cancelled(self, why: str) -> None:
        """Notify the client that the broker ended the consumer."""
        self._parent.consumer_cancelled(self)

    def deliver_reply(self, exchange: str, key: bytes, properties: bytes, body: bytes) -> bool:
        """Send a direct reply, unless the client does not read."""
        return self._parent.send_reply(self._encoded_tag, exchange, key, properties, body)


Entry = tuple[ChannelConsumer | None, Delivery]
"""A delivery that is not settled, and its consumer; None for basic.get."""


class Consuming:
    """The consumers and unsettled deliveries of a channel.

    Attributes:
        limit: prefetch count of the whole channel; 0 for no limit.
        next_limit: prefetch count of the consumers that will be started.
    """

    def __init__(self, number: int, wire: Wire) -> None:
        self._number = number
        self._wire = wire
        self.limit = 0
        self.next_limit = 0
        self._out = 0
        """Deliveries to consumers that are not settled; those of basic.get don't count."""
        self.consumers: dict[str, ChannelConsumer] = {}
        self.reply_name: str | None = None
        self._reply_tag: str | None = None
        self._cancelled: list[str] | None = None
        """The consumers to notify later that the broker ended them; None: notify immediately."""
        self._last_tag = 0
        self._unsettled: dict[int, Entry] = {}
        self._marks: deque[tuple[float, int]] = deque()
        """Times in seconds, and the last delivery tag that was sent before."""
        self._acknowledged: list[Entry] = []
        self._route_of: tuple[str, bytes | None] = ("", None)
        self._route = hot.route(b"", b"")

    def describe(self) -> dict[str, Any]:
        """Return the facts that a listing shows, with RabbitMQ's names."""
        shown = itertools.islice(self.consumers.values(), MOST_SHOWN)
        return {
            "prefetch_count": self.next_limit,
            "global_prefetch_count": self.limit,
            "consumer_count": len(self.consumers),
            "messages_unacknowledged": len(self._unsettled),
            "consumers": [(each.tag, each.queue, each.no_ack, each.limit) for each in shown],
        }

    # --- sending ---------------------------------------------------------------------------------

    def credit(self, consumer: ChannelConsumer) -> int:
        """Return how many more messages a consumer takes now."""
        if self._wire.is_congested:
            return 0
        if consumer.no_ack:
            return MOST_AT_ONCE
        credit = min((consumer.limit or MOST_OUT) - consumer.out, MOST_AT_ONCE)
        if self.limit:
            credit = min(credit, self.limit - self._out)
        return max(credit, 0)

    def send(self, consumer: ChannelConsumer, tag: bytes, deliveries: list[Delivery]) -> None:
        """Send messages to a consumer."""
        frame_max, number = self._wire.frame_max, self._number
        properties_of = self._wire.shared.writer.write
        parts: list[bytes | memoryview] = []
        last, unsettled = self._last_tag, self._unsettled
        keep = self._wire.shared.kept.add
        for delivery in deliveries:
            last += 1
            parts += hot.deliver(
                number,
                tag,
                last,
                delivery.redelivered,
                self.route(delivery.exchange, delivery.key),
                properties_of(delivery),
                delivery.value,
                frame_max,
            )
            if not consumer.no_ack:
                unsettled[last] = (consumer, delivery)
                keep(delivery)
        self._last_tag = last
        tally = self._wire.shared.tally
        if tally is not None:
            again = sum(each.redelivered for each in deliveries)
            tally.delivered(len(deliveries), again, no_ack=consumer.no_ack)
        if not consumer.no_ack:
            consumer.out += len(deliveries)
            self._out += len(deliveries)
        if len(parts) == len(deliveries):
            parts = [b"".join(parts)]
        self._wire.send(cast("Sequence[Part]", parts))

    def send_got(self, delivery: Delivery, remaining: int, *, no_ack: bool) -> None:
        """Answer basic.get with a message."""
        self._last_tag += 1
        parts = hot.get_ok(
            self._number,
            self._last_tag,
            delivery.redelivered,
            self.route(delivery.exchange, delivery.key),
            remaining,
            self._wire.shared.writer.write(delivery),
            delivery.value,
            self._wire.frame_max,
        )
        if self._wire.shared.tally is not None:
            self._wire.shared.tally.got(redelivered=delivery.redelivered, no_ack=no_ack)
        if not no_ack:
            self._unsettled[self._last_tag] = (None, delivery)
            self._wire.shared.kept.add(delivery)
        self._wire.send(cast("Sequence[Part]", parts))

    def send_reply(
        self, tag: bytes, exchange: str, key: bytes, properties: bytes, body: bytes
    ) -> bool:
        """Send a direct reply; return False if the client does not read."""
        if self._wire.is_congested:
            return False
        self._last_tag += 1
        route = self.route(exchange, key)
        parts = hot.deliver(
            self._number, tag, self._last_tag, False, route, properties, body, self._wire.frame_max
        )
        self._wire.send(cast("Sequence[Part]", parts))
        return True

    def route(self, exchange: str, key: bytes | None) -> bytes:
        """Return exchange and key as encoded in deliveries."""
        if self._route_of != (exchange, key):
            self._route_of = (exchange, key)
            self._route = hot.route(exchange.encode("utf-8", "surrogateescape"), key or b"")
        return self._route

    # --- settling --------------------------------------------------------------------------------

    def acknowledge(self, tag: int, multiple: bool) -> None:
        """Acknowledge one message, or all up to it. ``flush`` passes it on."""
        if multiple:
            self._acknowledged += self.take(tag, multiple)
            return
        entry = self._unsettled.pop(tag, None)
        if entry is None:
            raise precondition(f"unknown delivery tag {tag}")
        self._acknowledged.append(entry)

    def take(self, tag: int, multiple: bool) -> list[Entry]:
        """Remove and return one unsettled delivery, or all up to it."""
        unsettled = self._unsettled
        if multiple and tag == 0:
            taken = list(unsettled.values())
            unsettled.clear()
            return taken
        if tag not in unsettled:
            raise precondition(f"unknown delivery tag {tag}")
        if not multiple:
            return [unsettled.pop(tag)]
        return [unsettled.pop(known) for known in self.tags_up_to(tag)]

    def tags_up_to(self, tag: int) -> list[int]:
        """Return the unsettled tags up to this one; 0 means all. They are in ascending order."""
        return list(takewhile(lambda known: known <= tag or tag == 0, self._unsettled))

    def restore(self, entries: Iterable[tuple[int, Entry]]) -> None:
        """Return deliveries that a transaction had taken: it was rolled back."""
        self._unsettled = dict(sorted([*self._unsettled.items(), *entries], key=itemgetter(0)))

    def is_overdue(self, now: float, limit: float) -> bool:
        """Return whether the client keeps a message for too long.

        Called from time to time, which is how precisely the limit is kept: no delivery has a time
        of its own.

        Args:
            now: the time in seconds.
            limit: how long a message can be out, in seconds.
        """
        self._marks.append((now, self._last_tag))
        sent_before = 0
        while self._marks[0][0] <= now - limit:
            sent_before = self._marks.popleft()[1]
        return next(iter(self._unsettled), sent_before + 1) <= sent_before

    def flush(self) -> None:
        """Pass on what was acknowledged since the last call."""
        if self._acknowledged:
            taken, self._acknowledged = self._acknowledged, []
            self.settle("acknowledge", taken)

    def settle(self, how: Settlement, taken: Sequence[Entry]) -> None:
        """Settle deliveries that were taken, and let their consumers continue."""
        by_holder: dict[Holder, list[Delivery]] = {}
        consumers: dict[ChannelConsumer, None] = {}
        forget = self._wire.shared.kept.remove
        for consumer, delivery in taken:
            forget(delivery)
            if consumer is not None:
                consumer.out -= 1
                self._out -= 1
                consumers[consumer] = None
            held = by_holder.get(delivery.holder)
            if held is None:
                by_holder[delivery.holder] = [delivery]
            else:
                held.append(delivery)
        tally = self._wire.shared.tally
        if tally is not None and how == "acknowledge":
            tally.acknowledged += len(taken)
        for holder, deliveries in by_holder.items():
            getattr(holder, how)(deliveries)
        self.wake(self.consumers.values() if self.limit else consumers)

    async def stored(self) -> None:
        """Return when everything that was settled is on disk."""
        await self._wire.queues.stored()

    def settle_by_tag(self, how: Settlement, tag: int, multiple: bool) -> None:
        """Settle one delivery, or all up to it."""
        self.flush()
        self.settle(how, self.take(tag, multiple))

    def recover(self) -> None:
        """Return everything that is not settled to its queues."""
        self.flush()
        taken = list(self._unsettled.values())
        self._unsettled.clear()
        self.settle("release", taken)

    def wake(self, consumers: Iterable[ChannelConsumer] | None = None) -> None:
        """Let consumers look for messages."""
        for consumer in list(self.consumers.values() if consumers is None else consumers):
            if consumer.consumer is not None:
                consumer.consumer.wake()

    # --- consumers -------------------------------------------------------------------------------

    def add(self, consumer: ChannelConsumer) -> None:
        """Add a consumer, before it is started."""
        self.consumers[consumer.tag] = consumer

    def remove(self, tag: str) -> ChannelConsumer | None:
        """Remove a consumer and return it."""
        if tag == self._reply_tag and self.reply_name is not None:
            self._wire.shared.replies.close(self.reply_name)
            self.reply_name = self._reply_tag = None
        return self.consumers.pop(tag, None)

    def add_reply_consumer(self, consumer: ChannelConsumer) -> None:
        """Add the consumer of direct replies."""
        self.add(consumer)
        self._reply_tag = consumer.tag
        self.reply_name = self._wire.shared.replies.open(consumer)

    def consumer_cancelled(self, consumer: ChannelConsumer) -> None:
        """Forget a consumer that the broker ended, and notify the client."""
        consumer.consumer = None
        if self.consumers.pop(consumer.tag, None) is None or not self._wire.cancel_notify:
            return
        if self._cancelled is None:
            self._notify_cancelled(consumer.tag)
        else:
            self._cancelled.append(consumer.tag)

    def _notify_cancelled(self, tag: str) -> None:
        self._wire.method(self._number, "basic.cancel", consumer_tag=tag, nowait=True)

    @contextmanager
    def cancelled_later(self) -> Iterator[None]:
        """Notify the client only at the end of consumers that the broker ends in between."""
        self._cancelled = []
        try:
            yield
        finally:
            tags, self._cancelled = self._cancelled, None
            for tag in tags:
                self._notify_cancelled(tag)

    def close(self) -> None:
        """End the consumers, and return what is not settled."""
        self.flush()
        consumers = list(self.consumers.values())
        for consumer in consumers:
            self.remove(consumer.tag)
            consumer.end()
        self.recover()
