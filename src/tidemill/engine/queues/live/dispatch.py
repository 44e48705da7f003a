"""Delivers the messages of one queue: who gets which, in which turn.

Consumers with credit get messages in turn, those with a higher priority first; with a single active
consumer only the oldest one does. Messages that expired or exceed the length of the queue are
dropped first, and delayed ones wait. Knows no routing and no protocol.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import structlog

from tidemill.clock import Clock
from tidemill.engine.queues.api import Delivery
from tidemill.engine.queues.live.ack_log import AckLog
from tidemill.engine.queues.live.consumers import LiveConsumer, LiveHolder, Settling
from tidemill.engine.queues.live.lane import Lane
from tidemill.engine.queues.live.stored import Stored
from tidemill.errors import TidemillError
from tidemill.state.routing.arguments import Overflow

logger = structlog.get_logger("tidemill.queues")

DELAYED, DROPPED, FIRST_OWNER = 0, 1, 2
"""Owners in the windows: messages that wait for their time; messages that become dead letters."""

PER_TURN = 1000
"""Messages of one queue that are delivered or dropped in one turn of the event loop."""
MOST_DELAYED = 100_000
"""Delayed messages of one queue that are passed. Behind so many, the queue waits for the first."""
REJECTED, EXPIRED, MAX_LENGTH, DELIVERY_LIMIT = "rejected", "expired", "maxlen", "delivery_limit"
"""The reasons of a dead letter."""


@dataclass(slots=True)
class Counters:
    """Numbers of messages since the start of the broker."""

    published: int = 0
    delivered: int = 0
    acknowledged: int = 0
    redelivered: int = 0
    dead: int = 0


class Dispatched(Settling, Protocol):
    """A queue as its dispatcher sees it."""

    name: str
    consumers: dict[LiveConsumer, None]
    counters: Counters
    clock: Clock
    ack_log: AckLog

    @property
    def ready(self) -> int:
        """The number of messages that wait."""

    @property
    def ready_bytes(self) -> int:
        """Bytes of the values of the messages that wait."""

    def due(self, partition: int, offset: int) -> None:
        """Return a message whose delay is over."""

    def withhold(self, lane: Lane, offset: int, message: Stored, reason: str) -> None:
        """Drop a message that is available."""


class Dispatcher:
    """Delivers the messages of one queue.

    Attributes:
        delayed: messages that wait for their time.
        withheld: messages that are out to the broker itself: delayed ones and future dead letters.
    """

    def __init__(self, queue: Dispatched) -> None:
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._due: list[tuple[int, int, int]] = []
        self._turn = 0
        self._left = 0  # messages that this turn can still deliver, pass or drop
        self.delayed = 0
        self.withheld = 0

    def wake(self) -> None:
        """Schedule a dispatch in the next turn, unless one is scheduled."""
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._dispatch)

    def close(self) -> None:
        """Stop. The queue and this object refer to each other no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_closed = True
        del self._queue

    # --- one turn --------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        self._is_scheduled = False
        if self._is_closed:
            return
        queue = self._queue
        try:
            now_ms = queue.clock.now_ms()
            self._release_due(now_ms)
            left = self._drop_excess(PER_TURN)
            self._left = left
            if left > 0:
                self._deliver(now_ms)
                for lane in queue.lanes:
                    self._is_next(lane, now_ms, to_consumer=False)
            if self._left <= 0:
                self.wake()
            self._set_timer(now_ms)
        except TidemillError as error:
            logger.error("queue.failed", queue=queue.name, error=str(error), hint=error.hint)

    def _release_due(self, now_ms: int) -> None:
        while self._due and self._due[0][0] <= now_ms:
            _, number, offset = heapq.heappop(self._due)
            self._queue.due(number, offset)

    def _drop_excess(self, left: int) -> int:
        """Drop the oldest messages of a queue that is too long. Return what is left to do."""
        queue = self._queue
        policy = queue.policy
        if not policy.is_bounded or policy.overflow is not Overflow.DROP_HEAD:
            return left
        while left > 0 and (
            (policy.max_length is not None and queue.ready > policy.max_length)
            or (policy.max_bytes is not None and queue.ready_bytes > policy.max_bytes)
        ):
            # The lowest priority goes first.
            for lane in reversed(queue.lanes):
                found = lane.head()
                if found is not None:
                    queue.withhold(lane, *found, MAX_LENGTH)
                    break
            else:
                break
            left -= 1
        return left

    def _is_next(self, lane: Lane, now_ms: int, *, to_consumer: bool) -> bool:
        """Return whether a lane has a message to deliver. Drop expired and pass delayed ones.

        A message that expires immediately is delivered if a consumer waits for it, and not a second
        time if it comes back, as in RabbitMQ.
        """
        while self._left > 0 and (found := lane.head()) is not None:
            offset, message = found
            if message.deliver_at > now_ms:
                if self.delayed >= MOST_DELAYED:
                    return False
                lane.take(DELAYED, 1)
                heapq.heappush(self._due, (message.deliver_at, lane.number, offset))
                self.delayed += 1
                self.withheld += 1
                self._left -= 1
                continue
            expires = self._expiry(message)
            is_immediate = (
                to_consumer
                and expires is not None
                and expires <= message.timestamp
                and not lane.window.delivery_count(offset)
            )
            if expires is not None and expires <= now_ms and not is_immediate:
                self._queue.withhold(lane, offset, message, EXPIRED)
                self._left -= 1
                continue
            return True
        return False

    def _expiry(self, message: Stored) -> int | None:
        ttl = self._queue.policy.message_ttl_ms
        if ttl is None:
            return message.expires
        limit = max(message.timestamp, message.deliver_at) + ttl
        return limit if message.expires is None else min(limit, message.expires)

    # --- deliver ---------------------------------------------------------------------------------

    def _deliver(self, now_ms: int) -> None:
        """Give messages to consumers."""
        lanes = self._queue.lanes
        if all(lane.head() is None for lane in lanes):
            return  # without a look at each of the consumers, which can be many
        ready = self._with_credit()
        batches: dict[LiveConsumer, list[Delivery]] = {}
        touched: dict[Lane, None] = {}
        at = 0
        while ready and self._left > 0:
            lane = lanes[at]
            if not self._is_next(lane, now_ms, to_consumer=True):
                at += 1
                if at == len(lanes):
                    break
                continue
            consumer = ready[0]
            most = 1 if len(ready) > 1 else min(consumer.credit, self._left)
            batch = batches.setdefault(consumer, [])
            taken = self._take(lane, consumer, most, batch, no_ack=consumer.spec.no_ack)
            if not taken:
                continue
            self._left -= taken
            consumer.credit -= taken
            ready.pop(0)
            if ready and consumer.recipient.shares_credit:
                # What it takes leaves less credit for the others.
                self._hand_over({consumer: batches.pop(consumer)}, {lane: None})
                for each in (consumer, *ready):
                    each.credit = each.recipient.credit()
                ready = [each for each in ready if each.credit > 0]
            else:
                touched[lane] = None
            if consumer.credit > 0:
                ready.append(consumer)
            elif not ready:
                ready = self._with_credit(after=batches)
        if touched:
            self._hand_over(batches, touched)

    def _with_credit(
        self, after: dict[LiveConsumer, list[Delivery]] | None = None
    ) -> list[LiveConsumer]:
        """Return the consumers with the highest priority that have credit, the next one first.

        Args:
            after: consumers of the higher priorities that got messages in this turn.
        """
        most = 1 if self._queue.policy.single_active else None
        consumers = list(islice(self._queue.consumers, most))
        if after is None:
            for consumer in consumers:
                if consumer.may_read is None or consumer.may_read():
                    consumer.credit = consumer.recipient.credit()
                else:
                    consumer.credit = 0
                    self._loop.call_soon(consumer.revoke)
        found = [each for each in consumers if each.credit > 0]
        if len(found) > 1:
            highest = max(each.priority for each in found)
            found = [each for each in found if each.priority == highest]
            self._turn = (self._turn + 1) % len(found)
            found = found[self._turn :] + found[: self._turn]
        return found

    def _take(
        self, lane: Lane, holder: LiveHolder, most: int, batch: list[Delivery], *, no_ack: bool
    ) -> int:
        queue = self._queue
        owner = holder.number
        taken = lane.take(owner, most)
        name, number, doubtful_end = queue.name, lane.number, lane.doubtful_end
        for offset, count, message in taken:
            batch.append(
                Delivery(
                    name,
                    number,
                    offset,
                    count,
                    count > 0 or offset < doubtful_end,
                    message.value,
                    message.key,
                    message.headers,
                    message.timestamp,
                    message.exchange,
                    holder,
                )
            )
        if not no_ack:
            holder.unacknowledged += len(taken)
        elif taken:
            queue.acknowledge(owner, number, taken[0][0], taken[-1][0])
        queue.counters.delivered += len(taken)
        return len(taken)

    def _hand_over(
        self, batches: dict[LiveConsumer, list[Delivery]], touched: dict[Lane, None]
    ) -> None:
        self._queue.ack_log.delivered(touched)
        for consumer, batch in batches.items():
            if batch:
                consumer.recipient.deliver(batch)

    def take_one(self, holder: LiveHolder, *, no_ack: bool) -> Delivery | None:
        """Take the first message for a get, or None. Consumers that have credit come first."""
        queue = self._queue
        if queue.consumers:
            self._dispatch()
        now_ms = queue.clock.now_ms()
        self._release_due(now_ms)
        self._left = PER_TURN
        batch: list[Delivery] = []
        for lane in queue.lanes:
            if self._is_next(lane, now_ms, to_consumer=False) and self._take(
                lane, holder, 1, batch, no_ack=no_ack
            ):
                queue.ack_log.delivered([lane])
                return batch[0]
        return None

    # --- time ------------------------------------------------------------------------------------

    def _set_timer(self, now_ms: int) -> None:
        """Wake the queue when the next message expires or its delay ends."""
        times = [self._due[0][0]] if self._due else []
        for lane in self._queue.lanes:
            found = lane.head()
            if found is not None:
                expires = self._expiry(found[1])
                if expires is not None:
                    times.append(expires)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if times:
            delay_s = max(1, min(times) - now_ms) / 1000
            self._timer = self._loop.call_later(min(delay_s, 3600), self.wake)
