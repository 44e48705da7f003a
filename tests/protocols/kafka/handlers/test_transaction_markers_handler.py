"""WriteTxnMarkers: every version there and back."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from tests.engine.transactions.support import Producer, committed
from tests.protocols.kafka.broker import Broker, each_version
from tests.protocols.kafka.trees import Tree
from tidemill.engine.errors import BrokerStoppingError

WRITE_MARKERS = 27


@pytest.fixture
def producer(broker: Broker) -> Producer:
    """A producer with an open transaction in three partitions."""
    producer = broker.run(Producer(broker.engine).init())
    for topic, partition in (("orders", 0), ("orders", 1), ("users", 0)):
        broker.run(producer.send(topic, b"value", partition=partition))
    return producer


def marker(producer: Producer, topic: str, *partitions: int, **fields: object) -> Tree:
    return {
        "producer_id": producer.identity.producer_id,
        "producer_epoch": producer.identity.epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": list(partitions)}],
        "coordinator_epoch": 5,
        "transaction_version": 2,
        **fields,
    }


def found(answer: Tree) -> list[tuple[str, int, int]]:
    return [
        (topic["name"], part["partition_index"], part["error_code"])
        for each in answer["markers"]
        for topic in each["topics"]
        for part in topic["partitions"]
    ]


@each_version(WRITE_MARKERS)
def test_markers_are_written(broker: Broker, producer: Producer, version: int) -> None:
    asked = [
        marker(producer, "orders", 0, 1),
        marker(producer, "users", 0, transaction_result=True),
    ]
    answer = broker.call(WRITE_MARKERS, version, {"markers": asked})
    assert found(answer) == [("orders", 0, 0), ("orders", 1, 0), ("users", 0, 0)]
    (each,) = answer["markers"]  # one entry per producer
    assert each["producer_id"] == producer.identity.producer_id
    seen = [broker.run(committed(broker.engine, *at)) for at in (("orders", 1), ("users", 0))]
    assert seen == [[], [b"value"]]


def test_each_partition_has_its_own_error(broker: Broker, producer: Producer) -> None:
    asked = [
        marker(producer, "orders", 0, 9, producer_epoch=producer.identity.epoch - 1),
        marker(producer, "users", 0),
    ]
    answer = broker.call(WRITE_MARKERS, 1, {"markers": asked})
    assert found(answer) == [("orders", 0, 47), ("orders", 9, 3), ("users", 0, 0)]


def test_an_error_of_the_request_is_in_each_partition(broker: Broker, producer: Producer) -> None:
    broker.fail("transactions", "write_markers", BrokerStoppingError("x"))
    answer = broker.call(WRITE_MARKERS, 1, {"markers": [marker(producer, "orders", 0, 1)]})
    assert [code for *_, code in found(answer)] == [ErrorCode.not_leader_or_follower] * 2
    assert broker.call(WRITE_MARKERS, 1, {"markers": []})["markers"] == []
