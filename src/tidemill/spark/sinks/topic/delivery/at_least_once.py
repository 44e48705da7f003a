"""Writes Arrow rows to Kafka topics at least once, until the brokers have acknowledged all rows.

There are two editions with the same contract (``tests/contracts/deliver.py``): the native one, and
the one with librdkafka for settings that the native one does not understand. Must not know: Spark,
options' names, queries.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import pyarrow as pa

from tidemill import native as extension
from tidemill.spark.sinks.topic.delivery import librdkafka
from tidemill.spark.sinks.topic.delivery.defaults import producer_settings
from tidemill.spark.sinks.topic.delivery.native import edition as native

SWITCH = "TIDEMILL_SINK_CLIENT"
"""The environment variable that chooses an edition: ``native`` or ``librdkafka``."""


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
    delivery: native.Delivery | librdkafka.Delivery | None = None
    if use_native():
        delivery = native.delivery(settings)
    if delivery is None:
        delivery = librdkafka.Delivery(settings)
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


def use_native() -> bool:
    """Whether to use the native edition.

    Without the compiled extension, librdkafka is faster than the encoder in Python.
    """
    chosen = os.environ.get(SWITCH)
    return chosen == "native" or (chosen != "librdkafka" and extension.load() is not None)


def close_idle_producers() -> None:
    """Close the connections that this process keeps for its next task."""
    native.close_idle()
    librdkafka.close_idle_producers()
