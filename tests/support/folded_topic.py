"""A topic of one table in memory, which models of capture fold by key."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from tidemill.connect.cdc.contract import Batch, Chunk, Table
from tidemill.connect.cdc.envelope import Encoder, decode
from tidemill.connect.cdc.state import WorkerState


class FoldedTopic:
    """The topic of one table by key, with transactions, as the snapshots' ``Writer``.

    What is not committed is gone after a crash.

    Args:
        kind: The kind of the source.

    Attributes:
        rows: The last row of each key.
        state: The worker's state.
        notes: The source's notes; one that was removed is an empty string.
    """

    def __init__(self, kind: str) -> None:
        self.rows: dict[bytes, dict[str, Any]] = {}
        self.state = WorkerState()
        self.notes: dict[str, str] = {}
        self._stored: tuple[Any, ...] = ({}, WorkerState(), {})
        self._encoder = Encoder(kind, "model")

    def topic(self, table: Table) -> str:
        return table.id

    def key_of(self, table: Table, row: dict[str, Any]) -> bytes:
        return self._encoder.key_of(table, row)

    def selects(self, table: Table, row: dict[str, Any]) -> bool:
        return True

    def write(self, batch: Batch) -> None:
        for change in batch.changes:
            for record in self._encoder.encode(change):
                assert record.key is not None
                self._write(record.key, record.value)
        self.state.position = batch.position
        for name, note in batch.notes.items():
            self.notes[name] = note or ""

    def write_rows(self, table: Table, rows: Sequence[dict[str, Any]], read: Chunk) -> None:
        for each in rows:
            self.rows[self.key_of(table, each)] = each

    def delete_key(self, table: Table, key: bytes, row: dict[str, Any]) -> None:
        self.rows.pop(key, None)

    def commit(self) -> None:
        self._stored = deepcopy((self.rows, self.state, self.notes))

    def crash(self) -> None:
        """Go back to what was committed last."""
        self.rows, self.state, self.notes = deepcopy(self._stored)

    def _write(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.rows.pop(key, None)
        elif (after := decode(value)["after"]) is not None:
            self.rows[key] = after
