"""Commands of the transaction coordinator that no client asks for.

They abort transactions whose timeout has passed, delete unused ids, remove the partitions of
deleted topics, and repair at start what a crash interrupted. ``machine`` has the requests of
clients. This module must not know a clock or a log.

Source: KIP-98, KIP-890.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

from tidemill.log.names import TopicPartition
from tidemill.log.partition.transactions import OpenTransaction
from tidemill.state.outcome import Outcome, StateRecord, nothing
from tidemill.state.transactions.checks import not_found
from tidemill.state.transactions.format import encode_key, encode_record
from tidemill.state.transactions.stored import StoredTransactions
from tidemill.state.transactions.table import ENDING, IDLE
from tidemill.state.transactions.transaction import (
    aborted,
    answered_identity,
    completed,
    with_partitions,
    without_partitions,
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


class Upkeep:
    """The commands that the broker itself calls.

    Args:
        stored: the stored values, which only ``Transactions.replay`` changes.
        id_expiration_ms: how long an id without an open transaction is kept after its last use.
    """

    def __init__(self, stored: StoredTransactions, id_expiration_ms: int) -> None:
        self._stored = stored
        self._values = stored.values
        self._id_expiration_ms = id_expiration_ms

    # --- time ------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return the earliest timeout in ms since the epoch, or None if no transaction is open."""
        return self._stored.timers.next_deadline()

    def due(self, now_ms: int) -> list[str]:
        """Return the ids whose transaction has been open for longer than its timeout.

        Call ``expire`` for each. They stay due until the record of ``expire`` was replayed.
        """
        timers = self._stored.timers
        found = []
        while (transactional_id := timers.pop_due(now_ms)) is not None:
            found.append(transactional_id)
        for transactional_id in found:
            timers.set(transactional_id, now_ms)
        return found

    def expire(self, transactional_id: str, now_ms: int) -> Outcome[None]:
        """Abort a transaction whose timeout has passed. The markers and ``complete`` follow.

        The epoch increases, so the producer is fenced until it asks for the new one (V2: with an
        abort; V1: with InitProducerId). There is no record if the transaction has ended meanwhile.
        """
        deadline = self._stored.timers.get(transactional_id)
        if deadline is None or deadline > now_ms:
            return nothing()
        value = self._values[transactional_id]
        return Outcome(None, [encode_record(transactional_id, aborted(value, now_ms))])

    def expire_ids(self, now_ms: int) -> Outcome[None]:
        """Delete the ids without an open transaction that were not used for too long."""
        before = now_ms - self._id_expiration_ms
        return Outcome(
            None,
            [
                StateRecord(encode_key(transactional_id), None)
                for transactional_id, value in self._values.items()
                if value.state in IDLE and value.updated_ms <= before
            ],
        )

    # --- deleted topics, and open transactions at start ------------------------------------------

    def drop_partitions(self, topics: Collection[str], now_ms: int) -> Outcome[None]:
        """Remove the partitions of deleted topics from open and ending transactions."""
        gone = set(topics)
        out = nothing()
        for transactional_id, value in self._values.items():
            lost = [tp for tp in value.partitions if tp.topic in gone]
            if lost:
                new = without_partitions(value, lost, now_ms)
                out.records.append(encode_record(transactional_id, new))
        return out

    def start_action(self, tp: TopicPartition, found: OpenTransaction) -> StartAction:
        """Return the action for a transaction that the log of ``tp`` has open at start.

        After a power cut, the data of a V2 write can be on disk without the record that added its
        partition. Then the transaction continues. It can even be the transaction *after* an
        unfinished decision: EndTxn is answered when the markers are durable, and the next
        transaction wrote before Complete* was durable. The epoch of that transaction is the epoch
        of the marker, so a marker that is written again would end it.

        Call it before any marker of ``all_unfinished`` is written.
        """
        transactional_id = self._stored.ids.get(found.producer_id)
        if transactional_id is None:
            return StartAction.ABORT
        value = self._values[transactional_id]
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

    def adopt(self, transactional_id: str, tp: TopicPartition, now_ms: int) -> Outcome[None]:
        """Add a partition to the current transaction, which begins if none is open.

        This is for StartAction.ADOPT. A decision before it is completed first: its markers are
        durable, because otherwise there would be no data of the next transaction.
        """
        value = self._values.get(transactional_id)
        if value is None:
            raise not_found(transactional_id)
        steps = []
        if value.state in ENDING:
            value = completed(value, now_ms)
            steps.append(value)
        if value.state is not _S.ONGOING or tp not in value.partitions:
            steps.append(with_partitions(value, (tp,), now_ms, TransactionVersion.V2))
        return Outcome(None, [encode_record(transactional_id, step) for step in steps])
