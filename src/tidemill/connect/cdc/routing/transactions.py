"""Count the events of each database transaction, for the envelope and for the transaction topic.

Source: Debezium's "Transaction metadata". The counters are part of the worker's state, so they
survive a restart in the middle of a large transaction. Must not know: a client, or a database.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from tidemill.connect.cdc.contract import Change, Row
from tidemill.connect.cdc.envelope import Record
from tidemill.connect.cdc.state import WorkerState


class TransactionCounter:
    """Numbers the events of transactions, which come one after the other.

    Args:
        prefix: of the topic ``<prefix>.transaction``.
        state: keeps the counters.
    """

    def __init__(self, prefix: str, state: WorkerState) -> None:
        self.topic = f"{prefix}.transaction"
        self._state = state

    def begin(self, change: Change, ended: Mapping[str, int]) -> Iterator[Record]:
        """Yield the BEGIN record if a change is the first one of its transaction.

        Transactions come one after the other, so the END of the one before it comes first.

        Args:
            change: the next change.
            ended: times of the transactions that end in the batch.
        """
        current = self._state.transaction
        if current is not None:
            if current["id"] == change.transaction:
                return
            yield from self.end(current["id"], ended.get(current["id"], change.ts_ms))
        self._state.transaction = {"id": change.transaction, "total": 0, "tables": {}}
        yield self._record("BEGIN", str(change.transaction), change.ts_ms, {})

    def count(self, change: Change) -> Row:
        """Return the ``transaction`` block of the next event."""
        current = self._state.transaction
        if current is None:
            current = self._state.transaction = {"id": change.transaction, "total": 0, "tables": {}}
        current["total"] += 1
        name = change.table.id if change.table is not None else ""
        tables: dict[str, int] = current["tables"]
        tables[name] = tables.get(name, 0) + 1
        return {
            "id": current["id"],
            "total_order": current["total"],
            "data_collection_order": tables[name],
        }

    def end(self, number: str, ts_ms: int) -> Iterator[Record]:
        """Yield the END record of a transaction of which events were written."""
        current = self._state.transaction
        if current is None or current["id"] != number:
            return
        self._state.transaction = None
        counts = [
            {"data_collection": name, "event_count": count}
            for name, count in current["tables"].items()
        ]
        more = {"event_count": current["total"], "data_collections": counts}
        yield self._record("END", number, ts_ms, more)

    def _record(self, status: str, number: str, ts_ms: int, more: Row) -> Record:
        value = {
            "status": status,
            "id": number,
            "ts_ms": ts_ms,
            "event_count": None,
            "data_collections": None,
            **more,
        }
        return Record(self.topic, orjson.dumps({"id": number}), orjson.dumps(value), ts_ms)
