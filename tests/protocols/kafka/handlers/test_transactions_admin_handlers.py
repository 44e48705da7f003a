"""ListTransactions and DescribeTransactions: every version there and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial.errors import OutOfBoundValue

from tests.protocols.kafka.fake_engine_admin import FakeEngine, call, versions
from tests.protocols.kafka.fake_transactions import DESCRIBED
from tidemill.engine.api import TransactionState
from tidemill.engine.errors import BrokerStoppingError
from tidemill.state.errors import (
    CoordinatorLoadingError,
    InvalidRegularExpressionError,
    TransactionalIdNotFoundError,
)

DESCRIBE, LIST = 65, 66


@pytest.fixture
def broker() -> FakeEngine:
    return FakeEngine()


# --- ListTransactions ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(LIST))
def test_list_of_all(broker: FakeEngine, version: int) -> None:
    answer = call(broker, LIST, version, {"state_filters": [], "producer_id_filters": []})
    assert answer["error_code"] == 0
    assert answer["transaction_states"] == [
        {"transactional_id": "payments", "producer_id": 7, "transaction_state": "Ongoing"}
    ]
    assert broker.calls == [("list_transactions", ([], [], None, None))]


@pytest.mark.parametrize("version", versions(LIST))
def test_filters_are_passed_on(broker: FakeEngine, version: int) -> None:
    asked = {
        "state_filters": ["Ongoing", "nonsense", "CompleteAbort"],
        "producer_id_filters": [7, 8],
        "duration_filter": 5_000,
        "transactional_id_pattern": "pay.*",
    }
    answer = call(broker, LIST, version, asked)
    assert answer["unknown_state_filters"] == ["nonsense"]
    states = [TransactionState.ONGOING, TransactionState.COMPLETE_ABORT]
    duration = 5_000 if version >= 1 else None
    pattern = "pay.*" if version >= 2 else None
    assert broker.calls == [("list_transactions", (states, [7, 8], duration, pattern))]


def test_no_transaction_has_a_state_that_does_not_exist(broker: FakeEngine) -> None:
    answer = call(broker, LIST, 2, {"state_filters": ["nonsense"], "producer_id_filters": []})
    assert answer["unknown_state_filters"] == ["nonsense"]
    assert answer["transaction_states"] == []
    assert broker.calls == []


def test_empty_pattern_is_none(broker: FakeEngine) -> None:
    asked: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
    call(broker, LIST, 2, asked | {"transactional_id_pattern": ""})
    assert broker.calls == [("list_transactions", ([], [], None, None))]


def test_errors_of_a_list(broker: FakeEngine) -> None:
    asked: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
    for error, code in (
        (InvalidRegularExpressionError("("), ErrorCode.invalid_regular_expression),
        (CoordinatorLoadingError("x"), ErrorCode.coordinator_load_in_progress),
        (BrokerStoppingError("x"), ErrorCode.coordinator_not_available),
    ):
        broker.answers["list_transactions"] = error
        assert call(broker, LIST, 2, asked)["error_code"] == code


# --- DescribeTransactions ------------------------------------------------------------------------


def test_transaction_is_described(broker: FakeEngine) -> None:
    answer = call(broker, DESCRIBE, 0, {"transactional_ids": ["payments"]})
    (state,) = answer["transaction_states"]
    assert state.pop("transaction_start_time").timestamp() * 1000 == DESCRIBED.start_time_ms
    assert state == {
        "error_code": 0,
        "transactional_id": "payments",
        "transaction_state": "Ongoing",
        "transaction_timeout": 60_000,
        "producer_id": 7,
        "producer_epoch": 3,
        "topics": [
            {"topic": "orders", "partitions": [0, 2]},
            {"topic": "users", "partitions": [0]},
        ],
    }


def test_unknown_transactional_id_is_an_error_of_its_own(broker: FakeEngine) -> None:
    broker.answers["describe_transaction"] = TransactionalIdNotFoundError("x")
    answer = call(broker, DESCRIBE, 0, {"transactional_ids": ["a", "b"]})
    assert [(s["transactional_id"], s["error_code"]) for s in answer["transaction_states"]] == [
        ("a", ErrorCode.transactional_id_not_found),
        ("b", ErrorCode.transactional_id_not_found),
    ]


def test_no_start_time_where_no_transaction_is_open(broker: FakeEngine) -> None:
    broker.answers["describe_transaction"] = replace(DESCRIBED, start_time_ms=-1, partitions=())
    # kio refuses to read what Kafka's own clients take for "none".
    with pytest.raises(OutOfBoundValue, match="negative timestamp"):
        call(broker, DESCRIBE, 0, {"transactional_ids": ["payments"]})
