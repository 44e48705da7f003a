"""Starts a query: its result, its sink, its checkpoint.

Rows as records and as rows of tables; which writer a sink has is one table here. Must not know:
how queries are watched and restarted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.errors import PipelineError
from tidemill.spark.checkpoint import Identity
from tidemill.spark.ddl import escaped
from tidemill.spark.explain import RESET, told_by_spark
from tidemill.spark.inputs import Built, as_interval
from tidemill.spark.ledger import batches_in
from tidemill.spark.options import noted
from tidemill.spark.plans import Begun
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
        begun: file beside the checkpoint in which a sink that is a table keeps what it began last.
    """

    pipeline: str
    identity: Identity
    checkpoint: str
    kafka: Mapping[str, str]
    until_caught_up: bool = False
    begun: Path | None = None


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


def check_sink(
    built: Built, *, is_fresh: bool, planned: int | None = None, reset: str = RESET
) -> None:
    """Whether a sink can take a result.

    Args:
        is_fresh: the query begins with a new checkpoint.
        planned: the last batch that the checkpoint has planned, where that is known.
        reset: the command that gives it one.

    Raises:
        PipelineError: columns that it asks for are not there, no records can be made of the
            result, or it does not hold the batches of this checkpoint, but another one's or none.
        SchemaError: a table can't hold the result.
    """
    sink, names = built.query.sink, [name.lower() for name in built.df.columns]
    missing = [column for column in sink.key_columns if column.lower() not in names]
    if missing:
        raise PipelineError(
            f"the result has no column {', '.join(missing)}, which {type(sink).__name__} asks for",
            hint=f"There are {', '.join(built.df.columns)}.",
        )
    if isinstance(sink, (TopicSink, ChangelogSink)):
        _check_records(built.df, sink)
    if isinstance(sink, TableSink):
        layout_of(built.df.schema, sink.key_columns, as_columns(sink.order_by))
    if isinstance(sink, ParquetSink):
        _check_folder(built.df, str(sink.path), is_fresh, planned, reset)


def _check_folder(
    df: DataFrame, folder: str, is_fresh: bool, planned: int | None, reset: str
) -> None:
    """Whether a folder's batches are those that the checkpoint has begun."""
    noted_there = batches_in(df.sparkSession, folder)
    if is_fresh and noted_there:
        raise PipelineError(
            f"folder {folder} holds what another checkpoint wrote: Spark numbers batches from 0 "
            "again, and would take them for those that are there",
            hint="Give the query a new folder, or remove that one.",
        )
    if noted_there and planned is not None and max(noted_there) > planned:
        raise PipelineError(
            f"folder {folder} holds batch {max(noted_there)}, and the checkpoint has planned none "
            f"behind {planned}: it was put back from a backup, or copied, and Spark would take "
            "what it plans next for what is there",
            hint=f"Start the query afresh, in a new folder: {reset}",
        )
    # Before its first batch is begun a query makes the ledger, if an empty one.
    if not is_fresh and noted_there is None:
        raise PipelineError(
            f"folder {folder} holds none of the batches that the checkpoint has begun: what is "
            "written next could not be read without them",
            hint=f"Name or put back the folder with them, or start the query afresh: {reset}",
        )


def _check_records(df: DataFrame, sink: TopicSink | ChangelogSink) -> None:
    """Make records of a result, as the query would once it runs."""
    from pyspark.errors import AnalysisException

    try:
        records(df, sink.key_columns, tombstones=isinstance(sink, ChangelogSink))
    except AnalysisException as error:
        raise PipelineError(
            f"{type(sink).__name__} can't write the result: {told_by_spark(str(error))}",
            hint="Rename or cast the columns.",
        ) from error


def records(df: DataFrame, key: tuple[str, ...], *, tombstones: bool = False) -> DataFrame:
    """Rows as records: columns ``key`` and ``value``, or those of a ready-made record.

    A result is a ready-made record if it has ``value`` and no other columns than ``key`` and
    ``headers``, of the types that Kafka's records have, and no key is asked for. Any other one
    becomes JSON, so that none of its columns is lost or means what it was not meant for: a
    ``timestamp`` would not be written, a ``partition`` would say where the record goes.

    Args:
        key: columns of the record's key.
        tombstones: it is for a changelog: rows whose ``_deleted`` is true have no value, and one
            without a whole key fails the query.
    """
    from pyspark.sql import functions as f

    if not key and _is_ready_made(df.dtypes):
        return df
    deleted = next((c for c in df.columns if tombstones and c.lower() == DELETED), None)
    value: Column = f.to_json(f.struct(*[_column(c) for c in df.columns if c != deleted]))
    if deleted is not None:
        value = f.when(_column(deleted), f.lit(None)).otherwise(value)
    if not key:
        return df.select(value.alias("value"))
    parts = [_required(name) if tombstones else _column(name) for name in key]
    made = parts[0].cast("string") if len(parts) == 1 else f.to_json(f.struct(*parts))
    return df.select(made.alias("key"), value.alias("value"))


def _is_ready_made(columns: Sequence[tuple[str, str]]) -> bool:
    names = [name for name, _ in columns]
    return (
        "value" in names
        and len(set(names)) == len(names)
        and all(kind in _RECORD_TYPES.get(name, ()) for name, kind in columns)
    )


def _column(name: str) -> Column:
    """A column of any name, as Spark gives one to what has no alias: ``max((delay * 1.5))``."""
    from pyspark.sql import functions as f

    return f.col(escaped(name))


def _required(name: str) -> Column:
    """A column of a changelog's key: a reader could not tell which row a null belongs to."""
    from pyspark.sql import functions as f

    error = f.raise_error(f.lit(_NO_KEY.format(name)))
    return f.coalesce(_column(name), error).alias(name)


_NO_KEY = "a row has no {}, which is of the key"
_NO_KEY_TOLD = re.compile(_NO_KEY.format("(.+?)"))
_RECORD_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
}


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
            rows, sink_id = records(df, key, tombstones=tombstones), _sink_id(how, name)
            try:
                write_batch(
                    rows,
                    batch_id,
                    topic=topic,
                    sink_id=sink_id,
                    kafka=how.kafka,
                    checkpoint=how.checkpoint,
                )
            except Exception as error:
                found = _NO_KEY_TOLD.search(str(error))
                if found is None:
                    raise
                # The same rows would come again: no restart mends it.
                raise noted(
                    PipelineError(
                        f"a row for topic {topic} has no {found[1]}, which is of the key",
                        hint=f'Leave such rows out: filter("{escaped(found[1])} IS NOT NULL").',
                    )
                ) from error

        return to_topic
    if table is None:
        raise PipelineError(f"nothing writes to {sink.target}")

    begun = None if how.begun is None else Begun(how.begun, how.checkpoint)

    def to_table(df: DataFrame, batch_id: int) -> None:
        table.write(df, batch_id, how.identity.created_ms, begun)

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
