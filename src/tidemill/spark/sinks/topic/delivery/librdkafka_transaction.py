"""Writes rows and a marker in one Kafka transaction, with librdkafka.

Must not know: Spark, shares, what a marker means. Sources: KIP-98, KIP-447.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tidemill.errors import UnreachableError
from tidemill.spark.base.clients import RAISED, RETRIABLE, LastError, make_client
from tidemill.spark.errors import DeliveryError, with_note
from tidemill.spark.sinks.topic.delivery import limits
from tidemill.spark.sinks.topic.delivery.librdkafka import Sender, make_producer
from tidemill.spark.sinks.topic.delivery.transactional import Marker

# Errors of a coordinator that is starting, or that is still writing the offset.
_NOT_YET = RETRIABLE | {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}

Answer = TypeVar("Answer")


class Transaction:
    """A ``TransactionalClient`` over librdkafka.

    Args:
        settings: Settings of librdkafka, with a transactional id.

    Raises:
        OptionError: librdkafka does not know a setting.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._name = settings["transactional.id"]
        self._servers = settings["bootstrap.servers"]
        self._last = LastError()
        self._producer, outcome = make_producer(settings, self._last)
        self._sender = Sender(self._producer, outcome, self._last, self._servers)
        self._group: object = None

    def connect(self, marker_topic: str, what: str) -> Marker:
        """Fence earlier producers, end their transactions, and return the marker."""
        # Without these requests librdkafka takes half a second to ask for its producer id: it looks
        # for the coordinator before it is connected, and after that only every 500 ms. The first
        # answer comes from a bootstrap server, whose connection librdkafka then closes; the second
        # one comes from a broker. A broker that creates topics by itself does so now: the marker is
        # written before the rows, and a marker for a topic that does not exist is refused.
        with contextlib.suppress(KafkaException):  # a real error occurs again below
            self._producer.list_topics(marker_topic, timeout=limits.REQUEST_S)
            self._producer.list_topics(marker_topic, timeout=limits.REQUEST_S)
        # Fence an earlier attempt and end its open transaction before the marker is read.
        self._retry(lambda: self._producer.init_transactions(limits.REQUEST_S), "start a producer")
        marker = self._read_marker(marker_topic, what)
        self._group = self._group_metadata()
        return marker

    def begin(self, marker_topic: str, marker: Marker, what: str) -> None:
        """Begin a transaction, and add the marker to it."""
        offset = TopicPartition(marker_topic, 0, marker.offset, marker.metadata)

        def add() -> None:
            self._producer.send_offsets_to_transaction([offset], self._group, limits.REQUEST_S)

        self._sender.reset()
        self._retry(self._producer.begin_transaction, what)
        self._retry(add, what)

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Queue rows."""
        self._sender.send(batch, topic)

    def commit(self, what: str) -> None:
        """Wait until all rows are acknowledged, and commit."""
        self._sender.flush()
        self._retry(lambda: self._producer.commit_transaction(limits.REQUEST_S), what)

    def rest(self) -> None:
        """Do nothing: librdkafka keeps its connections."""

    def close(self) -> None:
        """Abort an open transaction if the broker can be reached."""
        with contextlib.suppress(*RAISED, RuntimeError):
            self._producer.purge()
            try:
                self._producer.abort_transaction(limits.REQUEST_S)
            except RAISED:
                # None was open, or another producer has taken over.
                self._producer.flush(1.0)

    def _client(self) -> dict[str, str]:
        """Return the settings without those of transactions."""
        given = self._settings
        return {key: given[key] for key in given if not key.startswith("transaction")}

    def _group_metadata(self) -> object:
        """Return the metadata of the group. Only a consumer has it; no request is sent."""
        consumer = make_client(Consumer, {**self._client(), "group.id": self._name}, LastError())
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()

    def _read_marker(self, marker_topic: str, what: str) -> Marker:
        last = LastError()
        # A consumer would take half a second to find its coordinator.
        admin = make_client(AdminClient, self._client(), last)
        wanted = ConsumerGroupTopicPartitions(self._name, [TopicPartition(marker_topic, 0)])

        def ask() -> TopicPartition:
            answers = admin.list_consumer_group_offsets(
                [wanted], require_stable=True, request_timeout=limits.REQUEST_S
            )
            (answer,) = answers[self._name].result(2 * limits.REQUEST_S).topic_partitions
            if answer.error is not None:
                raise KafkaException(answer.error)
            return cast(TopicPartition, answer)

        found = self._retry(ask, what, last, also=_NOT_YET)
        return Marker(found.offset, found.metadata or "")

    def _retry(
        self,
        ask: Callable[[], Answer],
        what: str,
        last: LastError | None = None,
        *,
        also: frozenset[int] = frozenset(),
    ) -> Answer:
        """Repeat a request until it succeeds or fails with a permanent error.

        Args:
            ask: Sends the request.
            what: What the request does, for messages.
            last: The last error of the client; None for that of the producer.
            also: Codes of temporary errors, besides those that the client marks as retriable.

        Raises:
            DeliveryError: The transaction can't continue, or another producer has fenced this one.
            UnreachableError: There was no answer within the timeout of the transaction.
        """
        last = last or self._last
        deadline = time.monotonic() + limits.TRANSACTION_TIMEOUT_MS / 1000
        while True:
            try:
                return ask()
            except KafkaException as error:
                reason = error.args[0]
                last.raise_if_permanent(self._servers)
                if not reason.retriable() and reason.code() not in also:
                    raise with_note(
                        DeliveryError(
                            f"could not {what}: {reason.str()}{last.text}", hint=limits.ALL_OR_NONE
                        )
                    ) from error
                if time.monotonic() > deadline:
                    raise with_note(
                        UnreachableError(f"the brokers did not answer in time to {what}{last.text}")
                    ) from error
            time.sleep(limits.PAUSE_S)
