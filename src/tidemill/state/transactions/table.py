"""The rules of transactions as tables: the valid transitions, and what EndTxn does in each state.

The tables are the documentation. This module must not know an id, a partition or a record.

Source: Apache Kafka 4.3, TransactionState and TransactionCoordinator.endTransaction; KIP-98,
KIP-890.
"""

from __future__ import annotations

import enum

from tidemill.state.transactions.types import TransactionState
from tidemill.state.types import TransactionVersion

_S = TransactionState

COMPLETE = frozenset({_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""All markers of the last transaction are durable."""

IDLE = COMPLETE | {_S.EMPTY}
"""No transaction is open: the next one can begin, and the id can expire."""

ENDING = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""The decision is durable, and the markers are being written."""

TRANSITIONS: dict[TransactionState, frozenset[TransactionState]] = {
    # InitProducerId; the first partition; V2: an abort without a transaction; expiry
    _S.EMPTY: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    # another partition; EndTxn; a newer producer or the timeout
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT}),
    # all markers are durable; one of its topics was deleted
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT, _S.PREPARE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT, _S.PREPARE_ABORT}),
    # as Empty
    _S.COMPLETE_COMMIT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.COMPLETE_ABORT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    # the id has expired
    _S.DEAD: frozenset(),
}
"""State -> the valid next states. Kafka never stores PrepareEpochFence, so it is not here."""


class Answer(enum.Enum):
    """The answer to an EndTxn."""

    END = enum.auto()
    """Decide, with a Prepare record."""
    DONE = enum.auto()
    """A retry: answer with the current identity again, without a record."""
    WAIT = enum.auto()
    """ConcurrentTransactionsError: the markers are still being written."""
    REFUSE = enum.auto()
    """InvalidTxnStateError: no transaction is open, or it ended the other way."""
    FENCED = enum.auto()
    """ProducerFencedError."""


class Epoch(enum.Enum):
    """The epoch in an EndTxn, compared with the stored one."""

    CURRENT = enum.auto()
    """The current identity."""
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
"""State -> (answer to a commit, answer to an abort). The epoch does not change, so a retry and a
second EndTxn look alike."""

END_V2: dict[tuple[TransactionState, Epoch], tuple[Answer, Answer]] = {
    #                                   commit      abort
    (_S.EMPTY, _E.CURRENT): (_A.REFUSE, _A.END),
    (_S.EMPTY, _E.RETRY): (_A.FENCED, _A.FENCED),
    (_S.ONGOING, _E.CURRENT): (_A.END, _A.END),
    (_S.ONGOING, _E.RETRY): (_A.FENCED, _A.FENCED),
    (_S.PREPARE_COMMIT, _E.RETRY): (_A.WAIT, _A.REFUSE),
    (_S.PREPARE_ABORT, _E.RETRY): (_A.REFUSE, _A.WAIT),
    # The producer has its answer, and ends the next transaction while the markers are late.
    (_S.PREPARE_COMMIT, _E.CURRENT): (_A.WAIT, _A.WAIT),
    (_S.PREPARE_ABORT, _E.CURRENT): (_A.WAIT, _A.WAIT),
    (_S.COMPLETE_COMMIT, _E.CURRENT): (_A.REFUSE, _A.END),
    (_S.COMPLETE_COMMIT, _E.RETRY): (_A.DONE, _A.REFUSE),
    (_S.COMPLETE_ABORT, _E.CURRENT): (_A.REFUSE, _A.END),
    (_S.COMPLETE_ABORT, _E.RETRY): (_A.REFUSE, _A.DONE),
}
"""(State, epoch) -> (answer to a commit, answer to an abort). An abort without a transaction is
valid: a V2 producer whose first write failed does not know whether a transaction began."""


def end_answer(
    version: TransactionVersion, state: TransactionState, epoch: Epoch, *, commit: bool
) -> Answer:
    """Look up the answer to an EndTxn."""
    row = END_V2[state, epoch] if version is TransactionVersion.V2 else END_V1[state]
    return row[0] if commit else row[1]
