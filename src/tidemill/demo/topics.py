"""Create and delete the demo's topics with a Kafka client.

This module must not know the broker.
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

from tidemill.connect.cdc.topics import TABLE_CONFIG
from tidemill.demo.events import ARRIVALS, DEPARTURES
from tidemill.errors import TidemillError, TopicExistsError, UnreachableError

_TIMEOUT_S = 15.0

# Records have the times of their reports, in 2013: retention by time would delete them immediately.
_CONFIG = {"retention.ms": "-1"}
_CHANGELOG_CONFIG = {"cleanup.policy": "compact"}

CAPTURED_CONFIG: Mapping[str, str] = {"min.compaction.lag.ms": "604800000"}
"""Configs of the captured tables' topics besides those of every source: for a week, compaction
leaves all versions of a row."""

SOURCE = "demo"
"""The name of the source that captures the tables, and the first part of its topics' names."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the demo.

    Attributes:
        name: its name.
        partitions: the number of its partitions.
        is_changelog: whether it contains a table.
    """

    name: str
    partitions: int = 1
    is_changelog: bool = False


# Reports have one partition, so that the pipeline reads them in the order in which they were sent,
# and the bound of their lateness holds there, too. Spark has one watermark for a stream and not one
# for each partition: with several, reading one ahead of another would add to the lateness.
SENT = (
    Topic(DEPARTURES),
    Topic(ARRIVALS),
)
"""The topics that the replayer writes."""

DEAD_LETTERS = (Topic(f"{DEPARTURES}.dlq"), Topic(f"{ARRIVALS}.dlq"))
"""The topics of reports that the pipeline can't parse."""

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
"""The topics that the pipeline writes, by query (see ``control_room``)."""

TOPICS = (*SENT, *DEAD_LETTERS, *PUBLISHED.values())
"""All topics but those of the captured tables."""


class TopicSetupError(TidemillError):
    """A topic of the demo can't be created or deleted."""


def admin_client(bootstrap_servers: str) -> AdminClient:
    """Return a client for the calls below."""
    return AdminClient(
        {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "tidemill-demo",
            "log_level": 2,
        }
    )


def check_reachable(bootstrap_servers: str, timeout_s: float = _TIMEOUT_S) -> None:
    """Check that a broker answers.

    Raises:
        UnreachableError: no Kafka broker answers at this address.
    """
    try:
        admin_client(bootstrap_servers).list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise UnreachableError(
            f"no broker answers at {bootstrap_servers}: {_reason(error)}",
            hint="Check the address, or omit --bootstrap-servers: the demo starts its own broker.",
        ) from error


def captured_topic(schema: str, table: str) -> str:
    """Return the name of the topic of a captured table."""
    return f"{SOURCE}.{schema}.{table}"


def create_topics(bootstrap_servers: str, captured: Iterable[str] = ()) -> None:
    """Create the demo's topics and wait until they exist.

    Args:
        bootstrap_servers: the address of the broker.
        captured: the names of the captured tables' topics.

    Raises:
        TopicExistsError: a topic exists. Its records must not be mixed with those of a replay.
        TopicSetupError: the broker refuses for another reason.
        UnreachableError: no broker answers.
    """
    check_reachable(bootstrap_servers)
    admin = admin_client(bootstrap_servers)
    existing = _existing(admin, captured)
    if existing:
        raise TopicExistsError(
            f"topics of an earlier run exist at {bootstrap_servers}: {', '.join(existing)}",
            hint="Delete them, or run the demo with --reset.",
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
    new += [
        NewTopic(name, 1, replication_factor=-1, config={**TABLE_CONFIG, **CAPTURED_CONFIG})
        for name in captured
    ]
    _finish(admin.create_topics(new, operation_timeout=_TIMEOUT_S), "created")


def delete_topics(bootstrap_servers: str, captured: Iterable[str] = ()) -> list[str]:
    """Delete the demo's topics that exist.

    Args:
        bootstrap_servers: the address of the broker.
        captured: the names of the captured tables' topics.

    Returns:
        the names of the deleted topics.

    Raises:
        TopicSetupError: the broker refuses.
        UnreachableError: no broker answers.
    """
    check_reachable(bootstrap_servers)
    admin = admin_client(bootstrap_servers)
    existing = _existing(admin, captured)
    if existing:
        _finish(admin.delete_topics(existing, operation_timeout=_TIMEOUT_S), "deleted")
    return existing


def end_offsets(bootstrap_servers: str, topics: Iterable[Topic]) -> dict[tuple[str, int], int]:
    """Return the end offset of each partition.

    Raises:
        TopicSetupError: the broker does not answer.
    """
    asked = {
        TopicPartition(topic.name, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for topic in topics
        for number in range(topic.partitions)
    }
    # The variable keeps the client alive: a collected client gets no answers.
    admin = admin_client(bootstrap_servers)
    answers = admin.list_offsets(asked, request_timeout=_TIMEOUT_S)
    try:
        return {
            (partition.topic, partition.partition): future.result(2 * _TIMEOUT_S).offset
            for partition, future in answers.items()
        }
    except KafkaException as error:
        raise TopicSetupError(
            f"the end offsets of the topics are unknown: {_reason(error)}"
        ) from error


def _existing(admin: AdminClient, captured: Iterable[str]) -> list[str]:
    names = {*(topic.name for topic in TOPICS), *captured}
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
