"""Publishing: route each message, and append one batch for each queue and turn of the event loop.

A message is settled when it is on disk in all its queues. Knows no declarations and no consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import structlog

from tidemill.clock import Clock
from tidemill.engine.error_log import Repetitions
from tidemill.engine.flusher import Flusher
from tidemill.engine.queues.api import MAX_MESSAGE_BYTES, Message, OnSettled
from tidemill.engine.queues.disk_space import DiskSpace
from tidemill.engine.queues.errors import InternalExchangeError
from tidemill.engine.queues.live.lane import OVERHEAD_BYTES, Lane
from tidemill.engine.queues.live.queue import LiveQueue
from tidemill.engine.queues.live.sizes import NOTE_BYTES
from tidemill.engine.queues.live.stored import Stored, of_message
from tidemill.engine.queues.registry import Registry
from tidemill.engine.records.backpressure import Backpressure
from tidemill.errors import TidemillError
from tidemill.log.errors import DiskFullError
from tidemill.log.format.records import encode_batch
from tidemill.state.lag import MOST_HOLD_MS
from tidemill.state.routing.arguments import Overflow
from tidemill.state.routing.errors import MessageRefusedError

BATCH_BYTES = 1 << 19
"""Bytes of the messages of one batch, if it has more than one."""
BATCH_COUNT = 4000

logger = structlog.get_logger("tidemill.queues")


class Ticket(Protocol):
    """Waits until a message is on disk in one queue."""

    def settle(self, outcome: Outcome, error: Exception | None) -> None:
        """Note that it is, or that it could not be written."""


class Outcome:
    """The messages that one sync has settled, by publisher."""

    def __init__(self) -> None:
        self._found: dict[LivePublisher, tuple[list[int], list[int]]] = {}

    def add(self, publisher: LivePublisher, tag: int, size: int, *, ok: bool) -> None:
        """Add one message."""
        found = self._found.get(publisher)
        if found is None:
            found = self._found[publisher] = ([], [])
        found[0 if ok else 1].append(tag)
        publisher.pending_bytes -= size

    def report(self) -> None:
        """Report to the publishers."""
        for publisher, (accepted, refused) in self._found.items():
            publisher.report(accepted, refused)


class _Single:
    """A message that went to one queue."""

    __slots__ = ("publisher", "size", "tag")

    def __init__(self, publisher: LivePublisher, tag: int, size: int) -> None:
        self.publisher = publisher
        self.tag = tag
        self.size = size

    def settle(self, outcome: Outcome, error: Exception | None) -> None:
        outcome.add(self.publisher, self.tag, self.size, ok=error is None)


class _Shared(_Single):
    """A message that went to several queues."""

    __slots__ = ("is_ok", "remaining")

    def __init__(
        self, publisher: LivePublisher, tag: int, size: int, remaining: int, *, is_ok: bool
    ) -> None:
        super().__init__(publisher, tag, size)
        self.remaining = remaining
        self.is_ok = is_ok

    def settle(self, outcome: Outcome, error: Exception | None) -> None:
        self.is_ok = self.is_ok and error is None
        self.remaining -= 1
        if self.remaining == 0:
            outcome.add(self.publisher, self.tag, self.size, ok=self.is_ok)


class Batches:
    """Collects the messages of a turn, and appends them.

    Args:
        space: of the disk.

    Attributes:
        space: of the disk.
    """

    def __init__(self, flusher: Flusher, clock: Clock, space: DiskSpace) -> None:
        self.space = space
        self._logged = Repetitions(clock)
        self._flusher = flusher
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Lane, tuple[LiveQueue, list[Stored], list[Ticket]]] = {}
        self._refused: Outcome | None = None
        self.is_stopped = False

    def add(self, queue: LiveQueue, lane: Lane, message: Stored, ticket: Ticket) -> None:
        """Append a message in the next turn of the event loop."""
        found = self._waiting.get(lane)
        if found is None:
            if not self._waiting:
                self._loop.call_soon(self.flush)
            found = self._waiting[lane] = (queue, [], [])
        found[1].append(message)
        found[2].append(ticket)
        lane.incoming += 1
        if lane.sizes.counts:
            lane.incoming_bytes += len(message.value)

    def refuse(self, publisher: LivePublisher, tag: int, size: int) -> None:
        """Report in the next turn of the event loop that a message is refused."""
        if self._refused is None:
            self._refused = Outcome()
            self._loop.call_soon(self._report_refused)
        self._refused.add(publisher, tag, size, ok=False)

    def _report_refused(self) -> None:
        refused, self._refused = self._refused, None
        if refused is not None:
            refused.report()

    def flush(self) -> None:
        """Append what was collected."""
        waiting, self._waiting = self._waiting, {}
        now_ms = self._clock.now_ms()
        for lane, (queue, messages, tickets) in waiting.items():
            lane.incoming -= len(messages)
            lane.incoming_bytes = 0
            first = 0
            while first < len(messages):
                end = _end_of_batch(messages, first)
                part = (
                    (messages, tickets)
                    if end - first == len(messages)
                    else (
                        messages[first:end],
                        tickets[first:end],
                    )
                )
                self._append(queue, lane, *part, now_ms)
                first = end
            queue.counters.published += len(messages)
            queue.wake()

    def _append(
        self,
        queue: LiveQueue,
        lane: Lane,
        messages: list[Stored],
        tickets: list[Ticket],
        now_ms: int,
    ) -> None:
        log = lane.log
        try:
            if queue.is_deleted or self.is_stopped:
                raise MessageRefusedError(f"queue {queue.name!r} was deleted", queue.name)
            self.space.check()
            batch = encode_batch(map(Stored.record, messages), timestamp_ms=now_ms)
            info = log.append(batch, now_ms=now_ms, from_client=False)
        except TidemillError as error:
            if isinstance(error, DiskFullError):
                self.space.refused()
            if self._logged.is_new(f"{queue.name}: {type(error)}"):
                text = str(error)
                logger.error("queue.not_appended", queue=queue.name, error=text, hint=error.hint)
            self._loop.call_soon(_settle, tickets, error)
            return
        if lane.sizes.counts:
            for message in messages:
                lane.sizes.published(len(message.value))
            if lane.sizes.unnoted >= NOTE_BYTES:
                queue.ack_log.changed(lane)
        lane.appended(info.first_offset, messages)
        self._flusher.written(log)
        self._flusher.call_when_durable(log, info.last_offset + 1, partial(_settle, tickets))


def _settle(tickets: list[Ticket], error: Exception | None) -> None:
    outcome = Outcome()
    for ticket in tickets:
        ticket.settle(outcome, error)
    outcome.report()


def _end_of_batch(messages: Sequence[Stored], first: int) -> int:
    size = 0
    for at in range(first, min(len(messages), first + BATCH_COUNT)):
        message = messages[at]
        size += len(message.value) + OVERHEAD_BYTES
        for _, content in message.headers:
            size += len(content or b"")
        if size > BATCH_BYTES and at > first:
            return at
    return min(len(messages), first + BATCH_COUNT)


class LivePublisher:
    """Publishes for one channel. See ``api.Publisher``.

    Args:
        registry: finds the queues of a message.
        refuse_full: called with a full queue and a message that it refuses.
        check: called with exchange and key if not everything is allowed.
        backpressure: the policies of topics whose consumers are behind.
    """

    __slots__ = (
        "_backpressure",
        "_batches",
        "_check",
        "_clock",
        "_held_by",
        "_on_settled",
        "_refuse_full",
        "_registry",
        "on_drained",
        "pending_bytes",
    )

    def __init__(
        self,
        registry: Registry,
        batches: Batches,
        clock: Clock,
        on_settled: OnSettled | None,
        refuse_full: Callable[[LiveQueue, Stored], None],
        check: Callable[[str, str], None] | None,
        backpressure: Backpressure,
    ) -> None:
        self._check = check
        self._backpressure = backpressure
        self._held_by: dict[Lane, LiveQueue] = {}
        self._registry = registry
        self._batches = batches
        self._clock = clock
        self._on_settled = on_settled
        self._refuse_full = refuse_full
        self.pending_bytes = 0
        self.on_drained: Callable[[], None] | None = None

    def publish(
        self,
        tag: int,
        exchange: str,
        routing_key: str,
        message: Message,
        more_keys: Sequence[str] = (),
    ) -> bool:
        """Route and append a message; see ``api.Publisher.publish``."""
        if self._check is not None:
            self._check(exchange, routing_key)
        declared = self._registry.table.exchanges.get(exchange)
        if declared is not None and declared.internal:
            raise InternalExchangeError(exchange)
        queues = self._registry.routes(exchange, routing_key, message.routing_headers, more_keys)
        if not queues:
            return False
        size = _size_of(message)
        stored = of_message(message, exchange, self._clock.now_ms())
        self.pending_bytes += size
        if size > MAX_MESSAGE_BYTES:
            self._batches.refuse(self, tag, size)
            return True
        if len(queues) == 1:
            queue = queues[0]
            if queue.is_full:
                self._refuse_full(queue, stored)
                self._batches.refuse(self, tag, size)
                return True
            lane = queue.lane_for(message.priority)
            self._add(queue, lane, stored, _Single(self, tag, size))
            return True
        self._publish_to_all(queues, message, stored, tag, size)
        return True

    def _publish_to_all(
        self, queues: Sequence[LiveQueue], message: Message, stored: Stored, tag: int, size: int
    ) -> None:
        full = [queue for queue in queues if queue.is_full]
        for queue in full:
            self._refuse_full(queue, stored)
        if len(full) == len(queues):
            self._batches.refuse(self, tag, size)
            return
        ticket = _Shared(self, tag, size, len(queues) - len(full), is_ok=not full)
        for queue in queues:
            if queue not in full:
                lane = queue.lane_for(message.priority)
                self._add(queue, lane, stored, ticket)

    def hold_ms(self) -> int:
        """Return how long the client must wait; see ``api.Publisher.hold_ms``."""
        if self.is_disk_full:
            return MOST_HOLD_MS
        held_by = self._held_by
        if not held_by:
            return 0
        hold_ms = self._backpressure.hold_ms(lane.log.tp for lane in held_by)
        if any(queue.holds_back for queue in held_by.values()):
            hold_ms = MOST_HOLD_MS
        if not hold_ms:
            held_by.clear()
        return hold_ms

    @property
    def is_disk_full(self) -> bool:
        """Whether the disk refuses messages."""
        return self._batches.space.is_full

    def _add(self, queue: LiveQueue, lane: Lane, message: Stored, ticket: Ticket) -> None:
        if queue.policy.overflow is Overflow.THROTTLE or self._backpressure.is_holding:
            self._held_by[lane] = queue
        self._batches.add(queue, lane, message, ticket)

    def report(self, accepted: list[int], refused: list[int]) -> None:
        """Report what was settled."""
        if self._on_settled is not None:
            self._on_settled(accepted, refused)
        if self.on_drained is not None:
            self.on_drained()

    def close(self) -> None:
        """Stop reporting. What was published is written."""
        self._on_settled = None
        self.on_drained = None


def _size_of(message: Message) -> int:
    size = len(message.value) + OVERHEAD_BYTES
    for name, content in message.headers:
        size += len(name) + len(content or b"")
    return size + len(message.key or b"")
