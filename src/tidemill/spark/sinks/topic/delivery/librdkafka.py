"""Sends Arrow rows with librdkafka, one call for each row: the edition for all of its settings.

Must not know: Spark, options' names, queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidemill.spark.base.clients import RAISED, ClientPool, LastError, make_client
from tidemill.spark.errors import DeliveryError, with_note

_FLUSH_S = 0.5
# Success is not reported, so a longer wait would not end when the queue has room again.
_FULL_S = 0.002
_POLL_EVERY = 20_000


class Outcome:
    """Counts the records that a producer could not deliver.

    Attributes:
        failures: Number of these records.
        first: Error of the first of them, or None.
        where: Topic of the first of them, for messages.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start counting again."""
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
    outcome: Outcome
    last_error: LastError


def _close(pooled: _PooledProducer) -> None:
    pooled.producer.purge()
    pooled.producer.flush(1.0)


_pool: ClientPool[_PooledProducer] = ClientPool(_close, limit=2)


def close_idle_producers() -> None:
    """Close the producers that this process keeps for its next task."""
    _pool.clear()


class Sender:
    """Queues rows in a producer and reports rows that the broker rejected.

    Args:
        producer: The client.
        outcome: Receives the failures of the producer.
        last_error: Receives other errors of the producer.
        servers: Addresses of the brokers, for messages.
    """

    def __init__(
        self, producer: Producer, outcome: Outcome, last_error: LastError, servers: str
    ) -> None:
        self._producer = producer
        self._outcome = outcome
        self._last_error = last_error
        self._servers = servers
        self.reset()

    def reset(self) -> None:
        """Forget the failures of earlier rows."""
        self._outcome.reset()
        self._last_error.error = None

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Queue the rows of a batch. Wait while the queue is full.

        Args:
            batch: The rows.
            topic: Topic for all rows; None for the topic in each row.

        Raises:
            DeliveryError: A row can't be sent, its topic is null, or an earlier row was rejected.
        """
        for number, row in enumerate(_rows(batch, topic)):
            self._queue(*row)
            if number % _POLL_EVERY == 0:
                self.check()
        self.check()

    def _queue(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        partition: int | None,
        headers: list[tuple[str, bytes | None]] | None,
    ) -> None:
        extra: dict[str, Any] = {} if partition is None else {"partition": partition}
        if headers:
            extra["headers"] = headers
        while True:
            try:
                self._producer.produce(topic, value, key, **extra)
            except BufferError:
                self.check(_FULL_S)
            except KafkaException as error:
                raise DeliveryError(
                    f"can't send a record to topic {topic}: {error.args[0].str()}"
                ) from error
            else:
                return

    def check(self, wait_s: float = 0) -> None:
        """Run the callbacks of the producer.

        Args:
            wait_s: Seconds to wait for callbacks.

        Raises:
            DeliveryError: A record was rejected or not acknowledged in time.
        """
        self._serve(self._producer.poll, wait_s)
        self._last_error.raise_if_permanent(self._servers)
        if (first := self._outcome.first) is not None:
            raise with_note(
                DeliveryError(
                    f"at least {self._outcome.failures} records were not accepted, the first for "
                    f"{self._outcome.where}: {first.str()}{self._last_error.text}",
                    hint="The batch is incomplete in the topic. A restart writes it again.",
                )
            )

    def flush(self) -> None:
        """Wait until all rows are acknowledged, at most ``message.timeout.ms``.

        Raises:
            DeliveryError: A record was rejected or not acknowledged in time.
        """
        while self._serve(self._producer.flush, _FLUSH_S) > 0:
            self.check()
        self.check()

    def _serve(self, ask: Callable[[float], int], wait_s: float) -> int:
        """Call a method of the client that runs callbacks.

        A fatal error (this producer is fenced, or its sequence is broken) is raised from there, but
        not as a KafkaException; if two callbacks raise it, as a SystemError.
        """
        try:
            return ask(wait_s)
        except RAISED as error:
            text = str(error)  # not the error itself, which might not derive from Exception
        raise with_note(
            DeliveryError(
                f"the producer can't continue: {text}",
                hint="The batch is incomplete in the topic. A restart writes it again.",
            )
        )


class Delivery:
    """The delivery of one task's records. Call ``finish`` or ``abandon`` at its end.

    Args:
        settings: Settings of the producer.

    Raises:
        OptionError: librdkafka does not know a setting.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._pooled = pooled = _pool.take(settings, self._connect)
        servers = settings["bootstrap.servers"]
        self.sender = Sender(pooled.producer, pooled.outcome, pooled.last_error, servers)

    def _connect(self) -> _PooledProducer:
        last = LastError()
        producer, outcome = make_producer(self._settings, last)
        return _PooledProducer(producer, outcome, last)

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Queue the rows of a batch, as ``Sender.send``."""
        self.sender.send(batch, topic)

    def finish(self) -> None:
        """Wait until all records are acknowledged.

        Raises:
            DeliveryError: A record was rejected or not acknowledged in time.
        """
        self.sender.flush()
        _pool.give(self._settings, self._pooled)

    def abandon(self) -> None:
        """Drop unsent records and the producer, which may be in an invalid state."""
        _pool.drop(self._pooled)


def make_producer(settings: Mapping[str, str], last: LastError) -> tuple[Producer, Outcome]:
    """Create a producer, and the object that receives its failures.

    Args:
        settings: Settings of librdkafka.
        last: Receives other errors of the producer.

    Raises:
        OptionError: librdkafka does not know a setting.
    """
    outcome = Outcome()
    # A Python callback for each record would halve the speed, so only failures are reported.
    config = {**settings, "on_delivery": outcome, "delivery.report.only.error": True}
    return make_client(Producer, config, last), outcome


Row = tuple[
    str,
    "bytes | str | None",
    "bytes | str | None",
    "int | None",
    "list[tuple[str, bytes | None]] | None",
]


def _rows(batch: pa.RecordBatch, topic: str | None) -> Iterator[Row]:
    """Yield (topic, value, key, partition, headers) of each row.

    Raises:
        DeliveryError: The topic of a row is null.
    """
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
    for row_topic, value, key, partition, headers in rows:
        if row_topic is None:
            raise with_note(
                DeliveryError(
                    "the topic of a row is null", hint="Set the option topic, or filter rows."
                )
            )
        pairs = None if headers is None else [(h["key"], h["value"]) for h in headers]
        yield row_topic, value, key, partition, pairs
