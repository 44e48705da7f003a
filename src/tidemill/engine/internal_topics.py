"""The partitions in which the engine stores its own state, and their configs.

Groups, transactions and the state of share groups have the names of Apache Kafka, so that its tools
can read them.
"""

from __future__ import annotations

from tidemill.log.names import TopicPartition
from tidemill.state.internal_topics import (
    CATALOG_TOPIC,
    OFFSETS_TOPIC,
    QUEUE_STATE_TOPIC,
    QUEUES_TOPIC,
    SECURITY_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
)

CATALOG = TopicPartition(CATALOG_TOPIC, 0)
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
TRANSACTIONS = TopicPartition(TRANSACTIONS_TOPIC, 0)
QUEUES = TopicPartition(QUEUES_TOPIC, 0)
QUEUE_STATE = TopicPartition(QUEUE_STATE_TOPIC, 0)
SHARE_STATE = TopicPartition(SHARE_STATE_TOPIC, 0)
SECURITY = TopicPartition(SECURITY_TOPIC, 0)

# Small segments are compacted early, so that a start replays a few thousand records only.
CATALOG_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1048576"}
JOURNAL_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "2097152"}
