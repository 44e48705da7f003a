"""Redeliver records: one, a range, all from an offset, or all that became dead letters.

A job reads its records from the topic, at most ``MAX_OPEN`` ahead of what is finished. They are
sent in any order, with the ids that they had. Must not know: HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.confluent.errors import FAILURES
from tidemill.confluent.reading import Follower, end_offsets
from tidemill.connect.webhooks.attempts import Restored
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.intake import event_of
from tidemill.connect.webhooks.lanes import Event

MAX_OPEN = 200
STOP_S = 10.0
RETRY_S = 5.0
"""The pause after a failed read of the records."""
_CLIENT = "tidemill-webhooks"

log = structlog.get_logger("tidemill.webhooks")

Take = Callable[[Event], None]
Range = tuple[int, int, set[int] | None]


class Job:
    """One redelivery. It belongs to the event loop.

    Args:
        number: the id of the command.
        wanted: ``failed``: true for all dead letters; else ``partition`` (None: all), ``from`` and
            ``to`` (the first offset, and the one behind the last; None: the end).

    Attributes:
        floor: all its attempts are at or behind this offset of the topic of attempts.
        sent: records so far.
    """

    def __init__(
        self, kafka: Kafka, webhook: Webhook, number: str, wanted: Mapping[str, Any]
    ) -> None:
        self.id = number
        self._kafka = kafka
        self._webhook = webhook
        self.floor = self.sent = 0
        self._wanted = wanted
        self._topic_id = ""
        self._finished = 0
        self._room = asyncio.Semaphore(MAX_OPEN)
        self._reading: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._ranges: dict[int, Range] | None = None  # what is left to read, by partition

    def start(self, topic_id: str, done: set[tuple[int, int]], take: Take, floor: int) -> None:
        """Begin to read, if it was not started.

        Args:
            topic_id: of the webhook's topic.
            done: what an earlier process has finished.
            take: takes over a record.
        """
        if self._reading is None:
            self.floor = floor
            self._topic_id = topic_id
            self._reading = asyncio.create_task(self._run(done, take))

    async def stop(self) -> None:
        """Read no more. A later run starts the job again, without what is finished."""
        self._stopping.set()
        self._room.release()
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=STOP_S)

    @property
    def is_done(self) -> bool:
        """Whether everything is finished."""
        is_read = self._reading is not None and self._reading.done() and not self._stopping.is_set()
        return is_read and self._finished == self.sent

    def finish(self) -> None:
        """Note that a record is finished."""
        self._finished += 1
        self._room.release()

    def describe(self) -> dict[str, Any]:
        """Return what is shown of it."""
        return {"id": self.id, "sent": self.sent, "wanted": dict(self._wanted)}

    async def _run(self, done: set[tuple[int, int]], take: Take) -> None:
        """Read until all is read: a job that ends early would count as done."""
        while not self._stopping.is_set():
            try:
                if self._ranges is None:
                    self._ranges = await asyncio.to_thread(self._find)
                for number in [*self._ranges]:
                    await self._read(number, done, take)
                return
            except FAILURES as error:
                log.warning(
                    "webhook.redelivery_failed",
                    webhook=self._webhook.name,
                    job=self.id,
                    error=str(error),
                    retry_after_s=RETRY_S,
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), RETRY_S)

    def _find(self) -> dict[int, Range]:
        """Return by partition the first offset, the one behind the last, and which are wanted."""
        kafka, webhook = self._kafka, self._webhook
        if self._wanted.get("failed"):
            return {
                number: (min(found), max(found) + 1, found)
                for number, found in dead_records(kafka, webhook, self._topic_id).items()
            }
        only, first, to = (self._wanted.get(name) for name in ("partition", "from", "to"))
        ranges: dict[int, Range] = {}
        for (_, number), end in end_offsets(kafka, _CLIENT, webhook.topic).items():
            last = end if to is None else min(int(to), end)
            if only in (None, number) and int(first or 0) < last:
                ranges[number] = (int(first or 0), last, None)
        return ranges

    async def _read(self, number: int, done: set[tuple[int, int]], take: Take) -> None:
        assert self._ranges is not None
        (first, end, offsets), place = self._ranges[number], (self._webhook.topic, number)
        follower = Follower.of(self._kafka, _CLIENT, [place], starts={place: first})
        try:
            while follower.behind({place: end}) and not self._stopping.is_set():
                for message in await asyncio.to_thread(lambda: [*follower.poll(0.1)]):
                    event = event_of(message)
                    if event.offset >= end or (number, event.offset) in done:
                        continue
                    if offsets is not None and event.offset not in offsets:
                        continue
                    await self._room.acquire()
                    if self._stopping.is_set():
                        return
                    event.job = self.id
                    self.sent += 1
                    self._ranges[number] = event.offset + 1, end, offsets
                    take(event)
        finally:
            await asyncio.to_thread(follower.close)


def dead_records(kafka: Kafka, webhook: Webhook, topic_id: str) -> dict[int, set[int]]:
    """Return the offsets of records that became dead letters and were not redelivered since.

    Args:
        topic_id: of the webhook's topic. An earlier one of the same name had other records.
    """
    found: dict[int, set[int]] = {}
    for number, offset in Restored.read(kafka, webhook.name, topic_id, 0).dead:
        found.setdefault(number, set()).add(offset)
    return found
