"""A pipeline's streams and tables as DataFrames, and its queries built of them.

Must not know: sinks' writing, checkpoints, progress topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidemill.errors import PipelineError, TidemillError
from tidemill.spark import sql_check, tables
from tidemill.spark.dead_letters import parse
from tidemill.spark.pipeline import Pipeline, Query, Stream, Table
from tidemill.spark.pipeline_check import Problem
from tidemill.spark.progress import APPENDED
from tidemill.spark.window_spec import Duration, microseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        t = self.declaration
        return tables.read_changes(self.spark, t.topic, t.schema, t.key, self.kafka)


@dataclass(frozen=True)
class Built:
    """A query that can be started.

    Attributes:
        df: its result.
        sources: topics that it reads, in the order of its inputs.
    """

    query: Query
    df: DataFrame
    sources: tuple[str, ...]


class Builder:
    """Makes DataFrames of what a pipeline declares.

    Args:
        kafka: librdkafka's settings, with ``bootstrap.servers``.
        starting: overrides where new queries begin.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        kafka: Mapping[str, str],
        starting: str | int | None = None,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        # What a transaction has not committed is no fact yet: exactly once from log to log.
        self._kafka = {"isolation.level": "read_committed", **kafka}
        self._starting = starting

    def build_all(self) -> tuple[list[Built], list[Problem]]:
        """All queries, and what Spark says is wrong with the others."""
        built, problems = [], []
        for query in self._pipeline.queries:
            try:
                built.append(self.build(query))
            except Exception as error:  # of the user's function, or of Spark's analysis
                problems.append(_problem(query, error))
        return built, problems

    def build(self, query: Query) -> Built:
        """One query's result; nothing is run.

        Raises:
            PipelineError: it does not return a streaming DataFrame.
            Exception: whatever the user's function or Spark's analysis raises.
        """
        names = query.inputs
        if query.sql is not None:
            found = sql_check.tables_of(query.sql)
            names = tuple(each.name for each in self._pipeline.inputs) if found is None else found
        inputs = {name: self._input(name) for name in names}
        sources = tuple(self._topic(name) for name in names)
        result: Any = query.sql
        if query.build is not None:
            result = query.build(**inputs)
        if isinstance(result, str):
            result = self._run_sql(result, inputs)
        if not hasattr(result, "isStreaming"):
            raise PipelineError(
                f"query {query.name} returns {type(result).__name__}",
                hint="Return a DataFrame, or a SQL string.",
            )
        if not result.isStreaming:
            raise PipelineError(
                f"the result of query {query.name} is no stream: it would be computed once",
                hint="Use a stream, or a table's .changes.",
            )
        return Built(query, result, sources)

    def dead_letters(self, stream: Stream) -> Built | None:
        """What can't be parsed of a stream, as a query of its own; None where there is nothing."""
        from tidemill.spark.sinks import TopicSink

        if stream.format == "raw" or stream.dead_letters is None:
            return None
        _, bad = parse(self._source(stream), stream, self._pipeline.name)
        query = Query(
            name=f"{stream.name}.dlq",
            inputs=(stream.name,),
            build=None,
            sql=None,
            sink=TopicSink(stream.dead_letters),
            mode="append",
            trigger="1 second",
            place=stream.place,
        )
        return Built(query, bad, (stream.topic,))

    def _input(self, name: str) -> StreamInput | TableInput:
        found = self._pipeline.find(name)
        if found is None:
            raise PipelineError(f"{name} is not declared")
        if isinstance(found, Table):
            return TableInput(found, self._spark, self._kafka)
        return StreamInput(self._stream(found), found)

    def _topic(self, name: str) -> str:
        found = self._pipeline.find(name)
        return name if found is None else found.topic

    def _source(self, stream: Stream) -> DataFrame:
        reader = self._spark.readStream.format("tidemill").option("includeHeaders", "true")
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

        source = self._source(stream)
        appended = f.unix_millis("timestamp")
        source = source.observe(
            f"{APPENDED}_{stream.name}",
            f.max(appended).alias("newest"),
            f.min(appended).alias("oldest"),
        )
        if stream.format == "raw":
            df = source
        else:
            df, _ = parse(source, stream, self._pipeline.name)
        if stream.event_time is not None and stream.watermark is not None:
            df = df.withWatermark(stream.event_time, as_interval(stream.watermark))
        return df

    def _run_sql(self, text: str, inputs: Mapping[str, StreamInput | TableInput]) -> DataFrame:
        from tidemill.spark.windows import sql

        # Views of a session are seen by all its queries: each gets those that it names, anew.
        for name, each in inputs.items():
            each.df.createOrReplaceTempView(name)
        result: DataFrame = sql(self._spark, text)
        return result


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
    # Spark appends its plan, which fills the screen.
    text = str(error).split(";\n")[0].strip() or type(error).__name__
    kind = "" if type(error).__module__.startswith("pyspark") else f"{type(error).__name__}: "
    return Problem(place, f"query {query.name}: {kind}{text}")
