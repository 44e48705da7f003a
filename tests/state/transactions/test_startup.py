"""The action for transactions that a partition's log has open at start."""

from __future__ import annotations

import pytest

from tests.state.transactions.driver import (
    FIRST_ID,
    ID,
    V1,
    V2,
    A,
    B,
    S,
    TransactionsDriver,
    pid,
)
from tidemill.log.names import TopicPartition
from tidemill.log.partition.transactions import OpenTransaction
from tidemill.state.transactions.types import TransactionState
from tidemill.state.transactions.upkeep import StartAction
from tidemill.state.types import TransactionVersion

P = FIRST_ID
KEEP, ADOPT, ABORT = StartAction

TABLE = [
    # state, version, its epoch, epoch of the open one, in A (listed), in B (not listed)
    (S.ONGOING, V1, 5, 5, KEEP, ADOPT),
    (S.ONGOING, V2, 5, 5, KEEP, ADOPT),
    (S.ONGOING, V2, 5, 4, ABORT, ABORT),
    (S.PREPARE_COMMIT, V1, 5, 5, KEEP, ABORT),
    (S.PREPARE_ABORT, V1, 5, 5, KEEP, ABORT),
    (S.PREPARE_COMMIT, V2, 5, 4, KEEP, ABORT),
    (S.PREPARE_COMMIT, V2, 5, 5, ADOPT, ADOPT),  # the next transaction's
    (S.PREPARE_ABORT, V2, 5, 5, ADOPT, ADOPT),
    (S.COMPLETE_COMMIT, V2, 5, 5, ADOPT, ADOPT),
    (S.COMPLETE_ABORT, V2, 5, 5, ADOPT, ADOPT),
    (S.COMPLETE_COMMIT, V2, 5, 4, ABORT, ABORT),
    (S.COMPLETE_COMMIT, V1, 5, 5, ABORT, ABORT),
    (S.EMPTY, V1, 5, 5, ADOPT, ADOPT),  # the next version is unknown
    (S.EMPTY, V2, 5, 5, ADOPT, ADOPT),
    (S.EMPTY, V2, 5, 4, ABORT, ABORT),
]


@pytest.mark.parametrize(("state", "version", "epoch", "found", "in_a", "in_b"), TABLE)
def test_actions(
    state: TransactionState,
    version: TransactionVersion,
    epoch: int,
    found: int,
    in_a: StartAction,
    in_b: StartAction,
) -> None:
    driver = TransactionsDriver()
    driver.set(state, epoch, version)
    assert driver.machine.upkeep.start_action(A, OpenTransaction(P, found, 0)) is in_a
    assert driver.machine.upkeep.start_action(B, OpenTransaction(P, found, 0)) is in_b
    assert driver.machine.upkeep.start_action(A, OpenTransaction(P + 1, found, 0)) is ABORT


def adopt(driver: TransactionsDriver, tp: TopicPartition) -> int:
    """Adopt a partition and return the number of records."""
    outcome = driver.machine.upkeep.adopt(ID, tp, driver.now)
    driver.run(outcome)
    return len(outcome.records)


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_adopting_begins_a_transaction_that_can_be_committed(state: TransactionState) -> None:
    driver = TransactionsDriver()
    driver.set(state, 5)
    assert adopt(driver, A) == 1
    assert adopt(driver, B) == 1
    assert adopt(driver, A) == 0
    assert driver.machine.describe(ID).partitions == (A, B)
    assert driver.write(pid(P, 5)) == 0
    assert driver.end(pid(P, 5)) == pid(P, 6)


def test_adopting_the_next_transaction_completes_the_decision_before_it() -> None:
    driver = TransactionsDriver()
    first = driver.init()
    driver.write(first, A)
    second = driver.prepare(first)
    again = driver.restart()  # Complete* and the Add behind it were lost, data of it was not
    assert again.machine.upkeep.start_action(B, OpenTransaction(*second, 7)) is ADOPT
    assert adopt(again, B) == 2
    assert (again.state, again.value.partitions) == (S.ONGOING, frozenset({B}))
    assert again.machine.all_unfinished() == []
    assert again.end(second) == pid(P, 2)


def test_adopting_works_across_producer_ids() -> None:
    driver = TransactionsDriver()
    driver.set(S.ONGOING, 32766)
    fresh = driver.prepare(pid(P, 32766))
    assert driver.machine.upkeep.start_action(A, OpenTransaction(P, 32766, 0)) is KEEP
    assert driver.machine.upkeep.start_action(A, OpenTransaction(*fresh, 7)) is ADOPT
    adopt(driver, A)
    assert (driver.value.producer, driver.state) == (fresh, S.ONGOING)
    assert driver.machine.upkeep.start_action(A, OpenTransaction(P, 32766, 0)) is ABORT
