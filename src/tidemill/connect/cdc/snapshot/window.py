"""The watermark method: join a chunk of a snapshot with the stream of changes.

Source: DBLog (Andreakis and Papapanagiotou, 2020). The rows of a chunk are at least as new as the
stream was when the chunk was read, and at most as new as its ``high`` position. Every key that the
stream changes between these two is dropped from the chunk, because the stream's change is as new or
newer. The rest is written when the stream has reached ``high``. Must not know: Kafka, or a
particular database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemill.connect.cdc.contract import Change, Chunk, Row, Table

KeyOf = Callable[[Table, Row], bytes]


class Window:
    """A chunk that waits until the stream has reached its high position.

    Args:
        table: the chunk's table.
        chunk: the chunk.
        key_of: returns the key of a row as it is in the topic.
    """

    def __init__(self, table: Table, chunk: Chunk, key_of: KeyOf) -> None:
        self.table = table
        self.chunk = chunk
        self._key_of = key_of
        self._rows: dict[bytes, Row] | None = None  # until the stream changes the table
        self._newest: dict[bytes, Row] = {}

    def see(self, change: Change) -> None:
        """Take note of a change of the stream before it is written.

        Values that the source could not find out are taken from the chunk, which might hold the
        only copy (PostgreSQL's TOAST).
        """
        if change.table is None or change.table.id != self.table.id:
            return
        if self._rows is None:
            self._rows = {self._key_of(self.table, row): row for row in self.chunk.rows}
        for row in (change.before, change.after):
            if row is None or not all(name in row for name in self.table.key):
                continue
            key = self._key_of(self.table, row)
            known = self._rows.pop(key, None) or self._newest.get(key)
            if known is not None and row is change.after:
                for name, value in known.items():
                    row.setdefault(name, value)
                self._newest[key] = row

    def rest(self) -> Sequence[Row]:
        """Return the rows to write, in the order of the chunk."""
        return self.chunk.rows if self._rows is None else list(self._rows.values())
