"""Topics as tables: what exists, what a statement has to read of it, and reading it.

Through a Kafka client only. Must not know: DuckDB, SQL.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence

import pyarrow as pa

from tidemill.confluent.asking import Extent, TopicQuestions
from tidemill.confluent.clients import Kafka
from tidemill.errors import DataLossError, TidemillError
from tidemill.reading.fetch import fetch
from tidemill.reading.plan import FetchPlan
from tidemill.reading.ranges import OffsetRange
from tidemill.sql.columns import Columns, Shape, shape_of
from tidemill.sql.errors import QueryEndedError
from tidemill.sql.statement import Needed

_CLIENT = "tidemill-sql"
_SAMPLE_RECORDS = 200
_SAMPLE_BYTES = 1 << 20
_SAMPLE_PARTITIONS = 8
_FIRST_ROWS = 64
"""Rows of the first batch, so that a statement with a small limit reads little."""
_ROWS = 16_384


class Topics:
    """The topics of a cluster, as they are when a statement begins.

    Args:
        kafka: the cluster.

    Attributes:
        asking: asks what there is.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.asking = TopicQuestions(kafka, _CLIENT)

    def ranges(
        self, topic: str, extents: Mapping[int, Extent], places: Sequence[Needed]
    ) -> list[OffsetRange]:
        """Return what must be read so that each place of a statement has what it needs."""
        since: dict[int, dict[int, int]] = {}
        for need in places:
            if need.since_ms is not None and need.since_ms not in since:
                since[need.since_ms] = self.asking.since(topic, extents, need.since_ms)
        made = []
        for number, extent in extents.items():
            parts = [
                _part(number, extent, need, since.get(need.since_ms or 0, {})) for need in places
            ]
            kept = [part for part in parts if part[0] < part[1]]
            if kept:
                first, end = min(part[0] for part in kept), max(part[1] for part in kept)
                made.append(OffsetRange(topic, number, first, end))
        return made

    def sample(self, topic: str, extents: Mapping[int, Extent]) -> Shape:
        """Return the columns that a few records of the topic have."""
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        some = [(n, e) for n, e in extents.items() if e.end > e.first][:_SAMPLE_PARTITIONS]
        for number, extent in some:
            half = _SAMPLE_RECORDS // 2
            middle = max(extent.first, extent.end - half)
            ranges = [OffsetRange(topic, number, extent.first, min(middle, extent.first + half))]
            ranges.append(OffsetRange(topic, number, middle, extent.end))
            for wanted in ranges:
                size = 0
                for batch in self._fetch(wanted, False, _SAMPLE_RECORDS):
                    keys += batch.column("key").to_pylist()
                    values += batch.column("value").to_pylist()
                    size += batch.nbytes
                    if size > _SAMPLE_BYTES:
                        break
        return shape_of(keys, values)

    def _fetch(self, wanted: OffsetRange, headers: bool, rows: int) -> Generator[pa.RecordBatch]:
        plan = FetchPlan.committed(
            self._kafka.servers,
            self._kafka.properties,
            _CLIENT,
            include_headers=headers,
            batch_rows=rows,
        )
        try:
            yield from fetch(wanted, plan)
        except DataLossError as error:
            hint = "Run the statement again: retention has removed records since it began."
            raise DataLossError(str(error), hint=hint) from error

    def scan(
        self, ranges: Sequence[OffsetRange], columns: Columns, cancelled: threading.Event
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns of the records of ranges."""
        rows = _FIRST_ROWS
        for wanted in ranges:
            position = wanted.start
            while position < wanted.end:
                # A small first batch, then large ones: the range is split where it ends.
                end = min(wanted.end, position + rows) if rows < _ROWS else wanted.end
                part = OffsetRange(wanted.topic, wanted.partition, position, end)
                for batch in self._fetch(part, columns.needs_headers, _ROWS):
                    if cancelled.is_set():
                        raise QueryEndedError("the statement was cancelled")
                    yield columns.make(batch)
                position, rows = end, _ROWS

    def part(
        self,
        ranges: Sequence[OffsetRange],
        columns: Columns,
        cancelled: threading.Event,
        most_bytes: int,
    ) -> tuple[pa.Table, dict[int, int]]:
        """Return the columns of the first records of ranges, and the offset behind them.

        Args:
            most_bytes: about how many bytes of records are read at most.

        Returns:
            The records, and the next offset by partition, of those that were read.
        """
        made: list[pa.RecordBatch] = []
        ends: dict[int, int] = {}
        size = 0
        for wanted in ranges:
            with contextlib.closing(self._fetch(wanted, columns.needs_headers, _ROWS)) as batches:
                for batch in batches:
                    if cancelled.is_set():
                        raise QueryEndedError("the statement was cancelled")
                    made.append(columns.make(batch))
                    size += batch.nbytes
                    if size >= most_bytes:
                        ends[wanted.partition] = batch.column("offset")[-1].as_py() + 1
                        return pa.Table.from_batches(made, columns.schema), ends
            ends[wanted.partition] = wanted.end
        return pa.Table.from_batches(made, columns.schema), ends


class Scan:
    """A stream of Arrow that can be read several times: each time the same ranges are read.

    Attributes:
        failure: what went wrong while it was read.
    """

    def __init__(
        self,
        topics: Topics,
        ranges: Sequence[OffsetRange],
        columns: Columns,
        cancelled: threading.Event,
    ) -> None:
        self._topics = topics
        self._ranges = ranges
        self._columns = columns
        self._cancelled = cancelled
        self.failure: TidemillError | None = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._columns.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._topics.scan(self._ranges, self._columns, self._cancelled)
        except TidemillError as error:
            self.failure = error
            raise


def _part(
    partition: int, extent: Extent, need: Needed, since: Mapping[int, int]
) -> tuple[int, int]:
    """Return the offsets of a partition that one place needs; none if the first is not below."""
    if need.partitions is not None and partition not in need.partitions:
        return 0, 0
    first = max(extent.first, need.first or 0)
    if need.since_ms is not None:
        offset = since.get(partition, extent.first)
        first = max(first, extent.end if offset < 0 else offset)
    end = extent.end if need.end is None else min(extent.end, need.end)
    return first, end
