"""A pipeline's streams and tables as DataFrames, and its queries built of them.

Must not know: sinks' writing, checkpoints, progress topics.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidemill.errors import PipelineError, TidemillError
from tidemill.spark import jvm, tables
from tidemill.spark.dead_letters import parse
from tidemill.spark.explain import hint_for, told_by_spark
from tidemill.spark.pipeline import Pipeline, Query, Stream, Table
from tidemill.spark.pipeline_check import Problem
from tidemill.spark.progress import APPENDED
from tidemill.spark.shape import mark
from tidemill.spark.uses import inputs_of
from tidemill.spark.window_spec import Duration, microseconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_uses = itertools.count(1)


@dataclass(frozen=True)
class StreamInput:
    """What a query function gets for a stream.

    Attributes:
        df: a streaming DataFrame: the columns of the schema, with the watermark.
        declaration: as it was declared.
    """

    df: DataFrame
    declaration: Stream


@dataclass(frozen=True)
class TableInput:
    """What a query function gets for a table. Each property is a DataFrame of its own.

    Attributes:
        declaration: as it was declared.
    """

    declaration: Table
    spark: SparkSession
    kafka: Mapping[str, str]

    @property
    def df(self) -> DataFrame:
        """The table as it is now: read again in each micro-batch of a stream that it is joined
        with."""
        t = self.declaration
        return tables.read_table(self.spark, t.topic, t.schema, t.key, self.kafka)

    @property
    def versions(self) -> DataFrame:
        """All versions that are kept, with ``valid_from`` and ``valid_to``.

        Raises:
            PipelineError: the table was declared without ``keep_versions``.
        """
        t = self.declaration
        if t.keep_versions is None:
            raise PipelineError(
                f"table {t.name} keeps no versions",
                hint='Declare it with keep_versions="30 days", and let its topic keep them as '
                "long: min.compaction.lag.ms.",
            )
        return tables.read_versions(
            self.spark, t.topic, t.schema, t.key, self.kafka, keep=t.keep_versions
        )

    @property
    def changes(self) -> DataFrame:
        """The changelog as a stream, for views that are kept current (``join_tables``)."""
        from pyspark.sql import functions as f

        t = self.declaration
        changes = tables.read_changes(
            self.spark,
            t.topic,
            t.schema,
            t.key,
            self.kafka,
            max_offsets_per_trigger=t.max_offsets_per_trigger,
        )
        changes = _observed(changes, t.name, f.col(tables.TIMESTAMP))
        return mark(changes, f"changes of {t.topic}").alias(t.name)


@dataclass(frozen=True)
class Built:
    """A query that can be started, and its result."""

    query: Query
    df: DataFrame


class Builder:
    """Makes DataFrames of what a pipeline declares.

    Args:
        kafka: librdkafka's settings, with ``bootstrap.servers``.
        starting: overrides where new queries begin.
        source_format: what reads the streams: ``tidemill``, or Spark's own ``kafka``.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        kafka: Mapping[str, str],
        starting: str | int | None = None,
        source_format: str = "tidemill",
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        # What a transaction has not committed is no fact yet: exactly once from log to log.
        self._kafka = {"isolation.level": "read_committed", **kafka}
        self._starting = starting
        self._format = source_format
        self._sources: dict[str, DataFrame] = {}

    def try_build(self, query: Query) -> Built | Problem:
        """A query's result, or what the user's function or Spark says is wrong with it."""
        try:
            return self.build(query)
        except Exception as error:
            if jvm.exit_code() is not None:
                raise
            return _problem(query, error)

    def build(self, query: Query) -> Built:
        """One query's result; nothing is run.

        Raises:
            PipelineError: it does not return a streaming DataFrame.
            Exception: whatever the user's function or Spark's analysis raises.
        """
        if query.build is None and query.sql is None:  # dead letters
            return Built(query, self._bad(query.inputs[0]))
        inputs = {each.name: self._input(each) for each in inputs_of(query, self._pipeline)}
        result: Any = query.sql
        if query.build is not None:
            result = query.build(**inputs)
        if isinstance(result, str):
            result = self._run_sql(result, inputs)
        if not hasattr(result, "isStreaming"):
            raise PipelineError(
                f"it returns {type(result).__name__}, which is no DataFrame",
                hint="Return a DataFrame, or a SQL string.",
            )
        if not result.isStreaming:
            raise PipelineError(
                "its result is no stream: it would be computed once",
                hint="Use a stream, or a table's .changes.",
            )
        return Built(query, result)

    def _input(self, found: Stream | Table) -> StreamInput | TableInput:
        if isinstance(found, Table):
            return TableInput(found, self._spark, self._kafka)
        return StreamInput(self._stream(found), found)

    def _bad(self, name: str) -> DataFrame:
        stream = self._pipeline.find(name)
        if not isinstance(stream, Stream):
            raise PipelineError(f"{name} is no stream")
        return parse(self._source(stream), stream, self._pipeline.name)[1]

    def _source(self, stream: Stream) -> DataFrame:
        # Spark starts a Python process to ask what a source is: once is enough.
        if stream.name not in self._sources:
            self._sources[stream.name] = self._load(stream)
        return self._sources[stream.name]

    def _load(self, stream: Stream) -> DataFrame:
        reader = self._spark.readStream.format(self._format).option("includeHeaders", "true")
        for key, value in self._kafka.items():
            reader = reader.option(f"kafka.{key}", value)
        reader = reader.option("subscribe", stream.topic)
        starting = stream.starting if self._starting is None else self._starting
        if isinstance(starting, int):
            reader = reader.option("startingTimestamp", str(starting)).option(
                "startingOffsetsByTimestampStrategy", "latest"
            )
        else:
            reader = reader.option("startingOffsets", starting)
        if stream.max_offsets_per_trigger is not None:
            reader = reader.option("maxOffsetsPerTrigger", str(stream.max_offsets_per_trigger))
        return reader.load()

    def _stream(self, stream: Stream) -> DataFrame:
        from pyspark.sql import functions as f

        def observed(df: DataFrame) -> DataFrame:
            return _observed(df, stream.name, f.col("timestamp"))

        source = self._source(stream)
        if stream.format == "raw":
            df = observed(source)
        else:
            df, _ = parse(source, stream, self._pipeline.name, observed)
        df = mark(df, f"topic {stream.topic}")
        if stream.event_time is not None and stream.watermark is not None:
            df = df.withWatermark(stream.event_time, as_interval(stream.watermark))
        # A column may be named with its stream: col("departures.flight").
        return df.alias(stream.name)

    def _run_sql(self, text: str, inputs: Mapping[str, StreamInput | TableInput]) -> DataFrame:
        from tidemill.spark.windows import sql

        # Views of a session are seen by all its queries: each gets those that it names, anew.
        for name, each in inputs.items():
            each.df.createOrReplaceTempView(name)
        result: DataFrame = sql(self._spark, text)
        return result


def _observed(df: DataFrame, name: str, timestamp: Column) -> DataFrame:
    """Tell when the records of a batch were appended: between them and its end is the latency."""
    from pyspark.sql import functions as f

    appended = f.unix_millis(timestamp)
    # A query may use an input twice: Spark wants each metric to have a name of its own.
    return df.observe(
        f"{APPENDED}_{name}_{next(_uses)}",
        f.max(appended).alias("newest"),
        f.min(appended).alias("oldest"),
    )


def as_interval(duration: Duration) -> str:
    """A duration in Spark's words."""
    return duration if isinstance(duration, str) else f"{microseconds(duration)} microseconds"


def _problem(query: Query, error: Exception) -> Problem:
    """What is wrong, at the line of the user's file where it went wrong."""
    place, trace = query.place, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == query.place.file:
            place = replace(place, line=trace.tb_lineno)
        trace = trace.tb_next
    if isinstance(error, TidemillError):
        return Problem(place, f"query {query.name}: {error}", error.hint)
    text = told_by_spark(str(error)) or type(error).__name__
    is_sparks = type(error).__module__.startswith("pyspark")
    kind = "" if is_sparks else f"{type(error).__name__}: "
    return Problem(place, f"query {query.name}: {kind}{text}", hint_for(str(error)))
