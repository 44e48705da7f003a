"""Read a table from a changelog topic: the last value of each key counts, and null deletes it.

``rows`` decides which record of a key is the last one. Must not know: pipelines, sinks, joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.duration import Duration, microseconds
from tidemill.spark.base.options import ISO, TIMESTAMP_FORMATS, TOPIC_NAME
from tidemill.spark.errors import OptionError, PipelineError
from tidemill.spark.tables.changes import TableSpec
from tidemill.spark.tables.source import TableContext, TableSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class ChangelogTopic(TableSource):
    """A table whose changes are the records of a topic; usually a compacted one.

    Values are JSON objects, and keys are as ``TopicSink`` and ``ChangelogSink`` write them: one
    column as its text, several as a JSON object. A null value deletes the row of its key. A record
    that does not fit the schema fails the job that reads it.

    Attributes:
        topic: created compacted if it is missing.
        timestamp_format: what a number in a TIMESTAMP column means: ``iso`` (it is refused),
            ``epoch_s``, ``epoch_ms`` or ``epoch_us``.
    """

    topic: str
    timestamp_format: str = ISO

    @property
    def description(self) -> str:
        """The source as messages name it."""
        return f"topic {self.topic}"

    @property
    def topics(self) -> tuple[str, ...]:
        """The topic."""
        return (self.topic,)

    def check(self) -> None:
        """Check the name of the topic and the format of timestamps.

        Raises:
            PipelineError: no broker accepts the name.
            OptionError: the format is unknown.
        """
        if not TOPIC_NAME.fullmatch(self.topic):
            raise PipelineError(
                f"invalid topic name {self.topic!r}",
                hint="Use letters, digits, '.', '_' and '-', at most 249 of them.",
            )
        if self.timestamp_format not in TIMESTAMP_FORMATS:
            raise OptionError(
                f"unknown timestamp format {self.timestamp_format!r}",
                hint=f"Use one of: {', '.join(TIMESTAMP_FORMATS)}.",
            )

    def rows(self, context: TableContext) -> DataFrame:
        """Return the table as it is each time that the DataFrame is computed.

        Python workers keep the table, so each time only new records are read from the topic; but
        all rows pass through Spark.
        """
        from tidemill.spark.tables.lookup import rows_now

        return rows_now(context.spark, self._spec(context), context.schema)

    def versions(
        self, context: TableContext, *, keep: Duration, valid_from: str | None = None
    ) -> DataFrame:
        """Return all versions that are kept, each with the time in which it was valid.

        A version is valid from ``valid_from`` (inclusive) to ``valid_to`` (exclusive): until the
        next version of its key is valid, or the key is deleted. ``valid_to`` of a version that is
        still valid is null. Of versions with the same ``valid_from``, the last record counts.

        Args:
            context: how to read the table.
            keep: how long a version is kept after another one replaced it. The time counts back
                from the newest version of the table, or from now if that is earlier. The topic
                must keep the records as long: set ``min.compaction.lag.ms`` to at least ``keep``.
            valid_from: a TIMESTAMP column of the table from which a version is valid; None for the
                record's timestamp. A deletion is always valid from its record's timestamp.

        Raises:
            JoinError: ``valid_from`` is not a TIMESTAMP column.
            DurationError: ``keep`` is not a duration.
        """
        from tidemill.spark.tables.lookup import rows_by_version

        spec = self._version_spec(context, keep, valid_from)
        return rows_by_version(context.spark, spec, context.schema)

    def changes(
        self, context: TableContext, *, max_offsets_per_trigger: int | None = None
    ) -> DataFrame:
        """Return the records as a stream of changes, from the beginning of the topic.

        The columns of the key come from the record's key, so a deletion has them too. Compaction
        removes a deletion after ``delete.retention.ms``: a query that is stopped for longer does
        not see it.
        """
        from tidemill.spark.tables.parsing import CHANGE_COLUMNS, RowParser, change_rows

        parser = RowParser(self.topic, context.schema)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield change_rows(batch, parser, batch.column("offset"))

        records = load(context, self.topic, max_offsets_per_trigger)
        return records.mapInArrow(read, f"{context.schema.columns}, {CHANGE_COLUMNS}")

    def value_now(self, context: TableContext, key: Column) -> Column:
        """Return the value of a key when a task begins, from the worker's copy of the table."""
        from tidemill.spark.tables.lookup import value_now

        return value_now(self._spec(context), key)

    def value_at(
        self,
        context: TableContext,
        key: Column,
        at: Column,
        *,
        keep: Duration,
        valid_from: str | None = None,
    ) -> Column:
        """Return the value that a key had at a time, from the worker's copy of the versions."""
        from tidemill.spark.tables.lookup import value_at

        return value_at(self._version_spec(context, keep, valid_from), key, at)

    def worker_copy(
        self, context: TableContext, foreign_key: tuple[tuple[str, str], ...] = ()
    ) -> TableSpec:
        """Describe the copy of the topic that Python workers keep."""
        return self._spec(context, foreign_key=foreign_key)

    def _version_spec(
        self, context: TableContext, keep: Duration, valid_from: str | None
    ) -> TableSpec:
        context.schema.check_valid_from(valid_from)
        return self._spec(context, keep=microseconds(keep), valid_from=valid_from)

    def _spec(self, context: TableContext, **fields: Any) -> TableSpec:
        """Return what Python workers keep of the topic."""
        schema = context.schema
        found = {*schema.key_names, *(mine for mine, _ in fields.get("foreign_key", ()))}
        columns = (schema.column(name) for name in sorted(found))
        return TableSpec(
            topic=self.topic,
            key=schema.key_names,
            kafka=tuple(sorted(context.kafka.items())),
            types=tuple((column.name, column.type) for column in columns if column is not None),
            limit=context.memory_limit,
            timestamp_format=context.schema.timestamp_format,
            **fields,
        )


def load(context: TableContext, topic: str, max_offsets_per_trigger: int | None) -> DataFrame:
    """Return the records of a topic as a stream from the beginning: key, value, partition, offset
    and timestamp."""
    reader = context.spark.readStream.format("tidemill").option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest")
    if max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(max_offsets_per_trigger))
    for name, value in context.kafka.items():
        reader = reader.option(f"kafka.{name}", value)
    return reader.load().select("key", "value", "partition", "offset", "timestamp")
