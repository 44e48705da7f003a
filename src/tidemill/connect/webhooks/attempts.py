"""The topic of attempts: each attempt is a record, and a new worker reads what was finished.

An event counts as finished when the record that says so is on disk. Must not know: HTTP.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from confluent_kafka import KafkaError, KafkaException, Message

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import end_offsets, read_to_end
from tidemill.connect.webhooks.errors import WebhookError
from tidemill.connect.webhooks.lanes import Event
from tidemill.connect.webhooks.marks import Offsets
from tidemill.connect.webhooks.sender import Answer
from tidemill.connect.webhooks.topics import LETTER_BYTES, attempts_topic

_POLL_S = 0.01
_CLIENT = "tidemill-webhooks"
_LARGEST = 2**63 - 1

Headers = Sequence[tuple[str, bytes | None]]
Written = Callable[[int], None]
"""Called with the offset of a record that is on disk."""


def encode_attempt(
    events: Sequence[Event],
    message_id: str,
    attempt: int,
    at_ms: int,
    answer: Answer,
    outcome: str,
    due_ms: int | None = None,
    job: str = "",
    steps: int | None = None,
    topic_id: str = "",
) -> bytes:
    """Return the record of an attempt.

    Args:
        job: the redelivery or the test that it belongs to; empty: none.
        steps: attempts so far that are steps of the schedule, if not all are.
        topic_id: of the topic of the records, which can be deleted and created again.
    """
    found: dict[str, Any] = {
        "id": message_id,
        "records": [(each.partition, each.offset) for each in events],
        "attempt": attempt,
        "at": at_ms,
        "duration_ms": answer.duration_ms,
        "status": answer.status,
        "outcome": outcome,
    }
    if due_ms:
        found["next"] = due_ms
    if answer.error:
        found["error"] = answer.error
    if answer.body:
        found["answer"] = answer.body
    if job:
        found["job"] = job
    if steps not in (None, attempt):
        found["steps"] = steps
    if topic_id:
        found["topic"] = topic_id
    return orjson.dumps(found)


@dataclass
class Restored:
    """The work of earlier processes, as far as it is not below the committed offsets.

    Attributes:
        start: the offset in the topic of attempts from which it was read.
        end: the end of that topic.
        done: offsets of finished records, by partition.
        dead: those of them that became dead letters, as (partition, offset).
        planned: of records that have failed: attempts so far, those that are steps of the schedule,
            and the time of the next one.
        redelivered: finished records by job.
        highest: by partition, the highest offset of which there is an attempt.
    """

    start: int = 0
    end: int = 0
    done: dict[int, Offsets] = field(default_factory=lambda: defaultdict(Offsets))
    dead: set[tuple[int, int]] = field(default_factory=set)
    planned: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    redelivered: dict[str, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    highest: dict[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, kafka: Kafka, webhook: str, topic_id: str, start: int | None) -> Restored:
        """Read the attempts from an offset to the end; None: from the end, so none.

        Args:
            topic_id: of the topic of the records. Attempts of an earlier one are left out.

        Raises:
            UnreachableError: no broker answers.
        """
        topic = attempts_topic(webhook)
        ends = end_offsets(kafka, _CLIENT, topic)
        end = ends.get((topic, 0), 0)
        made = cls(end if start is None else start, end)
        if made.start < end:
            for _, value in read_to_end(kafka, _CLIENT, topic, starts={(topic, 0): made.start}):
                made.apply(value, topic_id)
        return made

    def forget(self, partitions: Sequence[int]) -> None:
        """Forget what is about records of a topic that had the same name."""
        for place in [*self.planned]:
            if place[0] in partitions:
                self.planned.pop(place, None)
        for number in partitions:
            self.done.pop(number, None)
            self.highest.pop(number, None)

    def merge(self, other: Restored) -> Restored:
        """Return both together, for partitions that were added later."""
        for number, offsets in other.done.items():
            for offset in offsets:
                self.done[number].add(offset)
        return Restored(
            min(self.start, other.start),
            max(self.end, other.end),
            self.done,
            self.dead | other.dead,
            {**self.planned, **other.planned},
            defaultdict(set, {**self.redelivered, **other.redelivered}),
            {**self.highest, **other.highest},
        )

    def apply(self, value: bytes | None, topic_id: str = "") -> None:
        """Take over a record. Records of other programs are left out.

        Args:
            topic_id: of the topic of the records. An attempt without one counts as one of it.
        """
        try:
            found = orjson.loads(value or b"")
            outcome, job = found["outcome"], found.get("job", "")
            if topic_id and found.get("topic", topic_id) != topic_id:
                return
            places = [(int(partition), int(offset)) for partition, offset in found["records"]]
            attempt, due_ms = int(found["attempt"]), int(found.get("next") or 0)
            planned = attempt, int(found.get("steps", attempt)), due_ms
            if any(not 0 <= number < _LARGEST for place in places for number in place):
                return
        except (ValueError, TypeError, KeyError):
            return
        finished = outcome in ("delivered", "dead")
        for place in places:
            if job:
                if finished:
                    self.redelivered[job].add(place)
                if outcome == "delivered":
                    self.dead.discard(place)
                continue
            self.highest[place[0]] = max(self.highest.get(place[0], -1), place[1])
            if finished:
                self.done[place[0]].add(place[1])
                (self.dead.add if outcome == "dead" else self.dead.discard)(place)
                self.planned.pop(place, None)
            elif outcome == "retry":
                self.planned[place] = planned


def encode_event(event: str, reason: str, at_ms: int) -> bytes:
    """Return the record of something that has happened to the webhook, such as ``disabled``."""
    return orjson.dumps({"event": event, "reason": reason, "at": at_ms})


@dataclass(slots=True, eq=False)
class _Record:
    """A record that is to be written, and what is called then."""

    topic: str
    key: bytes | None
    value: bytes | None
    written: Written
    failed: Callable[[WebhookError], None]
    headers: Headers | None

    def fail(self, reason: str) -> None:
        self.failed(WebhookError(f"can't write to topic {self.topic}: {reason}"))


class Recorder:
    """Writes attempts and dead letters, for all webhooks. Its callbacks run on the event loop."""

    def __init__(self, kafka: Kafka) -> None:
        self._loop = asyncio.get_running_loop()
        self._producer: Any = kafka.producer(
            _CLIENT,
            linger_ms=3,  # what is due is handed over together
            enable_idempotence=True,
            compression_type="lz4",
            message_max_bytes=LETTER_BYTES,
            message_timeout_ms=0,
        )
        self._due: list[_Record] = []
        self._timer: asyncio.TimerHandle | None = None
        self.pending = 0

    def write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        written: Written,
        failed: Callable[[WebhookError], None],
        headers: Headers | None = None,
    ) -> None:
        """Write a record soon, and call ``written`` when it is on disk.

        Args:
            failed: called if it can't be written.
        """
        self.pending += 1
        self._due.append(_Record(topic, key, value, written, failed, headers))
        if self._timer is None:
            self._timer = self._loop.call_later(_POLL_S, self._poll)

    def _poll(self) -> None:
        """Write what is due, and take the reports. One record at a time wakes librdkafka's thread
        each time, which takes longer than the record.
        """
        self._timer = None
        due, self._due = self._due, []
        for record in due:
            self._produce(record)
        self._producer.poll(0)
        if self.pending and self._timer is None:
            self._timer = self._loop.call_later(_POLL_S, self._poll)

    def _produce(self, record: _Record) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            self.pending -= 1
            if error is None:
                record.written(message.offset() or 0)
            else:
                record.fail(error.str())

        given = {} if record.headers is None else {"headers": list(record.headers)}
        try:
            self._producer.produce(
                record.topic, record.value, record.key, on_delivery=report, **given
            )
            return
        except BufferError:
            reason = "the brokers do not answer"
        except KafkaException as error:
            reason = error.args[0].str()
        except (TypeError, ValueError) as error:  # the others that are due must be written
            reason = str(error)
        self.pending -= 1
        record.fail(reason)
