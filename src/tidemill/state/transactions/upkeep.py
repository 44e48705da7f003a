"""Commands of the transaction coordinator that no client asks for.

They abort transactions whose timeout has passed, delete unused ids, remove the partitions of
deleted topics, and repair at start what a crash interrupted. ``machine`` has the requests of
clients. This module must not know a clock or a log.

Source: KIP-98, KIP-890.
"""

from __future__ import annotations

from collections.abc import Collection

from tidemill.log.names import TopicPartition
from tidemill.log.partition.transactions import OpenTransaction
from tidemill.state.outcome import Outcome, StateRecord, nothing
from tidemill.state.transactions.checks import not_found
from tidemill.state.transactions.format import encode_key, encode_record
from tidemill.state.transactions.startup import StartAction, adopted, start_action
from tidemill.state.transactions.stored import StoredTransactions
from tidemill.state.transactions.table import IDLE
from tidemill.state.transactions.transaction import aborted, without_partitions


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
        return self._stored.next_deadline()

    def due(self, now_ms: int) -> list[str]:
        """Return the ids whose transaction has been open for longer than its timeout.

        Call ``expire`` for each. They stay due until the record of ``expire`` was replayed.
        """
        return self._stored.due(now_ms)

    def expire(self, transactional_id: str, now_ms: int) -> Outcome[None]:
        """Abort a transaction whose timeout has passed. The markers and ``complete`` follow.

        The epoch increases, so the producer is fenced until it asks for the new one (V2: with an
        abort; V1: with InitProducerId). There is no record if the transaction has ended meanwhile.
        """
        if not self._stored.is_due(transactional_id, now_ms):
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

        Call it before any marker of ``all_unfinished`` is written. See ``startup``.
        """
        transactional_id = self._stored.find(found.producer_id)
        value = None if transactional_id is None else self._values[transactional_id]
        return start_action(value, tp, found)

    def adopt(self, transactional_id: str, tp: TopicPartition, now_ms: int) -> Outcome[None]:
        """Add a partition to the current transaction, which begins if none is open.

        This is for StartAction.ADOPT.
        """
        value = self._values.get(transactional_id)
        if value is None:
            raise not_found(transactional_id)
        steps = adopted(value, tp, now_ms)
        return Outcome(None, [encode_record(transactional_id, step) for step in steps])
