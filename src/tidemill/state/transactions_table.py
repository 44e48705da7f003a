"""The rules of transactions as tables: which state may follow which, what an EndTxn means where.

Data only: knows no id, no partition and no record.

Source: Apache Kafka 4.3, TransactionState and TransactionCoordinator.endTransaction; KIP-98,
KIP-890.
"""

from __future__ import annotations

import enum

from tidemill.state.types import TransactionState, TransactionVersion

_S = TransactionState
_V1, _V2 = TransactionVersion.V1, TransactionVersion.V2

COMPLETE = frozenset({_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""All markers of the last transaction are durable."""

IDLE = COMPLETE | {_S.EMPTY}
"""No transaction: the next one may begin, the id may expire."""

ENDING = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""The decision is made and durable; the markers are being written."""

TRANSITIONS: dict[TransactionState, frozenset[TransactionState]] = {
    # InitProducerId; a first partition; V2: an abort by a producer that is not sure; expiry
    _S.EMPTY: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    # one more partition; EndTxn; a newer producer; the timeout
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT}),
    # all markers are durable; a topic of it was deleted
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT, _S.PREPARE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT, _S.PREPARE_ABORT}),
    # as Empty
    _S.COMPLETE_COMMIT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.COMPLETE_ABORT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.DEAD: frozenset(),  # forgotten
}
"""state -> states that may follow. Kafka's PrepareEpochFence is never stored, so it is not here."""


class Answer(enum.Enum):
    """What EndTxn does."""

    END = enum.auto()
    """Decide: a Prepare record."""
    DONE = enum.auto()
    """It is done already (a retry): the identity in force again, no record."""
    WAIT = enum.auto()
    """ConcurrentTransactionsError: the markers are still being written."""
    REFUSE = enum.auto()
    """InvalidTxnStateError: there is nothing to end, or it ended the other way."""
    FENCED = enum.auto()
    """ProducerFencedError."""


class Epoch(enum.Enum):
    """What the epoch in an EndTxn says about its sender."""

    CURRENT = enum.auto()
    """The identity in force."""
    RETRY = enum.auto()
    """V2: the identity before the last EndTxn."""


_A, _E = Answer, Epoch

END_V1: dict[TransactionState, tuple[Answer, Answer]] = {
    #                    commit      abort
    _S.EMPTY: (_A.REFUSE, _A.REFUSE),
    _S.ONGOING: (_A.END, _A.END),
    _S.PREPARE_COMMIT: (_A.WAIT, _A.REFUSE),
    _S.PREPARE_ABORT: (_A.REFUSE, _A.WAIT),
    _S.COMPLETE_COMMIT: (_A.DONE, _A.REFUSE),
    _S.COMPLETE_ABORT: (_A.REFUSE, _A.DONE),
}
"""state -> (for a commit, for an abort). The epoch is the same before and after, so a retry and a
second EndTxn look alike."""

END_V2: dict[tuple[TransactionState, Epoch], tuple[Answer, Answer]] = {
    #                                   commit      abort
    (_S.EMPTY, _E.CURRENT): (_A.REFUSE, _A.END),
    (_S.EMPTY, _E.RETRY): (_A.FENCED, _A.FENCED),
    (_S.ONGOING, _E.CURRENT): (_A.END, _A.END),
    (_S.ONGOING, _E.RETRY): (_A.FENCED, _A.FENCED),
    (_S.PREPARE_COMMIT, _E.RETRY): (_A.WAIT, _A.REFUSE),
    (_S.PREPARE_ABORT, _E.RETRY): (_A.REFUSE, _A.WAIT),
    # a producer that has its answer, while the markers are late, ends the next transaction
    (_S.PREPARE_COMMIT, _E.CURRENT): (_A.WAIT, _A.WAIT),
    (_S.PREPARE_ABORT, _E.CURRENT): (_A.WAIT, _A.WAIT),
    (_S.COMPLETE_COMMIT, _E.CURRENT): (_A.REFUSE, _A.END),
    (_S.COMPLETE_COMMIT, _E.RETRY): (_A.DONE, _A.REFUSE),
    (_S.COMPLETE_ABORT, _E.CURRENT): (_A.REFUSE, _A.END),
    (_S.COMPLETE_ABORT, _E.RETRY): (_A.REFUSE, _A.DONE),
}
"""(state, epoch) -> (for a commit, for an abort). An abort where nothing is open is allowed: with
V2 a producer whose first write failed does not know whether a transaction began."""


def end_answer(
    version: TransactionVersion, state: TransactionState, epoch: Epoch, *, commit: bool
) -> Answer:
    """Look up what an EndTxn does."""
    row = END_V2[state, epoch] if version is _V2 else END_V1[state]
    return row[0] if commit else row[1]
