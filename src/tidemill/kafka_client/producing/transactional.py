"""Writes records in Kafka transactions, one after the other, and notices when it is fenced.

Partitions are added to a transaction by AddPartitionsToTxn, as brokers with transaction.version 1
demand and those with 2 accept. Must not know: connectors, Spark, what the records mean. Sources:
KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tidemill.errors import TidemillError
from tidemill.kafka_client.errors import (
    BrokerError,
    ConnectionFailedError,
    ConnectionRejectedError,
    text_of,
)
from tidemill.kafka_client.producing import failures
from tidemill.kafka_client.producing.batching import (
    TOO_LARGE,
    Identity,
    Partition,
    encode_headers,
)
from tidemill.kafka_client.producing.cluster import Cluster
from tidemill.kafka_client.producing.failures import ErrorFactory
from tidemill.kafka_client.producing.producer import Columns, Producer
from tidemill.kafka_client.producing.requests import GROUP, REQUEST_S, TRANSACTION, Requests, check
from tidemill.kafka_client.producing.settings import ProducerSettings
from tidemill.kafka_codec.declared import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END_TRANSACTION,
    OFFSET_FETCH,
)
from tidemill.kafka_codec.messages import Tree

ABORT_S = 5.0
"""Seconds to wait for the abort of a failed transaction. The next producer aborts it, too."""
_END = "\0"
"""Ends the metadata of a marker. confluent-kafka writes it too, and reads on without it."""

Headers = Sequence[tuple[str, bytes | None]]


class Marker(NamedTuple):
    """A committed offset with its metadata. The offset is below 0 if there is none."""

    offset: int
    metadata: str


class TransactionalProducer:
    """A producer whose records appear together when ``commit`` returns.

    A new one with the same transactional id fences this one, and aborts its open transaction. Its
    consumer group, for the marker, has the name of the transactional id. After an error it can't be
    used any more: close it and make a new one.

    Args:
        settings: The settings, with a transactional id.
        take: Returns connections for this producer only. It is called when they are needed.
        patience_s: Seconds to wait for an answer; None for the time of a transaction.

    Attributes:
        is_open: Whether a transaction has begun.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        errors: ErrorFactory,
        take: Callable[[], Cluster],
        *,
        patience_s: float | None = None,
    ) -> None:
        self._settings = settings
        self._errors = errors
        self._take = take
        self._patience_s = patience_s
        self._name = name = settings.transactional_id
        self._requests = Requests(settings, {TRANSACTION: name, GROUP: name}, errors)
        self._identity = Identity()
        self._producer: Producer | None = None
        self._encoders: Any = {}
        self._announced: set[Partition] = set()
        self._is_known = False  # whether the coordinator may know of an open transaction
        self._what = ""
        self.is_open = False

    def start(self, what: str = "start a producer", topic: str | None = None) -> None:
        """Fence earlier producers, and end their transactions.

        Args:
            topic: A topic to ask for first. A broker that creates topics by itself does so.

        Raises:
            TidemillError: By the error factory.
        """
        control = self._cluster().control
        if topic is not None:
            deadline = time.monotonic() + REQUEST_S
            with contextlib.suppress(ConnectionFailedError, ConnectionRejectedError, BrokerError):
                control.metadata(topic, deadline, create=self._settings.create)
        timeout_ms = self._settings.transaction_timeout_ms
        self._identity = Identity(
            self._requests.init_producer_id(what, self._name, timeout_ms, self._patience_s)
        )

    def marker(self, topic: str, what: str) -> Marker:
        """Return what the group has committed for partition 0 of a topic."""

        def parse(found: Any) -> Marker:
            check(found.error_code)
            for each in (each for about in found.topics for each in about.partitions):
                check(each.error_code)
                metadata = each.metadata or ""
                return Marker(each.committed_offset, metadata.partition(_END)[0])
            return Marker(-1, "")

        topics = [{"name": topic, "partition_indexes": [0]}]
        tree = {"group_id": self._name, "topics": topics, "require_stable": True}
        return self._requests.ask(what, OFFSET_FETCH, tree, parse, GROUP)

    def begin(self, what: str = "add partitions to a transaction") -> None:
        """Begin a transaction if none is open."""
        if not self.is_open:
            # Between transactions, because what follows a commit must not look as if it failed.
            self._records().follow_partitions()
            self._what, self.is_open = what, True

    def mark(self, topic: str, marker: Marker) -> None:
        """Add an offset of the group to the transaction."""
        self._is_known = True
        group = {**self._me(), "group_id": self._name}
        self._ask(self._what, ADD_OFFSETS, group, _check_one)
        offset = {
            "partition_index": 0,
            "committed_offset": marker.offset,
            "committed_metadata": marker.metadata + _END,
        }
        tree = {**group, "topics": [{"name": topic, "partitions": [offset]}]}
        self._ask(self._what, COMMIT_OFFSETS, tree, _check_offsets, GROUP)

    def encoder(self, topic: str) -> Any:
        """Return the encoder of a topic, as ``Producer.encoder``. It is valid until ``rest``.

        Call ``begin`` before records are written, and ``post`` from time to time.
        """
        return self._records().encoder(topic)

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        ts_ms: int | None = None,
        headers: Headers = (),
    ) -> None:
        """Add a record to the transaction, which begins if none is open.

        Args:
            ts_ms: The time in ms since 1970; None for now.

        Raises:
            TidemillError: By the error factory: the record is too large, or the topic does not
                exist.
        """
        if not self.is_open:
            self.begin()
        encoder = self._encoders.get(topic)
        if encoder is None:
            encoder = self.encoder(topic)
        at = time.time_ns() // 1_000_000 if ts_ms is None else ts_ms
        if headers:
            status = encoder.append(key, value, at, encode_headers(headers))
        else:
            status = encoder.append(key, value, at)
        if status == TOO_LARGE:
            size = len(key or b"") + len(value or b"")
            raise self._errors.too_large(topic, size, text_of(failures.TOO_LARGE))

    def add(self, topic: str, rows: Columns) -> None:
        """Add rows to the transaction that is open, as ``Producer.add``."""
        self._records().add(topic, rows)

    def post_if_due(self) -> None:
        """Send rows as ``Producer.post_if_due``."""
        self._records().post_if_due()

    def post(self) -> None:
        """Send the batches that are full, and don't wait for their acknowledgement."""
        if self._producer is not None:
            self._producer.post()

    @property
    def codec(self) -> int:
        """The number of the codec of batches."""
        return self._settings.codec

    def flush(self) -> None:
        """Wait until all records of the transaction so far are acknowledged.

        Raises:
            TidemillError: By the error factory: a record was rejected, or not acknowledged in
                time.
        """
        if self.is_open:
            self._records().flush()

    def commit(self, what: str = "commit a transaction") -> None:
        """Commit the transaction. When it returns, the records are durable and visible.

        Raises:
            TidemillError: By the error factory: the transaction failed, and none of its records
                is visible; or another producer has the transactional id.
        """
        if not self.is_open:
            return
        self._records().flush()
        if self._is_known:
            self._ask(what, END_TRANSACTION, {**self._me(), "committed": True}, _check_one)
        self._announced.clear()
        self.is_open = self._is_known = False

    def rest(self) -> Cluster | None:
        """Return the connections, so that others can use them until the next transaction."""
        cluster, self._requests.cluster = self._requests.cluster, None
        self._producer, self._encoders = None, {}
        if cluster is not None:
            cluster.rest()
        return cluster

    def close(self) -> None:
        """Abort an open transaction if the broker can be reached, and close the connections."""
        self._producer, self._encoders = None, {}
        cluster = self._requests.cluster
        if cluster is None:
            return
        if self._is_known:
            cluster.data.close()  # a request under way must not come after the abort
            cluster.control.rest()  # an interruption may have left a response under way
            tree = {**self._me(), "committed": False}
            with contextlib.suppress(TidemillError):
                self._requests.ask(
                    "abort a transaction",
                    *(END_TRANSACTION, tree, _check_one, TRANSACTION),
                    timeout_s=ABORT_S,
                )
        self.is_open = self._is_known = False
        self._requests.cluster = None
        cluster.close()

    def _cluster(self) -> Cluster:
        if self._requests.cluster is None:
            self._requests.cluster = self._take()
        return self._requests.cluster

    def _records(self) -> Producer:
        if self._producer is None:
            cluster, identity = self._cluster(), self._identity
            self._producer = made = Producer(
                cluster, self._settings, identity, self._errors, self._announce
            )
            self._encoders = made.encoders
        return self._producer

    def _me(self) -> dict[str, Any]:
        producer_id, epoch = self._identity.producer
        return {
            "transactional_id": self._name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }

    def _announce(self, partitions: set[Partition]) -> None:
        new = partitions - self._announced
        if new:
            self._is_known = True
            topics: dict[str, list[int]] = {}
            for topic, partition in sorted(new):
                topics.setdefault(topic, []).append(partition)
            tree = {
                **self._me(),
                "topics": [{"name": name, "partitions": found} for name, found in topics.items()],
            }
            tree = {f"v3_and_below_{name}": value for name, value in tree.items()}
            self._ask(self._what, ADD_PARTITIONS, tree, _check_partitions)
            self._announced |= new

    def _ask(
        self,
        what: str,
        api: int,
        tree: Tree,
        check_answer: Callable[[Any], None],
        kind: int = TRANSACTION,
    ) -> None:
        self._requests.ask(what, api, tree, check_answer, kind, timeout_s=self._patience_s)


def _check_one(found: Any) -> None:
    check(found.error_code)


def _check_offsets(found: Any) -> None:
    for each in (each for about in found.topics for each in about.partitions):
        check(each.error_code)


def _check_partitions(found: Any) -> None:
    # A partition that was not tried because of another one has OPERATION_NOT_ATTEMPTED.
    codes = [
        each.partition_error_code
        for about in found.results_by_topic_v3_and_below
        for each in about.results_by_partition
    ]
    for code in sorted(codes, key=lambda each: each == _NOT_ATTEMPTED):
        check(code)


_NOT_ATTEMPTED = 55
