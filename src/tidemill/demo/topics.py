"""The demo's topics, through the Kafka protocol.

Knows a Kafka client, nothing of what is behind the address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from tidemill.demo.events import ARRIVALS, DEPARTURES
from tidemill.demo.registry import AIRCRAFT, AIRLINES
from tidemill.errors import TidemillError, TopicExistsError, UnreachableError

_TIMEOUT_S = 15.0

# Records carry the time of their report, in 2013: any retention by time would delete them at once.
_CONFIG = {"retention.ms": "-1"}
_CHANGELOG_CONFIG = {"cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic to be created.

    Attributes:
        partitions: how many.
        is_changelog: whether it holds a table.
    """

    name: str
    partitions: int = 1
    is_changelog: bool = False


# One partition for reports: the order of a log is then the order of the reports, and that they come
# at most so late holds for what the pipeline reads, not only for what was sent. Spark has one
# watermark for a stream, not one per partition; with several partitions, how far one is read ahead
# of another would add to the lateness.
SENT = (
    Topic(DEPARTURES),
    Topic(ARRIVALS),
    Topic(AIRLINES, is_changelog=True),
    Topic(AIRCRAFT, is_changelog=True),
)
"""What the replayer writes."""

DEAD_LETTERS = (Topic(f"{DEPARTURES}.dlq"), Topic(f"{ARRIVALS}.dlq"))
"""Reports that the pipeline could not read."""

PUBLISHED = {
    "hourly": Topic("departures.hourly", 3),
    "trend": Topic("departures.trend", 3),
    "sample": Topic("departures.sample", 3),
    "bursts": Topic("aircraft.bursts", 3),
    "outcomes": Topic("flights.outcomes", 3),
    "enriched": Topic("departures.enriched", 3),
    "fleet": Topic("fleet", 3, is_changelog=True),
    "alerts": Topic("departures.alerts", 3),
}
"""What the pipeline writes, by its queries (see ``control_room``)."""

TOPICS = (*SENT, *DEAD_LETTERS, *PUBLISHED.values())


class TopicSetupError(TidemillError):
    """A topic of the demo can't be created or deleted."""


def admin_client(bootstrap_servers: str) -> AdminClient:
    """A client for the calls below."""
    return AdminClient(
        {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "tidemill-demo",
            "log_level": 2,
        }
    )


def check_reachable(bootstrap_servers: str, timeout_s: float = _TIMEOUT_S) -> None:
    """Ask for the cluster's brokers.

    Raises:
        UnreachableError: nothing that speaks Kafka's protocol answers there.
    """
    try:
        admin_client(bootstrap_servers).list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise UnreachableError(
            f"no broker answers at {bootstrap_servers}: {_reason(error)}",
            hint="Check the address, or leave --bootstrap-servers away: the demo starts its own.",
        ) from error


def create_topics(bootstrap_servers: str) -> None:
    """Create the demo's topics and wait until they are there.

    Raises:
        TopicExistsError: one exists; none of its records may be mixed with a replay's.
        TopicSetupError: the broker refuses for another reason.
        UnreachableError: no broker answers.
    """
    check_reachable(bootstrap_servers)
    admin = admin_client(bootstrap_servers)
    existing = _existing(admin)
    if existing:
        raise TopicExistsError(
            f"at {bootstrap_servers} there are topics of an earlier run: {', '.join(existing)}",
            hint="Delete them, or run the demo with --reset, which does so.",
        )
    new = [
        NewTopic(
            topic.name,
            num_partitions=topic.partitions,
            replication_factor=-1,
            config=_CHANGELOG_CONFIG if topic.is_changelog else _CONFIG,
        )
        for topic in TOPICS
    ]
    _finish(admin.create_topics(new, operation_timeout=_TIMEOUT_S), "created")


def delete_topics(bootstrap_servers: str) -> list[str]:
    """Delete those of the demo's topics that exist.

    Returns:
        their names.

    Raises:
        TopicSetupError: the broker refuses.
        UnreachableError: no broker answers.
    """
    check_reachable(bootstrap_servers)
    admin = admin_client(bootstrap_servers)
    existing = _existing(admin)
    if existing:
        _finish(admin.delete_topics(existing, operation_timeout=_TIMEOUT_S), "deleted")
    return existing


def end_offsets(bootstrap_servers: str, topics: Iterable[Topic]) -> dict[tuple[str, int], int]:
    """For each partition, the offset that its next record will have.

    Raises:
        TopicSetupError: the broker does not say.
    """
    asked = {
        TopicPartition(topic.name, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for topic in topics
        for number in range(topic.partitions)
    }
    # Named, to be kept alive: answers never come to a client that has been collected.
    admin = admin_client(bootstrap_servers)
    answers = admin.list_offsets(asked, request_timeout=_TIMEOUT_S)
    try:
        return {
            (partition.topic, partition.partition): future.result(2 * _TIMEOUT_S).offset
            for partition, future in answers.items()
        }
    except KafkaException as error:
        raise TopicSetupError(f"the ends of the topics are not known: {_reason(error)}") from error


def _existing(admin: AdminClient) -> list[str]:
    names = {topic.name for topic in TOPICS}
    return sorted(names & set(admin.list_topics(timeout=_TIMEOUT_S).topics))


def _finish(futures: Mapping[str, Future[Any]], what: str) -> None:
    for name, future in futures.items():
        try:
            future.result(2 * _TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicExistsError(f"topic {name} exists already") from error
            raise TopicSetupError(f"topic {name} was not {what}: {_reason(error)}") from error


def _reason(error: KafkaException) -> str:
    return str(error.args[0].str())
