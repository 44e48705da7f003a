"""A live queue: its lanes, its consumers, and the settlement of what is out.

One event loop drives it: ``wake`` schedules one ``dispatch`` for all events of a turn. Knows no
routing and no declarations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidemill.clock import Clock
from tidemill.engine.queues.api import (
    ConsumerDescription,
    ConsumerSpec,
    Delivery,
    Got,
    Recipient,
)
from tidemill.engine.queues.live.ack_log import AckLog
from tidemill.engine.queues.live.consumers import LiveConsumer, LiveHolder, MayRead
from tidemill.engine.queues.live.dispatch import (
    DELAYED,
    DELIVERY_LIMIT,
    DROPPED,
    REJECTED,
    Counters,
    Dispatcher,
)
from tidemill.engine.queues.live.lane import Lane
from tidemill.engine.queues.live.stored import Stored, expires_of
from tidemill.engine.queues.live.streams import StreamConsumer
from tidemill.state.routing.arguments import Overflow, Policy
from tidemill.state.routing.errors import ConsumerAccessError


class Letters(Protocol):
    """Sends dead letters."""

    def send(self, queue: LiveQueue, lane: Lane, offset: int, message: Stored, reason: str) -> None:
        """Send a message that the owner ``DROPPED`` holds, and then mark it as done."""

    def fetch_and_send(
        self, queue: LiveQueue, lane: Lane, first: int, last: int, reason: str
    ) -> None:
        """The same for messages that are not in memory."""


class LiveQueue:
    """A queue that consumers and publishers use.

    Args:
        lanes: its partitions, the highest priority first.
        new_owner: returns a number that no owner of a window has.
        on_unused: called when the last consumer went.

    Attributes:
        name: the queue.
        policy: the meaning of its arguments.
        lanes: its partitions, the highest priority first.
        consumers: in the order of their arrival.
        counters: what happened since the start.
        is_deleted: whether nothing must happen any more.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        lanes: list[Lane],
        *,
        clock: Clock,
        ack_log: AckLog,
        letters: Letters,
        new_owner: Callable[[], int],
        on_unused: Callable[[LiveQueue], None],
    ) -> None:
        self.name = name
        self.policy = policy
        self.lanes = lanes
        self.consumers: dict[LiveConsumer, None] = {}
        self.streams: list[StreamConsumer] = []
        self.counters = Counters()
        self.is_deleted = False
        self.last_used_ms = clock.monotonic_ms()
        self.clock = clock
        self.ack_log = ack_log
        self.letters = letters
        self._new_owner = new_owner
        self._on_unused = on_unused
        self._by_number = {lane.number: lane for lane in lanes}
        for lane in lanes:
            lane.on_loaded = self.wake
        self._next_lane = 0
        self._dispatcher = Dispatcher(self)

    # --- state -----------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """The number of messages that wait."""
        return sum(lane.ready for lane in self.lanes) + self._dispatcher.delayed

    @property
    def on_disk(self) -> int:
        """The number of messages that wait and can be delivered, and of those with a delay."""
        return sum(lane.on_disk for lane in self.lanes) + self._dispatcher.delayed

    @property
    def unacknowledged(self) -> int:
        """The number of messages that are out to consumers."""
        return sum(lane.window.acquired for lane in self.lanes) - self._dispatcher.withheld

    @property
    def is_full(self) -> bool:
        """Whether a publish is to be refused."""
        return self.policy.refuses and self._is_at_bound

    @property
    def holds_back(self) -> bool:
        """Whether publishers have to wait."""
        return self.policy.overflow is Overflow.THROTTLE and self._is_at_bound

    @property
    def _is_at_bound(self) -> bool:
        policy = self.policy
        if policy.max_length is not None and self.ready >= policy.max_length:
            return True
        return policy.max_bytes is not None and self.ready_bytes >= policy.max_bytes

    @property
    def ready_bytes(self) -> int:
        """Bytes of the values of the messages that wait."""
        return sum(lane.sizes.ready + lane.incoming_bytes for lane in self.lanes)

    def set_policy(self, policy: Policy) -> None:
        """Use the arguments of a declaration: it was used as a topic before."""
        self.policy = policy
        for lane in self.lanes if policy.max_bytes is not None else ():
            lane.count_bytes()

    def lane_for(self, priority: int) -> Lane:
        """Return the lane that a new message is appended to."""
        lanes = self.lanes
        if len(lanes) == 1:
            return lanes[0]
        if self.policy.max_priority:
            levels = len(lanes)  # a topic that was there before can have fewer than priorities
            level = min(max(priority, 0), self.policy.max_priority)
            return lanes[levels - 1 - level * levels // (self.policy.max_priority + 1)]
        self._next_lane = (self._next_lane + 1) % len(lanes)
        return lanes[self._next_lane]

    # --- events ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look for messages to deliver, to drop or to expire, in the next turn."""
        if self.policy.is_stream:
            for consumer in self.streams:
                consumer.wake()
            return
        self._dispatcher.wake()

    def close(self, why: str) -> None:
        """End, once: nothing is delivered any more, and the consumers learn why."""
        if self.is_deleted:
            return
        self.is_deleted = True
        self._dispatcher.close()
        for lane in self.lanes:
            lane.on_loaded = None
        for stream in self.streams:
            stream.close()
        for consumer in self.all_consumers:
            consumer.is_cancelled = True
            consumer.recipient.cancelled(why)
        self.consumers.clear()
        self.streams.clear()

    # --- consumers -------------------------------------------------------------------------------

    def add_consumer(
        self,
        spec: ConsumerSpec,
        recipient: Recipient,
        priority: int,
        may_read: MayRead | None,
    ) -> LiveConsumer:
        """Add a consumer."""
        # An exclusive consumer is the only one, so the first says it.
        if self.consumers and (spec.exclusive or next(iter(self.consumers)).spec.exclusive):
            raise ConsumerAccessError(f"queue {self.name!r} in exclusive use", self.name)
        consumer = LiveConsumer(
            self, self._new_owner(), spec, recipient, priority, self.remove_consumer, may_read
        )
        self.consumers[consumer] = None
        self.wake()
        return consumer

    def add_stream_consumer(
        self,
        spec: ConsumerSpec,
        recipient: Recipient,
        start: object,
        may_read: MayRead | None,
    ) -> StreamConsumer:
        """Add a consumer of a stream, which reads from ``start`` on."""
        now_ms = self.clock.now_ms()
        consumer = StreamConsumer(
            self.name,
            self.lanes[0],
            self.counters,
            spec,
            recipient,
            start,
            now_ms,
            self.streams.remove,
            may_read,
        )
        self.streams.append(consumer)
        return consumer

    @property
    def all_consumers(self) -> list[LiveConsumer | StreamConsumer]:
        """The consumers, in the order of their arrival."""
        return [*self.consumers, *self.streams]

    def remove_consumer(self, consumer: LiveConsumer) -> None:
        """Remove a consumer that was cancelled. What it holds stays out."""
        del self.consumers[consumer]
        self.last_used_ms = self.clock.monotonic_ms()
        self.wake()
        if not self.consumers:
            self._on_unused(self)

    def get(self, *, no_ack: bool) -> Got | None:
        """Return the first message, or None. It can be in memory or in the page cache only."""
        if self.is_deleted:
            return None
        self.last_used_ms = self.clock.monotonic_ms()
        found = self._dispatcher.take_one(LiveHolder(self, self._new_owner()), no_ack=no_ack)
        return None if found is None else Got(found, self.ready)

    @property
    def is_reading(self) -> bool:
        """Whether messages are being read from a cold disk."""
        return any(lane.is_reading for lane in self.lanes)

    # --- settle ----------------------------------------------------------------------------------

    def acknowledge(self, owner: int, partition: int, first: int, last: int) -> None:
        """Mark messages as done."""
        lane = self._by_number[partition]
        lane.window.acknowledge(owner, first, last)
        self.counters.acknowledged += last - first + 1
        lane.sizes.done(first, last)
        self.ack_log.changed(lane)

    def release(self, owner: int, partition: int, first: int, last: int) -> None:
        """Return messages to their places, or dead-letter those that reached the limit."""
        lane = self._by_number[partition]
        window = lane.window
        limit = self.policy.delivery_limit
        if limit is not None and any(
            window.delivery_count(offset) >= limit for offset in range(first, last + 1)
        ):
            if first < last:
                for offset in range(first, last + 1):
                    self.release(owner, partition, offset, offset)
            else:
                self._drop(owner, lane, first, last, DELIVERY_LIMIT)
            return
        window.release(owner, first, last)
        lane.sizes.returned(first, last)
        self.counters.redelivered += last - first + 1
        self.ack_log.changed(lane)

    def reject(self, owner: int, partition: int, first: int, last: int) -> None:
        """Dead-letter messages, or drop them."""
        self._drop(owner, self._by_number[partition], first, last, REJECTED)

    def reject_delivery(self, owner: int, delivery: Delivery) -> None:
        """Dead-letter a message whose contents are at hand."""
        lane = self._by_number[delivery.partition]
        offset = delivery.offset
        lane.window.hand_over(owner, offset, offset, DROPPED)
        self._dispatcher.withheld += 1
        message = Stored(
            delivery.timestamp_ms,
            delivery.key,
            delivery.value,
            delivery.headers,
            delivery.exchange,
            expires_of(delivery.headers),
        )
        self.letters.send(self, lane, offset, message, REJECTED)

    def _drop(self, owner: int, lane: Lane, first: int, last: int, reason: str) -> None:
        if self.policy.dead_letter_exchange is None:
            lane.window.acknowledge(owner, first, last)
            lane.sizes.done(first, last)
            self.ack_log.changed(lane)
            return
        lane.window.hand_over(owner, first, last, DROPPED)
        self._dispatcher.withheld += last - first + 1
        self.letters.fetch_and_send(self, lane, first, last, reason)

    def dropped(self, lane: Lane, offset: int) -> None:
        """Note that a message that ``DROPPED`` holds is done: its dead letter is on disk."""
        if self.is_deleted:
            return
        lane.window.acknowledge(DROPPED, offset, offset)
        lane.sizes.done(offset, offset)
        self._dispatcher.withheld -= 1
        self.counters.dead += 1
        self.ack_log.changed(lane)

    def due(self, partition: int, offset: int) -> None:
        """Return a message whose delay is over."""
        lane = self._by_number[partition]
        lane.window.release(DELAYED, offset, offset, counts=False)
        lane.sizes.returned(offset, offset)
        self._dispatcher.delayed -= 1
        self._dispatcher.withheld -= 1

    def withhold(self, lane: Lane, offset: int, message: Stored, reason: str) -> None:
        """Drop a message that is available, with a dead letter if the queue wants one."""
        window = lane.window
        if self.policy.dead_letter_exchange is None:
            lane.forget(offset)
            window.skip(offset, offset)
            lane.sizes.dropped(len(message.value))
            self.ack_log.changed(lane)
            return
        lane.take(DROPPED, 1)
        self._dispatcher.withheld += 1
        self.letters.send(self, lane, offset, message, reason)

    def purge(self) -> int:
        """Drop all messages that are ready and on disk; return how many these were."""
        dropped = 0
        for lane in self.lanes:
            dropped += lane.drop_all()
            self.ack_log.changed(lane)
        return dropped

    # --- listings --------------------------------------------------------------------------------

    def describe_consumers(self) -> tuple[ConsumerDescription, ...]:
        """Return the consumers for a listing."""
        single = self.policy.single_active
        return tuple(
            ConsumerDescription(
                each.spec.tag,
                each.spec.owner.name,
                each.unacknowledged,
                each.priority,
                active=not single or index == 0,
            )
            for index, each in enumerate(self.all_consumers)
        )
