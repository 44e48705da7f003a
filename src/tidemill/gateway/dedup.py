"""Store each request once: ids of requests are remembered, and read back from the topic at a start.

The id is a header of the stored record, so the log itself is the memory. A process keeps a bounded
window of it: ``Window`` is pure, ``rebuild`` fills it from the end of a topic, and ``Once`` makes
concurrent requests with one id wait for the first of them. Must not know: HTTP, what an id means.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Partition, end_offsets, headers_of, messages_to_end

_CLIENT = "tidemill-gateway-ids"
READ_MOST = 1_000_000
"""The most records of one partition that ``rebuild`` reads."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The place of a record in its topic.

    Attributes:
        timestamp_ms: The record's timestamp in milliseconds since the epoch.
        digest: What tells two payloads with one id apart, if the user of a window compares them.
    """

    partition: int
    offset: int
    timestamp_ms: int
    digest: bytes = b""


class Window:
    """The ids that were stored lately, bounded by count and age. Pure: time is a parameter.

    Args:
        most: The most ids that are kept. The oldest one is dropped for a new one.
        age_ms: How long an id is kept, in milliseconds.
    """

    def __init__(self, most: int, age_ms: int) -> None:
        self.most = most
        self.age_ms = age_ms
        self._ids: OrderedDict[bytes, tuple[int, Stored]] = OrderedDict()

    def find(self, id_: bytes, now_ms: int) -> Stored | None:
        """Return where the record of an id is, or None if the window does not have it."""
        found = self._ids.get(id_)
        if found is None or found[0] + self.age_ms <= now_ms:
            return None
        return found[1]

    def add(self, id_: bytes, stored: Stored, now_ms: int) -> None:
        """Remember the record of an id. The first record of an id that is known stays."""
        if self.find(id_, now_ms) is not None:
            return
        self._ids.pop(id_, None)
        self._ids[id_] = (now_ms, stored)
        while self._ids:
            since_ms, _ = next(iter(self._ids.values()))
            if len(self._ids) <= self.most and since_ms + self.age_ms > now_ms:
                break
            self._ids.popitem(last=False)

    def items(self) -> Iterator[tuple[bytes, Stored]]:
        """Yield the ids with the places of their records, the oldest first."""
        for id_, (_, stored) in self._ids.items():
            yield id_, stored

    def __len__(self) -> int:
        """Return the number of ids, with those that have expired since the last ``add``."""
        return len(self._ids)


class Once:
    """Runs a write at most once for each id of a window.

    It belongs to one event loop.

    Args:
        window: The ids that were stored.
        now_ms: The time in milliseconds; it never decreases.
    """

    def __init__(self, window: Window, now_ms: Callable[[], int]) -> None:
        self.window = window
        self._now_ms = now_ms
        self._writing: dict[bytes, asyncio.Task[Stored]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no write is under way."""
        return not self._writing

    async def store(
        self, id_: bytes, write: Callable[[], Coroutine[Any, Any, Stored]]
    ) -> tuple[Stored, bool]:
        """Store the record of an id if the window does not have it.

        If another call with the id is writing, this one waits: it returns the result of that write,
        or writes itself if that one failed. A write continues if its caller is cancelled.

        If it is unknown whether a write that failed has reached the log, its caller must rebuild
        the window before it tries again.

        Args:
            write: Stores the record, and returns when it is durable.

        Returns:
            Where the record is, and whether this call has stored it.

        Raises:
            Exception: the write failed; the error is that of ``write``.
        """
        while True:
            found = self.window.find(id_, self._now_ms())
            if found is not None:
                return found, False
            other = self._writing.get(id_)
            if other is None:
                break
            await asyncio.wait([other])
            if not other.cancelled() and other.exception() is None:
                return other.result(), False
        task = asyncio.ensure_future(write())
        self._writing[id_] = task
        task.add_done_callback(lambda task: self._finished(id_, task))
        return await asyncio.shield(task), True

    def _finished(self, id_: bytes, task: asyncio.Task[Stored]) -> None:
        if self._writing.get(id_) is task:
            del self._writing[id_]
        if not task.cancelled() and task.exception() is None:
            self.window.add(id_, task.result(), self._now_ms())


def rebuild(
    window: Window,
    kafka: Kafka,
    topic: str,
    header: str,
    *,
    now_ms: int,
    committed: bool = True,
    digest: Callable[[Message], bytes] = lambda _: b"",
) -> int:
    """Fill a window with the ids in the last records of a topic. It blocks: call it in a thread.

    It reads what the window's age covers by the records' timestamps, and at least as many of the
    last records of each partition as the window keeps ids, because a producer can set timestamps;
    but not more than the last ``READ_MOST``. The ids that it finds count as stored now.

    Args:
        topic: The topic; if it does not exist, nothing is read.
        header: The name of the header whose value is the id. Only its first occurrence counts.
        now_ms: The wall-clock time, which the timestamps of records are compared with.
        committed: whether to leave out what aborted transactions wrote, and to wait until open
            ones are decided.
        digest: Returns ``Stored.digest`` for a record.

    Returns:
        The number of records that were read.

    Raises:
        UnreachableError: no broker answers, or a transaction stays open.
        TidemillError: the topic can't be read.
    """
    ends, starts = _range(kafka, topic, now_ms - window.age_ms, window.most)
    newest: list[tuple[int, int, int, bytes, Stored]] = []
    read = 0
    for message in messages_to_end(
        kafka, _CLIENT, topic, committed=committed, starts=starts, ends=ends
    ):
        read += 1
        _note(newest, window.most, message, header, digest)
    for *_, id_, stored in sorted(newest, key=lambda each: each[:3]):
        window.add(id_, stored, now_ms)
    return read


def _note(
    newest: list[tuple[int, int, int, bytes, Stored]],
    most: int,
    message: Message,
    header: str,
    digest: Callable[[Message], bytes],
) -> None:
    """Add a record to the newest ones if it has an id, in place of the oldest one if need be."""
    id_ = next((value for name, value in headers_of(message) if name == header), None)
    if id_ is None:
        return
    number, offset = int(message.partition() or 0), int(message.offset() or 0)
    stamp = message.timestamp()[1]
    entry = (stamp, number, offset, bytes(id_), Stored(number, offset, stamp, digest(message)))
    if len(newest) < most:
        heapq.heappush(newest, entry)
    else:
        heapq.heappushpop(newest, entry)


def _range(
    kafka: Kafka, topic: str, from_ms: int, least: int
) -> tuple[Mapping[Partition, int], Mapping[Partition, int]]:
    """Return the end of each partition that has records, and where to read it from."""
    ends = end_offsets(kafka, _CLIENT, topic)
    since = kafka.offsets_since(_CLIENT, ends, max(from_ms, 0))
    starts = {
        place: max(min(since[place] if since[place] >= 0 else end, end - least), end - READ_MOST, 0)
        for place, end in ends.items()
    }
    return ends, starts
