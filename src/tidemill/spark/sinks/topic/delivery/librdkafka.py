"""Sends Arrow rows with librdkafka, one call for each row: the edition for all of its settings.

Must not know: Spark, options' names, queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from tidemill.confluent.pooling import ClientPool, make_client
from tidemill.confluent.producing import RecordProducer, TransactionalProducer
from tidemill.spark.errors import DeliveryError
from tidemill.spark.sinks.topic.delivery.failures import SINK

_CHECK_EVERY = 20_000

_pool: ClientPool[RecordProducer] = ClientPool(RecordProducer.close, limit=2)


def close_idle_producers() -> None:
    """Close the producers that this process keeps for its next task."""
    _pool.clear()


class Delivery:
    """The delivery of one task's records. Call ``finish`` or ``abandon`` at its end."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._producer = _pool.take(settings, lambda: RecordProducer(settings, SINK, make_client))
        self._producer.reset()

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Queue the rows of a batch, as ``send_rows``."""
        send_rows(self._producer, batch, topic)

    def finish(self) -> None:
        """Wait until all records are acknowledged."""
        self._producer.flush()
        _pool.give(self._settings, self._producer)

    def abandon(self) -> None:
        """Drop unsent records and the producer, which may be in an invalid state."""
        _pool.drop(self._producer)


def transactional(settings: Mapping[str, str]) -> TransactionalProducer:
    """Return a producer with transactions."""
    patience_s = int(settings["transaction.timeout.ms"]) / 1000
    return TransactionalProducer(settings, SINK, make_client, patience_s=patience_s)


def send_rows(to: RecordProducer, batch: pa.RecordBatch, topic: str | None) -> None:
    """Queue the rows of a batch. Wait while the queue is full."""
    for number, row in enumerate(_rows(batch, topic)):
        to.send(*row)
        if number % _CHECK_EVERY == 0:
            to.check()
    to.check()


Row = tuple[
    str,
    "bytes | str | None",
    "bytes | str | None",
    None,
    "list[tuple[str, bytes | None]] | None",
    "int | None",
]


def _rows(batch: pa.RecordBatch, topic: str | None) -> Iterator[Row]:
    """Yield (topic, key, value, None: the time is now, headers, partition) of each row."""
    count = batch.num_rows
    names = set(batch.schema.names)

    def column(name: str) -> list[Any]:
        return batch.column(name).to_pylist() if name in names else [None] * count

    topics = [topic] * count if topic is not None else column("topic")
    rows = zip(
        topics,
        column("key"),
        column("value"),
        column("headers"),
        column("partition"),
        strict=True,
    )
    for row_topic, key, value, headers, partition in rows:
        if row_topic is None:
            raise DeliveryError(
                "the topic of a row is null", hint="Set the option topic, or filter rows."
            )
        pairs = None if headers is None else [(h["key"], h["value"]) for h in headers]
        yield row_topic, key, value, None, pairs, partition
