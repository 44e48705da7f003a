"""Follows topics for all their clients: one reader, and recent records that the clients share.

A client has a position for each partition. If the recent records cover it, it is served from there;
if not, it reads from the log until they do. So a slow client costs the others nothing, and no
client has a buffer of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

import structlog
from starlette.requests import Request

from tidemill.confluent.clients import Kafka
from tidemill.confluent.errors import FAILURES, error_in
from tidemill.confluent.reading import Follower
from tidemill.gateway.errors import HttpError, busy
from tidemill.gateway.reading import line_of
from tidemill.gateway.topics import SPECS, Catalog, Place, Topic

RECENT_BYTES = 1_048_576
"""The most bytes of recent records of a topic."""
TOPICS, PARTITIONS = 100, 2_000
"""The most topics that are followed at the same time, and the most partitions of all of them."""
_REST_S = 10.0
"""How long a topic without clients is followed on."""
_POLL_S = 0.05
_CHECK_S = 1.0
"""How often it is checked whether a topic is still the same one: offsets don't tell."""

log = structlog.get_logger("tidemill.gateway")


@dataclass(frozen=True, slots=True)
class Recent:
    """A record that was read lately. ``line`` is it as JSON."""

    topic: str
    partition: int
    offset: int
    line: bytes


@dataclass(eq=False)
class Tail:
    """The recent records of one topic.

    Attributes:
        covers: By partition, the first offset from which on no recent record is missing.
        position: By partition, the offset behind the last record that was read.
        waiting: Events that are set when there is something new.
        gone: Why the topic is not followed any more; empty if it is.
    """

    topic: Topic
    covers: list[int]
    position: list[int]
    waiting: set[asyncio.Event] = field(default_factory=set)
    gone: str = ""
    number: int = 0
    _records: deque[Recent] = field(default_factory=deque)
    _size: int = 0

    def add(self, record: Recent) -> None:
        """Take a record; forget the oldest ones if there are too many bytes."""
        self._records.append(record)
        self.number += 1
        self.position[record.partition] = record.offset + 1
        self._size += len(record.line)
        while self._size > RECENT_BYTES and len(self._records) > 1:
            oldest = self._records.popleft()
            self._size -= len(oldest.line)
            self.covers[oldest.partition] = oldest.offset + 1

    def since(self, number: int) -> Iterator[tuple[int, Recent]]:
        """Yield the recent records behind a number, each with the number behind it."""
        first = self.number - len(self._records)
        for index in range(max(0, number - first), len(self._records)):
            yield first + index + 1, self._records[index]

    def wake(self) -> None:
        """Wake the clients that wait."""
        for event in self.waiting:
            event.set()


class Hub:
    """Follows the topics that clients are interested in. It belongs to one event loop."""

    def __init__(self, kafka: Kafka, catalog: Catalog) -> None:
        self._kafka = kafka
        self._catalog = catalog
        self._loop = asyncio.get_running_loop()
        self._tails: dict[str, Tail] = {}
        self._starting: dict[str, asyncio.Task[Tail]] = {}
        self._promised = 0  # partitions of these
        self._follower: Follower | None = None
        self._orders: deque[tuple[bool, dict[Place, int]]] = deque()  # for the thread
        self._thread: threading.Thread | None = None
        self._checking: asyncio.Task[None] | None = None
        self.is_stopping = False

    @contextlib.asynccontextmanager
    async def following(self, topic: Topic) -> AsyncIterator[tuple[Tail, asyncio.Event]]:
        """Yield the tail of a topic, and an event that is set when there is something new.

        Raises:
            HttpError: too many topics are followed, or no broker answers (503).
        """
        tail, changed = await self._tail(topic), asyncio.Event()
        tail.waiting.add(changed)
        try:
            yield tail, changed
        finally:
            tail.waiting.discard(changed)
            if not tail.waiting:
                self._loop.call_later(_REST_S, self._drop_if_unused, tail)

    async def wait(
        self, request: Request, topic: Topic, partition: int, offset: int, seconds: float
    ) -> bool:
        """Wait until a partition has a record behind an offset; return whether it has.

        It ends early if the client has gone, or if the topic can't be followed.
        """
        async with self.following(topic) as (tail, changed):
            gone = asyncio.ensure_future(disconnected(request))
            gone.add_done_callback(lambda _: changed.set())
            try:
                async with asyncio.timeout(seconds):
                    while tail.position[partition] <= offset and not tail.gone:
                        await changed.wait()
                        changed.clear()
                        if gone.done():
                            return False
                    return not tail.gone
            except TimeoutError:
                return False
            finally:
                gone.cancel()

    async def _tail(self, topic: Topic) -> Tail:
        tail = self._tails.get(topic.name)
        if tail is not None:
            if tail.topic == topic:
                return tail
            self._drop(tail, _CHANGED)
        task = self._starting.get(topic.name)
        if task is None:
            task = self._starting[topic.name] = asyncio.ensure_future(self._begin(topic))
            task.add_done_callback(lambda _: self._starting.pop(topic.name))
        return await asyncio.shield(task)

    async def _begin(self, topic: Topic) -> Tail:
        held = self._promised + sum(each.topic.partitions for each in self._tails.values())
        topics = len(self._tails) + len(self._starting)  # with this one
        if topics > TOPICS or held + topic.partitions > PARTITIONS:
            raise busy("too many topics are followed")
        places = topic.places
        self._promised += topic.partitions
        try:
            ends = await self._catalog.offsets(places, SPECS.latest())
        finally:
            self._promised -= topic.partitions
        if self._follower is None:
            self._start()
        positions = [ends[place] for place in places]
        tail = self._tails[topic.name] = Tail(topic, list(positions), positions)
        self._orders.append((True, ends))
        return tail

    def _start(self) -> None:
        """Make the consumer of all topics, and its thread."""
        self._follower = Follower.of(
            self._kafka,
            "tidemill-gateway",
            [],
            reset="error",
            fetch_wait_max_ms=100,
            queued_min_messages=10_000,
            queued_max_messages_kbytes=8192,
        )
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)
        self._thread.start()
        self._checking = self._loop.create_task(self._check())

    def _drop_if_unused(self, tail: Tail) -> None:
        if not tail.waiting and not tail.gone:
            self._drop(tail, "no client follows it")

    def _drop(self, tail: Tail, why: str) -> None:
        """Stop following a topic. Clients that still use its tail look for it again."""
        tail.gone = why
        if self._tails.get(tail.topic.name) is tail:
            del self._tails[tail.topic.name]
            self._orders.append((False, dict.fromkeys(tail.topic.places, 0)))
        tail.wake()

    async def _check(self) -> None:
        """Look from time to time whether topics were deleted, created again, or have grown."""
        while True:
            await asyncio.sleep(_CHECK_S)
            if not self._tails:
                continue
            try:
                found = await self._catalog.described([*self._tails])
            except HttpError:  # no broker answers
                continue
            for tail in [*self._tails.values()]:
                if tail.topic.name in found and tail.topic != found[tail.topic.name]:
                    self._drop(tail, _CHANGED)

    def stop(self) -> None:
        """End what clients wait for."""
        self.is_stopping = True
        for tail in [*self._tails.values()]:
            self._drop(tail, "the gateway stops")

    async def close(self) -> None:
        """End the thread and the consumer."""
        self.stop()
        if self._checking is not None:
            self._checking.cancel()
        if self._thread is not None and self._follower is not None:
            await asyncio.to_thread(self._thread.join)
            await asyncio.to_thread(self._follower.close)

    # --- in the thread ---------------------------------------------------------------------------

    def _follow(self) -> None:
        assert self._follower is not None
        while not self.is_stopping:
            records: list[Recent] = []
            try:
                self._obey(self._follower)
                for message in self._follower.poll(_POLL_S):
                    place = int(message.partition() or 0), int(message.offset() or 0)
                    records.append(Recent(str(message.topic()), *place, line_of(message)))
            except FAILURES as error:  # the thread serves all topics: it must not end
                found = error_in(error)
                reason = repr(error) if found is None else found.str()
                self._loop.call_soon_threadsafe(self._failed, reason)
            if records:
                done = threading.Event()
                self._loop.call_soon_threadsafe(self._take, records, done)
                # Not more is read than the loop can take.
                while not done.wait(1.0) and not self.is_stopping:
                    pass

    def _obey(self, follower: Follower) -> None:
        """Follow what the event loop wants to be followed: librdkafka wants one thread for it."""
        while self._orders:
            is_wanted, places = self._orders.popleft()
            if is_wanted:
                follower.add(places)
            else:
                follower.remove(places)

    # --- in the event loop -----------------------------------------------------------------------

    def _take(self, records: Sequence[Recent], done: threading.Event) -> None:
        touched: dict[str, Tail] = {}
        for record in records:
            tail = self._tails.get(record.topic)
            # What was read before the topic was dropped and followed again is not for this tail.
            if tail is not None and record.offset >= tail.position[record.partition]:
                tail.add(record)
                touched[record.topic] = tail
        done.set()
        for tail in touched.values():
            tail.wake()

    def _failed(self, reason: str) -> None:
        """Follow all topics again: a partition is gone, or its offset is."""
        log.warning("gateway.follower_failed", error=reason)
        for tail in [*self._tails.values()]:
            self._drop(tail, _CHANGED)


_CHANGED = "the topic has changed"


async def disconnected(request: Request) -> None:
    """Wait until the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
