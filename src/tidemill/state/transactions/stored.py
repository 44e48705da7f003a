"""The stored values of all transactional ids, with indexes by producer id and by deadline.

They change by ``replay`` only. This module must not know a request.
"""

from __future__ import annotations

from tidemill.state.timers import Timers
from tidemill.state.transactions.format import (
    NO_PRODUCER_ID,
    TransactionValue,
    decode_key,
    decode_value,
)
from tidemill.state.transactions.table import ENDING
from tidemill.state.transactions.transaction import deadline_ms
from tidemill.state.transactions.types import TransactionState

_S = TransactionState


class StoredTransactions:
    """The current value of each transactional id.

    Attributes:
        values: the values by transactional id. Read only.
    """

    def __init__(self) -> None:
        self.values: dict[str, TransactionValue] = {}
        self._ids: dict[int, str] = {}
        """Producer id, current or next -> transactional id."""
        self._unfinished: dict[str, None] = {}
        """Ids in a Prepare state, in the order of their decisions."""
        self._timers = Timers[str]()

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of ``__transaction_state``: each that was appended, and all at start.

        Returns:
            False if the kind of the record is not supported. Then nothing changes.
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
        """Return when the open transaction is aborted.

        An earlier deadline from ``loaded`` stays: if the clock was set back, the stored start of
        the transaction is in the future.
        """
        deadline = deadline_ms(new)
        if old is None or old.state is not _S.ONGOING or old.start_ms != new.start_ms:
            return deadline
        known = self._timers.get(transactional_id)
        return deadline if known is None else min(known, deadline)

    def loaded(self, now_ms: int) -> None:
        """Start the timeouts after all records were replayed at start.

        A timeout starts when its transaction began, but it ends at most its own length from now:
        the clock was possibly set back.
        """
        for transactional_id, value in self.values.items():
            if value.state is _S.ONGOING:
                deadline = min(deadline_ms(value), now_ms + value.timeout_ms)
                self._timers.set(transactional_id, deadline)

    def open_since(self) -> list[int]:
        """Return when each open transaction began, in ms since the epoch."""
        return [self.values[each].start_ms for each in self._timers.active()]

    def find(self, producer_id: int) -> str | None:
        """Return the transactional id that has this producer id, now or after its decision."""
        return self._ids.get(producer_id)

    def all_unfinished(self) -> list[str]:
        """Return the ids whose decision is not complete, in the order of their decisions."""
        return list(self._unfinished)

    def next_deadline(self) -> int | None:
        """Return the earliest timeout in ms since the epoch, or None if no transaction is open."""
        return self._timers.next_deadline()

    def due(self, now_ms: int) -> list[str]:
        """Return the ids whose transaction has been open for longer than its timeout.

        They stay due until the record of their abort was replayed.
        """
        found = []
        while (transactional_id := self._timers.pop_due(now_ms)) is not None:
            found.append(transactional_id)
        for transactional_id in found:
            self._timers.set(transactional_id, now_ms)
        return found

    def is_due(self, transactional_id: str, now_ms: int) -> bool:
        """Return whether the id's transaction has been open for longer than its timeout."""
        deadline = self._timers.get(transactional_id)
        return deadline is not None and deadline <= now_ms
