"""A consumer that prints ``[partition, offset]`` for each record once that record is committed.

Started by ``common.GroupMemberProcess``, which kills it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

SESSION_MS = 3000
NOT_A_MEMBER_NOW = {"STALE_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "_TRANSPORT", "_TIMED_OUT"}


def say(partition: int, offset: int) -> None:
    """One line per committed record."""
    print(json.dumps([partition, offset]), flush=True)


CLASSIC = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500}
CONSUMER = {"group.protocol": "consumer"}
"""The consumer protocol (KIP-848). The broker has the session timeout."""


def confluent(protocol: dict[str, Any], bootstrap: str, group: str, topic: str) -> None:
    """librdkafka."""
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **protocol,
        }
    )
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            try:
                consumer.commit(message=message, asynchronous=False)
            except KafkaException as error:
                if protocol is CLASSIC or error.args[0].name() not in NOT_A_MEMBER_NOW:
                    raise
                continue  # the record comes to the next owner of the partition
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
    clients: dict[str, Callable[..., None]] = {
        "confluent": partial(confluent, CLASSIC),
        "new-protocol": partial(confluent, CONSUMER),
        "kafka-python": kafka_python,
        "aiokafka": aiokafka,
    }
    clients[client](*arguments)
