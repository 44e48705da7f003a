"""A consumer that prints ``[partition, offset]`` for each record once that record is committed.

Started by ``common.GroupMemberProcess``, which kills it.
"""

from __future__ import annotations

import asyncio
import json
import sys

SESSION_MS = 3000


def say(partition: int, offset: int) -> None:
    """One line per committed record."""
    print(json.dumps([partition, offset]), flush=True)


def confluent(bootstrap: str, group: str, topic: str) -> None:
    """librdkafka."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            consumer.commit(message=message, asynchronous=False)
            say(message.partition() or 0, message.offset() or 0)


def kafka_python(bootstrap: str, group: str, topic: str) -> None:
    """kafka-python."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=500,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=1,
    )
    for message in consumer:
        consumer.commit()
        say(message.partition, message.offset)


def aiokafka(bootstrap: str, group: str, topic: str) -> None:
    """aiokafka."""
    from aiokafka import AIOKafkaConsumer

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        async for message in consumer:
            await consumer.commit()
            say(message.partition, message.offset)

    asyncio.run(run())


if __name__ == "__main__":
    client, *arguments = sys.argv[1:]
    {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}[client](*arguments)
