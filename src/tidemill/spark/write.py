"""Starts a query: its result, its sink, its checkpoint.

Rows as records and as rows of tables; which writer a sink has is one table here. Must not know:
how queries are watched and restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.errors import PipelineError
from tidemill.spark.checkpoint import Identity
from tidemill.spark.inputs import Built
from tidemill.spark.sink import write_batch
from tidemill.spark.sinks import (
    ChangelogSink,
    DuckDBSink,
    ForeachBatchSink,
    ParquetSink,
    PostgresSink,
    Sink,
    SqliteSink,
    TableSink,
    TopicSink,
    as_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

DELETED = "_deleted"
"""Column that says of a row that its key is gone."""

BatchFunction = Callable[[Any, int], None]


@dataclass(frozen=True, slots=True)
class Start:
    """How a query is started.

    Attributes:
        pipeline: its pipeline's name.
        identity: of its checkpoint.
        checkpoint: Spark's folder.
        kafka: librdkafka's settings, with ``bootstrap.servers``.
        until_caught_up: stop when all that is there now has been read.
    """

    pipeline: str
    identity: Identity
    checkpoint: str
    kafka: Mapping[str, str]
    until_caught_up: bool = False


def start(built: Built, how: Start) -> StreamingQuery:
    """Start a query.

    Raises:
        TidemillError: the sink can't take the result.
        Exception: what Spark says when it refuses.
    """
    query = built.query
    df, sink = built.df, query.sink
    if query.mode == "append" and isinstance(sink, TopicSink):
        writer = _to_topic(records(df, sink.key_columns), sink.topic, how, query.name)
    elif isinstance(sink, ParquetSink):
        writer = df.writeStream.format("parquet").option("path", str(sink.path))
        if sink.partition_by:
            writer = writer.partitionBy(*as_columns(sink.partition_by))
    else:
        writer = df.writeStream.foreachBatch(_batch_function(built, how))
    writer = (
        writer.outputMode(query.mode)
        .queryName(f"{how.pipeline}/{query.name}")
        .option("checkpointLocation", how.checkpoint)
    )
    if how.until_caught_up:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=query.trigger)
    started: StreamingQuery = writer.start()
    return started


def check_sink(built: Built) -> None:
    """Whether a result has the columns that its sink asks for.

    Raises:
        PipelineError: it has not.
    """
    sink, names = built.query.sink, [name.lower() for name in built.df.columns]
    missing = [column for column in sink.key_columns if column.lower() not in names]
    if missing:
        raise PipelineError(
            f"the result has no column {', '.join(missing)}, which {type(sink).__name__} asks for",
            hint=f"There are {', '.join(built.df.columns)}.",
        )
    if isinstance(sink, (ChangelogSink, TableSink)) and not sink.key_columns:
        raise PipelineError(f"{type(sink).__name__} has no key", hint='For example key="id".')


def records(df: DataFrame, key: tuple[str, ...], *, tombstones: bool = False) -> DataFrame:
    """Rows as records: columns ``key`` and ``value``, or those of a ready-made record.

    A result that has ``value`` as text or bytes, and nothing else than a sink's columns, is taken
    as it is.
    """
    from pyspark.sql import functions as f

    types = dict(df.dtypes)
    if not key and types.get("value") in ("string", "binary") and set(types) <= _RECORD_COLUMNS:
        return df
    value: Column = f.to_json(f.struct(*[c for c in df.columns if c != DELETED]))
    if tombstones and DELETED in df.columns:
        value = f.when(f.col(DELETED), f.lit(None)).otherwise(value)
    if not key:
        return df.select(value.alias("value"))
    made = f.col(key[0]).cast("string") if len(key) == 1 else f.to_json(f.struct(*key))
    return df.select(made.alias("key"), value.alias("value"))


_RECORD_COLUMNS = {"key", "value", "headers", "partition", "timestamp"}


def _to_topic(df: DataFrame, topic: str, how: Start, name: str) -> Any:
    writer = df.writeStream.format("tidemill").option("topic", topic)
    for key, value in how.kafka.items():
        writer = writer.option(f"kafka.{key}", value)
    return writer.option("sinkId", _sink_id(how, name))


def _sink_id(how: Start, name: str) -> str:
    """Of the checkpoint, not of the query: one that starts afresh writes everything anew."""
    return f"{how.pipeline}.{name}.{how.identity.id}"


def _batch_function(built: Built, how: Start) -> BatchFunction:
    sink, name = built.query.sink, built.query.name
    if isinstance(sink, ForeachBatchSink):
        return sink.function
    if isinstance(sink, (TopicSink, ChangelogSink)):
        tombstones = isinstance(sink, ChangelogSink)
        topic, key = sink.topic, sink.key_columns

        def to_topic(df: DataFrame, batch_id: int) -> None:
            rows = records(df, key, tombstones=tombstones)
            write_batch(rows, batch_id, topic=topic, sink_id=_sink_id(how, name), kafka=how.kafka)

        return to_topic
    table = _table(sink)

    def to_table(df: DataFrame, batch_id: int) -> None:
        table.write(df, batch_id, how.identity.created_ms)

    return to_table


def _table(sink: Sink) -> Any:
    if isinstance(sink, SqliteSink):
        from tidemill.spark.upsert_sqlite import SqliteTable

        return SqliteTable(sink.path, sink.table, sink.key_columns)
    if isinstance(sink, DuckDBSink):
        from tidemill.spark.upsert_duckdb import DuckDBTable

        return DuckDBTable(sink.path, sink.table, sink.key_columns)
    if isinstance(sink, PostgresSink):
        from tidemill.spark.upsert_postgres import PostgresTable

        return PostgresTable(sink.dsn, sink.table, sink.key_columns)
    raise PipelineError(f"nothing writes to {sink.target}")
