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
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
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
from tidemill.engine.queues.live.stored import (
    DELIVER_AT_HEADER,
    ORIGIN_HEADER,
    Stored,
    content_of,
)
from tidemill.engine.queues.publish import Batches, Outcome
from tidemill.engine.queues.registry import Registry
from tidemill.errors import TidemillError
from tidemill.log.errors import BatchTooLargeError
from tidemill.state.queues.format import Kind, StateKey, encode_offset
from tidemill.state.routing.arguments import Overflow

RETRY_S = 1.0
MOST_DEATHS = 64
"""Entries that a letter keeps: one for each queue and reason."""
_REPLACED = (EXCHANGE_HEADER, EXPIRES_HEADER, DELIVER_AT_HEADER, DEATHS_HEADER, ORIGIN_HEADER)

logger = structlog.get_logger("tidemill.queues")


class _Origin(NamedTuple):
    """A message that the owner ``DROPPED`` holds until its letter is on disk."""

    queue: LiveQueue
    lane: Lane
    offset: int
    message: Stored
    reason: str


class _Letter:
    """The ticket of a dead letter: its origin is done when it is on disk in all its queues."""

    __slots__ = ("_error", "_letters", "_origin", "_remaining", "_targets")

    def __init__(self, letters: DeadLetters, origin: _Origin, targets: list[Lane]) -> None:
        self._letters = letters
        self._origin = origin
        self._remaining = len(targets)
        self._targets = targets
        self._error: Exception | None = None

    def settle(self, outcome: Outcome, error: Exception | None) -> None:
        """Note that the letter is on disk in one more queue."""
        if not isinstance(self._error, BatchTooLargeError):
            self._error = error or self._error
        self._remaining -= 1
        if not self._remaining:
            self._letters.settled(self._origin, self._targets, self._error)


class _NoTicket:
    """The ticket of a letter without an origin."""

    def settle(self, outcome: Outcome, error: Exception | None) -> None:
        """Do nothing: no origin waits for it."""


class DeadLetters:
    """Sends dead letters.

    Args:
        registry: finds the queues of a letter.
    """

    def __init__(self, registry: Registry, batches: Batches, ack_log: AckLog, clock: Clock) -> None:
        self._registry = registry
        self._batches = batches
        self._ack_log = ack_log
        self._clock = clock
        self._outstanding: dict[Lane, int] = {}
        """Letters in each lane that gets some, whose origins are not known to be done."""

    # --- send ------------------------------------------------------------------------------------

    def send(self, queue: LiveQueue, lane: Lane, offset: int, message: Stored, reason: str) -> None:
        """Send a message that the owner ``DROPPED`` holds, and then mark it as done."""
        if queue.is_deleted:
            return
        letter = self._letter(queue, message, reason, f"{lane.log.topic_id}/{lane.number}/{offset}")
        deaths = _deaths_of(letter.headers)
        lanes = [
            (each, each.lane_for(0))
            for each in self._queues_of(queue, letter)
            if not _is_cycle(deaths, each.name)
        ]
        if not lanes:
            queue.dropped(lane, offset)
            return
        origin = _Origin(queue, lane, offset, message, reason)
        missing = [each for _, each in lanes if each not in self._outstanding]
        if missing:
            self._register(missing, origin)
            return
        ticket = _Letter(self, origin, [each for _, each in lanes])
        for target, to in lanes:
            self._outstanding[to] += 1
            self._batches.add(target, to, letter, ticket)

    def _register(self, lanes: Sequence[Lane], origin: _Origin) -> None:
        """Store, before the first letter goes there, where the letters of these lanes begin."""

        def done(error: Exception | None) -> None:
            if error is not None:
                self._retry(origin)
                return
            for lane in lanes:
                self._outstanding.setdefault(lane, 0)
            self.send(*origin)

        begins = {key_of(lane): encode_offset(lane.log.log_end_offset) for lane in lanes}
        self._ack_log.store(begins, done)

    def settled(self, origin: _Origin, targets: Sequence[Lane], error: Exception | None) -> None:
        """Note that a letter is on disk in all targets, or that it is not, with the worst error.

        A message whose letter no queue can store is kept. The next start delivers it again.
        """
        if error is None:
            origin.queue.dropped(origin.lane, origin.offset)
            self._ack_log.after(origin.lane, partial(self._origin_stored, targets))
            return
        for to in targets:
            self._outstanding[to] -= 1
        if isinstance(error, BatchTooLargeError):
            logger.error(
                "queue.letter_too_large",
                queue=origin.queue.name,
                partition=str(origin.lane.log.tp),
                offset=origin.offset,
                bytes=size_of(origin.message),
            )
        else:
            self._retry(origin)

    def _origin_stored(self, targets: Sequence[Lane]) -> None:
        for to in targets:
            self._outstanding[to] -= 1
            if not self._outstanding[to]:
                self._ack_log.note(key_of(to), encode_offset(to.log.log_end_offset))

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
        for target in self._queues_of(queue, letter):
            if not any(each in having for each in target.lanes):
                self._batches.add(target, target.lane_for(0), letter, _NoTicket())

    def _retry(self, origin: _Origin) -> None:
        """Send a message later, because the disk refused it."""
        if not origin.queue.is_deleted and not self._batches.is_stopped:
            asyncio.get_running_loop().call_later(RETRY_S, self.send, *origin)

    def refuse(self, queue: LiveQueue, message: Stored) -> None:
        """Send a letter for a new message that a full queue refuses, if its policy says so."""
        if queue.policy.overflow is not Overflow.REJECT_PUBLISH_DLX:
            return
        letter = self._letter(queue, message, MAX_LENGTH, None)
        for target in self._queues_of(queue, letter):
            if target is not queue:
                self._batches.add(target, target.lane_for(0), letter, _NoTicket())

    def _queues_of(self, queue: LiveQueue, letter: Stored) -> Sequence[LiveQueue]:
        """Return the queues that get a letter of a queue: none without a dead-letter exchange."""
        exchange, registry = queue.policy.dead_letter_exchange, self._registry
        if exchange is None or (exchange and exchange not in registry.table.exchanges):
            return ()
        more_keys = _more_keys(letter.headers)
        return registry.routes(exchange, _text(letter.key), lambda: dict(letter.headers), more_keys)

    def _letter(self, queue: LiveQueue, message: Stored, reason: str, origin: str | None) -> Stored:
        now_ms = self._clock.now_ms()
        exchange, key = queue.policy.dead_letter_exchange or "", queue.policy.dead_letter_key
        replaced = _REPLACED if key is None else (*_REPLACED, KEYS_HEADER)
        routing_key = _text(message.key) if key is None else key
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
    try:
        topic_id, partition, offset = (
            (content_of(headers, ORIGIN_HEADER) or b"").decode().split("/")
        )
        return UUID(topic_id), int(partition), int(offset)
    except ValueError:
        return None


def _text(key: bytes | None) -> str:
    return (key or b"").decode("utf-8", "replace")


def _more_keys(headers: Sequence[Header], *, shown: bool = False) -> list[str]:
    """Return the routing keys that a message has beside its first one.

    Args:
        shown: leave out those that consumers must not see.
    """
    content = content_of(headers, KEYS_HEADER)
    if content is None:
        return []
    try:
        found = json.loads(content)
        keys = found["shown"] if shown else [*found["shown"], *found["hidden"]]
        return [str(key) for key in keys]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []  # a client wrote it


Death = dict[str, Any]
_LARGEST = 1 << 53  # of a number in a death: JSON's readers agree on these


def _deaths_of(headers: Sequence[Header]) -> list[Death]:
    """Return the deaths in a message's headers, which a client possibly wrote."""
    try:
        found = json.loads(content_of(headers, DEATHS_HEADER) or b"[]")
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, list):
        return []
    return [_plain(each) for each in found if isinstance(each, dict)][:MOST_DEATHS]


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
            _text(message.key),
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
