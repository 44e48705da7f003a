"""The life of transactions: identities, partitions, both protocols, retries, restarts."""

from __future__ import annotations

import pytest

from tests.state.harness import START_MS
from tests.state.transactions_desk import (
    FIRST_ID,
    ID,
    TIMEOUT_MS,
    V1,
    V2,
    A,
    B,
    S,
    TransactionDesk,
    pid,
)
from tidemill.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
)
from tidemill.log.names import TopicPartition
from tidemill.log.transactions import Marker
from tidemill.state.transactions import Transactions
from tidemill.state.transactions_table import TRANSITIONS
from tidemill.state.types import InitProducer, TransactionState, TransactionVersion

P = FIRST_ID


@pytest.fixture
def desk() -> TransactionDesk:
    return TransactionDesk()


# --- InitProducerId ------------------------------------------------------------------------------


def test_a_new_id_gets_a_fresh_producer_id_in_epoch_0(desk: TransactionDesk) -> None:
    assert desk.machine.needs_producer_id(ID)
    assert desk.init() == pid(P, 0)
    assert desk.state is S.EMPTY
    assert not desk.machine.needs_producer_id(ID)


def test_each_start_of_a_producer_bumps_the_epoch(desk: TransactionDesk) -> None:
    assert [desk.init() for _ in range(3)] == [pid(P, 0), pid(P, 1), pid(P, 2)]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, 2**31 - 1])
def test_a_timeout_out_of_bounds_is_refused(desk: TransactionDesk, timeout_ms: int) -> None:
    request = InitProducer(ID, timeout_ms)
    with pytest.raises(InvalidTransactionTimeoutError):
        desk.machine.fence(request, desk.now)
    with pytest.raises(InvalidTransactionTimeoutError):
        desk.machine.init(request, desk.now, 1)
    assert desk.init(timeout_ms=900_000) == pid(P, 0)


def test_the_timeout_is_the_one_of_the_last_start(desk: TransactionDesk) -> None:
    desk.init(timeout_ms=10)
    desk.init(timeout_ms=20)
    assert desk.machine.describe(ID).timeout_ms == 20


def test_half_an_identity_and_an_empty_id_are_refused(desk: TransactionDesk) -> None:
    for request in (
        InitProducer(ID, 1, pid(1, -1)),
        InitProducer(ID, 1, pid(-1, 1)),
        InitProducer("", 1),
    ):
        with pytest.raises(InvalidRequestError):
            desk.machine.fence(request, desk.now)
        with pytest.raises(InvalidRequestError):
            desk.machine.init(request, desk.now, 1)


def test_a_missing_fresh_producer_id_is_a_fault_of_the_caller(desk: TransactionDesk) -> None:
    with pytest.raises(ValueError, match="producer id"):
        desk.machine.init(InitProducer(ID, 1), desk.now)


def test_a_producer_that_recovers_goes_on_with_the_next_epoch(desk: TransactionDesk) -> None:
    first = desk.init()
    assert desk.init(first) == pid(P, 1)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_retry_with_the_last_epoch_gets_the_same_answer(
    desk: TransactionDesk, restarted: bool
) -> None:
    first = desk.init()
    second = desk.init(first)
    if restarted:
        desk = desk.restart()
    assert desk.init(first) == second
    assert desk.init(first) == second
    assert desk.init(second) == pid(P, 2)


def test_a_fenced_producer_can_t_recover(desk: TransactionDesk) -> None:
    first = desk.init()
    desk.init()  # another producer: nobody's retry
    for stale in (first, pid(P, 7), pid(P + 1, 1)):
        with pytest.raises(ProducerFencedError):
            desk.init(stale)


def test_an_expired_id_is_new_also_for_a_producer_that_recovers(desk: TransactionDesk) -> None:
    first = desk.init()
    desk.now += 604_800_000
    desk.run(desk.machine.expire_ids(desk.now))
    assert desk.init(first) == pid(P + 1, 0)


@pytest.mark.parametrize("version", [V1, V2])
def test_a_newer_producer_aborts_what_is_open_and_fences(
    desk: TransactionDesk, version: TransactionVersion
) -> None:
    old = desk.init()
    desk.add(old, A, B, version=version)
    request = InitProducer(ID, TIMEOUT_MS)
    desk.run(desk.machine.fence(request, desk.now))
    assert desk.machine.unfinished(ID) == (Marker(P, 1, commit=False), (A, B))
    with pytest.raises(ConcurrentTransactionsError):
        desk.machine.init(request, desk.now)
    with pytest.raises(ConcurrentTransactionsError):
        desk.machine.fence(request, desk.now)
    desk.complete()
    new = desk.run(desk.machine.init(request, desk.now))
    assert new == pid(P, 2)  # the marker's epoch is nobody's
    assert desk.state is S.EMPTY
    for call in (
        lambda: desk.add(old, A),
        lambda: desk.end(old, version=version),
        lambda: desk.init(old),
    ):
        with pytest.raises(ProducerFencedError):
            call()
    with pytest.raises(InvalidProducerEpochError):
        desk.write(old, version=version)


def test_a_producer_that_recovers_from_an_open_transaction_is_not_fenced_by_itself(
    desk: TransactionDesk,
) -> None:
    first = desk.init()
    desk.add(first, A)
    assert desk.init(first) == pid(P, 1)
    assert desk.log[-2].value is not None  # CompleteAbort, then Empty
    assert desk.init(first) == pid(P, 1)


def test_a_zombie_s_recovery_leaves_the_open_transaction_alone(desk: TransactionDesk) -> None:
    zombie = desk.init()
    current = desk.init(zombie)
    desk.add(current, A)
    records = len(desk.log)
    with pytest.raises(ProducerFencedError):
        desk.init(zombie)
    assert (desk.state, len(desk.log)) == (S.ONGOING, records)


# --- partitions ----------------------------------------------------------------------------------


def test_the_first_partition_begins_a_transaction(desk: TransactionDesk) -> None:
    producer = desk.init()
    assert desk.add(producer, A) == 1
    desk.now += 5
    assert desk.add(producer, A) == 0
    assert desk.add(producer, A, B) == 1
    assert desk.add(producer, B) == 0
    found = desk.machine.describe(ID)
    assert (found.state, found.partitions) == (S.ONGOING, (A, B))
    assert found.start_time_ms == START_MS


def test_v1_writes_only_where_a_partition_was_added(desk: TransactionDesk) -> None:
    producer = desk.init()
    with pytest.raises(TransactionAbortableError):
        desk.write(producer, A, V1)
    desk.add(producer, A)
    assert desk.write(producer, A, V1) == 0
    with pytest.raises(TransactionAbortableError):
        desk.write(producer, B, V1)
    desk.end(producer, version=V1)
    with pytest.raises(TransactionAbortableError):
        desk.write(producer, A, V1)  # late, after the end


def test_v2_adds_a_partition_with_the_first_write(desk: TransactionDesk) -> None:
    producer = desk.init()
    assert [desk.write(producer, tp) for tp in (A, A, B, A, B)] == [1, 0, 1, 0, 0]
    assert desk.machine.describe(ID).partitions == (A, B)


def test_writes_of_others_are_refused(desk: TransactionDesk) -> None:
    producer = desk.init()
    desk.write(producer)
    for version in (V1, V2):
        with pytest.raises(InvalidProducerEpochError):
            desk.write(pid(P, 1), version=version)
        with pytest.raises(InvalidProducerIdMappingError):
            desk.write(pid(P + 1, 0), version=version)
        with pytest.raises(InvalidProducerIdMappingError):
            desk.machine.check_write("unknown", producer, A, desk.now, version)


@pytest.mark.parametrize("version", [V1, V2])
def test_while_markers_are_written_the_producer_waits_and_zombies_are_fenced(
    desk: TransactionDesk, version: TransactionVersion
) -> None:
    producer = desk.init()
    desk.add(producer, A, version=version)
    following = desk.prepare(producer, version=version)
    with pytest.raises(ConcurrentTransactionsError):
        desk.write(following, A, version)
    with pytest.raises(ConcurrentTransactionsError):
        desk.add(following, A)
    with pytest.raises(InvalidProducerEpochError):
        desk.write(pid(P, 7), A, version)
    if version is V2:
        with pytest.raises(InvalidProducerEpochError):
            desk.write(producer, A, version)


def test_verify_only_asks(desk: TransactionDesk) -> None:
    producer = desk.init()
    desk.add(producer, A)
    records = len(desk.log)
    first, second = desk.machine.verify(ID, producer, [A, B])
    assert first is None
    assert isinstance(second, TransactionAbortableError)
    with pytest.raises(ProducerFencedError):
        desk.machine.verify(ID, pid(P, 1), [A])
    with pytest.raises(InvalidProducerIdMappingError):
        desk.machine.verify(ID, pid(P + 1, 0), [A])
    with pytest.raises(InvalidProducerIdMappingError):
        desk.machine.verify("unknown", producer, [A])
    desk.prepare(producer, version=V1)
    with pytest.raises(ConcurrentTransactionsError):
        desk.machine.verify(ID, producer, [A])
    assert len(desk.log) == records + 1


def test_unknown_and_empty_ids_are_refused(desk: TransactionDesk) -> None:
    producer = desk.init()
    with pytest.raises(InvalidProducerIdMappingError):
        desk.machine.add("unknown", producer, [A], 0, V1)
    with pytest.raises(InvalidProducerIdMappingError):
        desk.machine.end("unknown", producer, True, 0, V1)
    with pytest.raises(InvalidRequestError):
        desk.machine.add("", producer, [A], 0, V1)
    with pytest.raises(InvalidRequestError):
        desk.machine.end("", producer, True, 0, V1)
    with pytest.raises(InvalidRequestError):
        desk.machine.describe("")
    with pytest.raises(TransactionalIdNotFoundError):
        desk.machine.describe("unknown")
    with pytest.raises(TransactionalIdNotFoundError):
        desk.machine.adopt("unknown", A, 0)
    with pytest.raises(InvalidTxnStateError):
        desk.machine.complete("unknown", 0)
    assert desk.machine.unfinished("unknown") is None


def test_deleted_topics_leave_open_and_ending_transactions(desk: TransactionDesk) -> None:
    producer = desk.init()
    desk.add(producer, A, B, version=V2)
    desk.run(desk.machine.drop_partitions([A.topic], desk.now))
    assert desk.machine.describe(ID).partitions == (B,)
    desk.prepare(producer)
    desk.run(desk.machine.drop_partitions([A.topic, B.topic], desk.now))
    assert desk.machine.unfinished(ID) == (Marker(P, 1, commit=True), ())
    assert desk.machine.drop_partitions([B.topic], desk.now).records == []
    desk.complete()
    assert desk.state is S.COMPLETE_COMMIT


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_v1_keeps_the_epoch(desk: TransactionDesk, commit: bool) -> None:
    producer = desk.init()
    for _ in range(2):
        desk.add(producer, A)
        assert desk.prepare(producer, commit=commit, version=V1) == producer
        assert desk.machine.unfinished(ID) == (Marker(P, 0, commit), (A,))
        assert desk.machine.all_unfinished() == [ID]
        desk.complete()
        assert desk.machine.all_unfinished() == []
        assert desk.state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)


@pytest.mark.parametrize("commit", [True, False])
def test_v2_bumps_the_epoch_with_each_end(desk: TransactionDesk, commit: bool) -> None:
    producer = desk.init()
    for epoch in (1, 2):
        desk.write(producer)
        producer = desk.prepare(producer, commit=commit)
        assert producer == pid(P, epoch)
        assert desk.machine.unfinished(ID) == (Marker(P, epoch, commit), (A,))
        desk.complete()
        assert desk.value.producer == producer


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_v2_a_retried_end_gets_the_same_answer(
    desk: TransactionDesk, commit: bool, restarted: bool
) -> None:
    first = desk.init()
    desk.write(first)
    second = desk.end(first, commit=commit)
    records = len(desk.log)
    if restarted:
        desk = desk.restart()
    assert desk.end(first, commit=commit) == second
    with pytest.raises(InvalidTxnStateError):
        desk.end(first, commit=not commit)
    assert len(desk.log) == records


def test_v2_an_abort_where_nothing_is_open_bumps_the_epoch(desk: TransactionDesk) -> None:
    producer = desk.init()
    for epoch in (1, 2):  # from Empty, from CompleteAbort
        producer = desk.prepare(producer, commit=False)
        assert producer == pid(P, epoch)
        assert desk.machine.unfinished(ID) == (Marker(P, epoch, commit=False), ())
        assert desk.value.start_ms == desk.now
        desk.complete()
    desk.write(producer)
    producer = desk.end(producer)
    assert desk.end(producer, commit=False) == pid(P, 4)  # from CompleteCommit


END_TABLE = [
    # state, version, epoch relative to the state's, commit, abort
    (S.EMPTY, V1, 0, InvalidTxnStateError, InvalidTxnStateError),
    (S.EMPTY, V1, -1, ProducerFencedError, ProducerFencedError),
    (S.EMPTY, V2, 0, InvalidTxnStateError, +1),
    (S.EMPTY, V2, -1, ProducerFencedError, ProducerFencedError),
    (S.ONGOING, V1, 0, 0, 0),
    (S.ONGOING, V1, -1, ProducerFencedError, ProducerFencedError),
    (S.ONGOING, V2, 0, +1, +1),
    (S.ONGOING, V2, -1, ProducerFencedError, ProducerFencedError),
    (S.PREPARE_COMMIT, V1, 0, ConcurrentTransactionsError, InvalidTxnStateError),
    (S.PREPARE_ABORT, V1, 0, InvalidTxnStateError, ConcurrentTransactionsError),
    (S.PREPARE_COMMIT, V1, -1, ProducerFencedError, ProducerFencedError),
    (S.PREPARE_COMMIT, V2, -1, ConcurrentTransactionsError, InvalidTxnStateError),
    (S.PREPARE_ABORT, V2, -1, InvalidTxnStateError, ConcurrentTransactionsError),
    (S.PREPARE_COMMIT, V2, 0, ConcurrentTransactionsError, ConcurrentTransactionsError),
    (S.PREPARE_ABORT, V2, 0, ConcurrentTransactionsError, ConcurrentTransactionsError),
    (S.PREPARE_ABORT, V2, -2, ProducerFencedError, ProducerFencedError),
    (S.COMPLETE_COMMIT, V1, 0, 0, InvalidTxnStateError),
    (S.COMPLETE_ABORT, V1, 0, InvalidTxnStateError, 0),
    (S.COMPLETE_COMMIT, V1, -1, ProducerFencedError, ProducerFencedError),
    (S.COMPLETE_COMMIT, V2, -1, 0, InvalidTxnStateError),
    (S.COMPLETE_ABORT, V2, -1, InvalidTxnStateError, 0),
    (S.COMPLETE_COMMIT, V2, 0, InvalidTxnStateError, +1),
    (S.COMPLETE_ABORT, V2, 0, InvalidTxnStateError, +1),
    (S.COMPLETE_COMMIT, V2, -2, ProducerFencedError, ProducerFencedError),
    (S.COMPLETE_COMMIT, V2, +1, ProducerFencedError, ProducerFencedError),
]


@pytest.mark.parametrize(
    ("state", "version", "epoch", "commit", "expected"),
    [
        (state, version, epoch, commit, expected)
        for state, version, epoch, on_commit, on_abort in END_TABLE
        for commit, expected in ((True, on_commit), (False, on_abort))
    ],
)
def test_end_answers_as_apache_kafka_s_table(
    desk: TransactionDesk,
    state: TransactionState,
    version: TransactionVersion,
    epoch: int,
    commit: bool,
    expected: int | type[Exception],
) -> None:
    desk.set(state, 5, version)
    if isinstance(expected, int):
        answer = desk.prepare(pid(P, 5 + epoch), commit=commit, version=version)
        assert answer == pid(P, 5 + expected)
        return
    with pytest.raises(expected):
        desk.prepare(pid(P, 5 + epoch), commit=commit, version=version)
    with pytest.raises(InvalidProducerIdMappingError):
        desk.prepare(pid(P + 1, 5 + epoch), commit=commit, version=version)


def test_every_state_of_the_table_is_a_state_and_every_state_is_in_it() -> None:
    assert set(TRANSITIONS) == set(TransactionState) - {S.PREPARE_EPOCH_FENCE}
    assert {after for states in TRANSITIONS.values() for after in states} <= set(TRANSITIONS)


# --- epochs are used up --------------------------------------------------------------------------


def test_v2_ends_the_last_epoch_with_a_fresh_producer_id(desk: TransactionDesk) -> None:
    desk.set(S.ONGOING, 32766)
    assert desk.machine.needs_producer_id(ID)
    fresh = P + 1
    assert desk.prepare(pid(P, 32766)) == pid(fresh, 0)
    assert desk.machine.unfinished(ID) == (Marker(P, 32767, commit=True), (A,))
    assert desk.machine.find(fresh) == desk.machine.find(P) == ID
    with pytest.raises(ConcurrentTransactionsError):
        desk.prepare(pid(P, 32766))
    with pytest.raises(ConcurrentTransactionsError):
        desk.add(pid(fresh, 0), A)
    with pytest.raises(ConcurrentTransactionsError):
        desk.write(pid(fresh, 0))
    with pytest.raises(ConcurrentTransactionsError):
        desk.prepare(pid(fresh, 0), commit=False)
    desk.complete()
    assert desk.value.producer == pid(fresh, 0)
    assert desk.machine.find(P) is None
    for each in (desk, desk.restart(), desk.restart(compact=True)):
        assert each.prepare(pid(P, 32766)) == pid(fresh, 0)  # a retry
        with pytest.raises(InvalidTxnStateError):
            each.prepare(pid(P, 32766), commit=False)
        with pytest.raises(InvalidProducerIdMappingError):
            each.prepare(pid(P, 32765))
    assert desk.write(pid(fresh, 0)) == 1
    with pytest.raises(InvalidProducerIdMappingError):
        desk.prepare(pid(P, 32766))  # no retry any more


def test_a_start_after_the_last_epoch_gets_a_fresh_producer_id(desk: TransactionDesk) -> None:
    desk.set(S.COMPLETE_COMMIT, 32765)
    assert desk.init() == pid(P, 32766)
    assert desk.init() == pid(P + 1, 0)
    assert desk.init() == pid(P + 1, 1)


def test_a_recovery_in_the_last_epoch_is_retried_across_producer_ids(desk: TransactionDesk) -> None:
    desk.set(S.COMPLETE_ABORT, 32766, V1)
    last = pid(P, 32766)
    assert desk.init(pid(P, 32765)) == last  # a retry of the one before
    assert desk.init(last) == pid(P + 1, 0)
    assert desk.init(last) == pid(P + 1, 0)
    with pytest.raises(ProducerFencedError):
        desk.init(pid(P, 32765))
    desk.init()
    with pytest.raises(ProducerFencedError):
        desk.init(last)


def test_an_abort_by_the_coordinator_uses_the_reserved_epoch(desk: TransactionDesk) -> None:
    desk.set(S.ONGOING, 32766)
    desk.run(desk.machine.fence(InitProducer(ID, TIMEOUT_MS), desk.now))
    assert desk.machine.unfinished(ID) == (Marker(P, 32767, commit=False), (A,))
    desk.complete()
    assert desk.init() == pid(P + 1, 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_the_reserved_epoch_is_never_a_client_s(desk: TransactionDesk, restarted: bool) -> None:
    desk.set(S.ONGOING, 32766)
    desk.expire()
    if restarted:
        desk = desk.restart()
    last = pid(P, 32766)
    with pytest.raises(InvalidTxnStateError):
        desk.end(last)
    assert desk.end(last, commit=False) == pid(P + 1, 0)
    assert desk.end(last, commit=False) == pid(P + 1, 0)


def test_a_recovery_after_the_timeout_in_the_last_epoch_gets_a_fresh_producer_id(
    desk: TransactionDesk,
) -> None:
    desk.set(S.ONGOING, 32766, V1)
    desk.expire()
    last = pid(P, 32766)
    assert desk.init(last) == pid(P + 1, 0)
    assert desk.init(last) == pid(P + 1, 0)


def test_v1_in_the_last_epoch_goes_on(desk: TransactionDesk) -> None:
    desk.set(S.ONGOING, 32766, V1)
    assert desk.end(pid(P, 32766), version=V1) == pid(P, 32766)
    desk.add(pid(P, 32766), A)
    assert desk.end(pid(P, 32766), version=V1) == pid(P, 32766)


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V1, V2])
def test_a_transaction_is_aborted_when_its_time_is_up(
    desk: TransactionDesk, version: TransactionVersion
) -> None:
    producer = desk.init()
    assert desk.machine.next_deadline() is None
    desk.add(producer, A, version=version)
    desk.now += 10
    desk.add(producer, B, version=version)
    assert desk.machine.next_deadline() == START_MS + TIMEOUT_MS
    desk.now = START_MS + TIMEOUT_MS - 1
    assert desk.machine.due(desk.now) == []
    assert desk.machine.expire(ID, desk.now).records == []
    desk.now += 1
    assert desk.machine.due(desk.now) == [ID]
    assert desk.machine.due(desk.now) == [ID]  # until the abort is written
    desk.run(desk.machine.expire(ID, desk.now))
    assert desk.machine.due(desk.now) == []
    assert desk.machine.next_deadline() is None
    assert desk.machine.unfinished(ID) == (Marker(P, 1, commit=False), (A, B))
    desk.complete()
    with pytest.raises(InvalidProducerEpochError):
        desk.write(producer, A, version)
    with pytest.raises(ProducerFencedError):
        desk.add(producer, A)
    assert desk.machine.expire(ID, desk.now).records == []


def test_v2_aborts_what_has_timed_out_and_goes_on(desk: TransactionDesk) -> None:
    producer = desk.init()
    desk.write(producer)
    desk.expire()
    with pytest.raises(InvalidTxnStateError):
        desk.end(producer)
    assert desk.end(producer, commit=False) == pid(P, 1)
    assert desk.write(pid(P, 1)) == 1


def test_v1_recovers_from_a_timeout_with_init_producer_id(desk: TransactionDesk) -> None:
    producer = desk.init()
    desk.add(producer, A)
    desk.expire()
    with pytest.raises(ProducerFencedError):
        desk.end(producer, commit=False, version=V1)
    assert desk.init(producer) == pid(P, 1)


def test_timeouts_go_on_after_a_restart(desk: TransactionDesk) -> None:
    desk.add(desk.init(), A)
    desk.now += 1000
    assert desk.restart().machine.next_deadline() == START_MS + TIMEOUT_MS
    desk.now += TIMEOUT_MS
    assert desk.restart().machine.due(desk.now) == [ID]


def test_no_timeout_is_longer_for_a_clock_that_was_set_back(desk: TransactionDesk) -> None:
    desk.add(desk.init(), A)
    desk.now -= 10_000_000
    again = desk.restart()
    assert again.machine.next_deadline() == desk.now + TIMEOUT_MS
    assert again.machine.due(desk.now + TIMEOUT_MS) == [ID]
    assert len(again.machine.expire(ID, desk.now + TIMEOUT_MS).records) == 1


@pytest.mark.parametrize("version", [V1, V2])
def test_what_joins_after_the_clock_was_set_back_makes_no_timeout_longer(
    desk: TransactionDesk, version: TransactionVersion
) -> None:
    producer = desk.init()
    desk.add(producer, A, TopicPartition("c", 0), version=version)
    desk.now -= 10_000_000
    deadline = desk.now + TIMEOUT_MS
    again = desk.restart()
    again.now += 10
    again.add(producer, B, version=version)
    assert again.machine.next_deadline() == deadline
    again.run(again.machine.drop_partitions(["c"], again.now))
    assert again.machine.next_deadline() == deadline
    assert again.machine.due(deadline) == [ID]
    assert len(again.machine.expire(ID, deadline).records) == 1


def test_the_next_transaction_has_its_whole_time_after_the_clock_was_set_back(
    desk: TransactionDesk,
) -> None:
    producer = desk.init()
    desk.add(producer, A)
    desk.now -= 10_000_000
    again = desk.restart()
    again.now += 1000
    again.end(producer, version=V1)
    again.add(producer, A)
    assert again.machine.next_deadline() == again.now + TIMEOUT_MS


def test_ids_expire_when_nothing_is_open() -> None:
    desk = TransactionDesk()
    desk.machine = Transactions(id_expiration_ms=1000)
    open_one = desk.init(transactional_id="open")
    desk.run(desk.machine.add("open", open_one, [A], desk.now, V1))
    ended = desk.init(transactional_id="ended")
    desk.run(desk.machine.add("ended", ended, [A], desk.now, V1))
    desk.run(desk.machine.end("ended", ended, True, desk.now, V1))
    desk.init()
    desk.now += 999
    assert desk.machine.expire_ids(desk.now).records == []
    desk.init(transactional_id="young")
    desk.now += 1
    desk.run(desk.machine.expire_ids(desk.now))
    assert set(desk.machine.stored()) == {"open", "ended", "young"}
    assert desk.machine.find(P + 2) is None
    with pytest.raises(InvalidProducerIdMappingError):
        desk.add(pid(P + 2, 0), A)


# --- views ---------------------------------------------------------------------------------------


def listed(desk: TransactionDesk, **filters: object) -> list[str]:
    found = desk.machine.list(now_ms=desk.now, **filters)  # type: ignore[arg-type]
    return [each.transactional_id for each in found]


def test_list_filters() -> None:
    desk = TransactionDesk()
    first = desk.init(transactional_id="one-a")
    desk.init(transactional_id="two")
    desk.init(transactional_id="one-b")
    desk.run(desk.machine.add("one-a", first, [A], desk.now, V1))
    desk.now += 100
    assert listed(desk) == ["one-a", "two", "one-b"]
    assert listed(desk, states=[S.ONGOING]) == ["one-a"]
    assert listed(desk, states=["Empty", "PrepareCommit"]) == ["two", "one-b"]
    assert listed(desk, producer_ids=[P + 1]) == ["two"]
    assert listed(desk, duration_ms=99) == ["one-a"]
    assert listed(desk, duration_ms=100) == []
    assert listed(desk, id_pattern="one-.") == ["one-a", "one-b"]
    assert listed(desk, id_pattern="one") == []
    with pytest.raises(InvalidRequestError):
        listed(desk, id_pattern="(")


def test_describe_shows_a_start_only_of_what_is_open_or_ending(desk: TransactionDesk) -> None:
    producer = desk.init()
    assert desk.machine.describe(ID).start_time_ms == -1
    desk.add(producer, B, A, TopicPartition("a", 10))
    found = desk.machine.describe(ID)
    assert (found.producer, found.start_time_ms, found.timeout_ms) == (producer, desk.now, 60_000)
    assert found.partitions == (A, TopicPartition("a", 10), B)
    desk.prepare(producer)
    assert desk.machine.describe(ID).start_time_ms == desk.now
    desk.complete()
    assert desk.machine.describe(ID).start_time_ms == -1


def test_records_of_other_kinds_are_left_alone(desk: TransactionDesk) -> None:
    assert not desk.machine.replay(b"\x00\x01\x00\x01x", b"")


def test_the_log_and_its_compacted_form_give_the_same_coordinator(desk: TransactionDesk) -> None:
    producer = desk.init()
    desk.add(producer, A, B, version=V2)
    producer = desk.end(producer)
    desk.write(producer)
    desk.init(transactional_id="other")
    for again in (desk.restart(), desk.restart(compact=True)):
        assert again.machine.stored() == desk.machine.stored()
        assert again.machine.next_deadline() == desk.machine.next_deadline()


def test_a_pattern_that_would_hold_up_a_backtracking_engine_is_answered(
    desk: TransactionDesk,
) -> None:
    desk.init(transactional_id="a" * 40 + "!")
    assert listed(desk, id_pattern="(a|a)*(a+)+") == []
