"""``GET /topics/NAME`` as server-sent events: each record of all partitions, from a position on.

The id of an event is a vector: the topic's id, and for each partition the offset to continue with.
So a client that connects again with ``Last-Event-ID`` continues without a gap and without a double.
Source: HTML Standard, 9.2 Server-sent events.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tidemill.confluent.reading import OutOfRangeError
from tidemill.gateway.errors import HttpError, invalid
from tidemill.gateway.following import Tail
from tidemill.gateway.parameters import Parameters
from tidemill.gateway.parts import Parts
from tidemill.gateway.reading import line_of, positions
from tidemill.gateway.server_sent import HEARTBEAT, HEARTBEAT_S, event_stream
from tidemill.gateway.topics import Topic

_CHUNK_RECORDS, _CHUNK_BYTES = 500, 262_144
_EVENT_BYTES = 4 * _CHUNK_BYTES
"""The most bytes of events that are made of such a chunk. What is left is read again."""
_BEGIN = b"retry: 1000\n"
_ID = re.compile(r"([A-Za-z0-9_-]{0,8});(\d{1,18}(?:,\d{1,18}){0,1999})")
_PAUSE_S, _UNREACHABLE_S = 0.1, 1.0


async def follow(request: Request) -> Response:
    """Return the answer that follows a topic."""
    parts: Parts = request.app.parts
    topic = await parts.catalog.topic(request.path_params["topic"])
    parameters = Parameters(request)
    start = parameters.text("from")
    last = request.headers.get("last-event-id") or parameters.text("last_event_id")
    parameters.end()
    stream = _Stream(parts, topic)
    if last:
        stream.resume(last)
        stream.cut(await positions(parts.catalog, topic.places, "end"))
    else:
        stream.vector = await positions(parts.catalog, topic.places, start or "end")
    return event_stream(stream.events(has_body=request.method != "HEAD"))


class _Stream:
    """Follows a topic for one client.

    Attributes:
        vector: By partition, the offset to continue with.
    """

    def __init__(self, parts: Parts, topic: Topic) -> None:
        self.vector: list[int] = []
        self._parts = parts
        self._topic = topic
        self._lost: list[bytes] = []
        self._number = 0  # of the last recent record that was looked at

    def resume(self, last: str) -> None:
        """Continue behind the event with this id.

        Raises:
            HttpError: it is not an id of this gateway's (400).
        """
        found = _ID.fullmatch(last)
        if found is None:
            raise invalid(
                f"invalid Last-Event-ID {last[:100]!r}",
                hint="Use the id of an event of this topic, or leave it out.",
            )
        self.vector = [int(offset) for offset in found[2].split(",")]
        if found[1] != self._topic.id[:8] or len(self.vector) > self._topic.partitions:
            self._start_again()
        self._grow()

    def cut(self, ends: Sequence[int]) -> None:
        """Continue at the end of partitions that are shorter than the client has read.

        Without that, it would miss what is written up to where it was.
        """
        for number, end in enumerate(ends):
            offset = self.vector[number]
            if offset > end:
                self.vector[number] = end
                self._lost.append(self._reset("the log is shorter", number, offset))

    def _start_again(self) -> None:
        """Read the topic from its beginning: it is not the one that the client has followed."""
        self.vector = [0] * self._topic.partitions
        self._lost.append(self._event({"reason": "the topic was created again"}, b"reset"))

    def _grow(self) -> None:
        """Read partitions that are new from their beginning."""
        self.vector += [0] * (self._topic.partitions - len(self.vector))

    async def events(self, *, has_body: bool) -> AsyncIterator[bytes]:
        """Yield events until the topic has gone, or the gateway stops."""
        if not has_body:
            return
        yield _BEGIN + b"id: " + self._id() + b"\n\n"  # so that a client resumes from here
        while not self._parts.hub.is_stopping:
            try:
                async with self._parts.hub.following(self._topic) as (tail, changed):
                    async for data in self._of_tail(tail, changed):
                        yield data
                await self._look_again()
            except HttpError as error:
                if error.status != 503:  # the topic was deleted
                    yield self._event(error.body(), b"end")
                    return
                await asyncio.sleep(_UNREACHABLE_S)  # a browser gives up after an error
                yield HEARTBEAT

    async def _look_again(self) -> None:
        """Find the topic again after it has changed.

        Raises:
            HttpError: it was deleted (404), or no broker answers (503).
        """
        if self._parts.hub.is_stopping:
            return
        await asyncio.sleep(_PAUSE_S)
        found = (await self._parts.catalog.described([self._topic.name]))[self._topic.name]
        topic = found or await self._parts.catalog.topic(self._topic.name)
        is_other = topic.id != self._topic.id or topic.partitions < len(self.vector)
        self._topic, self._number = topic, 0
        if is_other:
            self._start_again()
        self._grow()

    async def _of_tail(self, tail: Tail, changed: asyncio.Event) -> AsyncIterator[bytes]:
        """Yield events while the topic is followed."""
        while not tail.gone:
            if self._lost:
                yield b"".join(self._lost)
                self._lost = []
            behind = [n for n, offset in enumerate(self.vector) if offset < tail.covers[n]]
            if behind:
                for number in behind:
                    data = await self._from_log(number)
                    if data:
                        yield data
                continue
            changed.clear()
            data = self._from_recent(tail)
            if data:
                yield data
                continue
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await changed.wait()
            except TimeoutError:
                yield HEARTBEAT

    def _from_recent(self, tail: Tail) -> bytes:
        """Return events of recent records that the client does not have."""
        events: list[bytes] = []
        size = 0
        for number, record in tail.since(self._number):
            self._number = number
            if record.offset >= self.vector[record.partition]:
                self.vector[record.partition] = record.offset + 1
                events.append(b"id: %b\ndata: %b\n" % (self._id(), record.line))
                size += len(events[-1])
                if size >= _CHUNK_BYTES:
                    break
        return b"".join(events)

    async def _from_log(self, number: int) -> bytes:
        """Return events of records that are not recent any more."""
        place, offset = (self._topic.name, number), self.vector[number]
        try:
            found = await self._parts.pool.read(place, offset, _CHUNK_RECORDS, _CHUNK_BYTES)
        except OutOfRangeError as error:
            is_old = offset < error.start
            self.vector[number] = error.start if is_old else error.end
            reason = "records were deleted" if is_old else "the log is shorter"
            return self._reset(reason, number, offset)
        events: list[bytes] = []
        size = 0
        for message in found.records:
            self.vector[number] = int(message.offset() or 0) + 1
            events.append(b"id: %b\ndata: %b\n" % (self._id(), line_of(message)))
            size += len(events[-1])
            if size >= _EVENT_BYTES:  # ids of thousands of partitions are longer than records
                return b"".join(events)
        if not events and found.following <= offset:
            await asyncio.sleep(_PAUSE_S)
        self.vector[number] = max(self.vector[number], found.following)
        return b"".join(events)

    def _reset(self, reason: str, number: int, offset: int) -> bytes:
        """Return the event that a partition does not continue at an offset, but at another one."""
        where = {"partition": number, "from": offset, "to": self.vector[number]}
        return self._event({"reason": reason, **where}, b"reset")

    def _event(self, data: dict[str, object], kind: bytes) -> bytes:
        """Return an event that is not a record."""
        return b"event: %b\nid: %b\ndata: %b\n\n" % (kind, self._id(), orjson.dumps(data))

    def _id(self) -> bytes:
        offsets = ",".join(map(str, self.vector))
        return f"{self._topic.id[:8]};{offsets}".encode()
