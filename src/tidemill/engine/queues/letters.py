"""Dead letters: messages that a queue drops go to its dead-letter exchange, exactly once.

A letter is on disk in all its queues before its origin is marked as done. A crash in between leaves
both. So each letter has a header with its origin, and each queue that gets letters has a record
that says below which offset all origins are known to be done. A start reads the letters behind that
offset, and marks their origins.

Source: RabbitMQ's documentation of dead letter exchanges (``x-death``, cycles).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import structlog

from tidemill.clock import Clock
from tidemill.engine.queues.api import DEATHS_HEADER, EXCHANGE_HEADER, EXPIRES_HEADER, Header
from tidemill.engine.queues.live.ack_log import AckLog
from tidemill.engine.queues.live.lane import Lane
from tidemill.engine.queues.live.queue import REJECTED, LiveQueue
from tidemill.engine.queues.live.stored import DELIVER_AT_HEADER, ORIGIN_HEADER, Stored
from tidemill.engine.queues.publish import Batches, Outcome
from tidemill.errors import TidemillError

RETRY_S = 1.0
MOST_DEATHS = 64
"""Entries that a letter keeps: one for each queue and reason."""
_REPLACED = (EXCHANGE_HEADER, EXPIRES_HEADER, DELIVER_AT_HEADER, DEATHS_HEADER, ORIGIN_HEADER)

logger = structlog.get_logger("tidemill.queues")

RoutesOf = Callable[[str, str, Stored], Sequence[LiveQueue]]


class _Letter:
    """The ticket of a dead letter: its origin is done when it is on disk in all its queues."""

    __slots__ = (
        "_letters",
        "_queue",
        "_remaining",
        "failed",
        "lane",
        "message",
        "offset",
        "reason",
    )

    def __init__(
        self,
        letters: DeadLetters,
        queue: LiveQueue,
        lane: Lane,
        offset: int,
        message: Stored,
        reason: str,
        remaining: int,
    ) -> None:
        self._letters = letters
        self._queue = queue
        self._remaining = remaining
        self.failed = False
        self.lane = lane
        self.offset = offset
        self.message = message
        self.reason = reason

    def settle(self, outcome: Outcome, error: Exception | None) -> None:
        """Note that the letter is on disk in one more queue."""
        self.failed = self.failed or error is not None
        self._remaining -= 1
        if self._remaining:
            return
        if self.failed:
            self._letters.retry(self._queue, self.lane, self.offset, self.message, self.reason)
        else:
            self._queue.dropped(self.lane, self.offset)


class DeadLetters:
    """Sends dead letters.

    Args:
        routes: returns the queues of a message: exchange, key, message.
        batches: appends to queues.
    """

    def __init__(self, routes: RoutesOf, batches: Batches, ack_log: AckLog, clock: Clock) -> None:
        self._routes = routes
        self._batches = batches
        self._ack_log = ack_log
        self._clock = clock

    # --- send ------------------------------------------------------------------------------------

    def send(self, queue: LiveQueue, lane: Lane, offset: int, message: Stored, reason: str) -> None:
        """Send a message that the owner ``DROPPED`` holds, and then mark it as done."""
        exchange = queue.policy.dead_letter_exchange
        if exchange is None or queue.is_deleted:
            queue.dropped(lane, offset)
            return
        key = queue.policy.dead_letter_key
        routing_key = (message.key or b"").decode("utf-8", "replace") if key is None else key
        letter = self._letter(queue, lane, offset, message, reason, exchange, routing_key)
        found = self._routes(exchange, routing_key, letter)
        deaths = _deaths_of(letter.headers)
        targets = [each for each in found if not _is_cycle(deaths, each.name)]
        if not targets:
            queue.dropped(lane, offset)
            return
        ticket = _Letter(self, queue, lane, offset, message, reason, len(targets))
        for target in targets:
            self._batches.add(target, target.lane_for(0, letter.key), letter, ticket)

    def fetch_and_send(
        self, queue: LiveQueue, lane: Lane, first: int, last: int, reason: str
    ) -> None:
        """Send messages that the owner ``DROPPED`` holds and that are read from the log first."""
        task = asyncio.get_running_loop().create_task(
            self._fetch_and_send(queue, lane, first, last, reason)
        )
        task.add_done_callback(_report)

    async def _fetch_and_send(
        self, queue: LiveQueue, lane: Lane, first: int, last: int, reason: str
    ) -> None:
        async for offset, message in lane.fetch(first, last):
            if queue.is_deleted:
                return
            self.send(queue, lane, offset, message, reason)

    def retry(
        self, queue: LiveQueue, lane: Lane, offset: int, message: Stored, reason: str
    ) -> None:
        """Send a message later, because the disk refused it."""
        if not queue.is_deleted and not self._batches.is_stopped:
            loop = asyncio.get_running_loop()
            loop.call_later(RETRY_S, self.send, queue, lane, offset, message, reason)

    def refuse(self, queue: LiveQueue, message: Stored) -> None:
        """Note that a full queue refuses a new message."""

    def _letter(
        self,
        queue: LiveQueue,
        lane: Lane,
        offset: int,
        message: Stored,
        reason: str,
        exchange: str,
        routing_key: str,
    ) -> Stored:
        now_ms = self._clock.now_ms()
        headers = [each for each in message.headers if each[0] not in _REPLACED]
        deaths = _with_death(_deaths_of(message.headers), queue.name, reason, message, now_ms)
        headers.append((DEATHS_HEADER, json.dumps(deaths).encode()))
        if exchange:
            headers.append((EXCHANGE_HEADER, exchange.encode()))
        origin = f"{lane.log.topic_id}/{lane.number}/{offset}"
        headers.append((ORIGIN_HEADER, origin.encode()))
        return Stored(now_ms, routing_key.encode(), message.value, headers, exchange)


def origin_of(headers: Sequence[Header]) -> tuple[UUID, int, int] | None:
    """Return topic id, partition and offset of the record that a letter was made of, or None."""
    for name, content in headers:
        if name == ORIGIN_HEADER and content is not None:
            try:
                topic_id, partition, offset = content.decode().split("/")
                return UUID(topic_id), int(partition), int(offset)
            except ValueError:
                return None
    return None


Death = dict[str, Any]


def _deaths_of(headers: Sequence[Header]) -> list[Death]:
    """Return the deaths in a message's headers, which a client possibly wrote."""
    for name, content in headers:
        if name != DEATHS_HEADER or content is None:
            continue
        try:
            found = json.loads(content)
        except ValueError:
            return []
        if isinstance(found, list):
            return [each for each in found if isinstance(each, dict)][:MOST_DEATHS]
    return []


def _with_death(
    deaths: list[Death], queue: str, reason: str, message: Stored, now_ms: int
) -> list[Death]:
    """Return the deaths with one more, the latest first. The same queue and reason is counted."""
    for at, death in enumerate(deaths):
        if death.get("queue") == queue and death.get("reason") == reason:
            count = death.get("count")
            again = {**death, "count": (count if isinstance(count, int) else 0) + 1}
            return [again, *deaths[:at], *deaths[at + 1 :]]
    death = {
        "queue": queue,
        "reason": reason,
        "count": 1,
        "exchange": message.exchange,
        "keys": [(message.key or b"").decode("utf-8", "replace")],
        "time": now_ms,
    }
    if message.expires is not None:
        death["original-expiration"] = str(max(0, message.expires - message.timestamp))
    return [death, *deaths][:MOST_DEATHS]


def _is_cycle(deaths: Sequence[Death], target: str) -> bool:
    """Return whether a letter already died in the target, and no client has rejected it since."""
    for at, death in enumerate(deaths):
        if death.get("queue") == target:
            return not any(each.get("reason") == REJECTED for each in deaths[: at + 1])
    return False


def _report(task: asyncio.Task[None]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        hint = error.hint if isinstance(error, TidemillError) else ""
        logger.error("queue.letters_failed", error=str(error), hint=hint)
