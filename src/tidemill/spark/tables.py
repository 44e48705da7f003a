"""Changelog topics as tables: the last value of each key counts, and null deletes it.

Three views of a changelog: the table as it is now, its versions in time, and its changes as a
stream. Which record of a key is the last one, ``table_rows`` says. Must not know: pipelines, sinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.errors import JoinError
from tidemill.spark.table_changes import DEFAULT_LIMIT, TableSpec
from tidemill.spark.table_records import TableSchema, place
from tidemill.spark.window_spec import Duration, microseconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DELETED, PARTITION, OFFSET, TIMESTAMP = "_deleted", "_partition", "_offset", "_timestamp"
"""Columns of ``read_changes`` besides the table's own."""
VALID_FROM, VALID_TO = "valid_from", "valid_to"
"""Columns of ``read_versions`` besides the table's own."""

_ROW, _KEY = "__tidemill_row", "__tidemill_key"


def read_table(
    spark: SparkSession,
    topic: str,
    schema: str,
    key: Sequence[str],
    kafka: Mapping[str, str],
    *,
    memory_limit: int = DEFAULT_LIMIT,
) -> DataFrame:
    """The table as it is now, as a batch DataFrame: as of each time that it is run.

    On the static side of a join with a stream it is run in each micro-batch. Only what is new in
    the changelog is read then, since Python workers keep the table; but all its rows pass through
    Spark.

    Args:
        topic: with JSON objects as values, and keys as ``TopicSink`` writes them.
        schema: all columns, as DDL, the key's among them.
        key: columns of the record's key.
        kafka: librdkafka's settings, with ``bootstrap.servers``.
        memory_limit: bytes that the table may take in a Python worker.

    Raises:
        SchemaError, JoinError: schema or key are wrong. A record that is no row of the schema fails
            the job that meets it.
    """
    from tidemill.spark.table_lookup import rows_now

    table = TableSchema(schema, key)
    rows = rows_now(spark, table_spec(topic, table, kafka, limit=memory_limit))
    return _rows(table, rows, topic)


def read_versions(
    spark: SparkSession,
    topic: str,
    schema: str,
    key: Sequence[str],
    kafka: Mapping[str, str],
    *,
    keep: Duration,
    valid_from: str | None = None,
    memory_limit: int = DEFAULT_LIMIT,
) -> DataFrame:
    """All versions that are kept, each with the time ``[valid_from, valid_to)`` in which it held.

    A version ends when the next one of its key begins, or its key is deleted; ``valid_to`` of one
    that still holds is null. Of versions with the same beginning the last record counts. The topic
    must keep them, too: set ``min.compaction.lag.ms`` to at least ``keep``.

    Args:
        keep: how long a version is kept after it was replaced, counted back from the newest
            version of the table, or from now if that is earlier.
        valid_from: column of type TIMESTAMP from which a version holds; default: the record's
            timestamp. A deletion holds from its record's timestamp in any case.
        Others: as of ``read_table``.

    Raises:
        as ``read_table``; WindowError: ``keep`` is no duration.
    """
    from pyspark.sql import functions as f

    from tidemill.spark.table_lookup import rows_by_version

    table = TableSchema(schema, key)
    check_valid_from(table, valid_from)
    spec = table_spec(
        topic,
        table,
        kafka,
        limit=memory_limit,
        keep=microseconds(keep),
        valid_from=valid_from,
    )
    rows = rows_by_version(spark, spec)
    bounds = {VALID_FROM: f.timestamp_micros("since"), VALID_TO: f.timestamp_micros("until")}
    return _rows(table, rows, topic, **bounds)


def read_changes(
    spark: SparkSession,
    topic: str,
    schema: str,
    key: Sequence[str],
    kafka: Mapping[str, str],
    *,
    max_offsets_per_trigger: int | None = None,
) -> DataFrame:
    """The changelog as a stream, from its beginning.

    Columns are the table's own (those of the key from the record's key, so that a deletion has
    them, too), and ``_deleted``, ``_partition``, ``_offset`` and ``_timestamp``. Compaction removes
    a deletion after ``delete.retention.ms``: a query that stands still for longer misses it.

    Args:
        max_offsets_per_trigger: most offsets in a micro-batch.
        Others: as of ``read_table``.

    Raises:
        as ``read_table``.
    """
    from pyspark.sql import functions as f

    table = TableSchema(schema, key)
    reader = spark.readStream
    if max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(max_offsets_per_trigger))
    more = {
        DELETED: f.col("value").isNull(),
        PARTITION: f.col("partition"),
        OFFSET: f.col("offset"),
        TIMESTAMP: f.col("timestamp"),
    }
    return _rows(table, _load(reader, topic, kafka), topic, **more)


def table_spec(
    topic: str, table: TableSchema, kafka: Mapping[str, str], **fields: Any
) -> TableSpec:
    """What Python workers keep of a table."""
    found = {*table.key_names, *(mine for mine, _ in fields.get("foreign_key", ()))}
    columns = (table.column(name) for name in sorted(found))
    return TableSpec(
        topic=topic,
        key=table.key_names,
        kafka=tuple(sorted(kafka.items())),
        types=tuple((column.name, column.type) for column in columns if column is not None),
        **fields,
    )


def check_valid_from(table: TableSchema, valid_from: str | None) -> None:
    """Whether a table has such a column.

    Raises:
        JoinError: it has not, or it is no TIMESTAMP.
    """
    if valid_from is None:
        return
    column = table.column(valid_from)
    if column is None or column.type != "TIMESTAMP" or column.name != valid_from:
        raise JoinError(
            f"valid_from {valid_from} is no TIMESTAMP column of the table",
            hint=f"Its columns are {', '.join(table.names)}.",
        )


def _load(reader: Any, topic: str, kafka: Mapping[str, str]) -> DataFrame:
    reader = reader.format("tidemill").option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest")
    for name, value in kafka.items():
        reader = reader.option(f"kafka.{name}", value)
    loaded: DataFrame = reader.load()
    return loaded


def _rows(table: TableSchema, records: DataFrame, topic: str, **more: Column) -> DataFrame:
    """Records as rows: the columns in the order of the schema, those of the key from the record's
    key; then others made of the record's own."""
    from pyspark.sql import functions as f

    where = place(topic)
    keys = table.key_columns(f.col("key"), where)
    named = {name: f"{_KEY}{i}" for i, name in enumerate(table.key_names)}
    read = records.withColumns(dict(zip(named.values(), keys, strict=True)))
    read = table.with_row(read, _ROW, f.col("value"), where)
    for name in named.values():  # read them, even if nobody asks for them
        read = read.filter(f.col(name).isNotNull())
    picked = [
        (f.col(named[name]) if name in named else f.col(_ROW).getField(name)).alias(name)
        for name in table.names
    ]
    return read.select(*picked, *[made.alias(name) for name, made in more.items()])
