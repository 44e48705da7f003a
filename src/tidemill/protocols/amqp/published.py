"""Publishes queues, connections, channels, exchanges and bindings in the topic ``tidemill.amqp``.

Who shows them (the gateway) creates the topic; without it nothing is published. A round publishes
what has changed since the one before, and each fact at least once in ``FULL_S``, so that what is
older can be deleted: a reader never has more to read than that. The last record is ``node``: a
reader that has it has all of the round. Records are JSON objects with ``i``, the start of the
broker that they are from, and ``at``, milliseconds since the epoch.

A round of a thousand queues takes 20 ms, so there is none while no client follows the topic. Then
``node`` is deleted: a reader that comes takes nothing for the present before the next round.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from tidemill import __version__, system
from tidemill.engine.api import Durability, PartitionWrite
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.protocols.amqp.management import plain
from tidemill.state.routing.errors import UnknownQueueError

if TYPE_CHECKING:
    from tidemill.engine.door import Door
    from tidemill.engine.queues.api import QueueDescription
    from tidemill.protocols.amqp.connections import Connections

TOPIC = "tidemill.amqp"
PERIOD_S = 2.0
LOOK_S = 0.25
"""How often it looks whether something has come or gone."""
PAUSE_S = 0.001
"""The shortest time between two rounds, for each fact: a round takes up to 15 us for one."""
LONGEST_PAUSE_S = 10.0
FULL_S = 60.0
"""Each fact is published at least so often, in seconds."""
UNREAD_S = 60.0
"""Nothing is published from so many seconds after the last client has waited for records."""
MOST_RECORDS = 10_000
"""Records of a round. The others follow in the next one."""
MOST_FACTS = 20_000
"""Facts of each kind that are published."""
MOST_CONSUMERS = 100
LONGEST_VALUE = 65_536
"""A fact with a longer value is published without its arguments."""
_BATCH = 200
_SLICE = 32
"""Facts between two turns of the event loop."""

log = structlog.get_logger("tidemill.amqp")


class Fact(NamedTuple):
    """Something to publish.

    Attributes:
        stamp: it is published again when this is another one.
        value: returns the fields.
    """

    key: str
    stamp: object
    value: Callable[[], dict[str, Any]]


class _Known(NamedTuple):
    """A fact that was published."""

    stamp: object
    offset: int
    at_ms: int


Address = tuple[str, str, int]
"""Protocol, host and port."""


class StatePublisher:
    """Publishes what AMQP has.

    Args:
        door: the engine, without restrictions.
        listeners: the addresses that are served; more can be added to the list later.
    """

    def __init__(self, door: Door, connections: Connections, listeners: Sequence[Address]) -> None:
        self._door = door
        self._connections = connections
        self._listeners = listeners
        self._instance = secrets.token_hex(4)
        self._node = f"tidemill@{socket.gethostname()}"
        self._started_ms = door.clock.now_ms()
        self._topic_id: object = None
        self._known: dict[str, _Known] = {}
        self._freed_ms = 0
        self._version = -1
        self._declared: list[Fact] = []
        self._usage: dict[str, Any] = {}
        self._used_ms = 0
        self._left_out = 0
        self._awaited_ms: int | None = None
        """When a client was seen that waits for records; None: not since publishing ended."""

    async def run(self) -> None:
        """Publish until cancelled. An error is logged once, until it is another one."""
        reported = ""
        while True:
            await self._next_round()
            try:
                if not self._is_followed():
                    await self._end()
                await self.publish()
                reported = ""
            except TidemillError as error:
                if str(error) != reported:
                    reported = str(error)
                    log.warning("amqp.not_published", error=reported, hint=error.hint)

    async def _next_round(self) -> None:
        """Return after ``PERIOD_S``, or earlier if something has come or gone."""
        before = self._structure()
        pause_s = self.pause_s
        await asyncio.sleep(pause_s)
        left_s = PERIOD_S - pause_s
        while left_s > 0 and self._structure() == before:
            await asyncio.sleep(LOOK_S)
            left_s -= LOOK_S

    def _is_followed(self) -> bool:
        """Whether a client waits for records, or one has lately. A poll ends now and then."""
        now_ms = self._door.clock.now_ms()
        if self._door.records.is_awaited(TOPIC, 0):
            self._awaited_ms = now_ms
        return self._awaited_ms is not None and now_ms - self._awaited_ms < UNREAD_S * 1000

    async def _end(self) -> None:
        """Delete ``node``, so that no reader takes old facts for the present; wait for a reader.

        It returns when a client follows the topic, or when the topic is another one.

        Raises:
            TidemillError: the topic refuses.
        """
        self._awaited_ms = None
        topic_id = self._find_topic()
        if topic_id is not None:
            await self._write([NewRecord(b"node", None)], self._door.clock.now_ms())
        while self._find_topic() == topic_id:
            await asyncio.sleep(LOOK_S)
            if self._is_followed():
                return

    @property
    def pause_s(self) -> float:
        """The shortest time until the next round: with many facts, rounds are rare."""
        return min(max(LOOK_S, len(self._known) * PAUSE_S), LONGEST_PAUSE_S)

    def _structure(self) -> object:
        connections = self._connections
        return (
            *(connections.opened, connections.closed),
            *(connections.channels_opened, connections.channels_closed),
            *(self._door.queues.version(), self._find_topic()),
        )

    def _find_topic(self) -> object:
        """Return the id of the topic; None if it does not exist."""
        try:
            return self._door.topics.get(TOPIC).topic_id
        except UnknownTopicOrPartitionError:
            return None

    async def publish(self) -> int:
        """Publish what has changed; return the number of records.

        Raises:
            TidemillError: the topic refuses.
        """
        topic_id = self._find_topic()
        if topic_id != self._topic_id:
            self._topic_id = topic_id
            self._known.clear()
            self._freed_ms = self._door.clock.now_ms()
        if topic_id is None:
            return 0
        count = await self._publish_round()
        await self._free()
        return count

    async def _publish_round(self) -> int:
        now_ms = self._door.clock.now_ms()
        old_ms = now_ms - int(FULL_S * 1000)
        changed: list[Fact] = []
        current: set[str] = set()
        count = 0
        async for fact in self._facts():
            current.add(fact.key)
            known = self._known.get(fact.key)
            if known is not None and known.stamp == fact.stamp and known.at_ms > old_ms:
                continue
            if count + len(changed) < MOST_RECORDS:
                changed.append(fact)
            if len(changed) == _BATCH:
                count += await self._append(changed, now_ms)
                changed = []
        gone = [key for key in self._known if key not in current and key != "node"]
        count += await self._append(changed, now_ms)
        count += await self._append_gone(gone, now_ms)
        return count + await self._append([Fact("node", None, self._about)], now_ms)

    async def _append(self, facts: Sequence[Fact], now_ms: int) -> int:
        """Append facts, and note that they are published."""
        if not facts:
            return 0
        records = [NewRecord(f.key.encode(), self._encode(f.value(), now_ms)) for f in facts]
        base = await self._write(records, now_ms)
        for offset, fact in enumerate(facts, base):
            self._known[fact.key] = _Known(fact.stamp, offset, now_ms)
        return len(facts)

    async def _append_gone(self, keys: Sequence[str], now_ms: int) -> int:
        """Append tombstones."""
        for at in range(0, len(keys), _BATCH):
            part = keys[at : at + _BATCH]
            await self._write([NewRecord(key.encode(), None) for key in part], now_ms)
            for key in part:
                del self._known[key]
        return len(keys)

    async def _write(self, records: Sequence[NewRecord], now_ms: int) -> int:
        """Append records; return the offset of the first one. A power cut can lose them."""
        batch = memoryview(encode_batch(records, timestamp_ms=now_ms))
        answer = self._door.records.append([PartitionWrite(TOPIC, 0, batch)], Durability.WRITTEN)
        (written,) = await answer if isinstance(answer, Awaitable) else answer
        if isinstance(written, TidemillError):
            raise written
        return written[0]

    def _encode(self, fields: dict[str, Any], now_ms: int) -> bytes:
        whole = {"i": self._instance, "at": now_ms, **fields}
        data = json.dumps(whole, default=plain, separators=(",", ":")).encode()
        if len(data) <= LONGEST_VALUE:
            return data
        whole["arguments"] = {}
        return json.dumps(whole, default=plain, separators=(",", ":")).encode()

    async def _free(self) -> None:
        """Delete what was published before the oldest fact that is in force."""
        now_ms = self._door.clock.now_ms()
        if now_ms - self._freed_ms < FULL_S * 1000 or not self._known:
            return
        self._freed_ms = now_ms
        oldest = min(each.offset for each in self._known.values())
        await self._door.records.delete_before(TOPIC, 0, oldest)

    # --- facts -----------------------------------------------------------------------------------

    async def _facts(self) -> AsyncIterator[Fact]:
        """Yield all facts, and let others run in between."""
        self._left_out = 0
        for number, fact in enumerate(self._all(), 1):
            yield fact
            if number % _SLICE == 0:
                await asyncio.sleep(0)

    def _all(self) -> Iterator[Fact]:
        connections = self._bounded(self._connections.all())
        for name, connection in connections:
            about = connection.describe()
            yield Fact(f"connection/{name}", tuple(map(str, about.values())), about.copy)
            for number, channel in connection.describe_channels():
                key = f"channel/{name} ({number})"
                fields = {"connection": name, "number": number, "user": about["user"], **channel}
                yield Fact(key, tuple(map(str, channel.values())), fields.copy)
        for name in self._bounded(sorted(self._door.queues.names())):
            try:
                queue = self._door.queues.describe(name)
            except UnknownQueueError:  # it was deleted meanwhile
                continue
            yield Fact(f"queue/{name}", _stamp(queue), partial(self._queue, queue))
        version = self._door.queues.version()
        if version != self._version:
            self._declared, self._version = list(self._declarations()), version
        yield from self._declared

    def _bounded(self, found: list[Any]) -> list[Any]:
        self._left_out += max(0, len(found) - MOST_FACTS)
        return found[:MOST_FACTS]

    def _declarations(self) -> Iterator[Fact]:
        for name, spec in self._bounded(self._door.queues.exchanges()):
            fields = {
                "type": spec.type,
                "durable": spec.durable,
                "auto_delete": spec.auto_delete,
                "internal": spec.internal,
                "arguments": spec.arguments,
            }
            yield Fact(f"exchange/{name}", str(fields), fields.copy)
        for each in self._bounded(self._door.queues.bindings()):
            fields = {
                "source": each.source,
                "destination": each.destination,
                "destination_type": each.destination_kind,
                "routing_key": each.routing_key,
                "arguments": each.arguments,
            }
            yield Fact(f"binding/{json.dumps(fields, default=plain)}", None, fields.copy)

    def _queue(self, queue: QueueDescription) -> dict[str, Any]:
        now_ms = self._door.clock.now_ms()
        oldest = queue.oldest_age_ms
        return {
            "topic": queue.topic,
            "type": queue.type,
            "durable": queue.durable,
            "exclusive": queue.exclusive,
            "auto_delete": queue.auto_delete,
            "arguments": queue.arguments,
            "ready": queue.ready,
            "unacknowledged": queue.unacknowledged,
            "bytes": queue.bytes,
            "oldest_ms": None if oldest is None else now_ms - oldest,
            "published": queue.published,
            "delivered": queue.delivered,
            "acknowledged": queue.acknowledged,
            "redelivered": queue.redelivered,
            "dead": queue.dead,
            "consumer_count": len(queue.consumers),
            "consumers": [
                (each.tag, each.owner, each.unacknowledged, each.priority, each.active)
                for each in queue.consumers[:MOST_CONSUMERS]
            ],
        }

    def _about(self) -> dict[str, Any]:
        """Return the facts about the broker itself."""
        now_ms = self._door.clock.now_ms()
        if now_ms - self._used_ms >= 10_000:  # with many connections, counting files takes a while
            self._used_ms, self._usage = now_ms, _usage(str(self._door.settings.data_dir))
        return {
            "name": self._node,
            "version": __version__,
            "started_at": self._started_ms,
            "os_pid": str(os.getpid()),
            "connections_opened": self._connections.opened,
            "connections_closed": self._connections.closed,
            "channels_opened": self._connections.channels_opened,
            "channels_closed": self._connections.channels_closed,
            "listeners": list(self._listeners),
            "left_out": self._left_out,
            **self._usage,
        }


def _stamp(queue: QueueDescription) -> object:
    """Return what is compared: everything but the age of the oldest message, which always grows."""
    return (
        # Those of a declaration: it can be deleted and made again within a round.
        *(queue.topic, queue.durable, queue.exclusive, queue.auto_delete, queue.arguments),
        *(queue.type, queue.ready, queue.unacknowledged, queue.bytes, queue.published),
        *(queue.delivered, queue.acknowledged, queue.redelivered, queue.dead, queue.consumers),
    )


def _usage(data_dir: str) -> dict[str, Any]:
    usage = system.process_usage()
    found: dict[str, Any] = {
        "mem_used": usage.resident_bytes,
        "fd_used": usage.open_files,
        "fd_total": usage.most_files,
        "mem_total": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "processors": os.cpu_count(),
    }
    try:
        disk = os.statvfs(data_dir)
    except OSError:
        return found
    return {**found, "disk_free": disk.f_frsize * disk.f_bavail}
