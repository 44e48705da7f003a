"""Starts a query: its result, its sink, its checkpoint.

Rows as records and as rows of tables; which writer a sink has is one table here. Must not know:
how queries are watched and restarted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.errors import PipelineError
from tidemill.spark.checkpoint import Identity
from tidemill.spark.inputs import Built, as_interval
from tidemill.spark.sink import write_batch
from tidemill.spark.sinks import (
    ChangelogSink,
    DuckDBSink,
    ForeachBatchSink,
    ParquetSink,
    PostgresSink,
    SqliteSink,
    TableSink,
    TopicSink,
    as_columns,
)
from tidemill.spark.upsert import UpsertTable
from tidemill.spark.upsert_rows import layout_of

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


class Started:
    """A streaming query of Spark's, as ``watch.Running``.

    Args:
        close: lets go of what its sink holds between batches.
    """

    def __init__(self, query: StreamingQuery, close: Callable[[], None]) -> None:
        self._query: Any = query
        self._close = close
        self._last = ""

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""
        active = bool(self._query.isActive)
        if not active:
            self._close()
        return active

    def updates(self) -> list[dict[str, Any]]:
        """Progress since the last call, oldest first: of the last 100 that Spark keeps."""
        # PySpark's own recentProgress asks the JVM for each field of each, and takes a second.
        recent = self._query._jsq.recentProgress()
        new: list[str] = []
        for index in reversed(range(len(recent))):
            text = recent[index].json()
            if text == self._last:
                break
            new.append(text)
        if new:
            self._last = new[0]
        return [json.loads(text) for text in reversed(new)]

    def error(self) -> BaseException | None:
        """Why it ended, if it failed."""
        found: BaseException | None = self._query.exception()
        return found

    def stop(self) -> None:
        """End it; a batch that is under way is run again by the next start."""
        try:
            self._query.stop()
        finally:
            self._close()


def start(built: Built, how: Start) -> Started:
    """Start a query.

    Raises:
        TidemillError: the sink can't take the result.
        Exception: what Spark says when it refuses.
    """
    sink = built.query.sink
    table = _table(sink) if isinstance(sink, TableSink) else None
    writer = (
        _writer(built, how, table)
        .outputMode(built.query.mode)
        .queryName(f"{how.pipeline}/{built.query.name}")
        .option("checkpointLocation", how.checkpoint)
    )
    if how.until_caught_up:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=as_interval(built.query.trigger))
    context = built.df.sparkSession.sparkContext
    # Where Spark schedules fairly, each query has its share of the cores.
    context.setLocalProperty(_POOL, f"{how.pipeline}/{built.query.name}")
    try:
        return Started(writer.start(), _nothing if table is None else table.close)
    finally:
        context._jsc.setLocalProperty(_POOL, None)


_POOL = "spark.scheduler.pool"


def _nothing() -> None: ...


def _writer(built: Built, how: Start, table: UpsertTable[Any] | None) -> Any:
    df, query, sink = built.df, built.query, built.query.sink
    if query.mode == "append" and isinstance(sink, TopicSink):
        return _to_topic(records(df, sink.key_columns), sink.topic, how, query.name)
    if isinstance(sink, ParquetSink):
        writer = df.writeStream.format("parquet").option("path", str(sink.path))
        if sink.partition_by:
            writer = writer.partitionBy(*as_columns(sink.partition_by))
        return writer
    return df.writeStream.foreachBatch(_batch_function(built, how, table))


def check_sink(built: Built, *, is_fresh: bool) -> None:
    """Whether a sink can take a result.

    Args:
        is_fresh: the query begins with a new checkpoint.

    Raises:
        PipelineError: columns that it asks for are not there, or it holds another one's batches.
        SchemaError: a table can't hold the result.
    """
    sink, names = built.query.sink, [name.lower() for name in built.df.columns]
    missing = [column for column in sink.key_columns if column.lower() not in names]
    if missing:
        raise PipelineError(
            f"the result has no column {', '.join(missing)}, which {type(sink).__name__} asks for",
            hint=f"There are {', '.join(built.df.columns)}.",
        )
    if isinstance(sink, TableSink):
        layout_of(built.df.schema, sink.key_columns, as_columns(sink.order_by))
    if isinstance(sink, ParquetSink) and is_fresh and (Path(sink.path) / _LEDGER).exists():
        raise PipelineError(
            f"folder {sink.path} holds what another checkpoint wrote: Spark numbers batches from 0 "
            "again, and would take them for those that are there",
            hint="Give the query a new folder, or remove that one.",
        )


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


_LEDGER = "_spark_metadata"
_RECORD_COLUMNS = {"key", "value", "headers", "partition", "timestamp"}


def _to_topic(df: DataFrame, topic: str, how: Start, name: str) -> Any:
    writer = df.writeStream.format("tidemill").option("topic", topic)
    for key, value in how.kafka.items():
        writer = writer.option(f"kafka.{key}", value)
    return writer.option("sinkId", _sink_id(how, name))


def _sink_id(how: Start, name: str) -> str:
    """Of the checkpoint, not of the query: one that starts afresh writes everything anew."""
    return f"{how.pipeline}.{name}.{how.identity.id}"


def _batch_function(built: Built, how: Start, table: UpsertTable[Any] | None) -> BatchFunction:
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
    if table is None:
        raise PipelineError(f"nothing writes to {sink.target}")

    def to_table(df: DataFrame, batch_id: int) -> None:
        table.write(df, batch_id, how.identity.created_ms)

    return to_table


def _table(sink: TableSink) -> UpsertTable[Any]:
    order_by = as_columns(sink.order_by)
    if isinstance(sink, SqliteSink):
        from tidemill.spark.upsert_sqlite import SqliteTable

        return SqliteTable(sink.path, sink.table, sink.key_columns, order_by)
    if isinstance(sink, DuckDBSink):
        from tidemill.spark.upsert_duckdb import DuckDBTable

        return DuckDBTable(sink.path, sink.table, sink.key_columns, order_by)
    if isinstance(sink, PostgresSink):
        from tidemill.spark.upsert_postgres import PostgresTable

        return PostgresTable(sink.dsn, sink.table, sink.key_columns, order_by)
    raise PipelineError(f"nothing writes to {sink.target}")
