"""Topics, and the interface through which planning asks a cluster.

Must not know: Spark, Kafka clients, Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tidemill.errors import UnknownTopicOrPartitionError
from tidemill.reading.ranges import Offsets, TopicPartition
from tidemill.spark.source.planning.options import Subscription


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic in its current state.

    Attributes:
        topic_id: Changes when a topic is deleted and created again; empty on brokers without ids.
        partitions: Numbers of the partitions, in order.
    """

    topic_id: str
    partitions: tuple[int, ...]


class Cluster(Protocol):
    """The requests to a cluster that planning needs."""

    def describe(self, subscription: Subscription) -> dict[str, Topic]:
        """Return the subscribed topics that exist, with the subscribed partitions that exist."""

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """Return the offset that EARLIEST or LATEST means for each partition."""

    def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return for each partition the first offset at or after a timestamp (ms), or None."""


def missing(
    subscription: Subscription, topics: Mapping[str, Topic]
) -> UnknownTopicOrPartitionError | None:
    """Return the error for subscribed topics or partitions that don't exist, or None.

    A pattern names no topic, so it has no error.
    """
    named: Iterable[str] = subscription.topics or subscription.partitions
    absent = [name for name in named if name not in topics]
    absent += [
        f"{name}-{p}"
        for name, chosen in subscription.partitions.items()
        if name in topics
        for p in chosen
        if p not in topics[name].partitions
    ]
    return unknown(absent) if absent else None


def unknown(absent: Iterable[str]) -> UnknownTopicOrPartitionError:
    """Return the error for topics or partitions that don't exist."""
    return UnknownTopicOrPartitionError(
        f"there is no {', '.join(absent)} on the cluster",
        hint="Create it before the query starts: tidemill topic create NAME.",
    )
