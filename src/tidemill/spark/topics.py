"""Topics as a query sees them, and what planning needs to know of a cluster.

Must not know: Spark, Kafka clients, Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tidemill.errors import UnknownTopicOrPartitionError
from tidemill.spark.options import noted
from tidemill.spark.ranges import Offsets, TopicPartition
from tidemill.spark.source_options import Subscription


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster has it now.

    Attributes:
        topic_id: changes when a topic is deleted and made again; empty on brokers without ids.
        partitions: their numbers, in order.
    """

    topic_id: str
    partitions: tuple[int, ...]


class Cluster(Protocol):
    """What planning needs to know of a cluster."""

    def describe(self, subscription: Subscription) -> dict[str, Topic]:
        """The subscribed topics that exist, with the subscribed partitions that exist."""

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """Offsets for EARLIEST and LATEST."""

    def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Per partition the first offset at or after that timestamp (ms), or None."""


def missing(
    subscription: Subscription, topics: Mapping[str, Topic]
) -> UnknownTopicOrPartitionError | None:
    """An error if a topic or partition was named that does not exist; a pattern names none."""
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
    """The error for topics or partitions that do not exist."""
    return noted(
        UnknownTopicOrPartitionError(
            f"there is no {', '.join(absent)} on the cluster",
            hint="Create it before the query starts: tidemill topic create NAME.",
        )
    )
