"""How many records came too late: read from a query's progress.

Must not know: Spark's classes (a progress is a mapping), windows, pipelines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LateRecords:
    """Rows that a query dropped, since the watermark had passed the end of their window.

    Spark counts rows as they reach the state, after a first aggregation of each batch: records of
    the same window and key in one batch and partition count once, and a record counts in each of
    its sliding windows. The count is 0 exactly where no record was dropped.

    In update and append mode the watermark begins at 1970-01-01T00:00:00Z, so windows that end
    before are late from the first batch on. Complete mode drops nothing, except for sessions.

    Attributes:
        rows: dropped in all.
        last_rows: dropped in the last batch that was run.
        last_batch: id of the last batch that was run, or -1.
        operators: dropped by each stateful operator, in the order of Spark's progress.
    """

    rows: int = 0
    last_rows: int = 0
    last_batch: int = -1
    operators: tuple[int, ...] = ()

    def plus(self, progress: Mapping[str, Any]) -> LateRecords:
        """The counts with one more progress update, newer than all before.

        Spark keeps the last 100 updates of a query (``numRecentProgressUpdates``): to count over a
        longer time, add each as it comes. Updates of an idle query, which repeat what was, and of a
        batch that is counted already are passed over.
        """
        batch = int(progress["batchId"])
        if "addBatch" not in progress["durationMs"] or batch <= self.last_batch:
            return self
        dropped = [int(state["numRowsDroppedByWatermark"]) for state in progress["stateOperators"]]
        before = self.operators or (0,) * len(dropped)
        rows = sum(dropped)
        operators = tuple(a + b for a, b in zip(before, dropped, strict=True))
        return LateRecords(self.rows + rows, rows, batch, operators)


def late(query: Any) -> LateRecords:
    """The late records of a query.

    Args:
        query: a StreamingQuery, of which the recent progress is read; or progress updates (each a
            mapping, as ``StreamingQueryProgress`` is one), oldest first.
    """
    updates: Iterable[Mapping[str, Any]] = getattr(query, "recentProgress", query)
    total = LateRecords()
    for progress in updates:
        total = total.plus(progress)
    return total
