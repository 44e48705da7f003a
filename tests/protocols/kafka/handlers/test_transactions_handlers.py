"""APIs of the transaction coordinator: every advertised version there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.broker import Broker, versions
from tidemill.engine.api import TransactionState
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidTxnStateError, StorageError
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
)

INIT, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT = 22, 24, 25, 26, 28
NAME = {"transactional_id": "payments", "transaction_timeout": 60_000}
OFFSETS_TOPIC = "__consumer_offsets"


@pytest.fixture
def named(broker: Broker) -> dict[str, Any]:
    """A producer that has started: the fields by which requests name it."""
    return started(broker, "payments")


def started(broker: Broker, transactional_id: str) -> dict[str, Any]:
    answer = broker.call(INIT, 4, NAME | {"transactional_id": transactional_id})
    return {"transactional_id": transactional_id} | {
        key: answer[key] for key in ("producer_id", "producer_epoch")
    }


def state(broker: Broker) -> TransactionState:
    return broker.engine.transactions.describe("payments").state


def partitions(broker: Broker) -> set[tuple[str, int]]:
    """Return the partitions of the open transaction."""
    described = broker.engine.transactions.describe("payments")
    return {(tp.topic, tp.partition) for tp in described.partitions}


# --- InitProducerId ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(INIT))
def test_producer_starts(broker: Broker, version: int) -> None:
    answer = broker.call(INIT, version, NAME)
    assert answer["error_code"] == 0
    known = broker.engine.transactions.describe("payments")
    assert (answer["producer_id"], answer["producer_epoch"]) == known.producer
    assert (known.timeout_ms, known.state) == (60_000, TransactionState.EMPTY)


@pytest.mark.parametrize("version", versions(INIT))
def test_a_recovering_producer_sends_its_identity(
    broker: Broker, named: dict[str, Any], version: int
) -> None:
    unknown = named | {"producer_id": named["producer_id"] + 1}
    code = broker.call(INIT, version, NAME | unknown)["error_code"]
    assert code == (0 if version < 3 else 47 if version == 3 else 90)
    known = broker.engine.transactions.describe("payments").producer
    current = {"producer_id": known.producer_id, "producer_epoch": known.epoch}
    assert broker.call(INIT, version, NAME | current)["producer_epoch"] == known.epoch + 1


@pytest.mark.parametrize("half", [{"producer_id": 7}, {"producer_epoch": 3}])
def test_a_producer_id_without_an_epoch_is_refused(broker: Broker, half: dict[str, int]) -> None:
    for name in ("payments", None):
        answer = broker.call(INIT, 4, NAME | {"transactional_id": name} | half)
        assert answer["error_code"] == ErrorCode.invalid_request
    assert not list(broker.engine.transactions.listings())


@pytest.mark.parametrize("version", versions(INIT))
def test_empty_transactional_id_is_refused(broker: Broker, version: int) -> None:
    answer = broker.call(INIT, version, NAME | {"transactional_id": ""})
    assert answer["error_code"] == ErrorCode.invalid_request
    assert (answer["producer_id"], answer["producer_epoch"]) == (-1, -1)


# --- AddPartitionsToTxn --------------------------------------------------------------------------

TOPICS = [{"name": "orders", "partitions": [0, 2]}, {"name": "users", "partitions": [0]}]


def add_partitions(
    version: int, named: dict[str, Any], topics: list[dict[str, Any]] = TOPICS
) -> dict[str, Any]:
    if version >= 4:
        return {"transactions": [named | {"verify_only": False, "topics": topics}]}
    renamed: dict[str, Any] = {f"v3_and_below_{key}": value for key, value in named.items()}
    return renamed | {"v3_and_below_topics": topics}


def partition_codes(answer: dict[str, Any], version: int) -> list[list[int]]:
    if version >= 4:
        assert answer["error_code"] == 0
        (transaction,) = answer["results_by_transaction"]
        assert transaction["transactional_id"] == "payments"
        topics = transaction["topic_results"]
    else:
        topics = answer["results_by_topic_v3_and_below"]
    assert [topic["name"] for topic in topics] == ["orders", "users"]
    return [[p["partition_error_code"] for p in t["results_by_partition"]] for t in topics]


@pytest.mark.parametrize("version", versions(ADD_PARTITIONS))
def test_partitions_are_added(broker: Broker, named: dict[str, Any], version: int) -> None:
    answer = broker.call(ADD_PARTITIONS, version, add_partitions(version, named))
    assert partition_codes(answer, version) == [[0, 0], [0]]
    assert partitions(broker) == {("orders", 0), ("orders", 2), ("users", 0)}
    assert state(broker) is TransactionState.ONGOING


@pytest.mark.parametrize("version", versions(ADD_PARTITIONS))
def test_unknown_partition_stops_the_others(
    broker: Broker, named: dict[str, Any], version: int
) -> None:
    topics = [{"name": "orders", "partitions": [0, 9]}, {"name": "users", "partitions": [0]}]
    answer = broker.call(ADD_PARTITIONS, version, add_partitions(version, named, topics))
    assert partition_codes(answer, version) == [[55, 3], [55]]
    assert state(broker) is TransactionState.EMPTY


@pytest.mark.parametrize("version", versions(ADD_PARTITIONS))
def test_an_error_of_the_transaction_is_in_each_partition(
    broker: Broker, named: dict[str, Any], version: int
) -> None:
    unknown = named | {"producer_id": 77}
    answer = broker.call(ADD_PARTITIONS, version, add_partitions(version, unknown))
    assert partition_codes(answer, version) == [[49, 49], [49]]


def test_one_request_can_have_several_transactions(broker: Broker, named: dict[str, Any]) -> None:
    topics = [{"name": "orders", "partitions": [1]}]
    asked = [
        named | {"verify_only": False, "topics": topics},
        started(broker, "other") | {"verify_only": True, "topics": topics},
    ]
    answer = broker.call(ADD_PARTITIONS, 5, {"transactions": asked})
    found = [
        (each["transactional_id"], partition["partition_error_code"])
        for each in answer["results_by_transaction"]
        for topic in each["topic_results"]
        for partition in topic["results_by_partition"]
    ]
    assert found == [("payments", 0), ("other", 120)]


# --- offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ADD_OFFSETS))
def test_group_is_added(broker: Broker, named: dict[str, Any], version: int) -> None:
    answer = broker.call(ADD_OFFSETS, version, named | {"group_id": "g"})
    assert answer["error_code"] == 0
    assert partitions(broker) == {(OFFSETS_TOPIC, 0)}


def offset_commit(named: dict[str, Any], **member: object) -> dict[str, Any]:
    def partition(index: int) -> dict[str, Any]:
        return {
            "partition_index": index,
            "committed_offset": 10 + index,
            "committed_leader_epoch": 2,
            "committed_metadata": "note" if index else None,
        }

    nobody = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    topics = [
        {"name": "orders", "partitions": [partition(0), partition(9), partition(1)]},
        {"name": "users", "partitions": [partition(0)]},
    ]
    return named | {"group_id": "g", "topics": topics} | nobody | member


def codes(answer: dict[str, Any]) -> list[list[int]]:
    return [[p["error_code"] for p in topic["partitions"]] for topic in answer["topics"]]


@pytest.mark.parametrize("version", versions(COMMIT))
def test_offsets_are_committed_with_the_transaction(
    broker: Broker, named: dict[str, Any], version: int
) -> None:
    if version < 5:  # the older protocol of transactions: the group must be added before
        refused = 120 if version == 4 else 48
        answer = broker.call(COMMIT, version, offset_commit(named))
        assert codes(answer) == [[refused] * 3, [refused]]
        broker.call(ADD_OFFSETS, 4, named | {"group_id": "g"})
    answer = broker.call(COMMIT, version, offset_commit(named))
    assert [[p["partition_index"] for p in t["partitions"]] for t in answer["topics"]] == [
        [0, 9, 1],
        [0],
    ]
    assert codes(answer) == [[0, 3, 0], [0]]
    assert broker.committed("g") == {}
    assert broker.call(END, 4, named | {"committed": True})["error_code"] == 0
    epoch = 2 if version >= 2 else -1
    assert broker.committed("g") == {
        ("orders", 0): (10, epoch, ""),
        ("orders", 1): (11, epoch, "note"),
        ("users", 0): (10, epoch, ""),
    }


@pytest.mark.parametrize("version", versions(COMMIT))
def test_an_error_of_the_group_is_in_each_partition(
    broker: Broker, named: dict[str, Any], version: int
) -> None:
    broker.call(ADD_OFFSETS, 4, named | {"group_id": "g"})
    member = {"generation_id": 5, "member_id": "m", "group_instance_id": "s"}
    answer = broker.call(COMMIT, version, offset_commit(named, **member))
    assert codes(answer) == ([[0, 3, 0], [0]] if version < 3 else [[22] * 3, [22]])


# --- EndTxn --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", versions(END))
def test_transaction_ends(
    broker: Broker, named: dict[str, Any], version: int, commit: bool
) -> None:
    broker.call(ADD_PARTITIONS, 3, add_partitions(3, named))
    answer = broker.call(END, version, named | {"committed": commit})
    assert answer["error_code"] == 0
    known = broker.engine.transactions.describe("payments")
    if version >= 5:
        assert (answer["producer_id"], answer["producer_epoch"]) == known.producer
    bumped = named["producer_epoch"] + (version >= 5)
    assert known.producer == (named["producer_id"], bumped)
    wanted = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    assert known.state is wanted


# --- errors by version ---------------------------------------------------------------------------

NAMED = {"transactional_id": "payments", "producer_id": 7, "producer_epoch": 3}
Ask = Callable[[Broker, int], int]


def _init(broker: Broker, version: int) -> int:
    return int(broker.call(INIT, version, NAME | NAMED)["error_code"])


def _add(broker: Broker, version: int) -> int:
    answer = broker.call(ADD_PARTITIONS, version, add_partitions(version, NAMED))
    return partition_codes(answer, version)[0][0]


def _add_offsets(broker: Broker, version: int) -> int:
    return int(broker.call(ADD_OFFSETS, version, NAMED | {"group_id": "g"})["error_code"])


def _end(broker: Broker, version: int) -> int:
    answer = broker.call(END, version, NAMED | {"committed": True})
    assert answer.get("producer_id", -1) == -1
    return int(answer["error_code"])


def _commit(broker: Broker, version: int) -> int:
    return codes(broker.call(COMMIT, version, offset_commit(NAMED)))[0][0]


ASKS: dict[int, tuple[str, Ask]] = {
    INIT: ("init", _init),
    ADD_PARTITIONS: ("add_partitions", _add),
    ADD_OFFSETS: ("add_group", _add_offsets),
    END: ("end", _end),
    COMMIT: ("commit_offsets", _commit),
}
FENCED, INVALID_EPOCH, ABORTABLE, INVALID_STATE, CONCURRENT = 90, 47, 120, 48, 51
NOT_AVAILABLE, LOADING = 15, 14

BY_VERSION = [
    # (error, API, code before, since, code from then on): KIP-588, KIP-890, KAFKA-7296.
    (ProducerFencedError("x"), INIT, INVALID_EPOCH, 4, FENCED),
    (ProducerFencedError("x"), ADD_PARTITIONS, INVALID_EPOCH, 2, FENCED),
    (ProducerFencedError("x"), ADD_OFFSETS, INVALID_EPOCH, 2, FENCED),
    (ProducerFencedError("x"), END, INVALID_EPOCH, 2, FENCED),
    (ProducerFencedError("x"), COMMIT, INVALID_EPOCH, 99, FENCED),
    (TransactionAbortableError("x"), INIT, INVALID_STATE, 5, ABORTABLE),
    (TransactionAbortableError("x"), ADD_PARTITIONS, INVALID_STATE, 5, ABORTABLE),
    (TransactionAbortableError("x"), ADD_OFFSETS, INVALID_STATE, 4, ABORTABLE),
    (TransactionAbortableError("x"), END, INVALID_STATE, 4, ABORTABLE),
    (TransactionAbortableError("x"), COMMIT, INVALID_STATE, 4, ABORTABLE),
    (ConcurrentTransactionsError("x"), COMMIT, NOT_AVAILABLE, 5, CONCURRENT),
    (CoordinatorLoadingError("x"), COMMIT, NOT_AVAILABLE, 2, LOADING),
]


@pytest.mark.parametrize(
    ("error", "key", "before", "since", "after"),
    BY_VERSION,
    ids=lambda value: type(value).__name__ if isinstance(value, TidemillError) else str(value),
)
def test_each_version_gets_a_code_that_it_knows(
    broker: Broker, error: TidemillError, key: int, before: int, since: int, after: int
) -> None:
    method, ask = ASKS[key]
    broker.fail("transactions", method, error)
    for version in versions(key):
        assert ask(broker, version) == (before if version < since else after), version


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConcurrentTransactionsError("x"), CONCURRENT),
        (CoordinatorLoadingError("x"), LOADING),
        (InvalidProducerIdMappingError("x"), 49),
        (InvalidTxnStateError("x"), INVALID_STATE),
        (InvalidTransactionTimeoutError("x"), 50),
        (StorageError("x"), NOT_AVAILABLE),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("key", [INIT, ADD_PARTITIONS, ADD_OFFSETS, END])
def test_other_errors_have_one_code(
    broker: Broker, key: int, error: TidemillError, code: int
) -> None:
    method, ask = ASKS[key]
    broker.fail("transactions", method, error)
    for version in versions(key):
        assert ask(broker, version) == code
