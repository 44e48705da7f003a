"""APIs of the transaction coordinator: every advertised version there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.fake_engine_admin import FakeEngine, call, versions
from tidemill.engine.api import (
    NO_PRODUCER,
    CommitRequest,
    InitProducer,
    OffsetToCommit,
    ProducerIdentity,
    TransactionVersion,
    TxnOffsetCommit,
)
from tidemill.engine.errors import OperationNotAttemptedError
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.log.errors import InvalidTxnStateError, StorageError
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    IllegalGenerationError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
)

INIT, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT = 22, 24, 25, 26, 28
ME = ProducerIdentity(7, 3)
NAME = {"transactional_id": "payments", "transaction_timeout": 60_000}
NAMED = {"transactional_id": "payments", "producer_id": 7, "producer_epoch": 3}
V1, V2 = TransactionVersion.V1, TransactionVersion.V2


@pytest.fixture
def broker() -> FakeEngine:
    return FakeEngine()


# --- InitProducerId ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(INIT))
def test_producer_starts(broker: FakeEngine, version: int) -> None:
    answer = call(broker, INIT, version, NAME)
    assert (answer["error_code"], answer["producer_id"], answer["producer_epoch"]) == (0, 7, 3)
    assert broker.calls == [
        ("init_transactional_producer", InitProducer("payments", 60_000, NO_PRODUCER))
    ]


@pytest.mark.parametrize("version", versions(INIT))
def test_a_recovering_producer_sends_its_identity(broker: FakeEngine, version: int) -> None:
    call(broker, INIT, version, NAME | NAMED)
    ((_, request),) = broker.calls
    assert request.current == (ME if version >= 3 else NO_PRODUCER)


@pytest.mark.parametrize("half", [{"producer_id": 7}, {"producer_epoch": 3}])
def test_a_producer_id_without_an_epoch_is_refused(
    broker: FakeEngine, half: dict[str, int]
) -> None:
    for name in ("payments", None):
        answer = call(broker, INIT, 4, NAME | {"transactional_id": name} | half)
        assert answer["error_code"] == ErrorCode.invalid_request
    assert broker.calls == []


@pytest.mark.parametrize("version", versions(INIT))
def test_empty_transactional_id_is_refused(broker: FakeEngine, version: int) -> None:
    answer = call(broker, INIT, version, NAME | {"transactional_id": ""})
    assert answer["error_code"] == ErrorCode.invalid_request
    assert (answer["producer_id"], answer["producer_epoch"]) == (-1, -1)


# --- AddPartitionsToTxn --------------------------------------------------------------------------

TOPICS = [{"name": "orders", "partitions": [0, 2]}, {"name": "users", "partitions": [0]}]
ASKED = [("orders", 0), ("orders", 2), ("users", 0)]


def add_partitions(version: int, topics: list[dict[str, Any]] = TOPICS) -> dict[str, Any]:
    if version >= 4:
        return {"transactions": [NAMED | {"verify_only": False, "topics": topics}]}
    renamed: dict[str, Any] = {f"v3_and_below_{key}": value for key, value in NAMED.items()}
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
def test_partitions_are_added(broker: FakeEngine, version: int) -> None:
    answer = call(broker, ADD_PARTITIONS, version, add_partitions(version))
    assert partition_codes(answer, version) == [[0, 0], [0]]
    assert broker.calls == [("add_partitions", ("payments", ME, ASKED))]


@pytest.mark.parametrize("version", versions(ADD_PARTITIONS))
def test_unknown_partition_stops_the_others(broker: FakeEngine, version: int) -> None:
    broker.answers["add_partitions"] = [
        OperationNotAttemptedError("x"),
        UnknownTopicOrPartitionError("x"),
        OperationNotAttemptedError("x"),
    ]
    answer = call(broker, ADD_PARTITIONS, version, add_partitions(version))
    assert partition_codes(answer, version) == [[55, 3], [55]]


@pytest.mark.parametrize("version", versions(ADD_PARTITIONS))
def test_an_error_of_the_transaction_is_in_each_partition(broker: FakeEngine, version: int) -> None:
    broker.answers["add_partitions"] = InvalidTxnStateError("x")
    answer = call(broker, ADD_PARTITIONS, version, add_partitions(version))
    assert partition_codes(answer, version) == [[48, 48], [48]]


def test_one_request_can_have_several_transactions(broker: FakeEngine) -> None:
    broker.answers["verify_partitions"] = [TransactionAbortableError("not in it")]
    topics = [{"name": "orders", "partitions": [1]}]
    asked = [
        NAMED | {"verify_only": False, "topics": topics},
        NAMED | {"transactional_id": "other", "verify_only": True, "topics": topics},
    ]
    answer = call(broker, ADD_PARTITIONS, 5, {"transactions": asked})
    found = [
        (each["transactional_id"], partition["partition_error_code"])
        for each in answer["results_by_transaction"]
        for topic in each["topic_results"]
        for partition in topic["results_by_partition"]
    ]
    assert found == [("payments", 0), ("other", 120)]
    assert [name for name, _ in broker.calls] == ["add_partitions", "verify_partitions"]


# --- offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ADD_OFFSETS))
def test_group_is_added(broker: FakeEngine, version: int) -> None:
    answer = call(broker, ADD_OFFSETS, version, NAMED | {"group_id": "g"})
    assert answer["error_code"] == 0
    assert broker.calls == [("add_offsets", ("payments", ME, "g"))]


def offset_commit() -> dict[str, Any]:
    def partition(index: int) -> dict[str, Any]:
        return {
            "partition_index": index,
            "committed_offset": 10 + index,
            "committed_leader_epoch": 2,
            "committed_metadata": "note" if index else None,
        }

    return NAMED | {
        "group_id": "g",
        "generation_id": 5,
        "member_id": "m",
        "group_instance_id": "s",
        "topics": [
            {"name": "orders", "partitions": [partition(0), partition(1)]},
            {"name": "users", "partitions": [partition(0)]},
        ],
    }


@pytest.mark.parametrize("version", versions(COMMIT))
def test_offsets_are_committed_with_the_transaction(broker: FakeEngine, version: int) -> None:
    broker.answers["commit_transaction_offsets"] = [None, UnknownTopicOrPartitionError("x"), None]
    answer = call(broker, COMMIT, version, offset_commit())
    assert [
        [(p["partition_index"], p["error_code"]) for p in topic["partitions"]]
        for topic in answer["topics"]
    ] == [[(0, 0), (1, 3)], [(0, 0)]]
    epoch = 2 if version >= 2 else -1
    member = (5, "m") if version >= 3 else (-1, "")
    instance = "s" if version >= 3 else None
    offsets = (
        OffsetToCommit("orders", 0, 10, epoch, None),
        OffsetToCommit("orders", 1, 11, epoch, "note"),
        OffsetToCommit("users", 0, 10, epoch, None),
    )
    commit = CommitRequest("g", *member, instance, offsets)
    wanted = TxnOffsetCommit("payments", ME, commit, V2 if version >= 5 else V1)
    assert broker.calls == [("commit_transaction_offsets", wanted)]


@pytest.mark.parametrize("version", versions(COMMIT))
def test_an_error_of_the_group_is_in_each_partition(broker: FakeEngine, version: int) -> None:
    broker.answers["commit_transaction_offsets"] = IllegalGenerationError("x")
    answer = call(broker, COMMIT, version, offset_commit())
    assert [p["error_code"] for t in answer["topics"] for p in t["partitions"]] == [22] * 3


# --- EndTxn --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", versions(END))
def test_transaction_ends(broker: FakeEngine, version: int, commit: bool) -> None:
    answer = call(broker, END, version, NAMED | {"committed": commit})
    assert answer["error_code"] == 0
    if version >= 5:
        assert (answer["producer_id"], answer["producer_epoch"]) == (7, 4)
    wanted = ("payments", ME, commit, V2 if version >= 5 else V1)
    assert broker.calls == [("end_transaction", wanted)]


# --- errors by version ---------------------------------------------------------------------------

Ask = Callable[[FakeEngine, int], int]


def _init(broker: FakeEngine, version: int) -> int:
    return int(call(broker, INIT, version, NAME | NAMED)["error_code"])


def _add(broker: FakeEngine, version: int) -> int:
    answer = call(broker, ADD_PARTITIONS, version, add_partitions(version))
    return partition_codes(answer, version)[0][0]


def _add_offsets(broker: FakeEngine, version: int) -> int:
    return int(call(broker, ADD_OFFSETS, version, NAMED | {"group_id": "g"})["error_code"])


def _end(broker: FakeEngine, version: int) -> int:
    answer = call(broker, END, version, NAMED | {"committed": True})
    assert answer.get("producer_id", -1) == -1
    return int(answer["error_code"])


def _commit(broker: FakeEngine, version: int) -> int:
    answer = call(broker, COMMIT, version, offset_commit())
    return int(answer["topics"][0]["partitions"][0]["error_code"])


ASKS: dict[int, tuple[str, Ask]] = {
    INIT: ("init_transactional_producer", _init),
    ADD_PARTITIONS: ("add_partitions", _add),
    ADD_OFFSETS: ("add_offsets", _add_offsets),
    END: ("end_transaction", _end),
    COMMIT: ("commit_transaction_offsets", _commit),
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
    broker: FakeEngine, error: TidemillError, key: int, before: int, since: int, after: int
) -> None:
    call_name, ask = ASKS[key]
    broker.answers[call_name] = error
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
    broker: FakeEngine, key: int, error: TidemillError, code: int
) -> None:
    call_name, ask = ASKS[key]
    broker.answers[call_name] = error
    for version in versions(key):
        assert ask(broker, version) == code
