"""The topics of change data capture: names, keys of records, and configs.

``tidemill.sources`` holds definitions, commands and statuses. Each source has a topic of its own
for its state (position and progress of snapshots), because a state is written in transactions, and
a reader of all states would wait for the longest transaction of any source. Must not know: a
client.
"""

from __future__ import annotations

from collections.abc import Mapping

SOURCES = "tidemill.sources"
"""Definitions, commands and statuses of all sources. Compacted, one partition."""

_COMPACTED = {"cleanup.policy": "compact", "segment.ms": "3600000"}
STATE_CONFIG: Mapping[str, str] = {**_COMPACTED, "segment.bytes": "16777216"}
TABLE_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(16 << 20),
    "delete.retention.ms": "604800000",
}
"""Tombstones stay for a week, so that a follower that was down for less than that sees them."""
EVENT_CONFIG: Mapping[str, str] = {"cleanup.policy": "delete", "max.message.bytes": str(16 << 20)}


def state_topic(source: str) -> str:
    """Return the topic with the state of a source."""
    return f"tidemill.source.{source}"


def dead_letter_topic(prefix: str) -> str:
    """Return the topic with the rows of a source that can't be captured."""
    return f"{prefix}.dlq"


def transactional_id(source: str) -> str:
    """Return the transactional id of a source's worker. A second worker fences the first."""
    return f"tidemill-source-{source}"
