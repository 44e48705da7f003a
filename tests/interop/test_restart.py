"""What a client has seen acknowledged is there after the broker was stopped, or killed."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from tests.conftest import BrokerFactory
from tests.interop.common import DEADLINE, wait_for
from tests.support.broker_process import BrokerProcess
from tests.support.librdkafka import connected, ready_for_id

pytestmark = [pytest.mark.crash, pytest.mark.disk]


def config(broker: BrokerProcess, **more: object) -> dict[str, Any]:
    """Return the settings of a client that connects again soon; names have _ for a dot."""
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "bootstrap.servers": broker.bootstrap,
        "log_level": 0,
        "reconnect.backoff.max.ms": 200,
        **named,
    }


def restart(broker: BrokerProcess, how: str) -> None:
    if how == "killed":
        broker.kill()
    else:
        assert broker.terminate() == 0, broker.log()
    broker.start()


def produce(producer: Producer, topic: str, numbers: range) -> None:
    errors: list[KafkaError] = []

    def report(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=report)
    assert producer.flush(DEADLINE) == 0
    assert errors == []


def read(client: Consumer, count: int) -> list[int]:
    found: list[int] = []

    def enough() -> bool:
        message = client.poll(0.2)
        # While the broker is away librdkafka reports that as events.
        if message is not None and message.error() is None:
            found.append(int(message.value() or b""))
        return len(found) >= count

    wait_for(enough, f"{count} messages")
    return found


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_records_topics_and_commits_survive(start_broker: BrokerFactory, how: str) -> None:
    broker = start_broker()
    producer = Producer(config(broker, acks="all"))
    reading = config(broker, group_id="g", enable_auto_commit=False, auto_offset_reset="earliest")
    produce(producer, "survivors", range(100))
    consumer = connected(Consumer(reading))
    consumer.assign([TopicPartition("survivors", 0, OFFSET_BEGINNING)])
    assert read(consumer, 100) == list(range(100))
    position = TopicPartition("survivors", 0, 60, metadata="here")
    consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()

    restart(broker, how)

    consumer = Consumer(reading)
    (committed,) = consumer.committed([TopicPartition("survivors", 0)], DEADLINE)
    assert (committed.offset, committed.metadata) == (60, "here")
    consumer.subscribe(["survivors"])
    produce(producer, "survivors", range(100, 110))
    assert read(consumer, 50) == list(range(60, 110))
    consumer.close()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_clients_that_stay_go_on_where_they_were(start_broker: BrokerFactory, how: str) -> None:
    broker = start_broker()
    producer = Producer(config(broker, enable_idempotence=True))
    consumer = Consumer(config(broker, group_id="g", auto_offset_reset="earliest"))
    produce(ready_for_id(producer), "topic", range(50))
    consumer.subscribe(["topic"])
    assert read(consumer, 50) == list(range(50))
    restart(broker, how)
    # The same idempotent producer, with its sequence numbers, and the same member of the group.
    produce(producer, "topic", range(50, 100))
    assert read(consumer, 50) == list(range(50, 100))
    consumer.close()


def test_a_second_broker_can_not_take_the_data_folder(start_broker: BrokerFactory) -> None:
    broker = start_broker()
    second = BrokerProcess(broker.folder)
    with pytest.raises(AssertionError, match="in use by another process"):
        second.start()
    broker.restart()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_open_transaction_goes_on_after_a_restart(start_broker: BrokerFactory, how: str) -> None:
    broker = start_broker()
    producer = Producer(config(broker, transactional_id="survivor"))
    ready_for_id(producer).init_transactions(DEADLINE)
    for numbers, commit in ((range(5), True), (range(5, 10), False)):
        producer.begin_transaction()
        produce(producer, "whole", numbers)
        if commit:
            producer.commit_transaction(DEADLINE)
        else:
            producer.abort_transaction(DEADLINE)
    producer.begin_transaction()
    produce(producer, "whole", range(10, 15))
    restart(broker, how)
    produce(producer, "whole", range(15, 20))
    producer.commit_transaction(DEADLINE)
    consumer = Consumer(config(broker, group_id="g", isolation_level="read_committed"))
    connected(consumer).assign([TopicPartition("whole", 0, OFFSET_BEGINNING)])
    assert read(consumer, 15) == [*range(5), *range(10, 20)]
    consumer.close()
