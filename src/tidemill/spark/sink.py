"""The sink as Spark sees it: rows into Kafka topics; ``deliver`` and ``transactional`` do the work.

Columns are those of Spark's Kafka sink: ``value``, and where they are there ``key``, ``topic``,
``partition`` and ``headers``; others are not written. A stream with the option ``topic`` writes
exactly once: each task in a transaction of its own, for readers of committed records. With
``delivery`` at-least-once a task that is run again writes its rows again. Must not know: the
broker's inside, the source, Kafka clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tidemill.errors import DeliveryError
from tidemill.spark import whole_input
from tidemill.spark.options import noted, refuse
from tidemill.spark.plans import Plan, plan_of
from tidemill.spark.sink_options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions, check_exactly_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from tidemill.spark.transactional import Share

_COLUMN_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}

# Spark's names for what it tells each task of a streaming query.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"

_written: dict[tuple[str, str], tuple[str | None, int]] = {}
"""(run, batch) that ``write_batch`` wrote last, by sink id and topic."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task wrote."""

    rows: int


def write_batch(
    df: DataFrame,
    batch_id: int,
    *,
    topic: str,
    sink_id: str,
    kafka: Mapping[str, str],
    checkpoint: str | None = None,
) -> None:
    """Write a batch of ``foreachBatch`` exactly once: the way for update mode.

    Args:
        df: with the sink's columns.
        batch_id: as Spark gives it; a batch that is run again writes nothing anew.
        topic: for all rows.
        sink_id: name of this output, never shared by two checkpoints, nor by two calls of a batch.
        kafka: librdkafka's settings, with ``bootstrap.servers``.
        checkpoint: folder of the query's checkpoint: with it, a batch that it has planned anew,
            after it was put back from a backup, is not taken for the one that was written.

    Raises:
        OptionError: a setting or a column is wrong.
        DeliveryError: this batch was written under the same ``sink_id`` by another call.
    """
    # Of the query that is running; a batch that failed is run again in another run of it.
    run = df.sparkSession.sparkContext.getLocalProperty(_RUN_ID)
    this = (run, batch_id)
    if run is not None and _written.get((sink_id, topic)) == this:
        raise noted(
            DeliveryError(
                f"batch {batch_id} was written to {topic} as {sink_id!r} before, in the same run: "
                "these rows would be taken for those",
                hint="Give each call of write_batch a sink_id of its own.",
            )
        )
    writer = df.write.format("tidemill").mode("append")
    for name, value in kafka.items():
        writer = writer.option(f"kafka.{name}", value)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    writer = writer.option("topic", topic).option("delivery", EXACTLY_ONCE)
    writer.option("sinkId", sink_id).option("batchId", str(batch_id)).save()
    _written[sink_id, topic] = this


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Check what is to be written before anything is.

    Raises:
        OptionError: a column is missing or of the wrong type, or no topic is known.
    """
    types = {f.name: f.dataType.simpleString() for f in schema.fields}
    for name, allowed in _COLUMN_TYPES.items():
        if name in types and types[name] not in allowed:
            raise refuse(
                f"column {name} is {types[name]}; the sink takes {' or '.join(allowed)}",
                "Cast it, or make a text of it with to_json().",
            )
    if "value" not in types:
        raise refuse(
            f"there is no column value among {', '.join(types)}",
            'For example: select(to_json(struct("*")).alias("value")).',
        )
    if options.topic is None and "topic" not in types:
        raise refuse("no topic to write to", "Set the option topic, or have a column topic.")


class _Writer:
    """What batch and streaming writers share. Pickled to the workers."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        check_columns(schema, options)
        self._options = options
        # Made for each batch, where the query is: there Spark has just written the plan.
        self._plan = plan_of(options.checkpoint, options.batch_id)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A worker has the writer before it reads the task's rows.
        whole_input.watch()
        self.__dict__.update(state)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write a task's rows. Runs in a worker.

        Raises:
            DeliveryError: a row was not accepted, or a topic is null; or the rows broke off.
            OptionError: librdkafka does not know a setting.
        """
        options = self._options
        if options.delivery != EXACTLY_ONCE or options.topic is None:
            from tidemill.spark.deliver import write_rows

            return Written(write_rows(iterator, options.topic, options.kafka))
        from tidemill.spark.transactional import write_share

        share = _share(options, self._plan)
        rows = write_share(
            _whole(iterator), options.topic, options.kafka, share, marker_topic=options.topic
        )
        return Written(rows)


def _whole(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All of them; an error at the end where they are not all."""
    yield from batches
    whole_input.ensure_whole()


def _share(options: SinkOptions, plan: Plan | None) -> Share:
    """Which rows this task has, as Spark tells it."""
    from tidemill.spark.transactional import Share

    task = TaskContext.get()
    if task is None:
        raise refuse("exactly-once delivery works in Spark's tasks only")
    query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
    sink_id = options.sink_id or (query and f"tidemill-{query}")
    batch_id = batch if options.batch_id is None else options.batch_id
    if sink_id is None or batch_id is None:
        raise refuse(
            "exactly-once delivery needs a query's batch",
            "Use writeStream, or set the options sinkId and batchId.",
        )
    run = f"{task.getLocalProperty(_RUN_ID) or ''}#{task.attemptNumber()}"
    planned = plan.id if plan is not None and plan.batch_id == int(batch_id) else ""
    return Share(
        sink_id, task.partitionId(), int(batch_id), owner=query or "", run=run, plan=planned
    )


class TopicWriter(_Writer, DataSourceArrowWriter):
    """``df.write``: when all tasks have written, all is written; there is nothing to commit.

    At least once, but in ``foreachBatch`` with ``delivery``, ``sinkId`` and ``batchId``.
    """

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        if options.delivery == EXACTLY_ONCE and None in (options.sink_id, options.batch_id):
            raise refuse(
                "exactly-once delivery of a batch needs the options sinkId and batchId",
                "Give both in foreachBatch, or set delivery to at-least-once.",
            )
        super().__init__(schema, options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: rows are in the log when their task ends."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what tasks that succeeded have written stays."""


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """``df.writeStream``: with the option ``topic`` exactly once, unless ``delivery`` says other.

    Tasks commit by themselves: a batch of several becomes visible task by task.
    """

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        if options.batch_id is not None:
            raise refuse("option batchId is for df.write: a stream numbers its batches itself")
        if options.delivery is None:
            options = replace(
                options, delivery=AT_LEAST_ONCE if options.topic is None else EXACTLY_ONCE
            )
        if options.delivery == EXACTLY_ONCE:
            check_exactly_once(options)
        super().__init__(schema, options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: rows are in the log when their task ends."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what tasks that succeeded have written stays."""
