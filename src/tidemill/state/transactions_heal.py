"""What becomes of a transaction that a partition's log holds open at start.

Looks at one open transaction and the stored value of its transactional id; changes nothing.
"""

from __future__ import annotations

import enum

from tidemill.log.names import TopicPartition
from tidemill.log.transactions import OpenTransaction
from tidemill.state.transaction import answered_identity
from tidemill.state.transactions_format import TransactionValue
from tidemill.state.transactions_table import ENDING
from tidemill.state.types import ProducerIdentity, TransactionState, TransactionVersion

_S = TransactionState


class Heal(enum.Enum):
    """What to do, at start, with a transaction that a partition's log holds open."""

    KEEP = enum.auto()
    """Nothing: it is open here too, or its marker comes with ``all_unfinished``."""
    ADOPT = enum.auto()
    """Call ``adopt``: the record that added the partition was lost, the data was not."""
    ABORT = enum.auto()
    """Append an abort marker: nobody can end it any more."""


def verdict(value: TransactionValue | None, tp: TopicPartition, found: OpenTransaction) -> Heal:
    """What to do with ``found``, which ``tp`` holds; ``value`` is of the transactional id that has
    its producer id, None where there is none.

    After a power cut the data of a V2 write may be there without the record that added its
    partition. Then the transaction goes on. It may even be the one *after* an unfinished decision:
    EndTxn is answered when the markers are durable, and the next transaction wrote while Complete*
    was not durable yet. That transaction's epoch is the marker's: the marker, written again, would
    end it.
    """
    if value is None:
        return Heal.ABORT
    owner = ProducerIdentity(found.producer_id, found.epoch)
    if value.state is _S.ONGOING:
        if owner != value.producer:
            return Heal.ABORT
        return Heal.KEEP if tp in value.partitions else Heal.ADOPT
    v1 = value.version is not TransactionVersion.V2
    if value.state in ENDING:
        if not v1 and owner == answered_identity(value):
            return Heal.ADOPT
        ends = tp in value.partitions and found.producer_id == value.producer.producer_id
        return Heal.KEEP if ends else Heal.ABORT
    if owner != value.producer or (v1 and value.state is not _S.EMPTY):
        return Heal.ABORT  # V1 announces a partition durably before it writes there
    return Heal.ADOPT
