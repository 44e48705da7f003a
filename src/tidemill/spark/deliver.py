"""From Arrow to a Kafka broker: rows as records, until the broker has acknowledged all of them.

Must not know: Spark, options' names, queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidemill.errors import DeliveryError
from tidemill.spark.clients import RAISED, ClientPool, LastError, make_client
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
            delivery.sender.send(batch, topic)
            rows += batch.num_rows
        delivery.finish()
    except BaseException:
        delivery.abandon()
        raise
    return rows


class Outcome:
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
    """Queues rows at a producer, and hears which of them were refused."""

    def __init__(
        self, producer: Producer, outcome: Outcome, last_error: LastError, servers: str
    ) -> None:
        self._producer = producer
        self._outcome = outcome
        self._last_error = last_error
        self._servers = servers
        outcome.reset()
        last_error.error = None

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Queue the rows of a batch; waits while the queue is full.

        Raises:
            DeliveryError: a row can't be sent, its topic is null, or one before it was refused.
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
                    f"a record can't be sent to topic {topic}: {error.args[0].str()}"
                ) from error
            else:
                return

    def check(self, wait_s: float = 0) -> None:
        """Let callbacks run.

        Raises:
            DeliveryError: a record was refused or not acknowledged in time.
        """
        self._serve(self._producer.poll, wait_s)
        self._last_error.raise_if_hopeless(self._servers)
        if (first := self._outcome.first) is not None:
            raise noted(
                DeliveryError(
                    f"{self._outcome.failures} records or more were not accepted, the first for "
                    f"{self._outcome.where}: {first.str()}{self._last_error.text}",
                    hint="The batch is incomplete in the topic; it is written again on a restart.",
                )
            )

    def flush(self) -> None:
        """Wait until all is acknowledged; ``message.timeout.ms`` bounds it.

        Raises:
            DeliveryError: see ``check``.
        """
        while self._serve(self._producer.flush, _FLUSH_S) > 0:
            self.check()
        self.check()

    def _serve(self, ask: Callable[[float], int], wait_s: float) -> int:
        """Ask the client for what runs callbacks.

        A fatal error (this producer is fenced, its sequence is broken) is raised from there, as an
        exception that is no KafkaException; where two callbacks meet one, as a SystemError.
        """
        try:
            return ask(wait_s)
        except RAISED as error:
            told = str(error)  # and not the error itself: it may be no Exception
        raise noted(
            DeliveryError(
                f"the producer can't go on: {told}",
                hint="The batch is incomplete in the topic; it is written again on a restart.",
            )
        )


class Delivery:
    """The records of one task on their way, at least once. ``finish`` or ``abandon`` ends it.

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

    def finish(self) -> None:
        """Wait until all is acknowledged.

        Raises:
            DeliveryError: see ``Sender.check``.
        """
        self.sender.flush()
        _pool.give(self._settings, self._pooled)

    def abandon(self) -> None:
        """Drop what is not sent yet, and the producer: its state is not to be relied on."""
        _pool.drop(self._pooled)


def make_producer(settings: Mapping[str, str], last: LastError) -> tuple[Producer, Outcome]:
    """A producer, and where it tells of refused records.

    Raises:
        OptionError: librdkafka does not know a setting.
    """
    outcome = Outcome()
    # A callback for each record in Python would halve the speed; failures are all that counts.
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
    """(topic, value, key, partition, headers) of each row.

    Raises:
        DeliveryError: a row's topic is null.
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
            raise noted(
                DeliveryError("a row's topic is null", hint="Set the option topic, or filter rows.")
            )
        pairs = None if headers is None else [(h["key"], h["value"]) for h in headers]
        yield row_topic, value, key, partition, pairs
