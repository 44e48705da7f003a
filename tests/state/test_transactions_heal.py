"""What becomes of transactions that a partition's log holds open at start."""

from __future__ import annotations

import pytest

from tests.state.transactions_desk import FIRST_ID, ID, V1, V2, A, B, S, TransactionDesk, pid
from tidemill.log.names import TopicPartition
from tidemill.log.transactions import OpenTransaction
from tidemill.state.transactions import Heal
from tidemill.state.types import TransactionState, TransactionVersion

P = FIRST_ID

TABLE = [
    # state, version, its epoch, epoch of the open one, in A (listed), in B (not listed)
    (S.ONGOING, V1, 5, 5, Heal.KEEP, Heal.ADOPT),
    (S.ONGOING, V2, 5, 5, Heal.KEEP, Heal.ADOPT),
    (S.ONGOING, V2, 5, 4, Heal.ABORT, Heal.ABORT),
    (S.PREPARE_COMMIT, V1, 5, 5, Heal.KEEP, Heal.ABORT),
    (S.PREPARE_ABORT, V1, 5, 5, Heal.KEEP, Heal.ABORT),
    (S.PREPARE_COMMIT, V2, 5, 4, Heal.KEEP, Heal.ABORT),
    (S.PREPARE_COMMIT, V2, 5, 5, Heal.ADOPT, Heal.ADOPT),  # the next transaction's
    (S.PREPARE_ABORT, V2, 5, 5, Heal.ADOPT, Heal.ADOPT),
    (S.COMPLETE_COMMIT, V2, 5, 5, Heal.ADOPT, Heal.ADOPT),
    (S.COMPLETE_ABORT, V2, 5, 5, Heal.ADOPT, Heal.ADOPT),
    (S.COMPLETE_COMMIT, V2, 5, 4, Heal.ABORT, Heal.ABORT),
    (S.COMPLETE_COMMIT, V1, 5, 5, Heal.ABORT, Heal.ABORT),
    (S.EMPTY, V1, 5, 5, Heal.ADOPT, Heal.ADOPT),  # of which protocol the next one is, is not known
    (S.EMPTY, V2, 5, 5, Heal.ADOPT, Heal.ADOPT),
    (S.EMPTY, V2, 5, 4, Heal.ABORT, Heal.ABORT),
]


@pytest.mark.parametrize(("state", "version", "epoch", "found", "in_a", "in_b"), TABLE)
def test_verdicts(
    state: TransactionState,
    version: TransactionVersion,
    epoch: int,
    found: int,
    in_a: Heal,
    in_b: Heal,
) -> None:
    desk = TransactionDesk()
    desk.set(state, epoch, version)
    assert desk.machine.heal(A, OpenTransaction(P, found, 0)) is in_a
    assert desk.machine.heal(B, OpenTransaction(P, found, 0)) is in_b
    assert desk.machine.heal(A, OpenTransaction(P + 1, found, 0)) is Heal.ABORT


def adopt(desk: TransactionDesk, tp: TopicPartition) -> int:
    """How many records that took."""
    outcome = desk.machine.adopt(ID, tp, desk.now)
    desk.run(outcome)
    return len(outcome.records)


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_adopting_begins_a_transaction_that_can_be_committed(state: TransactionState) -> None:
    desk = TransactionDesk()
    desk.set(state, 5)
    assert adopt(desk, A) == 1
    assert adopt(desk, B) == 1
    assert adopt(desk, A) == 0
    assert desk.machine.describe(ID).partitions == (A, B)
    assert desk.write(pid(P, 5)) == 0
    assert desk.end(pid(P, 5)) == pid(P, 6)


def test_adopting_the_next_transaction_completes_the_decision_before_it() -> None:
    desk = TransactionDesk()
    first = desk.init()
    desk.write(first, A)
    second = desk.prepare(first)
    again = desk.restart()  # Complete* and the Add behind it were lost, data of it was not
    assert again.machine.heal(B, OpenTransaction(*second, 7)) is Heal.ADOPT
    assert adopt(again, B) == 2
    assert (again.state, again.value.partitions) == (S.ONGOING, frozenset({B}))
    assert again.machine.all_unfinished() == []
    assert again.end(second) == pid(P, 2)


def test_adopting_works_across_producer_ids() -> None:
    desk = TransactionDesk()
    desk.set(S.ONGOING, 32766)
    fresh = desk.prepare(pid(P, 32766))
    assert desk.machine.heal(A, OpenTransaction(P, 32766, 0)) is Heal.KEEP
    assert desk.machine.heal(A, OpenTransaction(*fresh, 7)) is Heal.ADOPT
    adopt(desk, A)
    assert (desk.value.producer, desk.state) == (fresh, S.ONGOING)
    assert desk.machine.heal(A, OpenTransaction(P, 32766, 0)) is Heal.ABORT
