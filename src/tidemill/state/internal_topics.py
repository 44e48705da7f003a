"""The names of the broker's internal topics. Each state machine keeps its records in one of them.

This module must not know the format of any record.
"""

from __future__ import annotations

CATALOG_TOPIC = "__tidemill_catalog"
"""Topics, dynamic broker configs and claimed producer ids. Compacted, one partition."""

OFFSETS_TOPIC = "__consumer_offsets"
"""Consumer groups and committed offsets, in Apache Kafka's format."""

TRANSACTIONS_TOPIC = "__transaction_state"
"""Transactional ids, in Apache Kafka's format."""

QUEUES_TOPIC = "__tidemill_queues"
"""Exchanges, queues and bindings. Compacted, one partition."""

QUEUE_STATE_TOPIC = "__tidemill_queue_state"
"""What consumers of queues have acknowledged. Compacted, one partition."""

SHARE_STATE_TOPIC = "__share_group_state"
"""What share groups have acknowledged, in Apache Kafka's format. Compacted, one partition."""

SECURITY_TOPIC = "__tidemill_security"
"""Users with their keys, rules, permissions and quotas. Compacted, one partition."""

INTERNAL_TOPICS = frozenset(
    {
        CATALOG_TOPIC,
        OFFSETS_TOPIC,
        TRANSACTIONS_TOPIC,
        QUEUES_TOPIC,
        QUEUE_STATE_TOPIC,
        SHARE_STATE_TOPIC,
        SECURITY_TOPIC,
    }
)
"""The topics that clients can't create, change or delete."""

PRIVATE_TOPICS = frozenset({SECURITY_TOPIC})
"""The internal topics that clients can't read either."""


def is_internal(name: str) -> bool:
    """Return whether the topic belongs to the broker itself."""
    return name in INTERNAL_TOPICS
