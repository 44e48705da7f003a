"""Count the records that arrived too late, from a query's progress.

Must not know: Spark's classes (a progress is a mapping), windows, pipelines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LateRecords:
    """The number of rows that a query dropped because the watermark had passed their window's end.

    Spark counts rows when they reach the state, after it has aggregated each batch: records of the
    same window and key in one batch and partition count once, and a record counts in each of its
    sliding windows. The count is 0 if, and only if, no record was dropped.

    In update and append mode the watermark begins at 1970-01-01T00:00:00Z, so windows that end
    before are late from the first batch on. Complete mode drops nothing, except for sessions.

    Attributes:
        rows: all rows that were dropped.
        last_rows: rows that the last batch dropped.
        last_batch: the number of the last batch, or -1.
        operators: rows that each stateful operator dropped, in the order of Spark's progress.
    """

    rows: int = 0
    last_rows: int = 0
    last_batch: int = -1
    operators: tuple[int, ...] = ()

    def plus(self, progress: Mapping[str, Any]) -> LateRecords:
        """Return the counts with one more progress update, which is newer than all before.

        Spark keeps the last 100 updates of a query (``numRecentProgressUpdates``). To count over a
        longer time, add each update when it arrives. Updates of an idle query, and of a batch that
        is counted already, change nothing.

        Args:
            progress: the update, as a mapping.
        """
        batch = int(progress["batchId"])
        if "addBatch" not in progress["durationMs"] or batch <= self.last_batch:
            return self
        dropped = [int(state["numRowsDroppedByWatermark"]) for state in progress["stateOperators"]]
        before = self.operators or (0,) * len(dropped)
        rows = sum(dropped)
        operators = tuple(a + b for a, b in zip(before, dropped, strict=True))
        return LateRecords(self.rows + rows, rows, batch, operators)


def late_records(query: Any) -> LateRecords:
    """Count the late records of a query.

    Args:
        query: a StreamingQuery, whose recent progress is read; or progress updates (mappings, such
            as ``StreamingQueryProgress``), oldest first.

    Returns:
        The counts over all updates that Spark still keeps, or that were given.
    """
    updates: Iterable[Mapping[str, Any]] = getattr(query, "recentProgress", query)
    total = LateRecords()
    for progress in updates:
        total = total.plus(progress)
    return total
