"""Writers of the data source ``tidemill``, as Spark calls them: rows to Kafka topics.

The columns are those of Spark's Kafka sink: ``value``, and optionally ``key``, ``topic``,
``partition`` and ``headers``. Other columns are not written. A stream with the option ``topic``
writes exactly once for readers of committed records: each task writes in its own transaction. With
``delivery`` at-least-once, a task that is run again writes its rows again. Must not know:
pipelines, how a topic is read, Kafka clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tidemill.spark.errors import OptionError
from tidemill.spark.sinks.batch_identity import BatchIdentity, batch_identity
from tidemill.spark.sinks.topic import complete_input
from tidemill.spark.sinks.topic.options import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    SinkOptions,
    check_exactly_once,
)
from tidemill.spark.sinks.topic.tasks import complete, task_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tidemill.spark.sinks.topic.delivery.exactly_once import Share

_COLUMN_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The result of a task.

    Attributes:
        rows: Number of rows that it wrote.
    """

    rows: int


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Check the columns of the rows before anything is written.

    Raises:
        OptionError: A column is missing or has the wrong type, or no topic is named.
    """
    types = {f.name: f.dataType.simpleString() for f in schema.fields}
    for name, allowed in _COLUMN_TYPES.items():
        if name in types and types[name] not in allowed:
            raise OptionError(
                f"column {name} has the type {types[name]}, but must be {' or '.join(allowed)}",
                hint="Cast it, or convert it with to_json().",
            )
    if "value" not in types:
        raise OptionError(
            f"the column value is missing; the columns are {', '.join(types)}",
            hint='For example: select(to_json(struct("*")).alias("value")).',
        )
    if options.topic is None and "topic" not in types:
        raise OptionError("no topic is named", hint="Set the option topic, or add a column topic.")


class _Writer:
    """Base of the batch and the streaming writer. Spark pickles it to the workers."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        check_columns(schema, options)
        self._options = options
        # Spark creates the writer for each batch on the driver, just after it planned the batch.
        self._identity = batch_identity(options.checkpoint, options.batch_id)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A worker unpickles the writer before it reads the rows of the task.
        complete_input.watch()
        self.__dict__.update(state)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task. Runs in a worker."""
        options = self._options
        if options.delivery != EXACTLY_ONCE or options.topic is None:
            from tidemill.spark.sinks.topic.delivery.at_least_once import write_rows

            return Written(write_rows(iterator, options.topic, options.kafka))
        from tidemill.spark.sinks.topic.delivery.exactly_once import write_share

        share = _share(options, self._identity)
        rows = write_share(
            complete(iterator), options.topic, options.kafka, share, marker_topic=options.topic
        )
        return Written(rows)


def _share(options: SinkOptions, identity: BatchIdentity | None) -> Share:
    """Return which part of the batch this task writes."""
    task = task_batch()
    if task is None:
        raise OptionError("exactly-once delivery works inside of Spark tasks only")
    sink_id = options.sink_id or (task.query and f"tidemill-{task.query}")
    batch_id = task.batch_id if options.batch_id is None else options.batch_id
    if not sink_id or batch_id is None:
        raise OptionError(
            "exactly-once delivery needs the batch of a query",
            hint="Use writeStream, or set the options sinkId and batchId.",
        )
    return task.share(sink_id, batch_id, identity)


class TopicWriter(_Writer, DataSourceArrowWriter):
    """Writer for ``df.write``. Each task makes its rows visible itself, so there is no commit.

    Delivery is at least once. In ``foreachBatch`` the options ``delivery``, ``sinkId`` and
    ``batchId`` together make it exactly once.
    """

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        if options.delivery == EXACTLY_ONCE and None in (options.sink_id, options.batch_id):
            raise OptionError(
                "exactly-once delivery of a batch needs the options sinkId and batchId",
                hint="Set both in foreachBatch, or set delivery to at-least-once.",
            )
        super().__init__(schema, options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: rows are in the log when their task ends."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the rows of tasks that succeeded stay in the topic."""


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writer for ``df.writeStream``.

    With the option ``topic`` delivery is exactly once, unless ``delivery`` is at-least-once. Each
    task commits its own transaction, so a batch becomes visible task by task.
    """

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        if options.batch_id is not None:
            raise OptionError(
                "option batchId is for df.write only: a stream numbers its own batches"
            )
        if options.delivery is None:
            options = replace(
                options, delivery=AT_LEAST_ONCE if options.topic is None else EXACTLY_ONCE
            )
        if options.delivery == EXACTLY_ONCE:
            check_exactly_once(options)
        super().__init__(schema, options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: rows are in the log when their task ends."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the rows of tasks that succeeded stay in the topic."""
