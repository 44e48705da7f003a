"""Write whole record batches in Kafka transactions, with our own small client.

It has the methods of ``TransactionalProducer``, and gives out the encoders of its topics, into
which compiled code writes records without making objects. ``open_producer`` takes librdkafka where
this client can't do something. Must not know: what the records mean. Sources: KIP-98, KIP-890.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any, Protocol

from tidemill import native
from tidemill.connect.base.clients import Kafka
from tidemill.connect.base.errors import (
    MAX_RECORD_BYTES,
    DeliveryError,
    RecordTooLargeError,
    fenced,
    too_large,
)
from tidemill.connect.base.transactional import (
    COMMIT_S,
    INIT_S,
    TRANSACTION_TIMEOUT_MS,
    TransactionalProducer,
)
from tidemill.errors import TidemillError, UnreachableError
from tidemill.kafka_client.errors import (
    BrokerError,
    ConnectionFailedError,
    ConnectionRejectedError,
    text_of,
)
from tidemill.kafka_client.producing import failures
from tidemill.kafka_client.producing.batching import Batching, Identity, Partition, make_encoder
from tidemill.kafka_client.producing.cluster import Cluster
from tidemill.kafka_client.producing.encoder import TOO_LARGE
from tidemill.kafka_client.producing.pipeline import Pipeline
from tidemill.kafka_client.producing.record_batch import Batch
from tidemill.kafka_client.producing.requests import Requests, check
from tidemill.kafka_client.producing.settings import ProducerSettings, understand
from tidemill.kafka_codec import producing as messages

_TOPIC_S = 30.0
"""How long a topic that was created can be unknown to a broker."""
_PAUSE_S = 0.02
_ABORT_S = 5.0
_SETTINGS = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "1",
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "message.max.bytes": str(MAX_RECORD_BYTES),
    "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
}
"""Those of ``TransactionalProducer``."""


class Producer(Protocol):
    """A producer whose records appear together when ``commit`` returns."""

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun."""
        ...

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        ts_ms: int = 0,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        """Add a record to the transaction, which begins if none is open."""
        ...

    def post(self) -> None:
        """Send what is complete, and don't wait for its acknowledgement."""
        ...

    def commit(self) -> None:
        """Commit the transaction. When it returns, the records are durable and visible."""
        ...

    def close(self) -> None:
        """Abort an open transaction, and close the client."""
        ...


def open_producer(kafka: Kafka, transactional_id: str, *, with_headers: bool) -> Producer:
    """Return our own producer; that of librdkafka if ours can't do what is needed.

    Ours needs the compiled extension, writes no headers, and does not know all properties.

    Args:
        kafka: the cluster.
        transactional_id: the identity that survives restarts.
        with_headers: whether records can have headers.

    Raises:
        UnreachableError: no broker answers.
    """
    settings = None if with_headers or native.load() is None else _settings(kafka, transactional_id)
    if settings is not None:
        try:
            cluster = Cluster(settings)
        except OSError:  # a certificate can't be read: librdkafka says which
            return TransactionalProducer(kafka, transactional_id)
        return BatchProducer(kafka, settings, cluster)
    return TransactionalProducer(kafka, transactional_id)


def _settings(kafka: Kafka, transactional_id: str) -> ProducerSettings | None:
    given = kafka.config(transactional_id)
    del given["logger"]
    own = {**_SETTINGS, "transactional.id": transactional_id}
    return understand(own | {name: str(value) for name, value in given.items()})


class BatchProducer:
    """A ``Producer`` of record batches. After an error it can't be used any more.

    A new one with the same id fences this one and aborts its open transaction.

    Args:
        kafka: the cluster.
        settings: its properties.
        cluster: the connections.

    Raises:
        UnreachableError: no broker answers.
    """

    def __init__(self, kafka: Kafka, settings: ProducerSettings, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._id = settings.transactional_id
        self._words = Words(kafka, self._id)
        self._requests = Requests(settings, {messages.TRANSACTION: self._id}, self._words)
        self._requests.cluster = cluster
        self._encoders: dict[str, Any] = {}
        self._announced: set[Partition] = set()
        self._open = False
        body = messages.init_producer_id(self._id, settings.transaction_timeout_ms)
        try:
            found = self._requests.ask(
                "start a transactional producer",
                *(messages.INIT_PRODUCER_ID, body, _identity, messages.TRANSACTION),
                timeout_s=INIT_S,
            )
        except BaseException:
            cluster.close()
            raise
        self._batching = Batching(settings, Identity(found))
        self._pipeline = Pipeline(cluster, settings, found, self._words)
        self._me = messages.Producer(self._id, found)

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun."""
        return self._open

    def begin(self) -> None:
        """Begin a transaction if none is open."""
        self._open = True

    def records(self, topic: str) -> Any:
        """Return the encoder of a topic, into which records can be written directly.

        Call ``begin`` before records are written, and ``post`` from time to time.

        Raises:
            DeliveryError: the topic does not exist.
            UnreachableError: no broker answers.
        """
        found = self._encoders.get(topic)
        if found is None:
            partitions = self._partitions(topic)
            try:
                found = self._encoders[topic] = make_encoder(partitions, self._settings)
            except ValueError as error:
                raise DeliveryError(f"can't write to topic {topic}: {error}") from error
        return found

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        ts_ms: int = 0,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        """Add a record to the transaction, which begins if none is open.

        Raises:
            RecordTooLargeError: the record is too large.
            DeliveryError: the transaction failed.
            ProducerFencedError: another producer has this id.
        """
        assert not headers, "open_producer(with_headers=True)"
        self._open = True
        encoder = self._encoders.get(topic)
        if encoder is None:
            encoder = self.records(topic)
        now = ts_ms or time.time_ns() // 1_000_000
        if encoder.append(key, value, now) == TOO_LARGE:
            raise record_too_large(topic, len(key or b"") + len(value or b""))

    def post(self) -> None:
        """Send the batches that are full, and don't wait for their acknowledgement.

        Raises:
            DeliveryError: the transaction failed.
            ProducerFencedError: another producer has this id.
        """
        for topic, encoder in self._encoders.items():
            self._post(self._batching.batches(topic, encoder.closed()))

    def commit(self) -> None:
        """Commit the transaction. When it returns, the records are durable and visible.

        Raises:
            DeliveryError: the transaction failed; none of its records is visible.
            ProducerFencedError: another producer has this id.
        """
        if not self._open:
            return
        for topic, encoder in self._encoders.items():
            # Batches of one partition can't share a request, and are sent in order.
            self._post(self._batching.batches(topic, encoder.closed()))
        self._post(
            batch
            for topic, encoder in self._encoders.items()
            for batch in self._batching.batches(topic, encoder.take())
        )
        self._pipeline.drain()
        if self._announced:
            self._ask("commit a transaction", messages.end_transaction(self._me, commit=True))
        self._announced.clear()
        self._open = False
        self._follow_partitions()

    def close(self) -> None:
        """Abort an open transaction, and close the client."""
        if self._open and self._announced:
            self._cluster.data.close()  # a request under way must not come after the abort
            self._cluster.control.rest()
            body = messages.end_transaction(self._me, commit=False)
            with contextlib.suppress(TidemillError):
                self._ask("abort a transaction", body, _ABORT_S)
        self._open = False
        self._cluster.close()

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
        new = group.keys() - self._announced
        if new:
            body = messages.add_partitions(self._me, sorted(new))
            self._requests.ask(
                "add partitions to a transaction",
                *(messages.ADD_PARTITIONS, body, _each, messages.TRANSACTION),
                timeout_s=COMMIT_S,
            )
            self._announced |= new
        self._pipeline.post(group.values())

    def _ask(self, what: str, body: bytes, timeout_s: float = COMMIT_S) -> None:
        self._requests.ask(
            what,
            *(messages.END_TRANSACTION, body, _none, messages.TRANSACTION),
            timeout_s=timeout_s,
        )

    def _follow_partitions(self) -> None:
        """Take note of topics that have got more partitions. They are asked for rarely."""
        for topic, encoder in self._encoders.items():
            partitions = self._partitions(topic)
            if partitions > encoder.partitions():
                encoder.grow(partitions)

    def _partitions(self, topic: str) -> int:
        """Return the number of partitions. Wait for a topic that is being created."""
        deadline = time.monotonic() + _TOPIC_S
        while True:
            try:
                return len(self._cluster.topic(topic, deadline).leaders)
            except ConnectionRejectedError as error:
                raise self._words.rejected("", str(error)) from error
            except ConnectionFailedError as error:
                cause, code, is_final = str(error), 0, False
            except BrokerError as error:
                cause, code = error.text, error.code
                is_final = code not in failures.RETRIABLE
            if is_final:
                raise self._words.refused(f"write to topic {topic}", cause, code)
            if time.monotonic() > deadline:
                raise self._words.not_answered(f"write to topic {topic}", cause)
            time.sleep(_PAUSE_S)


class Words:
    """The errors of a connector's producer (``Failures``).

    Args:
        kafka: the cluster.
        transactional_id: the producer's.
    """

    def __init__(self, kafka: Kafka, transactional_id: str) -> None:
        self._kafka = kafka
        self._id = transactional_id

    def not_accepted(self, records: int, topic: str, cause: str, code: int = 0) -> TidemillError:
        """Return the error if records were rejected, or not acknowledged in time."""
        if code == failures.TOO_LARGE:
            return too_large(f"write {records} records to topic {topic}", cause)
        return self.refused(f"write to topic {topic}", cause, code)

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
        return UnreachableError(
            f"can't {what}: no answer from the brokers at {self._kafka.servers}: {cause}",
            hint="Check the address, and that the broker runs.",
        )


def record_too_large(topic: str, size: int) -> RecordTooLargeError:
    """Return the error of a record of so many bytes, which the producer does not send."""
    return too_large(f"write {size:,} bytes to topic {topic}", text_of(failures.TOO_LARGE))


def _identity(view: memoryview) -> tuple[int, int]:
    code, found = messages.parse_init_producer_id(view)
    check(code)
    return found


def _none(view: memoryview) -> None:
    check(messages.parse_error(view))


def _each(view: memoryview) -> None:
    # A partition that was not tried because of another one has OPERATION_NOT_ATTEMPTED.
    codes = [code for code in messages.parse_add_partitions(view).values() if code]
    for code in sorted(codes, key=lambda each: each == _NOT_ATTEMPTED):
        check(code)


_NOT_ATTEMPTED = 55
