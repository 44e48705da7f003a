"""The life of transactions: identities, partitions, both protocols, retries, restarts."""

from __future__ import annotations

import pytest

from tests.state.driver import START_MS
from tests.state.transactions.driver import (
    FIRST_ID,
    ID,
    TIMEOUT_MS,
    V1,
    V2,
    A,
    B,
    S,
    TransactionsDriver,
    pid,
)
from tidemill.log.errors import InvalidProducerEpochError, InvalidTxnStateError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
)
from tidemill.state.transactions.machine import Transactions
from tidemill.state.transactions.table import TRANSITIONS
from tidemill.state.transactions.types import InitProducer, TransactionState
from tidemill.state.types import TransactionVersion

P = FIRST_ID


@pytest.fixture
def driver() -> TransactionsDriver:
    return TransactionsDriver()


# --- InitProducerId ------------------------------------------------------------------------------


def test_a_new_id_gets_a_fresh_producer_id_in_epoch_0(driver: TransactionsDriver) -> None:
    assert driver.machine.needs_producer_id(ID)
    assert driver.init() == pid(P, 0)
    assert driver.state is S.EMPTY
    assert not driver.machine.needs_producer_id(ID)


def test_each_start_of_a_producer_bumps_the_epoch(driver: TransactionsDriver) -> None:
    assert [driver.init() for _ in range(3)] == [pid(P, 0), pid(P, 1), pid(P, 2)]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, 2**31 - 1])
def test_a_timeout_out_of_bounds_is_refused(driver: TransactionsDriver, timeout_ms: int) -> None:
    request = InitProducer(ID, timeout_ms)
    with pytest.raises(InvalidTransactionTimeoutError):
        driver.machine.fence(request, driver.now)
    with pytest.raises(InvalidTransactionTimeoutError):
        driver.machine.init(request, driver.now, 1)
    assert driver.init(timeout_ms=900_000) == pid(P, 0)


def test_the_last_start_sets_the_timeout(driver: TransactionsDriver) -> None:
    driver.init(timeout_ms=10)
    driver.init(timeout_ms=20)
    assert driver.machine.describe(ID).timeout_ms == 20


def test_half_an_identity_and_an_empty_id_are_refused(driver: TransactionsDriver) -> None:
    for request in (
        InitProducer(ID, 1, pid(1, -1)),
        InitProducer(ID, 1, pid(-1, 1)),
        InitProducer("", 1),
    ):
        with pytest.raises(InvalidRequestError):
            driver.machine.fence(request, driver.now)
        with pytest.raises(InvalidRequestError):
            driver.machine.init(request, driver.now, 1)


def test_a_missing_new_producer_id_is_a_bug_of_the_caller(driver: TransactionsDriver) -> None:
    with pytest.raises(ValueError, match="producer id"):
        driver.machine.init(InitProducer(ID, 1), driver.now)


def test_a_producer_that_recovers_continues_with_the_next_epoch(driver: TransactionsDriver) -> None:
    first = driver.init()
    assert driver.init(first) == pid(P, 1)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_retry_with_the_last_epoch_gets_the_same_answer(
    driver: TransactionsDriver, restarted: bool
) -> None:
    first = driver.init()
    second = driver.init(first)
    if restarted:
        driver = driver.restart()
    assert driver.init(first) == second
    assert driver.init(first) == second
    assert driver.init(second) == pid(P, 2)


def test_a_fenced_producer_can_t_recover(driver: TransactionsDriver) -> None:
    first = driver.init()
    driver.init()  # another producer, so not a retry
    for stale in (first, pid(P, 7), pid(P + 1, 1)):
        with pytest.raises(ProducerFencedError):
            driver.init(stale)


def test_an_expired_id_is_new_also_for_a_producer_that_recovers(driver: TransactionsDriver) -> None:
    first = driver.init()
    driver.now += 604_800_000
    driver.run(driver.machine.upkeep.expire_ids(driver.now))
    assert driver.init(first) == pid(P + 1, 0)


@pytest.mark.parametrize("version", [V1, V2])
def test_a_newer_producer_aborts_what_is_open_and_fences(
    driver: TransactionsDriver, version: TransactionVersion
) -> None:
    old = driver.init()
    driver.add(old, A, B, version=version)
    request = InitProducer(ID, TIMEOUT_MS)
    driver.run(driver.machine.fence(request, driver.now))
    assert driver.machine.unfinished(ID) == (Marker(P, 1, commit=False), (A, B))
    with pytest.raises(ConcurrentTransactionsError):
        driver.machine.init(request, driver.now)
    with pytest.raises(ConcurrentTransactionsError):
        driver.machine.fence(request, driver.now)
    driver.complete()
    new = driver.run(driver.machine.init(request, driver.now))
    assert new == pid(P, 2)  # no producer gets the marker's epoch
    assert driver.state is S.EMPTY
    for call in (
        lambda: driver.add(old, A),
        lambda: driver.end(old, version=version),
        lambda: driver.init(old),
    ):
        with pytest.raises(ProducerFencedError):
            call()
    with pytest.raises(InvalidProducerEpochError):
        driver.write(old, version=version)


def test_a_producer_that_recovers_from_an_open_transaction_is_not_fenced_by_itself(
    driver: TransactionsDriver,
) -> None:
    first = driver.init()
    driver.add(first, A)
    assert driver.init(first) == pid(P, 1)
    assert driver.log[-2].value is not None  # CompleteAbort, then Empty
    assert driver.init(first) == pid(P, 1)


def test_a_zombie_s_recovery_leaves_the_open_transaction_alone(driver: TransactionsDriver) -> None:
    zombie = driver.init()
    current = driver.init(zombie)
    driver.add(current, A)
    records = len(driver.log)
    with pytest.raises(ProducerFencedError):
        driver.init(zombie)
    assert (driver.state, len(driver.log)) == (S.ONGOING, records)


# --- partitions ----------------------------------------------------------------------------------


def test_the_first_partition_begins_a_transaction(driver: TransactionsDriver) -> None:
    producer = driver.init()
    assert driver.add(producer, A) == 1
    driver.now += 5
    assert driver.add(producer, A) == 0
    assert driver.add(producer, A, B) == 1
    assert driver.add(producer, B) == 0
    found = driver.machine.describe(ID)
    assert (found.state, found.partitions) == (S.ONGOING, (A, B))
    assert found.start_time_ms == START_MS


def test_v1_writes_only_where_a_partition_was_added(driver: TransactionsDriver) -> None:
    producer = driver.init()
    with pytest.raises(TransactionAbortableError):
        driver.write(producer, A, V1)
    driver.add(producer, A)
    assert driver.write(producer, A, V1) == 0
    with pytest.raises(TransactionAbortableError):
        driver.write(producer, B, V1)
    driver.end(producer, version=V1)
    with pytest.raises(TransactionAbortableError):
        driver.write(producer, A, V1)  # late, after the end


def test_v2_adds_a_partition_with_the_first_write(driver: TransactionsDriver) -> None:
    producer = driver.init()
    assert [driver.write(producer, tp) for tp in (A, A, B, A, B)] == [1, 0, 1, 0, 0]
    assert driver.machine.describe(ID).partitions == (A, B)


def test_writes_of_others_are_refused(driver: TransactionsDriver) -> None:
    producer = driver.init()
    driver.write(producer)
    for version in (V1, V2):
        with pytest.raises(InvalidProducerEpochError):
            driver.write(pid(P, 1), version=version)
        with pytest.raises(InvalidProducerIdMappingError):
            driver.write(pid(P + 1, 0), version=version)
        with pytest.raises(InvalidProducerIdMappingError):
            driver.machine.check_write("unknown", producer, A, driver.now, version)


@pytest.mark.parametrize("version", [V1, V2])
def test_while_markers_are_written_the_producer_waits_and_zombies_are_fenced(
    driver: TransactionsDriver, version: TransactionVersion
) -> None:
    producer = driver.init()
    driver.add(producer, A, version=version)
    following = driver.prepare(producer, version=version)
    with pytest.raises(ConcurrentTransactionsError):
        driver.write(following, A, version)
    with pytest.raises(ConcurrentTransactionsError):
        driver.add(following, A)
    with pytest.raises(InvalidProducerEpochError):
        driver.write(pid(P, 7), A, version)
    if version is V2:
        with pytest.raises(InvalidProducerEpochError):
            driver.write(producer, A, version)


def test_verify_only_asks(driver: TransactionsDriver) -> None:
    producer = driver.init()
    driver.add(producer, A)
    records = len(driver.log)
    first, second = driver.machine.verify(ID, producer, [A, B])
    assert first is None
    assert isinstance(second, TransactionAbortableError)
    with pytest.raises(ProducerFencedError):
        driver.machine.verify(ID, pid(P, 1), [A])
    with pytest.raises(InvalidProducerIdMappingError):
        driver.machine.verify(ID, pid(P + 1, 0), [A])
    with pytest.raises(InvalidProducerIdMappingError):
        driver.machine.verify("unknown", producer, [A])
    driver.prepare(producer, version=V1)
    with pytest.raises(ConcurrentTransactionsError):
        driver.machine.verify(ID, producer, [A])
    assert len(driver.log) == records + 1


def test_unknown_and_empty_ids_are_refused(driver: TransactionsDriver) -> None:
    producer = driver.init()
    for wrong, error, when_described in (
        ("unknown", InvalidProducerIdMappingError, TransactionalIdNotFoundError),
        ("", InvalidRequestError, InvalidRequestError),
    ):
        with pytest.raises(error):
            driver.machine.add(wrong, producer, [A], 0, V1)
        with pytest.raises(error):
            driver.machine.end(wrong, producer, True, 0, V1)
        with pytest.raises(when_described):
            driver.machine.describe(wrong)
    with pytest.raises(TransactionalIdNotFoundError):
        driver.machine.upkeep.adopt("unknown", A, 0)
    with pytest.raises(InvalidTxnStateError):
        driver.machine.complete("unknown", 0)
    assert driver.machine.unfinished("unknown") is None


def test_deleted_topics_leave_open_and_ending_transactions(driver: TransactionsDriver) -> None:
    producer = driver.init()
    driver.add(producer, A, B, version=V2)
    driver.run(driver.machine.upkeep.drop_partitions([A.topic], driver.now))
    assert driver.machine.describe(ID).partitions == (B,)
    driver.prepare(producer)
    driver.run(driver.machine.upkeep.drop_partitions([A.topic, B.topic], driver.now))
    assert driver.machine.unfinished(ID) == (Marker(P, 1, commit=True), ())
    assert driver.machine.upkeep.drop_partitions([B.topic], driver.now).records == []
    driver.complete()
    assert driver.state is S.COMPLETE_COMMIT


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_v1_keeps_the_epoch(driver: TransactionsDriver, commit: bool) -> None:
    producer = driver.init()
    for _ in range(2):
        driver.add(producer, A)
        assert driver.prepare(producer, commit=commit, version=V1) == producer
        assert driver.machine.unfinished(ID) == (Marker(P, 0, commit), (A,))
        assert driver.machine.all_unfinished() == [ID]
        driver.complete()
        assert driver.machine.all_unfinished() == []
        assert driver.state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)


@pytest.mark.parametrize("commit", [True, False])
def test_v2_bumps_the_epoch_with_each_end(driver: TransactionsDriver, commit: bool) -> None:
    producer = driver.init()
    for epoch in (1, 2):
        driver.write(producer)
        producer = driver.prepare(producer, commit=commit)
        assert producer == pid(P, epoch)
        assert driver.machine.unfinished(ID) == (Marker(P, epoch, commit), (A,))
        driver.complete()
        assert driver.value.producer == producer


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_v2_a_retried_end_gets_the_same_answer(
    driver: TransactionsDriver, commit: bool, restarted: bool
) -> None:
    first = driver.init()
    driver.write(first)
    second = driver.end(first, commit=commit)
    records = len(driver.log)
    if restarted:
        driver = driver.restart()
    assert driver.end(first, commit=commit) == second
    with pytest.raises(InvalidTxnStateError):
        driver.end(first, commit=not commit)
    assert len(driver.log) == records


def test_v2_an_abort_where_nothing_is_open_bumps_the_epoch(driver: TransactionsDriver) -> None:
    producer = driver.init()
    for epoch in (1, 2):  # from Empty, from CompleteAbort
        producer = driver.prepare(producer, commit=False)
        assert producer == pid(P, epoch)
        assert driver.machine.unfinished(ID) == (Marker(P, epoch, commit=False), ())
        assert driver.value.start_ms == driver.now
        driver.complete()
    driver.write(producer)
    producer = driver.end(producer)
    assert driver.end(producer, commit=False) == pid(P, 4)  # from CompleteCommit


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
    driver: TransactionsDriver,
    state: TransactionState,
    version: TransactionVersion,
    epoch: int,
    commit: bool,
    expected: int | type[Exception],
) -> None:
    driver.set(state, 5, version)
    if isinstance(expected, int):
        answer = driver.prepare(pid(P, 5 + epoch), commit=commit, version=version)
        assert answer == pid(P, 5 + expected)
        return
    with pytest.raises(expected):
        driver.prepare(pid(P, 5 + epoch), commit=commit, version=version)
    with pytest.raises(InvalidProducerIdMappingError):
        driver.prepare(pid(P + 1, 5 + epoch), commit=commit, version=version)


def test_every_state_of_the_table_is_a_state_and_every_state_is_in_it() -> None:
    assert set(TRANSITIONS) == set(TransactionState) - {S.PREPARE_EPOCH_FENCE}
    assert {after for states in TRANSITIONS.values() for after in states} <= set(TRANSITIONS)


# --- epochs are used up --------------------------------------------------------------------------


def test_v2_ends_the_last_epoch_with_a_fresh_producer_id(driver: TransactionsDriver) -> None:
    driver.set(S.ONGOING, 32766)
    assert driver.machine.needs_producer_id(ID)
    fresh = P + 1
    assert driver.prepare(pid(P, 32766)) == pid(fresh, 0)
    assert driver.machine.unfinished(ID) == (Marker(P, 32767, commit=True), (A,))
    assert driver.machine.find(fresh) == driver.machine.find(P) == ID
    with pytest.raises(ConcurrentTransactionsError):
        driver.prepare(pid(P, 32766))
    with pytest.raises(ConcurrentTransactionsError):
        driver.add(pid(fresh, 0), A)
    with pytest.raises(ConcurrentTransactionsError):
        driver.write(pid(fresh, 0))
    with pytest.raises(ConcurrentTransactionsError):
        driver.prepare(pid(fresh, 0), commit=False)
    driver.complete()
    assert driver.value.producer == pid(fresh, 0)
    assert driver.machine.find(P) is None
    for each in (driver, driver.restart(), driver.restart(compact=True)):
        assert each.prepare(pid(P, 32766)) == pid(fresh, 0)  # a retry
        with pytest.raises(InvalidTxnStateError):
            each.prepare(pid(P, 32766), commit=False)
        with pytest.raises(InvalidProducerIdMappingError):
            each.prepare(pid(P, 32765))
    assert driver.write(pid(fresh, 0)) == 1
    with pytest.raises(InvalidProducerIdMappingError):
        driver.prepare(pid(P, 32766))  # no retry any more


def test_a_start_after_the_last_epoch_gets_a_fresh_producer_id(driver: TransactionsDriver) -> None:
    driver.set(S.COMPLETE_COMMIT, 32765)
    assert driver.init() == pid(P, 32766)
    assert driver.init() == pid(P + 1, 0)
    assert driver.init() == pid(P + 1, 1)


def test_a_recovery_in_the_last_epoch_is_retried_across_producer_ids(
    driver: TransactionsDriver,
) -> None:
    driver.set(S.COMPLETE_ABORT, 32766, V1)
    last = pid(P, 32766)
    assert driver.init(pid(P, 32765)) == last  # a retry of the one before
    assert driver.init(last) == pid(P + 1, 0)
    assert driver.init(last) == pid(P + 1, 0)
    with pytest.raises(ProducerFencedError):
        driver.init(pid(P, 32765))
    driver.init()
    with pytest.raises(ProducerFencedError):
        driver.init(last)


def test_an_abort_by_the_coordinator_uses_the_reserved_epoch(driver: TransactionsDriver) -> None:
    driver.set(S.ONGOING, 32766)
    driver.run(driver.machine.fence(InitProducer(ID, TIMEOUT_MS), driver.now))
    assert driver.machine.unfinished(ID) == (Marker(P, 32767, commit=False), (A,))
    driver.complete()
    assert driver.init() == pid(P + 1, 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_no_client_gets_the_reserved_epoch(driver: TransactionsDriver, restarted: bool) -> None:
    driver.set(S.ONGOING, 32766)
    driver.expire()
    if restarted:
        driver = driver.restart()
    last = pid(P, 32766)
    with pytest.raises(InvalidTxnStateError):
        driver.end(last)
    assert driver.end(last, commit=False) == pid(P + 1, 0)
    assert driver.end(last, commit=False) == pid(P + 1, 0)


def test_a_recovery_after_the_timeout_in_the_last_epoch_gets_a_fresh_producer_id(
    driver: TransactionsDriver,
) -> None:
    driver.set(S.ONGOING, 32766, V1)
    driver.expire()
    last = pid(P, 32766)
    assert driver.init(last) == pid(P + 1, 0)
    assert driver.init(last) == pid(P + 1, 0)


def test_v1_continues_in_the_last_epoch(driver: TransactionsDriver) -> None:
    driver.set(S.ONGOING, 32766, V1)
    assert driver.end(pid(P, 32766), version=V1) == pid(P, 32766)
    driver.add(pid(P, 32766), A)
    assert driver.end(pid(P, 32766), version=V1) == pid(P, 32766)


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V1, V2])
def test_a_transaction_is_aborted_when_its_time_is_up(
    driver: TransactionsDriver, version: TransactionVersion
) -> None:
    producer = driver.init()
    assert driver.machine.upkeep.next_deadline() is None
    driver.add(producer, A, version=version)
    driver.now += 10
    driver.add(producer, B, version=version)
    assert driver.machine.upkeep.next_deadline() == START_MS + TIMEOUT_MS
    driver.now = START_MS + TIMEOUT_MS - 1
    assert driver.machine.upkeep.due(driver.now) == []
    assert driver.machine.upkeep.expire(ID, driver.now).records == []
    driver.now += 1
    assert driver.machine.upkeep.due(driver.now) == [ID]
    assert driver.machine.upkeep.due(driver.now) == [ID]  # until the abort is written
    driver.run(driver.machine.upkeep.expire(ID, driver.now))
    assert driver.machine.upkeep.due(driver.now) == []
    assert driver.machine.upkeep.next_deadline() is None
    assert driver.machine.unfinished(ID) == (Marker(P, 1, commit=False), (A, B))
    driver.complete()
    with pytest.raises(InvalidProducerEpochError):
        driver.write(producer, A, version)
    with pytest.raises(ProducerFencedError):
        driver.add(producer, A)
    assert driver.machine.upkeep.expire(ID, driver.now).records == []


def test_v2_aborts_a_timed_out_transaction_and_continues(driver: TransactionsDriver) -> None:
    producer = driver.init()
    driver.write(producer)
    driver.expire()
    with pytest.raises(InvalidTxnStateError):
        driver.end(producer)
    assert driver.end(producer, commit=False) == pid(P, 1)
    assert driver.write(pid(P, 1)) == 1


def test_v1_recovers_from_a_timeout_with_init_producer_id(driver: TransactionsDriver) -> None:
    producer = driver.init()
    driver.add(producer, A)
    driver.expire()
    with pytest.raises(ProducerFencedError):
        driver.end(producer, commit=False, version=V1)
    assert driver.init(producer) == pid(P, 1)


def test_timeouts_continue_after_a_restart(driver: TransactionsDriver) -> None:
    driver.add(driver.init(), A)
    driver.now += 1000
    assert driver.restart().machine.upkeep.next_deadline() == START_MS + TIMEOUT_MS
    driver.now += TIMEOUT_MS
    assert driver.restart().machine.upkeep.due(driver.now) == [ID]


def test_no_timeout_is_longer_for_a_clock_that_was_set_back(driver: TransactionsDriver) -> None:
    driver.add(driver.init(), A)
    driver.now -= 10_000_000
    again = driver.restart()
    assert again.machine.upkeep.next_deadline() == driver.now + TIMEOUT_MS
    assert again.machine.upkeep.due(driver.now + TIMEOUT_MS) == [ID]
    assert len(again.machine.upkeep.expire(ID, driver.now + TIMEOUT_MS).records) == 1


@pytest.mark.parametrize("version", [V1, V2])
def test_partitions_added_after_the_clock_was_set_back_do_not_extend_a_timeout(
    driver: TransactionsDriver, version: TransactionVersion
) -> None:
    producer = driver.init()
    driver.add(producer, A, TopicPartition("c", 0), version=version)
    driver.now -= 10_000_000
    deadline = driver.now + TIMEOUT_MS
    again = driver.restart()
    again.now += 10
    again.add(producer, B, version=version)
    assert again.machine.upkeep.next_deadline() == deadline
    again.run(again.machine.upkeep.drop_partitions(["c"], again.now))
    assert again.machine.upkeep.next_deadline() == deadline
    assert again.machine.upkeep.due(deadline) == [ID]
    assert len(again.machine.upkeep.expire(ID, deadline).records) == 1


def test_the_next_transaction_has_its_whole_time_after_the_clock_was_set_back(
    driver: TransactionsDriver,
) -> None:
    producer = driver.init()
    driver.add(producer, A)
    driver.now -= 10_000_000
    again = driver.restart()
    again.now += 1000
    again.end(producer, version=V1)
    again.add(producer, A)
    assert again.machine.upkeep.next_deadline() == again.now + TIMEOUT_MS


def test_ids_expire_when_nothing_is_open() -> None:
    driver = TransactionsDriver()
    driver.machine = Transactions(id_expiration_ms=1000)
    open_one = driver.init(transactional_id="open")
    driver.run(driver.machine.add("open", open_one, [A], driver.now, V1))
    ended = driver.init(transactional_id="ended")
    driver.run(driver.machine.add("ended", ended, [A], driver.now, V1))
    driver.run(driver.machine.end("ended", ended, True, driver.now, V1))
    driver.init()
    driver.now += 999
    assert driver.machine.upkeep.expire_ids(driver.now).records == []
    driver.init(transactional_id="young")
    driver.now += 1
    driver.run(driver.machine.upkeep.expire_ids(driver.now))
    assert set(driver.machine.stored()) == {"open", "ended", "young"}
    assert driver.machine.find(P + 2) is None
    with pytest.raises(InvalidProducerIdMappingError):
        driver.add(pid(P + 2, 0), A)


# --- views ---------------------------------------------------------------------------------------


def listed(driver: TransactionsDriver, **filters: object) -> list[str]:
    found = driver.machine.listings(now_ms=driver.now, **filters)  # type: ignore[arg-type]
    return [each.transactional_id for each in found]


def test_list_filters() -> None:
    driver = TransactionsDriver()
    first = driver.init(transactional_id="one-a")
    driver.init(transactional_id="two")
    driver.init(transactional_id="one-b")
    driver.run(driver.machine.add("one-a", first, [A], driver.now, V1))
    driver.now += 100
    assert listed(driver) == ["one-a", "two", "one-b"]
    assert listed(driver, states=[S.ONGOING]) == ["one-a"]
    assert listed(driver, states=["Empty", "PrepareCommit"]) == ["two", "one-b"]
    assert listed(driver, producer_ids=[P + 1]) == ["two"]
    assert listed(driver, duration_ms=99) == ["one-a"]
    assert listed(driver, duration_ms=100) == []
    assert listed(driver, id_pattern="one-.") == ["one-a", "one-b"]
    assert listed(driver, id_pattern="one") == []
    with pytest.raises(InvalidRequestError):
        listed(driver, id_pattern="(")


def test_describe_shows_a_start_only_of_what_is_open_or_ending(driver: TransactionsDriver) -> None:
    producer = driver.init()
    assert driver.machine.describe(ID).start_time_ms == -1
    driver.add(producer, B, A, TopicPartition("a", 10))
    found = driver.machine.describe(ID)
    assert (found.producer, found.start_time_ms, found.timeout_ms) == (producer, driver.now, 60_000)
    assert found.partitions == (A, TopicPartition("a", 10), B)
    driver.prepare(producer)
    assert driver.machine.describe(ID).start_time_ms == driver.now
    driver.complete()
    assert driver.machine.describe(ID).start_time_ms == -1


def test_records_of_other_kinds_are_left_alone(driver: TransactionsDriver) -> None:
    assert not driver.machine.replay(b"\x00\x01\x00\x01x", b"")


def test_the_log_and_its_compacted_form_give_the_same_coordinator(
    driver: TransactionsDriver,
) -> None:
    producer = driver.init()
    driver.add(producer, A, B, version=V2)
    producer = driver.end(producer)
    driver.write(producer)
    driver.init(transactional_id="other")
    for again in (driver.restart(), driver.restart(compact=True)):
        assert again.machine.stored() == driver.machine.stored()
        assert again.machine.upkeep.next_deadline() == driver.machine.upkeep.next_deadline()


def test_a_pattern_that_would_hold_up_a_backtracking_engine_is_answered(
    driver: TransactionsDriver,
) -> None:
    driver.init(transactional_id="a" * 40 + "!")
    assert listed(driver, id_pattern="(a|a)*(a+)+") == []
