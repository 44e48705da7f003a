"""Sends Arrow rows to the leaders of their partitions, and waits until they are acknowledged.

Several requests are under way while rows are encoded. After a temporary failure the producer waits
for all responses, and sends what was not acknowledged again, one batch of each partition at a time,
in order. An idempotent producer numbers its records, so that the broker recognizes a batch that it
has already. Must not know: shares, markers, Spark. Source: KIP-98.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from tidemill.kafka_client.errors import (
    BrokerError,
    ConnectionFailedError,
    ConnectionRejectedError,
)
from tidemill.kafka_client.producing import encoder as python
from tidemill.kafka_client.producing import failures as codes
from tidemill.kafka_client.producing.batching import (
    OPEN_BYTES,
    Batching,
    Identity,
    Partition,
    make_encoder,
)
from tidemill.kafka_client.producing.cluster import Cluster
from tidemill.kafka_client.producing.pipeline import Pipeline
from tidemill.kafka_client.producing.record_batch import Batch
from tidemill.kafka_client.producing.settings import ProducerSettings
from tidemill.spark.errors import DeliveryError
from tidemill.spark.sinks.topic.delivery.native import failures
from tidemill.spark.sinks.topic.delivery.native.columns import Columns, by_topic, columns


class Producer:
    """Sends the rows of one task. After an error it can't be used again.

    Args:
        cluster: The connections, for this producer only.
        settings: The settings.
        identity: Its id, epoch and sequence numbers.
        announce: Is called with partitions before the first records are sent there.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        identity: Identity,
        announce: Callable[[set[Partition]], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._announce = announce
        self._announced: set[Partition] = set()
        self._encoders: dict[str, Any] = {}
        self._opened: float | None = None  # when the first row was encoded that is not sent
        self._batching = Batching(settings, identity)
        self._pipeline = Pipeline(cluster, settings, identity.producer, failures.SINK)

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Send rows, or keep them until there are enough for a request.

        Args:
            batch: Rows with the columns of ``at_least_once.write_rows``.
            topic: Topic for all rows; None for the topic in each row.

        Raises:
            DeliveryError: A row can't be sent, its topic is null, or an earlier row was rejected.
            UnreachableError: The brokers reject the connection.
        """
        for name, rows in by_topic(batch, topic):
            self._encode(name, columns(rows))
        lingers_s = time.monotonic() - (self._opened or time.monotonic())
        if 1000 * lingers_s >= self._settings.linger_ms or self._open_bytes() >= OPEN_BYTES:
            self._post_all()

    def flush(self) -> None:
        """Wait until all rows are acknowledged.

        Raises:
            DeliveryError: A row was rejected, or not acknowledged in time.
            UnreachableError: The brokers reject the connection.
        """
        self._post_all()
        self._pipeline.drain()

    # --- encoding --------------------------------------------------------------------------------

    def _encode(self, topic: str, rows: Columns) -> None:
        encoder, count, row = self._encoder(topic), rows[0][1], 0
        timestamp = int(time.time() * 1000)
        if self._opened is None:
            self._opened = time.monotonic()
        refreshed = False
        while row < count:
            before = row
            try:
                row, status, closed = encoder.add(rows, row, timestamp)
            except ValueError as error:
                raise failures.unsendable(topic, str(error)) from error
            if row > before:
                refreshed = False
            self._post(self._batching.batches(topic, closed))
            if status == python.FULL and encoder.size() >= OPEN_BYTES:
                self._post(self._batching.batches(topic, encoder.take()))
            elif status == python.UNKNOWN_PARTITION and not refreshed:
                refreshed = True
                self._cluster.forget(topic)
                encoder.grow(max(self._partitions(topic), encoder.partitions()))
            elif status > python.FULL:
                raise failures.unsendable(topic, self._reason(status, encoder.partitions()))

    def _reason(self, status: int, partitions: int) -> str:
        if status == python.TOO_LARGE:
            most = self._settings.record_bytes
            return f"Broker: Message size too large (kafka.message.max.bytes is {most})"
        if status == python.NULL_HEADER_KEY:
            return "the key of a header is null"
        return f"the partition of a row does not exist: the topic has {partitions} partitions"

    def _encoder(self, topic: str) -> Any:
        if (known := self._encoders.get(topic)) is None:
            partitions = self._partitions(topic)
            try:
                known = make_encoder(partitions, self._settings)
            except ValueError as error:
                raise DeliveryError(
                    f"can't encode records for {partitions} partitions: {error}"
                ) from error
            self._encoders[topic] = known
        return known

    def _open_bytes(self) -> int:
        return sum(each.size() for each in self._encoders.values())

    def _partitions(self, topic: str) -> int:
        """Return the number of partitions. Wait for a topic that is being created."""
        began = time.monotonic()
        deadline = began + self._settings.timeout_ms / 1000
        patience = began + self._settings.propagation_ms / 1000
        while True:
            try:
                return len(self._cluster.topic(topic, deadline).leaders)
            except ConnectionRejectedError as error:
                raise failures.SINK.rejected(self._pipeline.servers, str(error)) from error
            except ConnectionFailedError as error:
                cause, is_over = str(error), False
            except BrokerError as error:
                is_unknown = error.code == codes.UNKNOWN_TOPIC and time.monotonic() > patience
                cause, is_over = error.text, is_unknown or error.code not in codes.RETRIABLE
            if is_over or time.monotonic() > deadline:
                raise failures.SINK.not_accepted(1, topic, cause)
            time.sleep(self._settings.backoff_ms / 1000)

    # --- sending ---------------------------------------------------------------------------------

    def _post_all(self) -> None:
        self._opened = None
        self._post(
            batch
            for topic, encoder in self._encoders.items()
            for batch in self._batching.batches(topic, encoder.take())
        )

    def _post(self, made: Iterable[Batch]) -> None:
        batches = list(made)
        if not batches:
            return
        new = {(batch.topic, batch.partition) for batch in batches} - self._announced
        if new and self._announce is not None:
            self._announce(new)
        self._announced |= new
        self._pipeline.post(batches)
