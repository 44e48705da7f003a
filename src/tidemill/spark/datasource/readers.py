"""Readers of the data source ``tidemill``, as Spark calls them.

Must not know: pipelines, sinks, how a batch is planned or read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidemill.clock import SystemClock
from tidemill.reading.ranges import OffsetRange
from tidemill.spark.source.planning.admission import FIRST, Admission
from tidemill.spark.source.planning.options import Position, SourceOptions
from tidemill.spark.source.planning.pacing import Pacing
from tidemill.spark.source.planning.parsing import RowPlan

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.spark.source.planning.planner import Planner, QueryOffsets


@dataclass(frozen=True, slots=True)
class _Task(InputPartition):
    """One task of a batch."""

    wanted: OffsetRange


@dataclass(frozen=True, slots=True)
class Reading:
    """The records that the tasks of a query read.

    Attributes:
        rows: How records become rows; None for the records themselves.
        needs_headers: Whether to read the headers of the records.
    """

    options: SourceOptions
    rows: RowPlan | None = None
    needs_headers: bool = False


def _read(reading: Reading, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the records of a task. Runs in a worker."""
    from tidemill.reading.fetch import FetchPlan, fetch

    if not isinstance(task, _Task):  # Spark's placeholder for a batch without tasks
        return iter(())
    if not task.wanted.size:  # the task keeps its number although its records were removed
        return iter(())
    options = reading.options
    plan = FetchPlan(
        kafka=options.kafka,
        include_headers=reading.needs_headers,
        fail_on_data_loss=options.fail_on_data_loss,
        timeout_ms=options.poll_timeout_ms,
        group_id_prefix=options.group_id_prefix,
    )
    records = fetch(task.wanted, plan)
    if reading.rows is None:
        return records
    from tidemill.spark.source.rows import parse_range, parse_records

    if reading.rows.report is not None:
        return parse_range(records, reading.rows, task.wanted)
    return parse_records(records, reading.rows)


def _planner(options: SourceOptions, default_start: Position) -> Planner:
    from tidemill.spark.source.cluster import KafkaCluster
    from tidemill.spark.source.planning.planner import Planner

    return Planner(options, KafkaCluster(options.kafka), default_start)


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets. Both are fixed when the query is planned."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._options = reading.options

    def partitions(self) -> list[InputPartition]:
        planner = _planner(self._options, Position("earliest"))
        return [_Task(r) for r in planner.batch_ranges()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._reading, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads each micro-batch from where the previous one ended.

    One object plans all batches of a query in a process of Spark's. Copies of it are pickled to the
    workers, which only call ``read``.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._options = reading.options
        self._planner_or_none: Planner | None = None
        self._admission = Admission(SystemClock())
        self._pacing = Pacing(SystemClock())
        self._initial: QueryOffsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner_or_none": None}

    @property
    def _planner(self) -> Planner:
        if self._planner_or_none is None:
            self._planner_or_none = _planner(self._options, Position("latest"))
        return self._planner_or_none

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        # Spark asks in each trigger until the first batch. "latest" must not move until then.
        if self._initial is None:
            self._initial = self._planner.initial()
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_offsets_per_trigger or FIRST)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        most: int | Admission | None = self._options.max_offsets_per_trigger or self._admission
        if isinstance(limit, ReadAllAvailable):  # Trigger.Once
            most = None
        self._pacing.wait()
        begin = _offsets(start)
        end = self._planner.next_end(begin, most)
        self._pacing.answered(has_news=end != begin)
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        newest = self._planner.newest()
        return None if newest is None else newest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.fix_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_Task(r) for r in self._planner.ranges(_offsets(start), _offsets(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._reading, partition)


def _offsets(content: Mapping[str, Any]) -> QueryOffsets:
    from tidemill.spark.source.planning.planner import QueryOffsets

    return QueryOffsets.from_json(content)
