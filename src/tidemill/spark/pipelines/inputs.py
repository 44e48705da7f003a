"""Make DataFrames of a pipeline's streams and tables, and build its queries from them.

Must not know: how sinks write, checkpoints, the topic of statuses.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidemill.duration import Duration, as_interval
from tidemill.errors import TidemillError
from tidemill.spark.base import jvm
from tidemill.spark.base.ddl import escaped
from tidemill.spark.base.explain import hint_for, is_busy, spark_message
from tidemill.spark.base.options import ISO
from tidemill.spark.errors import PipelineError
from tidemill.spark.pipelines import sql
from tidemill.spark.pipelines.check_inputs import stream_columns
from tidemill.spark.pipelines.declared import Pipeline, Place, Query, Stream, Table
from tidemill.spark.pipelines.fingerprint import mark
from tidemill.spark.pipelines.problems import Problem
from tidemill.spark.pipelines.progress import APPENDED
from tidemill.spark.pipelines.reading.letters import dead_letters
from tidemill.spark.pipelines.reading.stream_source import TIME, StreamSource
from tidemill.spark.pipelines.resolve import inputs_of
from tidemill.spark.tables.changelog import ChangelogTopic
from tidemill.spark.tables.changes import DEFAULT_LIMIT
from tidemill.spark.tables.records import TableSchema
from tidemill.spark.tables.source import TIMESTAMP, TableContext

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BUILD_ATTEMPTS = 3
"""How often a query is built if a Python process does not answer Spark in time."""

_metric_numbers = itertools.count(1)


@dataclass(frozen=True)
class StreamInput:
    """A stream, as a query function gets it.

    Attributes:
        df: a streaming DataFrame with the columns of the schema, and with the watermark.
        declaration: the stream as the pipeline declares it.
    """

    df: DataFrame
    declaration: Stream


@dataclass(frozen=True)
class TableInput:
    """A table, as a query function gets it. Each property makes a DataFrame of its own.

    Attributes:
        declaration: the table as the pipeline declares it.
        kafka: settings of librdkafka, with ``bootstrap.servers``.
    """

    declaration: Table
    spark: SparkSession
    kafka: Mapping[str, str]

    @cached_property
    def schema(self) -> TableSchema:
        """The table's columns and its key."""
        t = self.declaration
        return TableSchema(t.schema, t.key, t.source.timestamp_format)

    def context(self, memory_limit: int = DEFAULT_LIMIT) -> TableContext:
        """Return what the table's source needs to read it.

        Args:
            memory_limit: most bytes that the table may take in a Python worker.
        """
        return TableContext(self.spark, self.schema, self.kafka, memory_limit)

    @property
    def df(self) -> DataFrame:
        """The table as it is now: each micro-batch of a stream that is joined with it reads it
        again."""
        return self.declaration.source.rows(self.context())

    @property
    def versions(self) -> DataFrame:
        """All versions that are kept, with ``valid_from`` and ``valid_to``.

        Raises:
            PipelineError: the table was declared without ``keep_versions``.
            JoinError: the table's source keeps no versions.
        """
        t = self.declaration
        if t.keep_versions is None:
            raise PipelineError(
                f"table {t.name} keeps no versions",
                hint='Declare it with keep_versions="30 days", and set min.compaction.lag.ms of '
                "its topic to at least as much.",
            )
        return t.source.versions(self.context(), keep=t.keep_versions, valid_from=t.valid_from)

    @property
    def changes(self) -> DataFrame:
        """The changes of the table as a stream; ``join_tables`` keeps its views current by them.

        Raises:
            JoinError: the table's source does not report changes.
        """
        from pyspark.sql import functions as f

        t = self.declaration
        changes = t.source.changes(
            self.context(), max_offsets_per_trigger=t.max_offsets_per_trigger
        )
        changes = _observed(changes, t.name, f.col(TIMESTAMP))
        name = ", ".join(t.topics) or t.source.description
        return mark(changes, f"changes of {name}").alias(t.name)


def changelog_table(
    spark: SparkSession,
    topic: str,
    *,
    schema: str,
    key: str | Sequence[str],
    kafka: Mapping[str, str],
    timestamp_format: str = ISO,
    keep_versions: Duration | None = None,
    max_offsets_per_trigger: int | None = None,
) -> TableInput:
    """Return a changelog topic as a table, outside of a pipeline.

    Args:
        spark: the session.
        topic: the changelog.
        schema: all columns, as DDL, those of the key among them.
        key: the column or columns that identify a row.
        kafka: settings of librdkafka, with ``bootstrap.servers``.
        timestamp_format: as in ``Pipeline.table``.
        keep_versions: as in ``Pipeline.table``.
        max_offsets_per_trigger: as in ``Pipeline.table``.

    Returns:
        The table with ``.df``, ``.versions`` and ``.changes``; all joins take it.
    """
    declared = Table(
        name=topic,
        source=ChangelogTopic(topic, timestamp_format),
        schema=schema,
        key=(key,) if isinstance(key, str) else tuple(key),
        keep_versions=keep_versions,
        max_offsets_per_trigger=max_offsets_per_trigger,
        place=Place("", 0),
    )
    return TableInput(declared, spark, {"isolation.level": "read_committed", **kafka})


@dataclass(frozen=True)
class Built:
    """A query that can be started, and its result."""

    query: Query
    df: DataFrame


class Builder:
    """Makes the DataFrames that a pipeline declares.

    Args:
        starting: where new queries begin; None leaves it to each stream.
        source_format: the data source of streams: ``tidemill``, or Spark's own ``kafka``.

    Attributes:
        source: loads the topics of its streams.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        kafka: Mapping[str, str],
        starting: str | int | None = None,
        source_format: str = "tidemill",
        *,
        is_local: bool = False,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        # Exactly once from log to log: records of a transaction count when it is committed.
        self._kafka = {"isolation.level": "read_committed", **kafka}
        self.source = StreamSource(spark, self._kafka, starting, source_format, is_local=is_local)

    def try_build(self, query: Query) -> Built | Problem:
        """Return a query's result, or the mistake that the user's function or Spark reports."""
        for attempt in range(BUILD_ATTEMPTS):
            try:
                return self.build(query)
            except Exception as error:
                if jvm.exit_code() is not None:
                    raise
                if attempt + 1 == BUILD_ATTEMPTS or not is_busy(str(error)):
                    return _problem(query, error)
        raise AssertionError("the last attempt returns")

    def build(self, query: Query) -> Built:
        """Return a query's result; Spark analyses it, and computes nothing.

        Raises:
            PipelineError: the query does not return a streaming DataFrame.
            Exception: any error that the user's function or Spark's analysis raises.
        """
        if query.build is None and query.sql is None:
            return Built(query, self._dead_letters(query.inputs[0]))
        inputs = {each.name: self._input(each) for each in inputs_of(query, self._pipeline)}
        result: Any = query.sql
        if query.build is not None:
            result = query.build(**inputs)
        if isinstance(result, str):
            result = self._run_sql(result, inputs)
        if not hasattr(result, "isStreaming"):
            raise PipelineError(
                f"it returns {type(result).__name__}, which is not a DataFrame",
                hint="Return a DataFrame, or a SQL string.",
            )
        if not result.isStreaming:
            raise PipelineError(
                "its result is not a stream: it would be computed only once",
                hint="Use a stream, or a table's .changes.",
            )
        return Built(query, result)

    def _input(self, found: Stream | Table) -> StreamInput | TableInput:
        if isinstance(found, Table):
            return TableInput(found, self._spark, self._kafka)
        return StreamInput(self._stream(found), found)

    def _dead_letters(self, name: str) -> DataFrame:
        stream = self._pipeline.find(name)
        if not isinstance(stream, Stream):
            raise PipelineError(f"{name} is not a stream")
        return dead_letters(self.source.refused(stream), name, self._pipeline.name)

    def _stream(self, stream: Stream) -> DataFrame:
        from pyspark.sql import functions as f

        if stream.format == "raw":
            df = _observed(self.source.records(stream), stream.name, f.col("timestamp"))
        else:
            df = _observed(self.source.rows(stream), stream.name, f.col(TIME))
            df = df.select(*[escaped(each.name) for each in stream_columns(stream)])
        # Earlier releases took numbers for seconds, so their checkpoints fit both formats.
        times = stream.timestamp_format
        parsed = "" if times in (ISO, "epoch_s") else f" with {times} timestamps"
        df = mark(df, f"topic {stream.topic}{parsed}")
        if stream.event_time is not None and stream.watermark is not None:
            df = df.withWatermark(stream.event_time, as_interval(stream.watermark))
        # The alias allows a column to be named with its stream: col("departures.flight").
        return df.alias(stream.name)

    def _run_sql(self, text: str, inputs: Mapping[str, StreamInput | TableInput]) -> DataFrame:
        # All queries of a session share its views, so each query replaces those that it names.
        for name, each in inputs.items():
            each.df.createOrReplaceTempView(name)
        return self._spark.sql(sql.parse(text).rewritten(self._spark))


def _observed(df: DataFrame, name: str, timestamp: Column) -> DataFrame:
    """Add a metric of the times at which a batch's records were appended, for the latency."""
    from pyspark.sql import functions as f

    appended = f.unix_millis(timestamp)
    # A query may use an input twice, and Spark requires a unique name for each metric.
    return df.observe(
        f"{APPENDED}_{name}_{next(_metric_numbers)}",
        f.max(appended).alias("newest"),
        f.min(appended).alias("oldest"),
    )


def _problem(query: Query, error: Exception) -> Problem:
    """Return an error as a mistake at the line of the user's file that led to it."""
    place, trace = query.place, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == query.place.file:
            place = replace(place, line=trace.tb_lineno)
        trace = trace.tb_next
    if isinstance(error, TidemillError):
        return Problem(place, f"query {query.name}: {error}", error.hint)
    text = spark_message(str(error)) or type(error).__name__
    is_sparks = type(error).__module__.startswith("pyspark")
    kind = "" if is_sparks else f"{type(error).__name__}: "
    return Problem(place, f"query {query.name}: {kind}{text}", hint_for(str(error)))
