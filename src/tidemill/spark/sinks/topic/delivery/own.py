"""Sends Arrow rows with our own producer: columns become records without an object for each row.

Must not know: Spark, queries, shares.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tidemill.confluent.pooling import ClientPool
from tidemill.kafka_client.producing.batching import Identity
from tidemill.kafka_client.producing.cluster import Cluster
from tidemill.kafka_client.producing.producer import Producer
from tidemill.kafka_client.producing.record_batch import NO_PRODUCER
from tidemill.kafka_client.producing.requests import Requests
from tidemill.kafka_client.producing.settings import ProducerSettings, understand
from tidemill.kafka_client.producing.transactional import TransactionalProducer
from tidemill.spark.sinks.topic.delivery.columns import by_topic, columns
from tidemill.spark.sinks.topic.delivery.failures import SINK, NotAnsweredError

clusters: ClientPool[Cluster] = ClientPool(Cluster.close, limit=4)
"""The idle connections of this process, by the settings of librdkafka."""
_identities: ClientPool[Identity] = ClientPool(lambda identity: None, limit=4)


def close_idle() -> None:
    """Close the connections that this process keeps for its next task."""
    _identities.clear()
    clusters.clear()


def delivery(kafka: Mapping[str, str]) -> Delivery | None:
    """Return the delivery of one task's records; None if a setting is left to librdkafka."""
    settings = understand(kafka)
    if settings is None or settings.transactional_id:
        return None
    try:
        return Delivery(kafka, settings)
    except OSError:  # a certificate can't be read: librdkafka says which
        return None


def transactional(kafka: Mapping[str, str]) -> TransactionalProducer | None:
    """Return a producer with transactions; None if a setting is left to librdkafka.

    While it rests (``rest``), it has no connections.
    """
    settings = understand(kafka)
    if settings is None or not settings.transactional_id:
        return None
    try:
        if settings.connection.with_tls:
            Cluster(settings).close()
    except OSError:  # a certificate can't be read: librdkafka says which
        return None
    shared = _shared(kafka)
    return TransactionalProducer(
        settings, SINK, lambda: clusters.take(shared, lambda: Cluster(settings))
    )


def rest(producer: TransactionalProducer, kafka: Mapping[str, str]) -> None:
    """Leave the connections of a producer to other transactions with the same settings."""
    cluster = producer.rest()
    if cluster is not None:
        clusters.give(_shared(kafka), cluster)


def _shared(kafka: Mapping[str, str]) -> dict[str, str]:
    return {key: kafka[key] for key in kafka if key != "transactional.id"}


class Delivery:
    """The delivery of one task's records, at least once. Call ``finish`` or ``abandon`` at its end.

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
        """Send rows, as ``send_rows``."""
        if not batch.num_rows:
            return
        if self._producer is None:
            self._producer = self._start(topic)
        send_rows(self._producer, batch, topic)

    def finish(self) -> None:
        """Wait until all records are acknowledged."""
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
            requests = Requests(self._settings, {}, SINK)
            requests.cluster = self._cluster
            timeout_s = self._settings.timeout_ms / 1000
            try:
                self._identity.producer = requests.init_producer_id(
                    "start a producer", "", -1, timeout_s
                )
            except NotAnsweredError as error:
                raise SINK.not_accepted(1, topic or "of the row", str(error)) from error
        return Producer(self._cluster, self._settings, self._identity, SINK)


def send_rows(
    to: Producer | TransactionalProducer, batch: pa.RecordBatch, topic: str | None
) -> None:
    """Send rows, or keep them for a moment."""
    for name, rows in by_topic(batch, topic):
        to.add(name, columns(rows))
    to.post_if_due()
