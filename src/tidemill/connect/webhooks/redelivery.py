"""Redeliver records: one, a range, all from an offset, or all that became dead letters.

A job reads its records from the topic in a thread, at most ``MAX_OPEN`` ahead of what is finished.
They are sent in any order, with the ids that they had. Must not know: HTTP.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaException

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Follower, end_offsets
from tidemill.connect.webhooks.attempts import Restored
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.intake import event_of
from tidemill.connect.webhooks.lanes import Event
from tidemill.errors import TidemillError

MAX_OPEN = 200
_CLIENT = "tidemill-webhooks"

log = structlog.get_logger("tidemill.webhooks")

Take = Callable[["Job", list[Event]], None]
Ranges = dict[int, tuple[int, int, set[int] | None]]


class Job:
    """One redelivery.

    Args:
        number: the id of the command.
        wanted: ``failed``: true for all dead letters; else ``partition`` (None: all), ``from`` and
            ``to`` (the first offset, and the one behind the last; None: the end).

    Attributes:
        floor: all its attempts are at or behind this offset of the topic of attempts.
        is_done: whether everything is finished.
        sent: records so far.
    """

    def __init__(self, number: str, wanted: Mapping[str, Any]) -> None:
        self.id = number
        self.floor = 0
        self.is_done = False
        self.error = ""
        self.sent = 0
        self._wanted = wanted
        self._open = threading.Semaphore(MAX_OPEN)
        self._left = 1  # the reading itself
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(
        self,
        kafka: Kafka,
        webhook: Webhook,
        done: set[tuple[int, int]],
        take: Take,
        floor: int,
    ) -> None:
        """Start the thread, if it is not started.

        Args:
            done: what an earlier process has finished.
            take: takes over records, in the thread.
        """
        if self._thread is not None:
            return
        self.floor = floor

        def run() -> None:
            try:
                self._read(kafka, webhook, done, take)
            except (TidemillError, KafkaException) as error:
                self.error = str(error)
                log.warning(
                    "webhook.redelivery_failed", webhook=webhook.name, job=self.id, error=str(error)
                )
            if not self._stopping.is_set():
                self._less()

        self._thread = threading.Thread(target=run, name=f"redeliver {webhook.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. A later run starts the job again, without what is finished."""
        self._stopping.set()

    def finish(self, event: Event) -> None:
        """Note that a record is finished."""
        self._open.release()
        self._less()

    def describe(self) -> dict[str, Any]:
        """Return what is shown of it."""
        return {"id": self.id, "sent": self.sent, "wanted": dict(self._wanted)}

    def _less(self) -> None:
        with self._lock:
            self._left -= 1
            self.is_done = self._left == 0

    def _ranges(self, kafka: Kafka, webhook: Webhook) -> Ranges:
        """Return by partition the first offset, the one behind the last, and which are wanted."""
        ends = end_offsets(kafka, _CLIENT, webhook.topic)
        if self._wanted.get("failed"):
            return {
                number: (min(found), max(found) + 1, found)
                for number, found in dead_records(kafka, webhook).items()
            }
        only, first = self._wanted.get("partition"), int(self._wanted.get("from") or 0)
        ranges: Ranges = {}
        for (_, number), end in ends.items():
            to = self._wanted.get("to")
            last = end if to is None else min(int(to), end)
            if only in (None, number) and first < last:
                ranges[number] = (first, last, None)
        return ranges

    def _read(self, kafka: Kafka, webhook: Webhook, done: set[tuple[int, int]], take: Take) -> None:
        for number, (first, end, wanted) in self._ranges(kafka, webhook).items():
            place = webhook.topic, number
            follower = Follower.of(kafka, _CLIENT, [place], starts={place: first})
            try:
                while follower.behind({place: end}) and not self._stopping.is_set():
                    for message in follower.poll(0.1):
                        event = event_of(message)
                        known = (number, event.offset) in done
                        if event.offset >= end or self._stopping.is_set():
                            break
                        if not known and (wanted is None or event.offset in wanted):
                            self._submit(event, take)
            finally:
                follower.close()

    def _submit(self, event: Event, take: Take) -> None:
        event.job = self.id
        while not self._open.acquire(timeout=0.2):
            if self._stopping.is_set():
                return
        with self._lock:
            self._left += 1
        self.sent += 1
        take(self, [event])


def dead_records(kafka: Kafka, webhook: Webhook) -> dict[int, set[int]]:
    """Return the offsets of records that became dead letters and were not redelivered since."""
    found: dict[int, set[int]] = {}
    for number, offset in Restored.read(kafka, webhook.name, 0).dead:
        found.setdefault(number, set()).add(offset)
    return found
