"""The sink as Spark sees it: rows into Kafka topics, at least once; ``deliver`` does the writing.

Columns are those of Spark's Kafka sink: ``value``, and where they are there ``key``, ``topic``,
``partition`` and ``headers``; others are not written. A task that is run again writes its rows
again. Must not know: the broker's inside, the source, Kafka clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tidemill.spark.options import SinkOptions, refuse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_COLUMN_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task wrote."""

    rows: int


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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write a task's rows. Runs in a worker.

        Raises:
            DeliveryError: a row was not accepted, or a topic is null.
            OptionError: librdkafka does not know a setting.
        """
        from tidemill.spark.deliver import write_rows

        return Written(write_rows(iterator, self._options.topic, self._options.kafka))


class TopicWriter(_Writer, DataSourceArrowWriter):
    """``df.write``: when all tasks have written, all is written; there is nothing to commit."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: rows are in the log when their task ends."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what tasks that succeeded have written stays."""


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """``df.writeStream``: a batch that is run again is written again."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: rows are in the log when their task ends."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what tasks that succeeded have written stays."""
