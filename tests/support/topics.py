"""Creates topics and writes records, for tests that are about something else.

Knows confluent-kafka only.
"""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_S = 90.0


def create(bootstrap: str, *names: str, partitions: int = 1, **configs: str) -> None:
    """Create topics. The configs have underscores for dots."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    given = {key.replace("_", "."): value for key, value in configs.items()}
    new = [NewTopic(name, partitions, 1, config=given) for name in names]
    for future in admin.create_topics(new).values():
        future.result(TIMEOUT_S)


def write(
    bootstrap: str,
    topic: str,
    *records: Any,
    spread: int = 0,
    one_by_one: bool = False,
    **more: Any,
) -> None:
    """Write records, and wait until they are stored.

    Args:
        records: values, or (key, value). What is no text, bytes or None becomes JSON.
        spread: write to so many partitions in turn.
        one_by_one: each one is a batch, which is stored before the next one is written.
        more: arguments of ``Producer.produce``.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number, record in enumerate(records):
        key, value = record if isinstance(record, tuple) else (None, record)
        if not isinstance(value, str | bytes | None):
            value = json.dumps(value)
        if spread:
            more["partition"] = number % spread
        producer.produce(topic, value, key, **more)
        if one_by_one:
            assert producer.flush(TIMEOUT_S) == 0
    assert producer.flush(TIMEOUT_S) == 0


def remove_before(bootstrap: str, topic: str, offset: int, partition: int = 0) -> None:
    """Remove the records before an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    (done,) = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    done.result(TIMEOUT_S)
