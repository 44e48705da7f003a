"""Read a table from the topic of a captured database table, with Debezium's envelope.

Python workers keep such a table as they keep a changelog; a version of a row is valid from the
time at which the database committed it. Must not know: pipelines, sinks, joins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.spark.tables.captured_records import CapturedRecords, Record
from tidemill.spark.tables.changelog import ChangelogTopic, load
from tidemill.spark.tables.changes import Change, TableSpec
from tidemill.spark.tables.source import COMMIT_TIME, TableContext

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tidemill.spark.tables.parsing import RowParser


@dataclass(frozen=True)
class CapturedTopic(ChangelogTopic):
    """A table whose changes are captured from a database, as Debezium's envelopes in JSON.

    Versions are ordered by the position in the database's log: a repeated or older change of a key
    changes nothing. They are valid from the commit time.

    ``timestamp_format`` counts where a record has no schema that says what a number means.
    """

    def changes(
        self, context: TableContext, *, max_offsets_per_trigger: int | None = None
    ) -> DataFrame:
        """Return the changes as a stream, from the beginning of the topic.

        ``_version`` is made of the position in the database's log, or is the offset if the position
        is not known. It is null of a null value without its delete, which deletes whatever is
        there. ``_commit_time`` is the time of the commit. A truncation of the whole table fails the
        query, because its rows are not known.
        """
        from tidemill.spark.tables.parsing import CHANGE_COLUMNS, RowParser

        read = _reader_of(self._spec(context), RowParser(self.topic, context.schema))
        records = load(context, self.topic, max_offsets_per_trigger)
        columns = f"{context.schema.columns}, {CHANGE_COLUMNS}, {COMMIT_TIME} timestamp"
        return records.mapInArrow(read, columns)

    def _spec(self, context: TableContext, **fields: Any) -> TableSpec:
        schema = context.schema
        columns = (schema.column(name) for name in schema.names)
        return super()._spec(
            context,
            captured=tuple((c.name, c.type) for c in columns if c is not None),
            **fields,
        )


def _reader_of(
    spec: TableSpec, parser: RowParser
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records = CapturedRecords(spec)
        for batch in batches:
            yield _changes_of(batch, records, parser)

    return read


def _changes_of(
    batch: pa.RecordBatch, records: CapturedRecords, parser: RowParser
) -> pa.RecordBatch:
    import pyarrow as pa

    from tidemill.spark.tables.parsing import change_rows

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
    ]
    names = ["key", "value", "partition", "offset", "timestamp"]
    version = pa.array([version for _, _, version in found], pa.int64())
    commit = pa.array([change.at for change, _, _ in found], pa.int64()).cast(times)
    return change_rows(pa.RecordBatch.from_arrays(arrays, names), parser, version, commit)
