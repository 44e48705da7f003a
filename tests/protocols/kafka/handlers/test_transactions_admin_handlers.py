"""ListTransactions and DescribeTransactions: every version there and back."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode
from kio.serial.errors import OutOfBoundValue

from tests.engine.transactions.support import Producer
from tests.protocols.kafka.broker import NOW_MS, Broker, each_version
from tests.protocols.kafka.trees import Tree, picked
from tidemill.engine.errors import BrokerStoppingError
from tidemill.state.errors import CoordinatorLoadingError

DESCRIBE, LIST = 65, 66


@pytest.fixture
def payments(broker: Broker) -> Producer:
    """A producer with an open transaction. Another one, ``audit``, has none."""
    broker.run(Producer(broker.engine, "audit").init())
    producer = broker.run(Producer(broker.engine, "payments").init())
    for topic, partition in (("orders", 2), ("users", 0), ("orders", 0)):
        broker.run(producer.send(topic, b"value", partition=partition))
    return producer


def asked(**filters: object) -> Tree:
    return {"state_filters": [], "producer_id_filters": []} | filters


def listed(broker: Broker, version: int, **filters: object) -> set[str]:
    answer = broker.call(LIST, version, asked(**filters))
    assert answer["error_code"] == 0
    return {each["transactional_id"] for each in answer["transaction_states"]}


# --- ListTransactions ----------------------------------------------------------------------------


@each_version(LIST)
def test_list_of_all(broker: Broker, payments: Producer, version: int) -> None:
    answer = broker.call(LIST, version, asked())
    assert answer["error_code"] == 0
    audit, found = sorted(answer["transaction_states"], key=lambda each: each["transactional_id"])
    assert (audit["transactional_id"], audit["transaction_state"]) == ("audit", "Empty")
    assert found == {
        "transactional_id": "payments",
        "producer_id": payments.identity.producer_id,
        "transaction_state": "Ongoing",
    }
    assert listed(broker, version, transactional_id_pattern="") == {"audit", "payments"}


@each_version(LIST)
def test_lists_are_filtered(broker: Broker, payments: Producer, version: int) -> None:
    both = {"audit", "payments"}
    wanted = asked(state_filters=["Ongoing", "nonsense", "CompleteAbort"])
    answer = broker.call(LIST, version, wanted)
    assert answer["unknown_state_filters"] == ["nonsense"]
    assert picked(answer["transaction_states"], "transactional_id") == [("payments",)]
    assert listed(broker, version, state_filters=["nonsense"]) == set()
    mine = payments.identity.producer_id
    assert listed(broker, version, producer_id_filters=[mine, 77]) == {"payments"}
    broker.clock.advance(5_000)
    for longer_ms, found in ((4_000, {"payments"}), (6_000, set())):
        wanted_ids = found if version >= 1 else both
        assert listed(broker, version, duration_filter=longer_ms) == wanted_ids
    pattern = listed(broker, version, transactional_id_pattern="pay.*")
    assert pattern == ({"payments"} if version >= 2 else both)


def test_errors_of_a_list(broker: Broker) -> None:
    answer = broker.call(LIST, 2, asked(transactional_id_pattern="("))
    assert answer["error_code"] == ErrorCode.invalid_regular_expression
    for error, code in (
        (CoordinatorLoadingError("x"), ErrorCode.coordinator_load_in_progress),
        (BrokerStoppingError("x"), ErrorCode.coordinator_not_available),
    ):
        broker.fail("transactions", "listings", error)
        assert broker.call(LIST, 2, asked())["error_code"] == code


# --- DescribeTransactions ------------------------------------------------------------------------


def test_transaction_is_described(broker: Broker, payments: Producer) -> None:
    (state,) = broker.call(DESCRIBE, 0, {"transactional_ids": ["payments"]})["transaction_states"]
    orders, users = {"topic": "orders", "partitions": [0, 2]}, {"topic": "users", "partitions": [0]}
    assert state == {
        "error_code": 0,
        "transactional_id": "payments",
        "transaction_state": "Ongoing",
        "transaction_timeout": 60_000,
        "transaction_start_time": NOW_MS,
        "producer_id": payments.identity.producer_id,
        "producer_epoch": payments.identity.epoch,
        "topics": [orders, users],
    }


@pytest.mark.usefixtures("payments")
def test_unknown_transactional_id_is_an_error_of_its_own(broker: Broker) -> None:
    answer = broker.call(DESCRIBE, 0, {"transactional_ids": ["payments", "b"]})
    codes = picked(answer["transaction_states"], "transactional_id", "error_code")
    assert codes == [("payments", 0), ("b", ErrorCode.transactional_id_not_found)]


@pytest.mark.usefixtures("payments")
def test_no_start_time_where_no_transaction_is_open(broker: Broker) -> None:
    # kio refuses to read what Kafka's own clients take for "none".
    with pytest.raises(OutOfBoundValue, match="negative timestamp"):
        broker.call(DESCRIBE, 0, {"transactional_ids": ["audit"]})
