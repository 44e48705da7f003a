"""Create and delete the demo's topics with a Kafka client.

This module must not know the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemill.confluent.clients import Kafka
from tidemill.connect.cdc.topics import TABLE_CONFIG
from tidemill.demo.events import ARRIVALS, DEPARTURES
from tidemill.errors import TopicExistsError, UnreachableError

_CLIENT = "tidemill-demo"

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
    """A topic of the demo. A changelog contains a table."""

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


def check_reachable(bootstrap_servers: str) -> None:
    """Check that a broker answers."""
    try:
        Kafka(bootstrap_servers).list_topics(_CLIENT)
    except UnreachableError as error:
        raise UnreachableError(
            str(error),
            hint="Check the address, or omit --bootstrap-servers: the demo starts its own broker.",
        ) from error


def captured_topic(schema: str, table: str) -> str:
    """Return the name of the topic of a captured table."""
    return f"{SOURCE}.{schema}.{table}"


def create_topics(bootstrap_servers: str, captured: Iterable[str] = ()) -> None:
    """Create the demo's topics and wait until they exist.

    Raises:
        TopicExistsError: a topic exists. Its records must not be mixed with those of a replay.
    """
    captured = list(captured)
    existing = _existing(bootstrap_servers, captured)
    if existing:
        raise TopicExistsError(
            f"topics of an earlier run exist at {bootstrap_servers}: {', '.join(existing)}",
            hint="Delete them, or run the demo with --reset.",
        )
    new = {
        topic.name: (topic.partitions, _CHANGELOG_CONFIG if topic.is_changelog else _CONFIG)
        for topic in TOPICS
    }
    new |= {name: (1, {**TABLE_CONFIG, **CAPTURED_CONFIG}) for name in captured}
    Kafka(bootstrap_servers).create_topics(_CLIENT, new)


def delete_topics(bootstrap_servers: str, captured: Iterable[str] = ()) -> list[str]:
    """Delete the demo's topics that exist.

    Returns:
        the names of the deleted topics.
    """
    existing = _existing(bootstrap_servers, captured)
    Kafka(bootstrap_servers).delete_topics(_CLIENT, existing)
    return existing


def end_offsets(bootstrap_servers: str, topics: Iterable[Topic]) -> dict[tuple[str, int], int]:
    """Return the end offset of each partition."""
    places = [(topic.name, number) for topic in topics for number in range(topic.partitions)]
    return Kafka(bootstrap_servers).end_offsets(_CLIENT, places)


def _existing(bootstrap_servers: str, captured: Iterable[str]) -> list[str]:
    names = {*(topic.name for topic in TOPICS), *captured}
    return sorted(names & Kafka(bootstrap_servers).list_topics(_CLIENT))
