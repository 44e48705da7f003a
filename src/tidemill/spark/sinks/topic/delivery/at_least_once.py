"""Writes Arrow rows to Kafka topics at least once, until the brokers have acknowledged all rows.

There are two editions with the same contract (``tests/contracts/deliver.py``): our own producer,
which makes no object of a row, and librdkafka's for settings that ours does not understand
(Kerberos, tokens of an issuer). Must not know: Spark, options' names, queries.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import pyarrow as pa

from tidemill.spark.sinks.topic.delivery import librdkafka, own

SWITCH = "TIDEMILL_SINK_CLIENT"
"""The environment variable that chooses librdkafka with ``librdkafka``."""
DEFAULT_SETTINGS: Mapping[str, str] = {
    "acks": "all",
    "enable.idempotence": "true",
    # Larger batches while rows arrive. The flush at the end of a task does not wait for it.
    "linger.ms": "50",
    # The Java client's partitioner: a key is in the same partition for all clients.
    "partitioner": "murmur2_random",
    # A record without acknowledgement after this time fails its task, as with the Java client.
    "message.timeout.ms": "120000",
}
"""Settings of librdkafka that the user can override."""
_ALIASES = {
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
}


def write_rows(
    batches: Iterable[pa.RecordBatch], topic: str | None, kafka: Mapping[str, str]
) -> int:
    """Write rows and wait until the brokers have acknowledged them.

    Args:
        batches: Rows with a column ``value``, and optionally ``key``, ``topic``, ``partition`` and
            ``headers``.
        topic: Topic for all rows; None for the topic in each row.
        kafka: The user's settings of librdkafka.

    Returns:
        The number of rows.

    Raises:
        DeliveryError: At least one row was not accepted. Others may be in the topic.
        UnreachableError: The brokers reject the connection.
        OptionError: librdkafka does not know a setting.
    """
    settings = producer_settings(kafka)
    delivery = (use_own() and own.delivery(settings)) or librdkafka.Delivery(settings)
    rows = 0
    try:
        for batch in batches:
            delivery.send(batch, topic)
            rows += batch.num_rows
        delivery.finish()
    except BaseException:
        delivery.abandon()
        raise
    return rows


def use_own() -> bool:
    """Whether to use our own producer for the settings that it understands."""
    return os.environ.get(SWITCH) != "librdkafka"


def close_idle_producers() -> None:
    """Close the connections that this process keeps for its next task."""
    own.close_idle()
    librdkafka.close_idle_producers()


def producer_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a producer: the user's, then the defaults.

    Settings of ``acks`` other than all switch idempotence off.
    """
    given = {_ALIASES.get(key, key): value for key, value in kafka.items()}
    if given.get("acks", "all") not in ("all", "-1"):
        given.setdefault("enable.idempotence", "false")
    return {**DEFAULT_SETTINGS, **given}
