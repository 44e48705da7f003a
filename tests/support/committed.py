"""Reads all committed records of a topic.

Knows Kafka's client only.
"""

from __future__ import annotations

import time
import uuid

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.support.librdkafka import AT_END_SOON

TIMEOUT_S = 60.0


def read_to_end(
    bootstrap: str, topic: str, partition: int = 0, *, isolation: str = "read_committed"
) -> list[Message]:
    """Return all records of a partition up to its present end.

    Raises:
        TimeoutError: the end was not reached: a transaction is open, or no broker answers.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"check-{uuid.uuid4().hex[:8]}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
            **AT_END_SOON,
        }
    )
    found: list[Message] = []
    try:
        end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)[1]
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                # While a transaction is open, librdkafka reports an earlier end, too.
                if (message.offset() or 0) >= end:
                    return found
            elif not error.retriable():
                raise AssertionError(error.str())
        raise TimeoutError(f"the end of {topic}-{partition} was not reached in {TIMEOUT_S} s")
    finally:
        consumer.close()


def values(bootstrap: str, topic: str, partition: int = 0) -> list[bytes | None]:
    """Return the values of all committed records."""
    return [message.value() for message in read_to_end(bootstrap, topic, partition)]
