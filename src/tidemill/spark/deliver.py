"""From Arrow to a Kafka broker: rows as records, until the broker has acknowledged all of them.

Must not know: Spark, options' names, queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidemill.errors import DeliveryError
from tidemill.spark.clients import ClientPool, LastError, make_client
from tidemill.spark.options import noted

DEFAULT_SETTINGS: Mapping[str, str] = {
    "acks": "all",
    "enable.idempotence": "true",
    # Full batches while rows come; at a task's end the flush does not wait for it.
    "linger.ms": "50",
    # The Java client's partitioner: a key's partition is the same whoever writes it.
    "partitioner": "murmur2_random",
    # A record that is not acknowledged within this fails its task, as with the Java client.
    "message.timeout.ms": "120000",
}
"""librdkafka settings that the user may override."""
_ALIASES = {
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
}
_FLUSH_S = 0.5
# Success is not reported: nothing would end a longer pause when the queue has room again.
_FULL_S = 0.002
_POLL_EVERY = 20_000


def producer_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """The user's settings over the defaults. Fewer acks than all exclude idempotence."""
    given = {_ALIASES.get(key, key): value for key, value in kafka.items()}
    if given.get("acks", "all") not in ("all", "-1"):
        given.setdefault("enable.idempotence", "false")
    return {**DEFAULT_SETTINGS, **given}


def write_rows(
    batches: Iterable[pa.RecordBatch], topic: str | None, kafka: Mapping[str, str]
) -> int:
    """Write rows and wait until the brokers have them.

    Args:
        batches: with a column ``value`` and, where wanted, ``key``, ``topic``, ``partition`` and
            ``headers``.
        topic: for all rows; None takes each row's.
        kafka: the user's librdkafka settings.

    Returns:
        The number of rows.

    Raises:
        DeliveryError: at least one row was not accepted; others may stand in the topic.
        OptionError: librdkafka does not know a setting.
    """
    delivery = Delivery(producer_settings(kafka))
    rows = 0
    try:
        for batch in batches:
            _send(batch, topic, delivery)
            rows += batch.num_rows
        delivery.finish()
    except BaseException:
        delivery.abandon()
        raise
    return rows


class _Outcome:
    """Counts the records that a producer could not deliver."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.failures = 0
        self.first: KafkaError | None = None
        self.where = ""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        self.failures += 1
        if self.first is None:
            self.first = error
            self.where = f"topic {message.topic()}"


@dataclass(slots=True)
class _PooledProducer:
    producer: Producer
    outcome: _Outcome
    last_error: LastError


def _close(pooled: _PooledProducer) -> None:
    pooled.producer.purge()
    pooled.producer.flush(1.0)


_pool: ClientPool[_PooledProducer] = ClientPool(_close, limit=2)


def close_idle_producers() -> None:
    """Close the producers that this process keeps for its next task."""
    _pool.clear()


class Delivery:
    """The records of one task on their way. ``finish`` or ``abandon`` ends it.

    Raises:
        OptionError: librdkafka does not know a setting.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._pooled = _pool.take(settings, self._connect)
        self._producer = self._pooled.producer
        self._outcome = self._pooled.outcome
        self._outcome.reset()
        self._pooled.last_error.error = None

    def _connect(self) -> _PooledProducer:
        outcome, last = _Outcome(), LastError()
        # A callback for each record in Python would halve the speed; failures are all that counts.
        config = {**self._settings, "on_delivery": outcome, "delivery.report.only.error": True}
        return _PooledProducer(make_client(Producer, config, last), outcome, last)

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        partition: int | None,
        headers: list[tuple[str, bytes | None]] | None,
    ) -> None:
        """Queue a record; waits while the queue is full.

        Raises:
            DeliveryError: the record can't be sent (too large, no such partition).
        """
        extra: dict[str, Any] = {} if partition is None else {"partition": partition}
        if headers:
            extra["headers"] = headers
        while True:
            try:
                self._producer.produce(topic, value, key, **extra)
            except BufferError:
                self._producer.poll(_FULL_S)
                self.check()
            except KafkaException as error:
                raise DeliveryError(
                    f"a record can't be sent to topic {topic}: {error.args[0].str()}"
                ) from error
            else:
                return

    def check(self) -> None:
        """Let callbacks run.

        Raises:
            DeliveryError: a record was refused or not acknowledged in time.
        """
        self._producer.poll(0)
        self._pooled.last_error.raise_if_hopeless(self._settings["bootstrap.servers"])
        if (first := self._outcome.first) is not None:
            raise noted(
                DeliveryError(
                    f"{self._outcome.failures} records or more were not accepted, the first for "
                    f"{self._outcome.where}: {first.str()}{self._pooled.last_error.text}",
                    hint="The batch is incomplete in the topic; it is written again on a restart.",
                )
            )

    def finish(self) -> None:
        """Wait until all is acknowledged; ``message.timeout.ms`` bounds it.

        Raises:
            DeliveryError: see ``check``.
        """
        while self._producer.flush(_FLUSH_S) > 0:
            self.check()
        self.check()
        _pool.give(self._settings, self._pooled)

    def abandon(self) -> None:
        """Drop what is not sent yet, and the producer: its state is not to be relied on."""
        _pool.drop(self._pooled)


def _send(batch: pa.RecordBatch, topic: str | None, delivery: Delivery) -> None:
    count = batch.num_rows
    names = set(batch.schema.names)

    def column(name: str) -> list[Any]:
        return batch.column(name).to_pylist() if name in names else [None] * count

    topics = [topic] * count if topic is not None else column("topic")
    rows = zip(
        topics,
        column("value"),
        column("key"),
        column("partition"),
        column("headers"),
        strict=True,
    )
    for number, (row_topic, value, key, partition, headers) in enumerate(rows):
        if row_topic is None:
            raise noted(
                DeliveryError("a row's topic is null", hint="Set the option topic, or filter rows.")
            )
        pairs = None if headers is None else [(h["key"], h["value"]) for h in headers]
        delivery.send(row_topic, value, key, partition, pairs)
        if number % _POLL_EVERY == 0:
            delivery.check()
    delivery.check()
