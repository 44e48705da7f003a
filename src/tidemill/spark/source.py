"""The data source ``tidemill``: Kafka topics as a table or a stream, and as a place to write to.

Thin: what is read when is decided in ``planner``, how it is read in ``fetch``, how it is written
in ``sink``. PySpark imports this module in every program (see ``pyspark_tidemill``), so whatever
is heavy or optional is imported where it is used. Must not know: the broker's inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidemill.spark.options import refuse
from tidemill.spark.ranges import OffsetRange
from tidemill.spark.sink_options import parse_sink_options
from tidemill.spark.source_options import (
    Position,
    SourceOptions,
    check_batch_options,
    check_stream_options,
    parse_source_options,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tidemill.spark.planner import Planner, QueryOffsets

NAME = "tidemill"
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
HEADERS_COLUMN = "headers array<struct<key: string, value: binary>>"


class TidemillDataSource(DataSource):
    """``spark.read``/``readStream``/``write``/``writeStream`` with ``format("tidemill")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> str:
        """Columns of Spark's Kafka source; ``headers`` with ``includeHeaders``.

        Raises:
            OptionError: an option is wrong. Spark asks for the schema first, so that this is the
                place to say it: in ``load()``, not in a running query.
        """
        options = parse_source_options(self.options)
        return f"{COLUMNS}, {HEADERS_COLUMN}" if options.include_headers else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        options = self._source_options(schema)
        check_batch_options(options)
        return _BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For ``spark.readStream``."""
        options = self._source_options(schema)
        check_stream_options(options)
        return _StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For ``df.write``; mode ``append``."""
        from tidemill.spark.sink import TopicWriter

        if overwrite:
            raise refuse("a topic can't be overwritten", 'Use mode("append").')
        return TopicWriter(schema, parse_sink_options(self.options))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """For ``df.writeStream``; in mode ``complete`` each batch's whole result is appended."""
        from tidemill.spark.sink import TopicStreamWriter

        return TopicStreamWriter(schema, parse_sink_options(self.options))

    def _source_options(self, schema: StructType) -> SourceOptions:
        options = parse_source_options(self.options)
        # As text: parsing DDL needs a session, and planning has none.
        fixed, given = self.schema().replace(": ", ":"), schema.simpleString()
        if given != f"struct<{fixed.replace(', ', ',').replace(' ', ':')}>":
            raise refuse(
                f"the columns are fixed ({fixed}), not {given}",
                "Leave .schema() out, and parse the column value.",
            )
        return options


@dataclass(frozen=True, slots=True)
class _Task(InputPartition):
    """One task of a batch."""

    wanted: OffsetRange


def _read(options: SourceOptions, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of a task. Runs in a worker."""
    from tidemill.spark.fetch import FetchPlan, fetch

    if not isinstance(task, _Task):  # Spark's stand-in for a batch without tasks
        return iter(())
    if not task.wanted.size:  # it keeps the number of a task whose records are gone
        return iter(())
    plan = FetchPlan(
        kafka=options.kafka,
        include_headers=options.include_headers,
        fail_on_data_loss=options.fail_on_data_loss,
        timeout_ms=options.poll_timeout_ms,
        group_id_prefix=options.group_id_prefix,
    )
    return fetch(task.wanted, plan)


def _planner(options: SourceOptions, default_start: Position) -> Planner:
    from tidemill.spark.cluster import KafkaCluster
    from tidemill.spark.planner import Planner

    return Planner(options, KafkaCluster(options.kafka), default_start)


class _BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets, both fixed when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        planner = _planner(self._options, Position("earliest"))
        return [_Task(r) for r in planner.batch_ranges()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on from where the last micro-batch ended.

    One object lives in Spark's planning process for as long as the query runs; others are pickled
    to the workers, where only ``read`` is called.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._made_planner: Planner | None = None
        self._initial: QueryOffsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made_planner": None}

    @property
    def _planner(self) -> Planner:
        if self._made_planner is None:
            self._made_planner = _planner(self._options, Position("latest"))
        return self._made_planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        # Asked for again in each trigger until there is a first batch: "latest" must not move.
        if self._initial is None:
            self._initial = self._planner.initial()
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._planner.next_end(_offsets(start), rows).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        newest = self._planner.newest()
        return None if newest is None else newest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.fix_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_Task(r) for r in self._planner.ranges(_offsets(start), _offsets(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


def _offsets(content: Mapping[str, Any]) -> QueryOffsets:
    from tidemill.spark.planner import QueryOffsets

    return QueryOffsets.from_json(content)
