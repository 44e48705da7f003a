"""Asks a Kafka cluster for topics, partitions and offsets.

A request that fails with a temporary error (no leader yet, a broker restarting) is repeated until a
deadline. Must not know: Spark, options' names, queries.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from tidemill.confluent.clients import has_answered
from tidemill.confluent.errors import RETRIABLE, LastError
from tidemill.confluent.pooling import make_client, raise_if_permanent, unreachable
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError, UnreachableError
from tidemill.reading.ranges import Offsets, TopicPartition
from tidemill.spark.source.planning.options import EARLIEST, LATEST, Subscription
from tidemill.spark.source.planning.topics import Topic

DEADLINE_S = 60.0
"""Seconds until a request is given up, as in the Java client (``default.api.timeout.ms``)."""
FIRST_DEADLINE_S = 15.0
"""Seconds until the first request is given up. If no broker ever answered, the address is probably
wrong or no broker runs, and the user should see that soon."""
_REQUEST_S = 10.0
_PAUSE_S = 0.1

Answer = TypeVar("Answer")


class KafkaCluster:
    """A cluster that is asked through librdkafka. It is pickled without its connection.

    Args:
        deadline_s: Seconds until a request is given up.
    """

    def __init__(self, settings: Mapping[str, str], *, deadline_s: float = DEADLINE_S) -> None:
        self._settings = dict(settings)
        self._deadline_s = deadline_s
        self._request_s = min(_REQUEST_S, deadline_s)
        self._last_error = LastError()
        self._has_answered = False
        self._admin: AdminClient | None = None
        committed_only = settings.get("isolation.level", "").lower() == "read_committed"
        self._committed_only = committed_only

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admin": None, "_last_error": LastError()}

    def describe(self, subscription: Subscription) -> dict[str, Topic]:
        """Return the subscribed topics that exist, with their subscribed partitions."""
        names = self._names(subscription)
        return self._until_settled(
            lambda: self._describe_once(names, subscription), f"describe topics {', '.join(names)}"
        )

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """Return the first or the end offset of partitions.

        Args:
            wanted: ``EARLIEST`` or ``LATEST`` for each partition.

        Raises:
            UnreachableError: No broker answers in time.
            UnknownTopicOrPartitionError: A partition does not exist.
        """
        specs: dict[int, OffsetSpec] = {
            EARLIEST: OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
            LATEST: OffsetSpec.latest(),  # type: ignore[no-untyped-call]
        }
        return self._list_offsets({tp: specs[which] for tp, which in wanted.items()})

    def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return for each partition the first offset at or after a timestamp, or None.

        Args:
            wanted: The timestamp for each partition, in milliseconds since 1970.
        """
        specs = {tp: OffsetSpec.for_timestamp(ms) for tp, ms in wanted.items()}
        found = self._list_offsets(specs)
        return {tp: offset if offset >= 0 else None for tp, offset in found.items()}

    def close(self) -> None:
        """Close the connection. The next request opens another."""
        self._admin = None

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = make_client(AdminClient, self._settings, self._last_error)
        return self._admin

    def _names(self, subscription: Subscription) -> list[str]:
        if subscription.topics:
            return list(subscription.topics)
        if subscription.partitions:
            return list(subscription.partitions)
        metadata = self._until_settled(
            lambda: self._client().list_topics(timeout=self._request_s), "list its topics"
        )
        pattern = re.compile(subscription.pattern)
        return sorted(name for name in metadata.topics if pattern.fullmatch(name))

    def _describe_once(self, names: list[str], subscription: Subscription) -> dict[str, Topic]:
        if not names:
            return {}
        futures = self._client().describe_topics(
            TopicCollection(names), request_timeout=self._request_s
        )
        topics: dict[str, Topic] = {}
        for name, future in futures.items():
            try:
                found = future.result()
            except KafkaException as error:
                if _code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise
            chosen = subscription.partitions.get(name)
            there = sorted(p.id for p in found.partitions)
            partitions = there if chosen is None else [p for p in there if p in chosen]
            topics[name] = Topic(str(found.topic_id or ""), tuple(partitions))
        return topics

    def _list_offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> Offsets:
        if not specs:
            return {}
        what = "list offsets of " + ", ".join(sorted({topic for topic, _ in specs}))
        return self._until_settled(lambda: self._list_offsets_once(specs), what)

    def _list_offsets_once(self, specs: Mapping[TopicPartition, OffsetSpec]) -> Offsets:
        isolation = (
            IsolationLevel.READ_COMMITTED
            if self._committed_only
            else IsolationLevel.READ_UNCOMMITTED
        )
        has_answered(self._client(), self._request_s)
        futures = self._client().list_offsets(
            {KafkaTopicPartition(*tp): spec for tp, spec in specs.items()},
            isolation_level=isolation,
            request_timeout=self._request_s,
        )
        return {(tp.topic, tp.partition): f.result().offset for tp, f in futures.items()}

    def _until_settled(self, ask: Callable[[], Answer], what: str) -> Answer:
        """Repeat a request until it succeeds, fails permanently, or the deadline passes."""
        limit_s = self._deadline_s if self._has_answered else FIRST_DEADLINE_S
        deadline = time.monotonic() + min(limit_s, self._deadline_s)
        self._last_error.error = None
        while True:
            try:
                answer = ask()
            except KafkaException as error:
                self._client().poll(0)  # runs the callback that receives the cause
                raise_if_permanent(self._last_error, self._settings.get("bootstrap.servers", ""))
                code = _code(error)
                if code not in RETRIABLE:
                    raise _translated(error, what) from error
                if time.monotonic() > deadline:
                    if self._last_error.error is None:
                        self._last_error.error = error.args[0]
                    raise unreachable(self._settings, what, self._last_error) from error
            else:
                self._has_answered = True
                return answer
            time.sleep(_PAUSE_S)


def _code(error: KafkaException) -> int:
    return int(error.args[0].code()) if error.args else 0


def _translated(error: KafkaException, what: str) -> TidemillError:
    reason = error.args[0].str() if error.args else str(error)
    if _code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return UnknownTopicOrPartitionError(f"the cluster could not {what}: {reason}")
    return UnreachableError(f"the cluster could not {what}: {reason}")
