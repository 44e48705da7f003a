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

    Others read its attributes, and change none but ``timers``.

    Attributes:
        values: the values by transactional id.
        ids: producer id, current or next -> transactional id.
        unfinished: ids in a Prepare state, in the order of their decisions.
        timers: when each open transaction is aborted.
    """

    def __init__(self) -> None:
        self.values: dict[str, TransactionValue] = {}
        self.ids: dict[int, str] = {}
        self.unfinished: dict[str, None] = {}
        self.timers = Timers[str]()

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
            self.ids.pop(old.producer.producer_id, None)
            self.ids.pop(old.next_producer_id, None)
        if new is not None:
            self.ids[new.producer.producer_id] = transactional_id
            if new.next_producer_id != NO_PRODUCER_ID:
                self.ids[new.next_producer_id] = transactional_id
        if new is not None and new.state in ENDING:
            self.unfinished.setdefault(transactional_id)
        else:
            self.unfinished.pop(transactional_id, None)
        if new is not None and new.state is _S.ONGOING:
            self.timers.set(transactional_id, self._deadline(transactional_id, old, new))
        else:
            self.timers.cancel(transactional_id)

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
        known = self.timers.get(transactional_id)
        return deadline if known is None else min(known, deadline)

    def loaded(self, now_ms: int) -> None:
        """Start the timeouts after all records were replayed at start.

        A timeout starts when its transaction began, but it ends at most its own length from now:
        the clock was possibly set back.
        """
        for transactional_id, value in self.values.items():
            if value.state is _S.ONGOING:
                deadline = min(deadline_ms(value), now_ms + value.timeout_ms)
                self.timers.set(transactional_id, deadline)
