"""The native edition of delivering rows. Must not know: Spark, queries, shares."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tidemill.kafka_client.producing.batching import Identity
from tidemill.kafka_client.producing.cluster import Cluster
from tidemill.kafka_client.producing.record_batch import NO_PRODUCER
from tidemill.kafka_client.producing.requests import Requests, check
from tidemill.kafka_client.producing.settings import ProducerSettings, understand
from tidemill.kafka_codec import producing as messages
from tidemill.spark.base.clients import ClientPool
from tidemill.spark.sinks.topic.delivery.native import failures
from tidemill.spark.sinks.topic.delivery.native.clusters import clusters
from tidemill.spark.sinks.topic.delivery.native.producer import Producer
from tidemill.spark.sinks.topic.delivery.native.transaction import Transaction

_identities: ClientPool[Identity] = ClientPool(lambda identity: None, limit=4)


def close_idle() -> None:
    """Close the connections that this process keeps for its next task."""
    _identities.clear()
    clusters.clear()


def delivery(kafka: Mapping[str, str]) -> Delivery | None:
    """Return the delivery of one task's records; None if a setting is left to librdkafka.

    Args:
        kafka: Settings of librdkafka.
    """
    settings = understand(kafka)
    if settings is None or settings.transactional_id:
        return None
    try:
        return Delivery(kafka, settings)
    except OSError:  # a certificate can't be read: librdkafka says which
        return None


def transaction(kafka: Mapping[str, str]) -> Transaction | None:
    """Return a client with transactions; None if a setting is left to librdkafka.

    Args:
        kafka: Settings of librdkafka, with a transactional id.
    """
    settings = understand(kafka)
    if settings is None or not settings.transactional_id:
        return None
    try:
        if settings.connection.with_tls:
            Cluster(settings).close()
    except OSError:  # a certificate can't be read: librdkafka says which
        return None
    return Transaction(kafka, settings)


class Delivery:
    """The delivery of one task's records, at least once. Call ``finish`` or ``abandon`` at its end.

    Args:
        kafka: Settings of librdkafka.
        settings: The same settings.

    Raises:
        OSError: A certificate or key can't be read.
    """

    def __init__(self, kafka: Mapping[str, str], settings: ProducerSettings) -> None:
        self._kafka = kafka
        self._settings = settings
        self._cluster = clusters.take(kafka, lambda: Cluster(settings))
        self._producer: Producer | None = None
        self._identity = Identity()

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Send rows, or keep them for a moment.

        Args:
            batch: The rows.
            topic: Topic for all rows; None for the topic in each row.

        Raises:
            DeliveryError: A row can't be sent, its topic is null, or an earlier row was rejected.
            UnreachableError: The brokers reject the connection.
        """
        if not batch.num_rows:
            return
        if self._producer is None:
            self._producer = self._start(topic)
        self._producer.send(batch, topic)

    def finish(self) -> None:
        """Wait until all records are acknowledged.

        Raises:
            DeliveryError: A record was rejected or not acknowledged in time.
            UnreachableError: The brokers reject the connection.
        """
        if self._producer is not None:
            self._producer.flush()
            _identities.give(self._kafka, self._identity)
        self._cluster.rest()
        clusters.give(self._kafka, self._cluster)

    def abandon(self) -> None:
        """Drop unsent records, and the connections, which may be in an invalid state."""
        self._cluster.close()

    def _start(self, topic: str | None) -> Producer:
        self._identity = _identities.take(self._kafka, Identity)
        if self._settings.idempotent and self._identity.producer == NO_PRODUCER:
            requests = Requests(self._settings, {}, failures.SINK)
            requests.cluster = self._cluster

            def parse(view: memoryview) -> tuple[int, int]:
                code, found = messages.parse_init_producer_id(view)
                check(code)
                return found

            body = messages.init_producer_id("", -1)
            try:
                self._identity.producer = requests.ask(
                    "start a producer",
                    *(messages.INIT_PRODUCER_ID, body, parse, None),
                    timeout_s=self._settings.timeout_ms / 1000,
                )
            except failures.NotAnsweredError as error:
                raise failures.SINK.not_accepted(1, topic or "of the row", str(error)) from error
        return Producer(self._cluster, self._settings, self._identity)
