"""What a driver asks a Kafka cluster: which topics, which partitions, which offsets.

Every answer that may be different a moment later (no leader yet, a broker restarting) is asked
for again until a deadline. Must not know: Spark, options' names, queries.
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

from tidemill.errors import TidemillError, UnknownTopicOrPartitionError, UnreachableError
from tidemill.spark.clients import RETRIABLE, LastError, make_client, unreachable
from tidemill.spark.ranges import Offsets, TopicPartition
from tidemill.spark.source_options import EARLIEST, LATEST, Subscription
from tidemill.spark.topics import Topic

DEADLINE_S = 60.0
"""As long as the Java client asks (``default.api.timeout.ms``)."""
FIRST_DEADLINE_S = 15.0
"""For the first answer: where nobody ever answered, the address is wrong or no broker was started,
and whoever started the query is waiting to hear it."""
_REQUEST_S = 10.0
_PAUSE_S = 0.1

Answer = TypeVar("Answer")


class KafkaCluster:
    """A cluster reached through librdkafka. Pickles without its connection."""

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
        """See ``topics.Cluster``.

        Raises:
            UnreachableError: no broker answers in time.
        """
        names = self._names(subscription)
        return self._until_settled(
            lambda: self._describe_once(names, subscription), f"describe topics {', '.join(names)}"
        )

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """See ``topics.Cluster``.

        Raises:
            UnreachableError: no broker answers in time.
            UnknownTopicOrPartitionError: a partition is gone.
        """
        specs: dict[int, OffsetSpec] = {
            EARLIEST: OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
            LATEST: OffsetSpec.latest(),  # type: ignore[no-untyped-call]
        }
        return self._list_offsets({tp: specs[which] for tp, which in wanted.items()})

    def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See ``topics.Cluster``; errors as ``offsets``."""
        specs = {tp: OffsetSpec.for_timestamp(ms) for tp, ms in wanted.items()}
        found = self._list_offsets(specs)
        return {tp: offset if offset >= 0 else None for tp, offset in found.items()}

    def close(self) -> None:
        """Drop the connection; the next question makes a new one."""
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
        futures = self._client().list_offsets(
            {KafkaTopicPartition(*tp): spec for tp, spec in specs.items()},
            isolation_level=isolation,
            request_timeout=self._request_s,
        )
        return {(tp.topic, tp.partition): f.result().offset for tp, f in futures.items()}

    def _until_settled(self, ask: Callable[[], Answer], what: str) -> Answer:
        """Ask until the answer is no passing error, or the deadline has come."""
        patience = self._deadline_s if self._has_answered else FIRST_DEADLINE_S
        deadline = time.monotonic() + min(patience, self._deadline_s)
        self._last_error.error = None
        while True:
            try:
                answer = ask()
            except KafkaException as error:
                self._client().poll(0)  # lets librdkafka tell why
                self._last_error.raise_if_hopeless(self._settings.get("bootstrap.servers", ""))
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
