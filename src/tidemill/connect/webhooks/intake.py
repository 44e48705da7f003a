"""Read the topic of a webhook as a member of its consumer group, and commit its positions.

It runs in a thread, because librdkafka blocks. Each webhook has one member, with a static identity:
a new worker takes over immediately, and the one before is fenced. Must not know: HTTP, or what is
done with records.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from tidemill.confluent.clients import REQUEST_S, Kafka
from tidemill.confluent.errors import FAILURES, error_in
from tidemill.confluent.reading import arrived, headers_of
from tidemill.connect.webhooks.attempts import Restored
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.errors import FencedError, MissingTopicError, WebhookError
from tidemill.connect.webhooks.lanes import Event
from tidemill.connect.webhooks.topics import group_id
from tidemill.errors import TidemillError

SESSION_MS = 6_000
COMMIT_S = 0.25
STOP_S = 5.0
"""How long a stop waits for the last commit."""
_WAIT_S = 0.1
_FETCHED_KB = 8192
_END = -1

log = structlog.get_logger("tidemill.webhooks")


@dataclass(frozen=True, slots=True)
class Position:
    """The position that is committed for a partition.

    Attributes:
        offset: everything below it is finished.
        floor: from where the topic of attempts says what is finished above it.
        failing_since_ms: since when the endpoint fails; 0: it works.
        topic_id: of the topic, which can be deleted and created again.
    """

    offset: int
    floor: int = 0
    failing_since_ms: int = 0
    topic_id: str = ""

    def metadata(self) -> str:
        """Return the text that is committed with the offset."""
        found = {"attempts": self.floor, "failing_since": self.failing_since_ms}
        return json.dumps({**found, "topic": self.topic_id})

    @classmethod
    def of(cls, offset: int, metadata: str | None) -> Position:
        """Return a committed position. What another program committed has no metadata."""
        try:
            found = json.loads(metadata or "")
            since, topic_id = int(found["failing_since"]), str(found["topic"])
            return cls(offset, int(found["attempts"]), since, topic_id)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return cls(offset)


class Taker(Protocol):
    """The receiver of records. The methods are called in the thread of the intake."""

    def is_full(self) -> bool:
        """Return whether no more records are to be read for now."""
        ...

    def positions(self) -> Mapping[int, Position]:
        """Return what can be committed, by partition."""
        ...

    def assigned(self, positions: Mapping[int, Position], restored: Restored) -> None:
        """Take over new partitions. Their records follow."""
        ...

    def take(self, events: list[Event]) -> None:
        """Take over records."""
        ...

    def intake_failed(self, error: TidemillError) -> None:
        """Take over the error that has ended the thread."""
        ...


class Intake:
    """The thread that reads. ``stop`` commits the last positions.

    Attributes:
        ends: by partition, the offset behind the last record, as far as it is known.
    """

    def __init__(
        self,
        webhook: Webhook,
        topic_id: str,
        kafka: Kafka,
        taker: Taker,
        *,
        from_beginning: bool,
    ) -> None:
        self._webhook = webhook
        self._topic_id = topic_id
        self._kafka = kafka
        self._taker = taker
        self._start_at = "beginning" if from_beginning else webhook.start_at
        self._stopping = threading.Event()
        self._committed: dict[int, Position] = {}
        self._next_commit = 0.0
        self._paused = False
        self.ends: dict[int, int] = {}
        self._problem: TidemillError | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"webhook {webhook.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after it has committed the positions. It blocks for at most ``STOP_S``.

        While no broker answers, a commit waits until one does, without a limit. What is not
        committed is read again, and the topic of attempts says what is finished.
        """
        self._stopping.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            client = group_id(self._webhook.name)
            consumer = self._kafka.consumer(
                client,
                group_instance_id=client,
                session_timeout_ms=SESSION_MS,
                partition_assignment_strategy="range",
                isolation_level="read_committed",
                auto_offset_reset="error",
                queued_max_messages_kbytes=_FETCHED_KB,
                fetch_wait_max_ms=500,
                topic_metadata_refresh_interval_ms=10_000,
            )
            try:
                consumer.subscribe([self._webhook.topic], on_assign=self._on_assign)
                while not self._stopping.is_set():
                    self._step(consumer)
                self._commit(consumer)
            finally:
                consumer.close()
        except TidemillError as error:
            self._taker.intake_failed(error)
        except FAILURES as error:
            found = error_in(error)
            if found is not None:
                self._taker.intake_failed(self._translate(found))
                return
            unexpected = WebhookError(f"unexpected {type(error).__name__}: {error}")
            self._taker.intake_failed(unexpected)

    def _step(self, consumer: Consumer) -> None:
        if self._paused != self._taker.is_full():
            self._paused = not self._paused
            (consumer.pause if self._paused else consumer.resume)(consumer.assignment())
        events: list[Event] = []
        for message in arrived(consumer, _WAIT_S):
            error = message.error()
            if error is None:
                events.append(event_of(message))
            else:
                self._check(error)
        if self._problem is not None:
            raise self._problem
        if events:
            self._taker.take(events)
        now = time.monotonic()
        if now >= self._next_commit:
            self._next_commit = now + COMMIT_S
            self._commit(consumer)
            self._measure(consumer)

    def _check(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            # The next run finds out how many.
            raise WebhookError(f"records of topic {self._webhook.topic} are not there any more")
        if error.fatal() or not (
            error.retriable()
            or error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)
        ):
            raise KafkaException(error)

    # --- assignment --------------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Find out where to continue. An exception must not leave it: librdkafka calls it."""
        try:
            starts = self._starts(consumer, [each.partition for each in partitions])
            consumer.assign([self._place(number, offset) for number, offset in starts.items()])
            self._paused = False
        except KafkaException as error:
            self._problem = self._translate(error.args[0])
        except TidemillError as error:
            self._problem = error

    def _starts(self, consumer: Consumer, partitions: list[int]) -> dict[int, int]:
        # A partition that comes back after a rebalance: the taker leaves out what it has.
        known = {number: each.offset for number, each in self._taker.positions().items()}
        new = [number for number in partitions if number not in known]
        if not new:
            return {number: known[number] for number in partitions}
        found = consumer.committed([self._place(each) for each in new], REQUEST_S)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        is_first = not known and all(each.offset < 0 for each in found)
        positions: dict[int, Position] = {}
        fresh: list[int] = []  # attempts are about another topic with this name, if there are any
        for each in found:
            low, high = consumer.get_watermark_offsets(self._place(each.partition), REQUEST_S)
            self.ends[each.partition] = high
            if each.offset < 0:
                # A partition that was added later is read from its beginning.
                at_end = is_first and self._start_at == "end"
                start = high if at_end else low
                fresh.append(each.partition)
                positions[each.partition] = Position(start, topic_id=self._topic_id)
                continue
            position = Position.of(each.offset, each.metadata)
            if position.topic_id not in ("", self._topic_id) or position.offset > high:
                log.warning(
                    "webhook.topic_replaced",
                    webhook=self._webhook.name,
                    topic=self._webhook.topic,
                    partition=each.partition,
                )
                fresh.append(each.partition)
                position = Position(low, position.floor, position.failing_since_ms)
            elif position.offset < low:
                self._report_loss(each.partition, position.offset, low)
                position = Position(low, position.floor, position.failing_since_ms)
            positions[each.partition] = position
        if is_first:
            consumer.commit(offsets=self._encode(positions), asynchronous=False)
        floors = [each.floor for number, each in positions.items() if number not in fresh]
        from_offset = min(floors, default=None)
        restored = Restored.read(self._kafka, self._webhook.name, self._topic_id, from_offset)
        restored.forget(fresh)
        self._taker.assigned(positions, restored)
        self._committed.update(positions)
        offsets = {number: each.offset for number, each in positions.items()}
        return {number: offsets.get(number, known.get(number, 0)) for number in partitions}

    def _report_loss(self, partition: int, offset: int, low: int) -> None:
        log.error(
            "webhook.records_lost",
            webhook=self._webhook.name,
            topic=self._webhook.topic,
            partition=partition,
            from_offset=offset,
            to_offset=low,
            hint="Retention deleted them before they were delivered: raise retention.ms.",
        )

    # --- positions ---------------------------------------------------------------------------

    def _commit(self, consumer: Consumer) -> None:
        """Commit what has changed. If no broker answers, the next call does it."""
        positions = self._taker.positions()
        changed = {
            number: each
            for number, each in positions.items()
            if self._committed.get(number) != each
        }
        if not changed:
            return
        try:
            consumer.commit(offsets=self._encode(changed), asynchronous=False)
        except KafkaException as error:
            failure: KafkaError = error.args[0]
            if failure.fatal() or _is_fenced(failure):
                raise
            return  # no answer, or a rebalance: the positions are committed at the next call
        self._committed.update(changed)

    def _encode(self, positions: Mapping[int, Position]) -> list[TopicPartition]:
        topic = self._webhook.topic
        return [
            TopicPartition(topic, number, each.offset, each.metadata())
            for number, each in positions.items()
        ]

    def _measure(self, consumer: Consumer) -> None:
        for number in self._taker.positions():
            # From the answers to fetches: no request is sent.
            _, high = consumer.get_watermark_offsets(self._place(number), cached=True)
            if high >= 0:
                self.ends[number] = high

    def _place(self, partition: int, offset: int = _END) -> TopicPartition:
        return TopicPartition(self._webhook.topic, partition, offset)

    def _translate(self, error: KafkaError) -> TidemillError:
        name, topic = self._webhook.name, self._webhook.topic
        if _is_fenced(error):
            return FencedError(
                f"another worker delivers webhook {name}, so this one stops",
                hint="One worker per webhook is enough. If the other one is not meant to run, stop "
                f"it and run: tidemill webhook resume {name}",
            )
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            return MissingTopicError(topic)
        found = self._kafka.translate(error, f"read topic {topic}")
        return WebhookError(str(found), hint=found.hint)


def _is_fenced(error: KafkaError) -> bool:
    """Return whether another member has the identity. A fatal error has it in its text only."""
    codes = (KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED)
    return error.code() in codes or (error.code() == KafkaError._FATAL and "fenced" in error.str())


def topic_identity(kafka: Kafka, topic: str) -> str:
    """Return the id of a topic; its name where brokers give no ids (before Apache Kafka 2.8).

    Raises:
        MissingTopicError: it does not exist.
        UnreachableError: no broker answers.
    """
    found = kafka.topic_id("tidemill-webhooks", topic)
    if found is None:
        raise MissingTopicError(topic)
    return found.replace(".", "_")


def commit_start(kafka: Kafka, webhook: Webhook) -> None:
    """Commit where a new webhook starts, so that what is written from now on is delivered.

    Raises:
        MissingTopicError: the topic does not exist.
        TidemillError: the positions can't be committed.
    """
    metadata = Position(0, topic_id=topic_identity(kafka, webhook.topic)).metadata()
    client = group_id(webhook.name)
    admin: Any = kafka.admin(client)  # a client that is collected gets no answers
    places = kafka.partitions(client, webhook.topic, admin)
    offsets = (
        kafka.end_offsets(client, places, admin=admin)
        if webhook.start_at == "end"
        else kafka.start_offsets(client, places, admin)
    )
    starts = [TopicPartition(*place, offset, metadata) for place, offset in offsets.items()]
    wanted = ConsumerGroupTopicPartitions(client, starts)
    try:
        admin.alter_consumer_group_offsets([wanted])[client].result(2 * REQUEST_S)
    except KafkaException as error:
        raise kafka.translate(error.args[0], f"commit the start of {webhook.name}") from error


def event_of(message: Message) -> Event:
    """Return the event of a record."""
    return Event(
        int(message.partition() or 0),
        int(message.offset() or 0),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(headers_of(message)),
    )
