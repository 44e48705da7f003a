"""APIs of the transaction coordinator: every advertised version there and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.broker import Broker, each_version, partition_codes, versions
from tests.protocols.kafka.trees import Tree, picked
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
def named(broker: Broker) -> Tree:
    """A producer that has started: the fields by which requests name it."""
    return started(broker, "payments")


def started(broker: Broker, transactional_id: str) -> Tree:
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


@each_version(INIT)
def test_producer_starts(broker: Broker, version: int) -> None:
    answer = broker.call(INIT, version, NAME)
    assert answer["error_code"] == 0
    known = broker.engine.transactions.describe("payments")
    assert (answer["producer_id"], answer["producer_epoch"]) == known.producer
    assert (known.timeout_ms, known.state) == (60_000, TransactionState.EMPTY)


@each_version(INIT)
def test_a_recovering_producer_sends_its_identity(
    broker: Broker, named: Tree, version: int
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


@each_version(INIT)
def test_empty_transactional_id_is_refused(broker: Broker, version: int) -> None:
    answer = broker.call(INIT, version, NAME | {"transactional_id": ""})
    assert answer["error_code"] == ErrorCode.invalid_request
    assert (answer["producer_id"], answer["producer_epoch"]) == (-1, -1)


# --- AddPartitionsToTxn --------------------------------------------------------------------------

TOPICS = [{"name": "orders", "partitions": [0, 2]}, {"name": "users", "partitions": [0]}]


def add_partitions(version: int, named: Tree, topics: list[Tree] = TOPICS) -> Tree:
    if version >= 4:
        return {"transactions": [named | {"verify_only": False, "topics": topics}]}
    renamed: Tree = {f"v3_and_below_{key}": value for key, value in named.items()}
    return renamed | {"v3_and_below_topics": topics}


def added_codes(answer: Tree, version: int) -> list[list[int]]:
    if version >= 4:
        assert answer["error_code"] == 0
        (transaction,) = answer["results_by_transaction"]
        assert transaction["transactional_id"] == "payments"
        topics = transaction["topic_results"]
    else:
        topics = answer["results_by_topic_v3_and_below"]
    assert [topic["name"] for topic in topics] == ["orders", "users"]
    return [[p["partition_error_code"] for p in t["results_by_partition"]] for t in topics]


@each_version(ADD_PARTITIONS)
def test_partitions_are_added(broker: Broker, named: Tree, version: int) -> None:
    answer = broker.call(ADD_PARTITIONS, version, add_partitions(version, named))
    assert added_codes(answer, version) == [[0, 0], [0]]
    assert partitions(broker) == {("orders", 0), ("orders", 2), ("users", 0)}
    assert state(broker) is TransactionState.ONGOING


@each_version(ADD_PARTITIONS)
def test_unknown_partition_stops_the_others(broker: Broker, named: Tree, version: int) -> None:
    topics = [{"name": "orders", "partitions": [0, 9]}, {"name": "users", "partitions": [0]}]
    answer = broker.call(ADD_PARTITIONS, version, add_partitions(version, named, topics))
    assert added_codes(answer, version) == [[55, 3], [55]]
    assert state(broker) is TransactionState.EMPTY


@each_version(ADD_PARTITIONS)
def test_an_error_of_the_transaction_is_in_each_partition(
    broker: Broker, named: Tree, version: int
) -> None:
    unknown = named | {"producer_id": 77}
    answer = broker.call(ADD_PARTITIONS, version, add_partitions(version, unknown))
    assert added_codes(answer, version) == [[49, 49], [49]]


def test_one_request_can_have_several_transactions(broker: Broker, named: Tree) -> None:
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


@each_version(ADD_OFFSETS)
def test_group_is_added(broker: Broker, named: Tree, version: int) -> None:
    answer = broker.call(ADD_OFFSETS, version, named | {"group_id": "g"})
    assert answer["error_code"] == 0
    assert partitions(broker) == {(OFFSETS_TOPIC, 0)}


def offset_commit(named: Tree, **member: object) -> Tree:
    def partition(index: int) -> Tree:
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


@each_version(COMMIT)
def test_offsets_are_committed_with_the_transaction(
    broker: Broker, named: Tree, version: int
) -> None:
    if version < 5:  # the older protocol of transactions: the group must be added before
        refused = 120 if version == 4 else 48
        answer = broker.call(COMMIT, version, offset_commit(named))
        assert partition_codes(answer) == [[refused] * 3, [refused]]
        broker.call(ADD_OFFSETS, 4, named | {"group_id": "g"})
    orders, users = broker.call(COMMIT, version, offset_commit(named))["topics"]
    found = picked(orders["partitions"], "partition_index", "error_code")
    assert found == [(0, 0), (9, 3), (1, 0)]
    assert picked(users["partitions"], "partition_index", "error_code") == [(0, 0)]
    assert broker.committed("g") == {}
    assert broker.call(END, 4, named | {"committed": True})["error_code"] == 0
    epoch = 2 if version >= 2 else -1
    assert broker.committed("g") == {
        ("orders", 0): (10, epoch, ""),
        ("orders", 1): (11, epoch, "note"),
        ("users", 0): (10, epoch, ""),
    }


@each_version(COMMIT)
def test_an_error_of_the_group_is_in_each_partition(
    broker: Broker, named: Tree, version: int
) -> None:
    broker.call(ADD_OFFSETS, 4, named | {"group_id": "g"})
    member = {"generation_id": 5, "member_id": "m", "group_instance_id": "s"}
    answer = broker.call(COMMIT, version, offset_commit(named, **member))
    assert partition_codes(answer) == ([[0, 3, 0], [0]] if version < 3 else [[22] * 3, [22]])


# --- EndTxn --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@each_version(END)
def test_transaction_ends(broker: Broker, named: Tree, version: int, commit: bool) -> None:
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

METHODS = {
    INIT: "init",
    ADD_PARTITIONS: "add_partitions",
    ADD_OFFSETS: "add_group",
    END: "end",
    COMMIT: "commit_offsets",
}


def refusals(broker: Broker, key: int, error: TidemillError) -> Iterator[tuple[int, int]]:
    """Let the engine refuse a request with an error; yield each version and the code it gets."""
    broker.fail("transactions", METHODS[key], error)
    for version in versions(key):
        asked = {
            INIT: NAME | NAMED,
            ADD_PARTITIONS: add_partitions(version, NAMED),
            ADD_OFFSETS: NAMED | {"group_id": "g"},
            END: NAMED | {"committed": True},
            COMMIT: offset_commit(NAMED),
        }
        answer = broker.call(key, version, asked[key])
        assert answer.get("producer_id", -1) == -1
        if key == ADD_PARTITIONS:
            yield version, added_codes(answer, version)[0][0]
        elif key == COMMIT:
            yield version, partition_codes(answer)[0][0]
        else:
            yield version, answer["error_code"]


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
    for version, code in refusals(broker, key, error):
        assert code == (before if version < since else after), version


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
    assert {found for _, found in refusals(broker, key, error)} == {code}
