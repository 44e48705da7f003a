"""Encodes records by partition, sends them to the leaders, and waits for acknowledgements.

Several requests are under way while records are encoded. After a temporary failure the producer
waits for all responses, and sends what was not acknowledged again, one batch of each partition at a
time, in order. An idempotent producer numbers its records, so that the broker recognizes a batch
that it has already. Must not know: Arrow's classes, connectors, Spark. Source: KIP-98.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidemill.kafka_client.errors import (
    BrokerError,
    ConnectionFailedError,
    ConnectionRejectedError,
)
from tidemill.kafka_client.producing import failures as codes
from tidemill.kafka_client.producing.batching import (
    FULL,
    NULL_HEADER_KEY,
    OPEN_BYTES,
    TOO_LARGE,
    UNKNOWN_PARTITION,
    Batching,
    Identity,
    Partition,
    make_encoder,
)
from tidemill.kafka_client.producing.cluster import Cluster
from tidemill.kafka_client.producing.failures import ErrorFactory
from tidemill.kafka_client.producing.pipeline import Pipeline
from tidemill.kafka_client.producing.record_batch import Batch
from tidemill.kafka_client.producing.settings import ProducerSettings

Columns = tuple[Any, ...]
"""Value, key, partition and headers of rows, each a tuple of Arrow's buffers, or None."""


class Producer:
    """Sends records to topics. After an error it can't be used again.

    Args:
        cluster: The connections, for this producer only.
        announce: Is called with the partitions of records before these are sent.

    Attributes:
        encoders: The encoders of the topics that were used.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        identity: Identity,
        errors: ErrorFactory,
        announce: Callable[[set[Partition]], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._errors = errors
        self._announce = announce
        self._encoders: dict[str, Any] = {}
        self._opened: float | None = None  # when the first row was added that is not sent
        self._batching = Batching(settings, identity)
        self._pipeline = Pipeline(cluster, settings, identity.producer, errors)
        self.encoders: Mapping[str, Any] = self._encoders

    def encoder(self, topic: str) -> Any:
        """Return the encoder of a topic, into which records can be written directly.

        Call ``post`` from time to time: it sends the batches that are full.
        """
        if (known := self._encoders.get(topic)) is None:
            partitions = self._partitions(topic)
            try:
                known = make_encoder(partitions, self._settings)
            except ValueError as error:
                raise self._errors.unsendable(topic, f"{partitions} partitions: {error}") from error
            self._encoders[topic] = known
        return known

    def add(self, topic: str, rows: Columns) -> None:
        """Add rows, and send the batches that are full.

        Raises:
            TidemillError: By the error factory: a row can't be sent, or an earlier one was
                rejected.
        """
        encoder, count, row = self.encoder(topic), rows[0][1], 0
        timestamp = int(time.time() * 1000)
        if self._opened is None:
            self._opened = time.monotonic()
        refreshed = False
        while row < count:
            before = row
            try:
                row, status, closed = encoder.add(rows, row, timestamp)
            except ValueError as error:
                raise self._errors.unsendable(topic, str(error)) from error
            if row > before:
                refreshed = False
            self._post(self._batching.batches(topic, closed))
            if status == FULL and encoder.size() >= OPEN_BYTES:
                self._post(self._batching.batches(topic, encoder.take()))
            elif status == UNKNOWN_PARTITION and not refreshed:
                refreshed = True
                self._cluster.forget(topic)
                encoder.grow(max(self._partitions(topic), encoder.partitions()))
            elif status > FULL:
                raise self._errors.unsendable(topic, self._reason(status, encoder.partitions()))

    def post_if_due(self) -> None:
        """Send all rows if they are many, or if the first of them has waited for ``linger.ms``."""
        lingers_s = time.monotonic() - (self._opened or time.monotonic())
        open_bytes = sum(each.size() for each in self._encoders.values())
        if 1000 * lingers_s >= self._settings.linger_ms or open_bytes >= OPEN_BYTES:
            self._post_all()

    def post(self) -> None:
        """Send the batches that are full, and don't wait for their acknowledgement."""
        for topic, encoder in self._encoders.items():
            self._post(self._batching.batches(topic, encoder.closed()))

    def flush(self) -> None:
        """Wait until all records are acknowledged.

        Raises:
            TidemillError: By the error factory: a record was rejected, or not acknowledged in
                time.
        """
        self.post()
        self._post_all()
        self._pipeline.drain()

    def follow_partitions(self) -> None:
        """Take note of topics that have got more partitions. They are asked for rarely."""
        for topic, encoder in self._encoders.items():
            partitions = self._partitions(topic)
            if partitions > encoder.partitions():
                encoder.grow(partitions)

    def _reason(self, status: int, partitions: int) -> str:
        if status == TOO_LARGE:
            most = self._settings.record_bytes
            return f"Broker: Message size too large (kafka.message.max.bytes is {most})"
        if status == NULL_HEADER_KEY:
            return "the key of a header is null"
        return f"the partition of a row does not exist: the topic has {partitions} partitions"

    def _partitions(self, topic: str) -> int:
        """Return the number of partitions. Wait for a topic that is being created."""
        began = time.monotonic()
        deadline = began + self._settings.timeout_ms / 1000
        patience = began + self._settings.propagation_ms / 1000
        while True:
            try:
                return len(self._cluster.topic(topic, deadline).leaders)
            except ConnectionRejectedError as error:
                raise self._errors.rejected(self._pipeline.servers, str(error)) from error
            except ConnectionFailedError as error:
                cause, code, is_over = str(error), 0, False
            except BrokerError as error:
                cause, code = error.text, error.code
                is_unknown = code == codes.UNKNOWN_TOPIC and time.monotonic() > patience
                is_over = is_unknown or code not in codes.RETRIABLE
            if is_over or time.monotonic() > deadline:
                raise self._errors.not_accepted(1, topic, cause, code)
            time.sleep(self._settings.backoff_ms / 1000)

    # --- sending ---------------------------------------------------------------------------------

    def _post_all(self) -> None:
        self._opened = None
        self._post(
            batch
            for topic, encoder in self._encoders.items()
            for batch in self._batching.batches(topic, encoder.take())
        )

    def _post(self, batches: Iterable[Batch]) -> None:
        """Send batches, those of one partition one after the other."""
        group: dict[Partition, Batch] = {}
        for batch in batches:
            place = (batch.topic, batch.partition)
            if place in group:
                self._send(group)
                group = {}
            group[place] = batch
        if group:
            self._send(group)

    def _send(self, group: dict[Partition, Batch]) -> None:
        if self._announce is not None:
            self._announce(set(group))
        self._pipeline.post(group.values())
