"""confluent-kafka's share consumer: members, acknowledgements, poison records, restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

pytest.importorskip("confluent_kafka", minversion="2.16", reason="needs ShareConsumer")

from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.conftest import BrokerFactory
from tests.interop.common import DEADLINE, wait_for
from tests.interop.conftest import MakeTopic

DELIVERY_LIMIT = 5
DEFAULTS = {
    "share_auto_offset_reset": "earliest",
    # On a busy machine a member must not lose its records while it works on them.
    "share_record_lock_duration_ms": "3600000",
}
T = TypeVar("T")
EXPLICIT = {"share.acknowledgement.mode": "explicit"}


def set_configs(admin: AdminClient, group: str, **configs: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in {**DEFAULTS, **configs}.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE)


def produce(bootstrap: str, topic: str, values: range, **configs: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, **configs})
    for value in values:
        producer.produce(topic, b"%d" % value)
    assert producer.flush(DEADLINE) == 0


@contextmanager
def member(bootstrap: str, group: str, topic: str, **configs: str) -> Iterator[ShareConsumer]:
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0, **configs}
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def poll(consumer: ShareConsumer) -> list[Message]:
    found = list(consumer.poll(timeout=0.2))
    return [message for message in found if message.error() is None]


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.value() or b"") for message in messages]


def gather(known: list[T], new: list[T]) -> list[T]:
    """Append; return all."""
    known += new
    return known


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_each_record_is_accepted_once(
    bootstrap: str, admin: AdminClient, make_topic: MakeTopic, group: str, codec: str
) -> None:
    topic = make_topic(2)
    set_configs(admin, group)
    produce(bootstrap, topic, range(3000), **{"compression.type": codec})
    found: list[int] = []
    with member(bootstrap, group, topic) as one, member(bootstrap, group, topic) as two:

        def all_there() -> bool:
            found.extend(numbers(poll(one)) + numbers(poll(two)))
            return len(found) >= 3000

        wait_for(all_there, "3000 records")
    assert sorted(found) == list(range(3000))


def test_what_is_released_returns_and_what_is_rejected_does_not(
    bootstrap: str, admin: AdminClient, topic: str, group: str
) -> None:
    set_configs(admin, group, share_delivery_count_limit="3")
    produce(bootstrap, topic, range(30))
    deliveries: Counter[int] = Counter()
    accepted: set[int] = set()
    with member(bootstrap, group, topic, **EXPLICIT) as consumer:

        def settled() -> bool:
            for message in poll(consumer):
                (number,) = numbers([message])
                deliveries[number] += 1
                if number % 3 == 0:  # always released: archived at the limit
                    consumer.acknowledge(message, AcknowledgeType.RELEASE)
                elif number % 3 == 1:
                    consumer.acknowledge(message, AcknowledgeType.REJECT)
                else:
                    accepted.add(number)
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            consumer.commit_sync()
            return len(accepted) == 10 and all(deliveries[n] == 3 for n in range(0, 30, 3))

        wait_for(settled, "all records settled")
        produce(bootstrap, topic, range(100, 101))

        def marker() -> bool:
            found = poll(consumer)
            for message in found:
                consumer.acknowledge(message)
            return 100 in numbers(found)

        wait_for(marker, "the record behind them")
    assert all(deliveries[n] == 1 for n in range(30) if n % 3)


def test_records_of_a_member_that_leaves_go_to_another(
    bootstrap: str, admin: AdminClient, topic: str, group: str
) -> None:
    set_configs(admin, group)
    produce(bootstrap, topic, range(100))
    with member(bootstrap, group, topic, **EXPLICIT) as first:
        held: list[Message] = []
        wait_for(lambda: gather(held, poll(first)), "records at the first member")
    found: list[int] = []
    with member(bootstrap, group, topic) as second:
        wait_for(
            lambda: len(gather(found, numbers(poll(second)))) == 100,
            "all records at the second member",
        )
    assert sorted(found) == list(range(100))


@pytest.mark.crash
def test_what_was_accepted_before_a_kill_is_not_delivered_again(
    start_broker: BrokerFactory,
) -> None:
    broker = start_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(DEADLINE)
    set_configs(admin, "g")
    produce(broker.bootstrap, "t", range(200))
    accepted: set[int] = set()
    released: Counter[int] = Counter()
    with member(broker.bootstrap, "g", "t", **EXPLICIT) as consumer:

        def half() -> bool:
            for message in poll(consumer):
                (number,) = numbers([message])
                if number % 2 == 0:
                    accepted.add(number)
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                else:
                    released[number] += 1
                    consumer.acknowledge(message, AcknowledgeType.RELEASE)
            errors = [each for each in consumer.commit_sync().values() if each is not None]
            assert errors == []
            return len(accepted) == 100

        wait_for(half, "half of the records accepted")
        broker.kill()
    broker.start()
    left = {number for number in range(1, 200, 2) if released[number] < DELIVERY_LIMIT}
    found: list[int] = []
    with member(broker.bootstrap, "g", "t") as consumer:
        wait_for(lambda: left <= set(gather(found, numbers(poll(consumer)))), "the others")
    assert not accepted & set(found)
