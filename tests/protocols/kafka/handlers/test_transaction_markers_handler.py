"""WriteTxnMarkers: every version there and back."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.fake_engine_admin import FakeEngine, call, versions
from tidemill.engine.errors import BrokerStoppingError
from tidemill.errors import UnknownTopicOrPartitionError
from tidemill.log.errors import InvalidProducerEpochError, TransactionCoordinatorFencedError

WRITE_MARKERS = 27


@pytest.fixture
def broker() -> FakeEngine:
    return FakeEngine()


def marker(producer_id: int, topic: str, *partitions: int, commit: bool = False) -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "producer_epoch": 3,
        "transaction_result": commit,
        "topics": [{"name": topic, "partition_indexes": list(partitions)}],
        "coordinator_epoch": 5,
        "transaction_version": 2,
    }


def found(answer: dict[str, Any]) -> list[tuple[int, str, int, int]]:
    return [
        (each["producer_id"], topic["name"], part["partition_index"], part["error_code"])
        for each in answer["markers"]
        for topic in each["topics"]
        for part in topic["partitions"]
    ]


@pytest.mark.parametrize("version", versions(WRITE_MARKERS))
def test_markers_are_written(broker: FakeEngine, version: int) -> None:
    asked = {"markers": [marker(7, "orders", 0, 1), marker(8, "users", 0, commit=True)]}
    answer = call(broker, WRITE_MARKERS, version, asked)
    assert found(answer) == [(7, "orders", 0, 0), (7, "orders", 1, 0), (8, "users", 0, 0)]
    ((_, markers),) = broker.calls
    assert [(tuple(written), list(map(tuple, tps))) for written, tps in markers] == [
        ((7, 3, False, 5), [("orders", 0), ("orders", 1)]),
        ((8, 3, True, 5), [("users", 0)]),
    ]


def test_each_partition_has_its_own_error(broker: FakeEngine) -> None:
    broker.answers["write_markers"] = [
        [InvalidProducerEpochError("x"), UnknownTopicOrPartitionError("x")],
        [TransactionCoordinatorFencedError("x")],
    ]
    asked = {"markers": [marker(7, "orders", 0, 1), marker(7, "users", 0)]}
    answer = call(broker, WRITE_MARKERS, 1, asked)
    assert len(answer["markers"]) == 1, "one entry per producer"
    assert found(answer) == [(7, "orders", 0, 47), (7, "orders", 1, 3), (7, "users", 0, 52)]


def test_an_error_of_the_request_is_in_each_partition(broker: FakeEngine) -> None:
    broker.answers["write_markers"] = BrokerStoppingError("x")
    answer = call(broker, WRITE_MARKERS, 1, {"markers": [marker(7, "orders", 0, 1)]})
    assert [code for *_, code in found(answer)] == [ErrorCode.not_leader_or_follower] * 2
    assert call(broker, WRITE_MARKERS, 1, {"markers": []})["markers"] == []
