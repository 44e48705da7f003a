"""Write and read the topic ``tidemill.pipelines``, and create the topics that a pipeline needs.

Must not know: Spark.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.confluent.errors import LastError
from tidemill.errors import UnreachableError
from tidemill.spark.base.clients import make_client, unreachable
from tidemill.spark.errors import PipelineError
from tidemill.spark.pipelines.progress import (
    HEARTBEAT_S,
    TOPIC,
    TOPIC_CONFIG,
    QueryStatus,
    decode,
)

_REQUEST_S = 15.0
_READ_S = 10.0

Listener = Callable[[QueryStatus], None]


class StatusTopic:
    """A producer of statuses. Use it as a context manager.

    Args:
        kafka: settings of librdkafka, with ``bootstrap.servers``.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = dict(kafka)
        self._last = LastError()
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._producer is not None:
            self._producer.flush(_REQUEST_S)

    def create(self, topics: Sequence[tuple[str, bool]]) -> list[str]:
        """Create the topics that are missing, with the broker's defaults; changelogs compacted.

        Args:
            topics: the name of each topic, and whether it is a changelog.

        Returns:
            The topics that were created.

        Raises:
            UnreachableError: no broker answers.
            PipelineError: a topic can't be created.
        """
        admin = make_client(AdminClient, self._kafka, self._last)
        try:
            existing = set(admin.list_topics(timeout=_REQUEST_S).topics)
        except KafkaException as error:
            raise unreachable(self._kafka, "list its topics", self._last) from error
        changelogs = {TOPIC} | {name for name, is_changelog in topics if is_changelog}
        wanted = dict.fromkeys([TOPIC, *(name for name, _ in topics)])
        new = [
            NewTopic(
                name,
                num_partitions=1 if name == TOPIC else -1,
                replication_factor=-1,
                config=dict(TOPIC_CONFIG) if name in changelogs else {},
            )
            for name in wanted
            if name not in existing
        ]
        if not new:
            return []
        for name, future in admin.create_topics(new, operation_timeout=_REQUEST_S).items():
            try:
                future.result(2 * _REQUEST_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise PipelineError(
                        f"topic {name} can't be created: {error.args[0].str()}",
                        hint="Create it beforehand.",
                    ) from error
        return [each.topic for each in new]

    def publish(self, status: QueryStatus) -> None:
        """Send a status, without waiting until the broker has it."""
        self._send(status.key, status.encode())

    def delete(self, key: str) -> None:
        """Delete the status of a query that does not exist any more."""
        self._send(key, None)

    def _send(self, key: str, value: bytes | None) -> None:
        if self._producer is None:
            self._producer = make_client(Producer, {**self._kafka, "linger.ms": "20"}, self._last)
        # While no broker is reachable, statuses may be lost: newer ones follow.
        with contextlib.suppress(BufferError):
            self._producer.produce(TOPIC, value, key)
        self._producer.poll(0)


class StatusPublisher:
    """Publishes the statuses of a run: each change, and an unchanged one from time to time.

    Args:
        topic: where statuses are published.
        listener: called with each status that has changed, in the thread that publishes.

    Attributes:
        latest: the status that was published last, by query.
    """

    def __init__(self, topic: StatusTopic, listener: Listener | None = None) -> None:
        self._topic = topic
        self._listener = listener
        self._published_at: dict[str, float] = {}
        self.latest: dict[str, QueryStatus] = {}

    def publish(self, statuses: Sequence[QueryStatus]) -> None:
        """Publish the statuses that have changed, or that were not published for a while."""
        now = time.monotonic()
        for status in statuses:
            before = self.latest.get(status.query)
            has_changed = before is None or replace(before, updated=status.updated) != status
            if has_changed or now - self._published_at[status.query] >= HEARTBEAT_S:
                self._topic.publish(status)
                self.latest[status.query] = status
                self._published_at[status.query] = now
                if has_changed and self._listener is not None:
                    self._listener(status)


def delete_statuses(kafka: Mapping[str, str], keys: Sequence[str]) -> None:
    """Delete the statuses of queries, if the topic exists.

    Args:
        kafka: settings of librdkafka, with ``bootstrap.servers``.
        keys: the keys of their records.

    Raises:
        UnreachableError: no broker answers.
    """
    known = {each.key for each in read_statuses(kafka)}
    with StatusTopic(kafka) as topic:
        for key in keys:
            if key in known:
                topic.delete(key)


def read_statuses(kafka: Mapping[str, str], pipeline: str | None = None) -> list[QueryStatus]:
    """Return the latest published status of each query, sorted by key.

    Args:
        kafka: settings of librdkafka, with ``bootstrap.servers``.
        pipeline: return only the queries of this pipeline.

    Raises:
        UnreachableError: no broker answers.
    """
    last = LastError()
    config = {"group.id": "tidemill-pipeline-status", "enable.auto.commit": "false", **kafka}
    consumer = make_client(Consumer, config, last)
    try:
        try:
            found = consumer.list_topics(TOPIC, timeout=_REQUEST_S).topics[TOPIC]
        except KafkaException as error:
            raise unreachable(kafka, "read a topic", last) from error
        if found.error is not None:
            return []
        latest: dict[str, QueryStatus] = {}
        for number in found.partitions:
            _read_partition(consumer, number, latest)
    finally:
        consumer.close()
    chosen = (each for _, each in sorted(latest.items()))
    return [each for each in chosen if pipeline is None or each.pipeline == pipeline]


def _read_partition(consumer: Any, number: int, latest: dict[str, QueryStatus]) -> None:
    start, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=_REQUEST_S)
    if start >= end:
        return
    consumer.assign([TopicPartition(TOPIC, number, start)])
    deadline = time.monotonic() + _READ_S
    position = start
    while position < end:
        if time.monotonic() > deadline:
            raise UnreachableError(f"topic {TOPIC} can't be read to its end within {_READ_S:g} s")
        # With a larger number, it would wait for more records than there are.
        for message in consumer.consume(min(500, end - position), 0.1):
            if message.error() is not None:
                continue
            position = message.offset() + 1
            key = (message.key() or b"").decode(errors="replace")
            if message.value() is None:
                latest.pop(key, None)
                continue
            try:
                latest[key] = decode(message.value())
            except (ValueError, TypeError, KeyError):
                continue  # another program wrote this record
    consumer.unassign()
