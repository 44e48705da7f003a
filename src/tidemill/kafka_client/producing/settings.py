"""Translates librdkafka's settings for our own producer, if it understands them all.

Must not know: sockets, Spark, queries. Source: librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.kafka_client.producing.record_batch import CODECS
from tidemill.kafka_client.settings import (
    WITHOUT_EFFECT,
    ConnectionSettings,
    Parse,
    Table,
    boolean,
    integer,
    one_of,
    only,
    parse,
    text,
)

MURMUR2, MURMUR2_RANDOM = range(2)
_METHODS = {"murmur2": MURMUR2, "murmur2_random": MURMUR2_RANDOM}
_MOST_IDEMPOTENT = 5
"""Requests of an idempotent producer that a broker can put in order."""


def _acks(value: str) -> int:
    return {"all": -1, "-1": -1, "1": 1}[value.lower()]


def _codec(value: str) -> int:
    return CODECS[value.lower()]


_UNDERSTOOD: Table = {
    "acks": ("acks", _acks),
    "enable.idempotence": ("idempotent", boolean),
    "linger.ms": ("linger_ms", integer(0, 900_000)),
    "message.timeout.ms": ("timeout_ms", integer(1, 2_147_483_647)),
    "request.timeout.ms": ("broker_timeout_ms", integer(1, 900_000)),
    "message.max.bytes": ("record_bytes", integer(1000, 1_000_000_000)),
    "batch.size": ("batch_bytes", integer(1, 2_147_483_647)),
    "compression.codec": ("codec", _codec),
    "compression.type": ("codec", _codec),
    "partitioner": ("method", _METHODS.__getitem__),
    "max.in.flight": ("in_flight", integer(1, 1_000_000)),
    "max.in.flight.requests.per.connection": ("in_flight", integer(1, 1_000_000)),
    "retry.backoff.ms": ("backoff_ms", integer(1, 300_000)),
    "allow.auto.create.topics": ("create", boolean),
    "topic.metadata.propagation.max.ms": ("propagation_ms", integer(0, 3_600_000)),
    "transactional.id": ("transactional_id", text),
    "transaction.timeout.ms": ("transaction_timeout_ms", integer(1000, 2_147_483_647)),
}
"""Settings that the producer obeys, besides those of connections."""

_IRRELEVANT: Mapping[str, Parse] = {
    **WITHOUT_EFFECT,
    "queue.buffering.max.messages": integer(0, 2_147_483_647),
    "queue.buffering.max.kbytes": integer(1, 2_147_483_647),
    "queue.buffering.backpressure.threshold": integer(1, 1_000_000),
    "batch.num.messages": integer(1, 1_000_000),
    "sticky.partitioning.linger.ms": integer(0, 900_000),
    "retries": integer(1, 2_147_483_647),
    "message.send.max.retries": integer(1, 2_147_483_647),
    "retry.backoff.max.ms": integer(1, 300_000),
    "compression.level": only(text, "-1"),
    "message.copy.max.bytes": integer(0, 1_000_000_000),
    "enable.gapless.guarantee": only(boolean, False),
    "metadata.recovery.strategy": one_of("none", "rebootstrap"),
}
"""Settings without an effect on this producer, as long as the value can be parsed."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of our own producer, with librdkafka's defaults.

    Attributes:
        connection: Settings of connections.
        acks: -1 for all replicas, 1 for the leader.
        linger_ms: Milliseconds that rows may wait for more rows.
        timeout_ms: Milliseconds until a record must be acknowledged.
        broker_timeout_ms: Milliseconds that a broker may wait for its replicas.
        record_bytes: Most bytes of a record.
        batch_bytes: Most bytes of a batch, unless one record is larger.
        codec: Number of the codec.
        method: How the partition of a key is computed.
        in_flight: Most requests under way to a broker.
        create: Whether a broker that creates topics by itself may do so.
        propagation_ms: Milliseconds for which a topic may be unknown.
    """

    connection: ConnectionSettings
    acks: int = -1
    idempotent: bool = False
    linger_ms: int = 5
    timeout_ms: int = 300_000
    broker_timeout_ms: int = 30_000
    record_bytes: int = 1_000_000
    batch_bytes: int = 1_000_000
    codec: int = 0
    method: int = MURMUR2_RANDOM
    in_flight: int = _MOST_IDEMPOTENT
    backoff_ms: int = 100
    create: bool = True
    propagation_ms: int = 30_000
    transactional_id: str = ""
    transaction_timeout_ms: int = 60_000


def understand(kafka: Mapping[str, str]) -> ProducerSettings | None:
    """Return the settings for our own producer; None if it does not understand them all."""
    found = parse(kafka, _UNDERSTOOD, _IRRELEVANT)
    if found is None or "partitioner" not in kafka:  # librdkafka's default is another one
        return None
    connection, fields = found
    connection.setdefault("client_id", "tidemill-sink")
    settings = ProducerSettings(ConnectionSettings(**connection), **fields)
    return settings if _is_consistent(settings) else None


def _is_consistent(settings: ProducerSettings) -> bool:
    """Whether settings fit together. If not, librdkafka says what is wrong."""
    with_order = settings.idempotent or bool(settings.transactional_id)
    if with_order and (settings.acks != -1 or settings.in_flight > _MOST_IDEMPOTENT):
        return False
    if settings.transactional_id and not (
        settings.idempotent and settings.timeout_ms <= settings.transaction_timeout_ms
    ):
        return False
    return settings.connection.is_consistent
