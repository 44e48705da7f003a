"""Write and read the topic ``tidemill.pipelines``, and create the topics that a pipeline needs.

Must not know: Spark.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from confluent_kafka import Producer

from tidemill.confluent.clients import Kafka, flush_while_reachable
from tidemill.confluent.metrics import MetricsPublisher
from tidemill.confluent.reading import read_table
from tidemill.errors import TidemillError, UnreachableError
from tidemill.metrics.registry import Registry
from tidemill.spark.errors import PipelineError
from tidemill.spark.pipelines.metrics import add_queries
from tidemill.spark.pipelines.progress import (
    HEARTBEAT_S,
    TOPIC,
    TOPIC_CONFIG,
    QueryStatus,
    decode,
)

_CLIENT = "tidemill-pipelines"
_FLUSH_S = 15.0

Listener = Callable[[QueryStatus], None]


class StatusTopic:
    """A producer of statuses, and of metrics if there is a pipeline. Use it as a context manager.

    Args:
        pipeline: the name of the pipeline that runs; None: only statuses are written.
    """

    def __init__(self, kafka: Mapping[str, str], pipeline: str | None = None) -> None:
        self._kafka = cluster_of(kafka)
        self._producer: Producer | None = None
        self._latest: Mapping[str, QueryStatus] = {}
        self._metrics: MetricsPublisher | None = None
        if pipeline is not None:
            registry = Registry()
            add_queries(registry, lambda: self._latest)
            self._metrics = MetricsPublisher(self._kafka, f"pipeline/{pipeline}", registry)

    def __enter__(self) -> Self:
        if self._metrics is not None:
            self._metrics.__enter__()
        return self

    def measure(self, latest: Mapping[str, QueryStatus]) -> None:
        """Publish metrics of these statuses, which are replaced as the queries run."""
        self._latest = latest

    def __exit__(self, *error: object) -> None:
        if self._metrics is not None:
            self._metrics.__exit__(*error)
        if self._producer is not None:
            flush_while_reachable(self._producer, TOPIC, _FLUSH_S)

    def create(self, topics: Sequence[tuple[str, bool]]) -> list[str]:
        """Create the topics that are missing, with the broker's defaults; changelogs compacted.

        Args:
            topics: the name of each topic, and whether it is a changelog.

        Raises:
            UnreachableError: no broker answers.
            PipelineError: a topic can't be created.
        """
        changelogs = {name for name, is_changelog in topics if is_changelog}
        wanted = dict.fromkeys([TOPIC, *(name for name, _ in topics)])
        try:
            return self._kafka.create_topics(
                _CLIENT,
                {
                    name: (-1, {"cleanup.policy": "compact"} if name in changelogs else {})
                    for name in wanted
                }
                | {TOPIC: (1, TOPIC_CONFIG)},
            )
        except UnreachableError:
            raise
        except TidemillError as error:
            raise PipelineError(str(error), hint="Create it beforehand.") from error

    def publish(self, status: QueryStatus) -> None:
        """Send a status, without waiting until the broker has it."""
        self._send(status.key, status.encode())

    def delete(self, key: str) -> None:
        """Delete the status of a query that does not exist any more."""
        self._send(key, None)

    def _send(self, key: str, value: bytes | None) -> None:
        if self._producer is None:
            self._producer = self._kafka.producer(_CLIENT, linger_ms=20)
        # While no broker is reachable, statuses may be lost: newer ones follow.
        with contextlib.suppress(BufferError):
            self._producer.produce(TOPIC, value, key)
        self._producer.poll(0)


class StatusPublisher:
    """Publishes the statuses of a run: each change, and an unchanged one from time to time.

    Args:
        listener: called with each status that has changed, in the thread that publishes.

    Attributes:
        latest: the status that was published last, by query.
    """

    def __init__(self, topic: StatusTopic, listener: Listener | None = None) -> None:
        self._topic = topic
        self._listener = listener
        self._published_at: dict[str, float] = {}
        self.latest: dict[str, QueryStatus] = {}
        topic.measure(self.latest)

    def publish(self, statuses: Sequence[QueryStatus]) -> None:
        """Publish the statuses that have changed, or that were not published for a while."""
        now = time.monotonic()
        for status in statuses:
            before = self.latest.get(status.query)
            has_changed = before is None or replace(before, updated=status.updated) != status
            if has_changed or now - self._published_at[status.query] >= HEARTBEAT_S:
                self._topic.publish(status)
                self.latest[status.query] = status
                self._published_at[status.query] = now
                if has_changed and self._listener is not None:
                    self._listener(status)


def delete_statuses(kafka: Mapping[str, str], keys: Sequence[str]) -> None:
    """Delete the statuses of queries, if the topic exists.

    Raises:
        UnreachableError: no broker answers.
    """
    known = {each.key for each in read_statuses(kafka)}
    with StatusTopic(kafka) as topic:
        for key in keys:
            if key in known:
                topic.delete(key)


def read_statuses(kafka: Mapping[str, str], pipeline: str | None = None) -> list[QueryStatus]:
    """Return the latest published status of each query, sorted by key.

    Args:
        pipeline: return only the queries of this pipeline.

    Raises:
        UnreachableError: no broker answers.
    """
    latest: dict[str, QueryStatus] = {}
    for key, value in read_table(cluster_of(kafka), _CLIENT, TOPIC, committed=False).items():
        with contextlib.suppress(ValueError, TypeError, KeyError):  # another program wrote it
            latest[key.decode(errors="replace")] = decode(value)
    chosen = (each for _, each in sorted(latest.items()))
    return [each for each in chosen if pipeline is None or each.pipeline == pipeline]


def cluster_of(kafka: Mapping[str, str]) -> Kafka:
    """Return the cluster of a pipeline."""
    properties = {key: kafka[key] for key in kafka if key != "bootstrap.servers"}
    return Kafka(kafka["bootstrap.servers"], properties, prefix="kafka.")
