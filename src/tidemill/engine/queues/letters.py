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
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from tidemill.clock import Clock
from tidemill.engine.queues.api import (
    DEATHS_HEADER,
    EXCHANGE_HEADER,
    EXPIRES_HEADER,
    KEYS_HEADER,
    MAX_MESSAGE_BYTES,
    Header,
)
from tidemill.engine.queues.live.ack_log import AckLog
from tidemill.engine.queues.live.dispatch import MAX_LENGTH, REJECTED
from tidemill.engine.queues.live.lane import Lane
from tidemill.engine.queues.live.queue import LiveQueue
from tidemill.engine.queues.live.stored import DELIVER_AT_HEADER, ORIGIN_HEADER, Stored
from tidemill.engine.queues.publish import Batches, Outcome
from tidemill.errors import TidemillError
from tidemill.log.errors import BatchTooLargeError
from tidemill.state.queues.format import Kind, StateKey, encode_offset
from tidemill.state.routing.arguments import Overflow

RETRY_S = 1.0
MOST_DEATHS = 64
"""Entries that a letter keeps: one for each queue and reason."""
_REPLACED = (EXCHANGE_HEADER, EXPIRES_HEADER, DELIVER_AT_HEADER, DEATHS_HEADER, ORIGIN_HEADER)

logger = structlog.get_logger("tidemill.queues")

RoutesOf = Callable[[str, str, Stored, Sequence[str]], Sequence[LiveQueue]]


class _Letter:
    """The ticket of a dead letter: its origin is done when it is on disk in all its queues."""

    __slots__ = (
        "_letters",
        "_queue",
        "_remaining",
        "_targets",
        "_too_large",
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
        targets: list[Lane],
    ) -> None:
        self._letters = letters
        self._queue = queue
        self._remaining = len(targets)
        self._targets = targets
        self.failed = False
        self._too_large = False
        self.lane = lane
        self.offset = offset
        self.message = message
        self.reason = reason

    def settle(self, outcome: Outcome, error: Exception | None) -> None:
        """Note that the letter is on disk in one more queue."""
        self.failed = self.failed or error is not None
        self._too_large = self._too_large or isinstance(error, BatchTooLargeError)
        self._remaining -= 1
        if self._remaining:
            return
        if self._too_large:
            self._letters.failed(self._targets)
            self._letters.give_up(self._queue, self.lane, self.offset, self.message)
        elif self.failed:
            self._letters.failed(self._targets)
            self._letters.retry(self._queue, self.lane, self.offset, self.message, self.reason)
        else:
            self._queue.dropped(self.lane, self.offset)
            self._letters.finished(self.lane, self._targets)


class _Target:
    """A lane that gets letters.

    Attributes:
        key: of its record, which says below which offset the origins of all letters are done.
        outstanding: letters whose origins are not known to be done.
    """

    __slots__ = ("key", "outstanding")

    def __init__(self, key: StateKey) -> None:
        self.key = key
        self.outstanding = 0


class _NoTicket:
    """The ticket of a letter without an origin."""

    def settle(self, outcome: Outcome, error: Exception | None) -> None:
        """Do nothing: no origin waits for it."""


class DeadLetters:
    """Sends dead letters.

    Args:
        routes: returns the queues of a message: exchange, key, message, more keys.
    """

    def __init__(self, routes: RoutesOf, batches: Batches, ack_log: AckLog, clock: Clock) -> None:
        self._routes = routes
        self._batches = batches
        self._ack_log = ack_log
        self._clock = clock
        self._targets: dict[Lane, _Target] = {}

    # --- send ------------------------------------------------------------------------------------

    def send(self, queue: LiveQueue, lane: Lane, offset: int, message: Stored, reason: str) -> None:
        """Send a message that the owner ``DROPPED`` holds, and then mark it as done."""
        exchange = queue.policy.dead_letter_exchange
        if exchange is None or queue.is_deleted:
            queue.dropped(lane, offset)
            return
        key = queue.policy.dead_letter_key
        routing_key = (message.key or b"").decode("utf-8", "replace") if key is None else key
        origin = f"{lane.log.topic_id}/{lane.number}/{offset}"
        letter = self._letter(queue, message, reason, exchange, routing_key, origin)
        found = self._routes(exchange, routing_key, letter, _more_keys(letter.headers))
        deaths = _deaths_of(letter.headers)
        targets = [each for each in found if not _is_cycle(deaths, each.name)]
        if not targets:
            queue.dropped(lane, offset)
            return
        lanes = [(each, each.lane_for(0)) for each in targets]
        missing = [each for _, each in lanes if each not in self._targets]
        if missing:
            again = partial(self.send, queue, lane, offset, message, reason)
            self._register(missing, again, partial(self.retry, *again.args))
            return
        ticket = _Letter(self, queue, lane, offset, message, reason, [each for _, each in lanes])
        for target, to in lanes:
            self._targets[to].outstanding += 1
            self._batches.add(target, to, letter, ticket)

    def _register(
        self, lanes: Sequence[Lane], then: Callable[[], None], failed: Callable[[], None]
    ) -> None:
        """Store, before the first letter goes there, where the letters of these lanes begin."""
        remaining = len(lanes)

        def done(error: Exception | None) -> None:
            nonlocal remaining
            remaining -= 1
            if error is not None:
                remaining = -1
                failed()
            elif remaining == 0:
                for lane in lanes:
                    self._targets.setdefault(lane, _Target(key_of(lane)))
                then()

        for lane in lanes:
            self._ack_log.store(key_of(lane), encode_offset(lane.log.log_end_offset), done)

    def finished(self, lane: Lane, targets: Sequence[Lane]) -> None:
        """Note that the origin of letters is done, which is stored next."""

        def stored() -> None:
            for to in targets:
                target = self._targets[to]
                target.outstanding -= 1
                if target.outstanding == 0:
                    self._ack_log.note(target.key, encode_offset(to.log.log_end_offset))

        self._ack_log.after(lane, stored)

    def failed(self, targets: Sequence[Lane]) -> None:
        """Note that letters were not written to all targets, and are sent again."""
        for to in targets:
            self._targets[to].outstanding -= 1

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

    def resend(self, queue: LiveQueue, letter: Stored, having: Sequence[Lane]) -> None:
        """Send a letter that a crash has interrupted to the queues that lack it."""
        exchange = queue.policy.dead_letter_exchange
        if exchange is None:
            return
        key = (letter.key or b"").decode("utf-8", "replace")
        for target in self._routes(exchange, key, letter, _more_keys(letter.headers)):
            if not any(each in having for each in target.lanes):
                self._batches.add(target, target.lane_for(0), letter, _NoTicket())

    def retry(
        self, queue: LiveQueue, lane: Lane, offset: int, message: Stored, reason: str
    ) -> None:
        """Send a message later, because the disk refused it."""
        if not queue.is_deleted and not self._batches.is_stopped:
            loop = asyncio.get_running_loop()
            loop.call_later(RETRY_S, self.send, queue, lane, offset, message, reason)

    def give_up(self, queue: LiveQueue, lane: Lane, offset: int, message: Stored) -> None:
        """Keep a message whose letter no queue can store. The next start delivers it again."""
        logger.error(
            "queue.letter_too_large",
            queue=queue.name,
            partition=str(lane.log.tp),
            offset=offset,
            bytes=size_of(message),
        )

    def refuse(self, queue: LiveQueue, message: Stored) -> None:
        """Send a letter for a new message that a full queue refuses, if its policy says so."""
        policy = queue.policy
        exchange = policy.dead_letter_exchange
        if policy.overflow is not Overflow.REJECT_PUBLISH_DLX or exchange is None:
            return
        key = policy.dead_letter_key
        routing_key = (message.key or b"").decode("utf-8", "replace") if key is None else key
        letter = self._letter(queue, message, MAX_LENGTH, exchange, routing_key, None)
        for target in self._routes(exchange, routing_key, letter, _more_keys(letter.headers)):
            if target is not queue:
                self._batches.add(target, target.lane_for(0), letter, _NoTicket())

    def _letter(
        self,
        queue: LiveQueue,
        message: Stored,
        reason: str,
        exchange: str,
        routing_key: str,
        origin: str | None,
    ) -> Stored:
        now_ms = self._clock.now_ms()
        replaced = _REPLACED if queue.policy.dead_letter_key is None else (*_REPLACED, KEYS_HEADER)
        headers = [each for each in message.headers if each[0] not in replaced]
        if exchange:
            headers.append((EXCHANGE_HEADER, exchange.encode()))
        if origin is not None:
            headers.append((ORIGIN_HEADER, origin.encode()))
        letter = Stored(now_ms, routing_key.encode(), message.value, headers, exchange)
        left = MAX_MESSAGE_BYTES - size_of(letter)
        deaths = _with_death(_deaths_of(message.headers), queue.name, reason, message, now_ms)
        encoded = json.dumps(deaths).encode()
        while len(encoded) > left and len(deaths) > 1:
            del deaths[len(deaths) // 2 :]  # the oldest
            encoded = json.dumps(deaths).encode()
        headers.append((DEATHS_HEADER, encoded))
        return letter


def size_of(message: Stored) -> int:
    """Return about how many bytes a message takes in a log."""
    headers = sum(len(name) + len(content or b"") + 12 for name, content in message.headers)
    return len(message.value) + len(message.key or b"") + headers


def key_of(lane: Lane) -> StateKey:
    """Return the key of the record about the letters of a lane."""
    topic_id = lane.log.topic_id
    return StateKey(Kind.LETTERS, "", UUID(int=0) if topic_id is None else topic_id, lane.number)


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


def _more_keys(headers: Sequence[Header], *, shown: bool = False) -> list[str]:
    """Return the routing keys that a message has beside its first one.

    Args:
        shown: leave out those that consumers must not see.
    """
    for name, content in headers:
        if name == KEYS_HEADER and content is not None:
            try:
                found = json.loads(content)
                keys = found["shown"] if shown else [*found["shown"], *found["hidden"]]
                return [str(key) for key in keys]
            except (ValueError, KeyError, TypeError, RecursionError):
                return []  # a client wrote it
    return []


Death = dict[str, Any]
_LARGEST = 1 << 53  # of a number in a death: JSON's readers agree on these


def _deaths_of(headers: Sequence[Header]) -> list[Death]:
    """Return the deaths in a message's headers, which a client possibly wrote."""
    for name, content in headers:
        if name != DEATHS_HEADER or content is None:
            continue
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            return []
        if isinstance(found, list):
            return [_plain(each) for each in found if isinstance(each, dict)][:MOST_DEATHS]
    return []


def _plain(death: Death) -> Death:
    """Return the fields of a death that can be encoded again, whatever a client nested in it."""
    return {
        name: value
        for name, value in death.items()
        if isinstance(value, str)
        or (isinstance(value, int) and abs(value) < _LARGEST)
        or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    }


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
        "keys": [
            (message.key or b"").decode("utf-8", "replace"),
            *(
                key.encode("utf-8", "replace").decode()
                for key in _more_keys(message.headers, shown=True)
            ),
        ],
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
