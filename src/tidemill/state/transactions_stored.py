"""What is kept of all transactional ids, and the ways to find them: by name, producer id, deadline.

Changes by ``replay`` only. Knows no request.
"""

from __future__ import annotations

from tidemill.state.timers import Timers
from tidemill.state.transaction import deadline_ms
from tidemill.state.transactions_format import (
    NO_PRODUCER_ID,
    TransactionValue,
    decode_key,
    decode_value,
)
from tidemill.state.transactions_table import ENDING
from tidemill.state.types import TransactionState

_S = TransactionState


class StoredTransactions:
    """The values in force.

    Attributes:
        values: by transactional id. To look at.
    """

    def __init__(self) -> None:
        self.values: dict[str, TransactionValue] = {}
        self._ids: dict[int, str] = {}
        """producer id, in force or to follow -> transactional id"""
        self._unfinished: dict[str, None] = {}
        """Ids in a Prepare state, in order of their decisions."""
        self._timers = Timers[str]()

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of ``__transaction_state``; False (and no effect) if it is of a kind
        that is not known. Used for each record that was appended, and for all of them at start.

        Raises:
            InvalidRecordError, FormatVersionError: the record can't be read.
        """
        transactional_id = decode_key(key)
        if transactional_id is None:
            return False
        new = None if value is None else decode_value(value)
        self._index(transactional_id, new)
        if new is None:
            self.values.pop(transactional_id, None)
        else:
            self.values[transactional_id] = new
        return True

    def _index(self, transactional_id: str, new: TransactionValue | None) -> None:
        old = self.values.get(transactional_id)
        if old is not None:
            self._ids.pop(old.producer.producer_id, None)
            self._ids.pop(old.next_producer_id, None)
        if new is not None:
            self._ids[new.producer.producer_id] = transactional_id
            if new.next_producer_id != NO_PRODUCER_ID:
                self._ids[new.next_producer_id] = transactional_id
        if new is not None and new.state in ENDING:
            self._unfinished.setdefault(transactional_id)
        else:
            self._unfinished.pop(transactional_id, None)
        if new is not None and new.state is _S.ONGOING:
            self._timers.set(transactional_id, self._deadline(transactional_id, old, new))
        else:
            self._timers.cancel(transactional_id)

    def _deadline(
        self, transactional_id: str, old: TransactionValue | None, new: TransactionValue
    ) -> int:
        """When the open transaction is aborted. It keeps an earlier time that ``loaded`` gave it:
        its start, as stored, may be ahead of a clock that was set back."""
        deadline = deadline_ms(new)
        if old is None or old.state is not _S.ONGOING or old.start_ms != new.start_ms:
            return deadline
        known = self._timers.get(transactional_id)
        return deadline if known is None else min(known, deadline)

    def loaded(self, now_ms: int) -> None:
        """All records have been replayed at start. Timeouts count from when a transaction began,
        but none is longer than its own time from now (the clock may have been set back)."""
        for transactional_id, value in self.values.items():
            if value.state is _S.ONGOING:
                deadline = min(deadline_ms(value), now_ms + value.timeout_ms)
                self._timers.set(transactional_id, deadline)

    def find(self, producer_id: int) -> str | None:
        """The transactional id that has this producer id, or gets it when its decision is done."""
        return self._ids.get(producer_id)

    def all_unfinished(self) -> list[str]:
        """The ids with a decision that is not complete, in the order of their decisions."""
        return list(self._unfinished)

    def next_deadline(self) -> int | None:
        """When ``due`` has something next, in ms since the epoch; None: no transaction is open."""
        return self._timers.next_deadline()

    def due(self, now_ms: int) -> list[str]:
        """Ids whose transaction has been open for longer than its timeout: ``expire`` them. They
        stay due until the record of that has been replayed."""
        found = []
        while (transactional_id := self._timers.pop_due(now_ms)) is not None:
            found.append(transactional_id)
        for transactional_id in found:
            self._timers.set(transactional_id, now_ms)
        return found

    def is_due(self, transactional_id: str, now_ms: int) -> bool:
        """Whether the id's open transaction has been open for longer than its timeout."""
        deadline = self._timers.get(transactional_id)
        return deadline is not None and deadline <= now_ms
