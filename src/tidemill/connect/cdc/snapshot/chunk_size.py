"""The number of rows of the next chunk: few at first, then as many as fit a bound of bytes.

A chunk is held in memory as a whole, and the stream waits while it is read. Must not know: a
database, or Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.connect.cdc.contract import Row
from tidemill.connect.cdc.packed import PackedRows

FIRST_ROWS = 200
GROWTH = 4
TARGET_BYTES = 16 << 20
SAMPLE_ROWS = 100
"""Rows of a chunk whose values are measured."""


class ChunkSize:
    """The size of the chunks of one table.

    Args:
        most_rows: the largest number of rows.

    Attributes:
        rows: how many rows to ask for next.
    """

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self.rows = min(FIRST_ROWS, most_rows)

    def adapt(self, rows: Sequence[Row]) -> None:
        """Choose the next size from the rows of a chunk."""
        if not rows:
            return
        if isinstance(rows, PackedRows):
            size = rows.row_bytes + 1
        else:
            sample = rows[:: max(1, len(rows) // SAMPLE_ROWS)]
            size = sum(_bytes(row) for row in sample) // len(sample) + 1
        fitting = max(1, TARGET_BYTES // size)
        self.rows = min(self._most_rows, self.rows * GROWTH, fitting)


def _bytes(row: Row) -> int:
    """Return about how much memory the values of a row take."""
    return sum(len(each) if isinstance(each, str) else 8 for each in row.values())
