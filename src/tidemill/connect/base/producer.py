"""Open the transactional producer of a connector, and word its errors.

Our own producer writes whole batches, and gives out the encoders of topics, into which compiled
code writes records without making objects. librdkafka's is for properties that ours does not
understand, for example Kerberos. Must not know: what the records mean.
"""

from __future__ import annotations

from typing import Any

from tidemill.confluent.clients import Kafka
from tidemill.confluent.producing import TransactionalProducer as LibrdkafkaProducer
from tidemill.connect.base.errors import (
    MAX_RECORD_BYTES,
    DeliveryError,
    RecordRefusedError,
    RecordTooLargeError,
    fenced,
    too_large,
)
from tidemill.errors import TidemillError, UnreachableError
from tidemill.kafka_client.errors import text_of
from tidemill.kafka_client.producing import failures
from tidemill.kafka_client.producing.cluster import Cluster
from tidemill.kafka_client.producing.record_batch import HEADER_SIZE, compressed
from tidemill.kafka_client.producing.settings import understand
from tidemill.kafka_client.producing.transactional import TransactionalProducer

PATIENCE_S = 60.0
"""How long a new producer waits for the transaction of its predecessor to end, and a commit for its
answer."""
_SETTINGS = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "1",
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "message.max.bytes": str(MAX_RECORD_BYTES),
    "queue.buffering.max.messages": "500000",
    "queue.buffering.max.kbytes": str(128 << 10),
    "retry.backoff.ms": "20",
    "transaction.timeout.ms": "300000",
    "topic.metadata.propagation.max.ms": "10000",
    # A topic that was deleted would come back without its configs, and without its rows.
    "allow.auto.create.topics": "false",
}

_OF_RECORDS = frozenset({32, 87})
"""INVALID_TIMESTAMP, INVALID_RECORD: another attempt would be refused in the same way."""

Producer = TransactionalProducer | LibrdkafkaProducer


def open_producer(
    kafka: Kafka, transactional_id: str, most_batch_bytes: int | None = None
) -> Producer:
    """Return a producer that has fenced all others with its transactional id.

    Args:
        transactional_id: the identity that survives restarts.
        most_batch_bytes: the most bytes of a batch, unless one record is larger; None for the
            producer's default.

    Raises:
        UnreachableError: no broker answers.
        SettingsError: a property is invalid.
    """
    errors = ConnectorErrors(kafka, transactional_id)
    config = kafka.config(transactional_id)
    config = {**_SETTINGS, "transactional.id": transactional_id, **config}
    if most_batch_bytes is not None:
        config["batch.size"] = str(most_batch_bytes)
    made = _own(config, errors) or LibrdkafkaProducer(
        config,
        errors,
        lambda kind, given, last: kafka.make(kind, {**given, "error_cb": last}),
        patience_s=PATIENCE_S,
    )
    try:
        made.start("start a transactional producer")
    except BaseException:
        made.close()
        raise
    return made


def _own(config: dict[str, Any], errors: ConnectorErrors) -> TransactionalProducer | None:
    settings = understand({key: config[key] for key in config if key != "logger"})
    if settings is None:
        return None
    try:
        cluster = Cluster(settings)
    except OSError:  # a certificate can't be read: librdkafka says which
        return None
    return TransactionalProducer(settings, errors, lambda: cluster, patience_s=PATIENCE_S)


class ConnectorErrors:
    """The errors of a connector's producer (``ErrorFactory``)."""

    def __init__(self, kafka: Kafka, transactional_id: str) -> None:
        self._kafka = kafka
        self._id = transactional_id

    def not_accepted(self, records: int, topic: str, cause: str, code: int = 0) -> TidemillError:
        """Return the error if records were rejected, or not acknowledged in time."""
        if code == 0:
            return self.not_answered(f"write to topic {topic}", cause)
        if code == failures.UNKNOWN_TOPIC:
            return UnreachableError(f"can't write to topic {topic}: {cause}")
        if code == failures.TOO_LARGE:
            return too_large(f"write {records} records to topic {topic}", cause)
        if code in _OF_RECORDS:
            return RecordRefusedError(f"can't write {records} records to topic {topic}: {cause}")
        return self.refused(f"write to topic {topic}", cause, code)

    def unsendable(self, topic: str, cause: str) -> TidemillError:
        """Return the error if rows can't become records of their topic."""
        return DeliveryError(f"can't write to topic {topic}: {cause}")

    def too_large(self, topic: str, size: int, cause: str) -> TidemillError:
        """Return the error of a record of so many bytes, which the producer does not send."""
        return too_large(f"write {size:,} bytes to topic {topic}", cause)

    def rejected(self, servers: str, cause: str) -> TidemillError:
        """Return the error if waiting can't help: wrong credentials, or TLS does not match."""
        return UnreachableError(
            f"the brokers at {self._kafka.servers} rejected the connection: {cause}",
            hint="Check security.protocol, sasl.* and ssl.* (-X property=value).",
        )

    def refused(self, what: str, cause: str, code: int) -> TidemillError:
        """Return the error if a broker answers with a permanent error."""
        if code in failures.FENCED:
            return fenced(self._id)
        return DeliveryError(f"can't {what}: {cause}")

    def not_answered(self, what: str, cause: str) -> TidemillError:
        """Return the error if the brokers did not answer in time."""
        return self._kafka.unreachable(what, cause)


def record_too_large(topic: str, size: int) -> RecordTooLargeError:
    """Return the error of a record of so many bytes, which the producer does not send."""
    return too_large(f"write {size:,} bytes to topic {topic}", text_of(failures.TOO_LARGE))


def batch_bytes(producer: Producer, enough: int, key: bytes | None, value: bytes | None) -> int:
    """Return at least how many bytes a batch with only this record has, as a broker counts them.

    Args:
        enough: a number of bytes from which on it must be counted exactly.
    """
    size = HEADER_SIZE + len(key or b"") + len(value or b"")
    if size <= enough or isinstance(producer, LibrdkafkaProducer):
        return min(size, enough)
    return min(size, HEADER_SIZE + len(compressed((key or b"") + (value or b""), producer.codec)))
