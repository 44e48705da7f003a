"""Decides what to do with the transactions that the partitions' logs have open at start.

Pure functions of one open transaction and the stored value of its transactional id. This module
must not know how the decision is carried out.
"""

from __future__ import annotations

import enum

from tidemill.log.names import TopicPartition
from tidemill.log.partition.transactions import OpenTransaction
from tidemill.state.transactions.format import TransactionValue
from tidemill.state.transactions.table import ENDING
from tidemill.state.transactions.transaction import (
    answered_identity,
    completed,
    with_partitions,
)
from tidemill.state.transactions.types import TransactionState
from tidemill.state.types import ProducerIdentity, TransactionVersion

_S = TransactionState


class StartAction(enum.Enum):
    """The action for a transaction that a partition's log has open at start."""

    KEEP = enum.auto()
    """Do nothing: the coordinator has it open too, or writes its marker (``all_unfinished``)."""
    ADOPT = enum.auto()
    """Call ``adopt``: the record that added the partition was lost, the data was not."""
    ABORT = enum.auto()
    """Append an abort marker: no producer can end this transaction any more."""


def start_action(
    value: TransactionValue | None, tp: TopicPartition, found: OpenTransaction
) -> StartAction:
    """Return the action for the open transaction ``found`` in the log of ``tp``.

    After a power cut, the data of a V2 write can be on disk without the record that added its
    partition. Then the transaction continues. It can even be the transaction *after* an unfinished
    decision: EndTxn is answered when the markers are durable, and the next transaction wrote before
    Complete* was durable. The epoch of that transaction is the epoch of the marker, so a marker
    that is written again would end it.

    Args:
        value: the stored value of the transactional id that has the producer id; None: no id has.
    """
    if value is None:
        return StartAction.ABORT
    owner = ProducerIdentity(found.producer_id, found.epoch)
    if value.state is _S.ONGOING:
        if owner != value.producer:
            return StartAction.ABORT
        return StartAction.KEEP if tp in value.partitions else StartAction.ADOPT
    v1 = value.version is not TransactionVersion.V2
    if value.state in ENDING:
        if not v1 and owner == answered_identity(value):
            return StartAction.ADOPT
        ends = tp in value.partitions and found.producer_id == value.producer.producer_id
        return StartAction.KEEP if ends else StartAction.ABORT
    if owner != value.producer or (v1 and value.state is not _S.EMPTY):
        return StartAction.ABORT  # V1 adds a partition durably before it writes there
    return StartAction.ADOPT


def adopted(value: TransactionValue, tp: TopicPartition, now_ms: int) -> list[TransactionValue]:
    """Return the values to write so that ``tp`` is in the open transaction.

    A decision before it is completed first: its markers are durable, because otherwise there would
    be no data of the next transaction.
    """
    steps = []
    if value.state in ENDING:
        value = completed(value, now_ms)
        steps.append(value)
    if value.state is not _S.ONGOING or tp not in value.partitions:
        steps.append(with_partitions(value, (tp,), now_ms, TransactionVersion.V2))
    return steps
