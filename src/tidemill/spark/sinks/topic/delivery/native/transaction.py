"""Writes rows and a marker in one Kafka transaction, with the native producer.

Partitions are added to a transaction by AddPartitionsToTxn, as brokers with transaction.version 1
demand and those with 2 accept. Must not know: Spark, shares, what a marker means. Sources: KIP-98,
KIP-447, KIP-890.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.kafka_client.errors import BrokerError, ConnectionFailedError, ConnectionRejectedError
from tidemill.kafka_client.producing.batching import Identity, Partition
from tidemill.kafka_client.producing.cluster import Cluster
from tidemill.kafka_client.producing.requests import Requests, check
from tidemill.kafka_client.producing.settings import ProducerSettings
from tidemill.kafka_codec import producing as messages
from tidemill.spark.sinks.topic.delivery import limits
from tidemill.spark.sinks.topic.delivery.native.clusters import clusters
from tidemill.spark.sinks.topic.delivery.native.failures import SINK
from tidemill.spark.sinks.topic.delivery.native.producer import Producer
from tidemill.spark.sinks.topic.delivery.transactional import Marker

_TRANSACTION = messages.TRANSACTION
_GROUP = messages.GROUP
_END = "\0"
"""Ends the metadata of a marker. confluent-kafka writes it too, and reads on without it."""


class Transaction:
    """A ``TransactionalClient`` without librdkafka. While it rests, it has no connections.

    Args:
        kafka: Settings of librdkafka, with a transactional id.
        settings: The same settings.
    """

    def __init__(self, kafka: Mapping[str, str], settings: ProducerSettings) -> None:
        self._kafka = {key: kafka[key] for key in kafka if key != "transactional.id"}
        self._settings = settings
        self._name = name = settings.transactional_id
        self._requests = Requests(settings, {_TRANSACTION: name, _GROUP: name}, SINK)
        self._identity = Identity()
        self._producer: Producer | None = None
        self._is_open = False
        self._what = ""

    def connect(self, marker_topic: str, what: str) -> Marker:
        """Fence earlier producers, end their transactions, and return the marker."""
        cluster = self._take_cluster()
        # A broker that creates topics by itself does so now.
        with contextlib.suppress(ConnectionFailedError, ConnectionRejectedError, BrokerError):
            cluster.control.metadata(
                marker_topic, _deadline(limits.REQUEST_S), create=self._settings.create
            )

        def identity(view: memoryview) -> tuple[int, int]:
            code, found = messages.parse_init_producer_id(view)
            check(code)
            return found

        def marker(view: memoryview) -> Marker:
            code, offset, metadata = messages.parse_fetch_offset(view)
            check(code)
            return Marker(offset, metadata.partition(_END)[0])

        timeout_ms = self._settings.transaction_timeout_ms
        body = messages.init_producer_id(self._name, timeout_ms)
        self._identity = Identity(
            self._requests.ask(
                "start a producer", messages.INIT_PRODUCER_ID, body, identity, _TRANSACTION
            )
        )
        body = messages.fetch_offset(self._name, marker_topic)
        return self._requests.ask(what, messages.OFFSET_FETCH, body, marker, _GROUP)

    def begin(self, marker_topic: str, marker: Marker, what: str) -> None:
        """Begin a transaction, and add the marker to it."""
        cluster = self._take_cluster()
        self._what, self._is_open = what, True
        me = self._me()
        self._ask(messages.ADD_OFFSETS, messages.add_offsets(me, self._name))
        metadata = marker.metadata + _END
        body = messages.commit_offset(me, self._name, marker_topic, marker.offset, metadata)
        self._requests.ask(what, messages.COMMIT_OFFSETS, body, _check_each, _GROUP)
        self._producer = Producer(cluster, self._settings, self._identity, self._add)

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Send rows, or keep them for a moment."""
        assert self._producer is not None, "no transaction"
        self._producer.send(batch, topic)

    def commit(self, what: str) -> None:
        """Wait until all rows are acknowledged, and commit."""
        assert self._producer is not None, "no transaction"
        self._producer.flush()
        self._what = what
        self._ask(messages.END_TRANSACTION, messages.end_transaction(self._me(), commit=True))
        self._is_open, self._producer = False, None

    def rest(self) -> None:
        """Leave the connections to other transactions."""
        cluster, self._requests.cluster = self._requests.cluster, None
        if cluster is not None:
            cluster.rest()
            clusters.give(self._kafka, cluster)

    def close(self) -> None:
        """Abort an open transaction if the broker can be reached."""
        self._producer = None
        cluster = self._requests.cluster
        if cluster is None:
            return
        if self._is_open:
            self._is_open = False
            cluster.data.close()  # a request under way must not come after the abort
            cluster.control.rest()  # an interruption may have left a response under way
            body = messages.end_transaction(self._me(), commit=False)
            with contextlib.suppress(TidemillError):
                self._requests.ask(
                    "abort a transaction",
                    *(messages.END_TRANSACTION, body, _check_one, _TRANSACTION),
                    timeout_s=limits.ABORT_S,
                )
        self._requests.cluster = None
        cluster.close()

    def _take_cluster(self) -> Cluster:
        if self._requests.cluster is None:
            self._requests.cluster = clusters.take(self._kafka, lambda: Cluster(self._settings))
        return self._requests.cluster

    def _me(self) -> messages.Producer:
        return messages.Producer(self._name, self._identity.producer)

    def _add(self, partitions: set[Partition]) -> None:
        body = messages.add_partitions(self._me(), sorted(partitions))
        self._requests.ask(self._what, messages.ADD_PARTITIONS, body, _check_each, _TRANSACTION)

    def _ask(self, api: int, body: bytes) -> None:
        self._requests.ask(self._what, api, body, _check_one, _TRANSACTION)


def _check_one(view: memoryview) -> None:
    check(messages.parse_error(view))


def _check_each(view: memoryview) -> None:
    # A partition that was not tried because of another one has OPERATION_NOT_ATTEMPTED.
    codes = [code for code in messages.parse_add_partitions(view).values() if code]
    for code in sorted(codes, key=lambda each: each == _NOT_ATTEMPTED):
        check(code)


_NOT_ATTEMPTED = 55


def _deadline(seconds: float) -> float:
    import time

    return time.monotonic() + seconds
