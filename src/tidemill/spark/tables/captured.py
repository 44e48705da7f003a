"""Read a table from the topic of a captured database table, with Debezium's envelope.

Python workers keep such a table as they keep a changelog; a version of a row is valid from the
time at which the database committed it. Must not know: pipelines, sinks, joins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.spark.errors import OptionError
from tidemill.spark.tables.captured_records import CapturedRecords, Record
from tidemill.spark.tables.changelog import ChangelogTopic, load
from tidemill.spark.tables.changes import Change, TableSpec
from tidemill.spark.tables.source import (
    COMMIT_TIME,
    DELETED,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    VERSION,
    TableContext,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_TIMES = ("iso", "epoch_s", "epoch_ms", "epoch_us")
_CHANGES = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, "
    "version bigint, commit timestamp"
)


@dataclass(frozen=True)
class CapturedTopic(ChangelogTopic):
    """A table whose changes are captured from a database, as Debezium's envelopes in JSON.

    Versions are ordered by the position in the database's log: a repeated or older change of a key
    changes nothing. They are valid from the commit time.

    Attributes:
        topic: the topic; created compacted if it is missing.
        timestamp_format: what a number in a TIMESTAMP column means if the record has no schema.
    """

    timestamp_format: str = "iso"

    def check(self) -> None:
        """Check the name of the topic and the format of timestamps.

        Raises:
            PipelineError: no broker accepts the name.
            OptionError: the format is unknown.
        """
        super().check()
        if self.timestamp_format not in _TIMES:
            raise OptionError(
                f"unknown timestamp format {self.timestamp_format!r}",
                hint=f"Use one of: {', '.join(_TIMES)}.",
            )

    def changes(
        self, context: TableContext, *, max_offsets_per_trigger: int | None = None
    ) -> DataFrame:
        """Return the changes as a stream, from the beginning of the topic.

        ``_version`` is made of the position in the database's log, or is the offset if the position
        is not known. It is null of a null value without its delete, which deletes whatever is
        there. ``_commit_time`` is the time of the commit. A truncation of the whole table fails the
        query, because its rows are not known.
        """
        from pyspark.sql import functions as f

        reader = context.spark.readStream
        if max_offsets_per_trigger is not None:
            reader = reader.option("maxOffsetsPerTrigger", str(max_offsets_per_trigger))
        records = load(reader, self.topic, context.kafka).select(
            "key", "value", "partition", "offset", "timestamp"
        )
        made = records.mapInArrow(_reader_of(self._spec(context)), _CHANGES)
        more = {
            DELETED: f.col("value").isNull(),
            PARTITION: f.col("partition"),
            OFFSET: f.col("offset"),
            TIMESTAMP: f.col("timestamp"),
            VERSION: f.col("version"),
            COMMIT_TIME: f.col("commit"),
        }
        return self._rows(context.schema, made, **more)

    def _spec(self, context: TableContext, **fields: Any) -> TableSpec:
        schema = context.schema
        columns = (schema.column(name) for name in schema.names)
        return super()._spec(
            context,
            captured=tuple((c.name, c.type) for c in columns if c is not None),
            timestamp_format=self.timestamp_format,
            **fields,
        )


def _reader_of(
    spec: TableSpec,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records = CapturedRecords(spec)
        for batch in batches:
            yield _changes_of(batch, records, spec)

    return read


def _changes_of(batch: pa.RecordBatch, records: CapturedRecords, spec: TableSpec) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [batch.column(name).to_pylist() for name in ("key", "value", "partition", "offset")]
    stamps = batch.column("timestamp").cast("int64").to_pylist()
    found: list[tuple[Change, int, int | None]] = []
    for key, value, partition, offset, at in zip(*columns, stamps, strict=True):
        record = Record(key, value, partition, offset, at)
        for change in records.changes(record):
            known = offset if change.position is None else change.position.number
            found.append((change, at, None if value is None else known))
    for change, _, _ in found:
        if change.key == b"":
            raise records.truncated(change)
    times = pa.timestamp("us", tz="UTC")
    arrays: list[pa.Array] = [
        pa.array([change.key for change, _, _ in found], pa.binary()),
        pa.array([change.value for change, _, _ in found], pa.binary()),
        pa.array([change.partition for change, _, _ in found], pa.int32()),
        pa.array([change.offset for change, _, _ in found], pa.int64()),
        pa.array([at for _, at, _ in found], pa.int64()).cast(times),
        pa.array([version for _, _, version in found], pa.int64()),
        pa.array([change.at for change, _, _ in found], pa.int64()).cast(times),
    ]
    names = ["key", "value", "partition", "offset", "timestamp", "version", "commit"]
    return pa.RecordBatch.from_arrays(arrays, names=names)
