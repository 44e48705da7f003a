"""Joins of streams and tables.

    stream_stream   two streams, within a bound of event time
    enrich          a stream with a table as it is now
    enrich_as_of    a stream with a table as it was at the time of each event
    join_tables     two tables, as a view that is kept current

A table is a changelog topic that changes while the stream runs. Each function works with a
pipeline's inputs and without: ``changelog_table`` makes a table of a topic. Must not know:
pipelines' runs, sinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.errors import JoinError
from tidemill.spark.inputs import TableInput
from tidemill.spark.join_columns import (
    On,
    check_columns,
    check_distinct,
    check_how,
    column,
    pairs,
)
from tidemill.spark.join_streams import stream_stream
from tidemill.spark.join_views import join_tables, spec_of
from tidemill.spark.pipeline import Place, Table
from tidemill.spark.table_changes import DEFAULT_LIMIT
from tidemill.spark.table_records import TableSchema
from tidemill.spark.tables import VALID_FROM, VALID_TO, check_valid_from
from tidemill.spark.window_spec import Duration, microseconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "changelog_table",
    "enrich",
    "enrich_as_of",
    "join_tables",
    "stream_stream",
]

_TABLE = "__tidemill_table_"
_VALUE, _ROW = "__tidemill_value", "__tidemill_row"
_SPARKS = {"left": "left_outer", "inner": "inner"}


def changelog_table(
    spark: SparkSession,
    topic: str,
    *,
    schema: str,
    key: str | Sequence[str],
    kafka: Mapping[str, str],
    keep_versions: Duration | None = None,
    max_offsets_per_trigger: int | None = None,
) -> TableInput:
    """A table outside of a pipeline.

    Args:
        topic: its changelog.
        schema: all columns, as DDL, the key's among them.
        key: columns of the record's key.
        kafka: librdkafka's settings, with ``bootstrap.servers``.
        keep_versions, max_offsets_per_trigger: as of ``Pipeline.table``.
    """
    columns = (key,) if isinstance(key, str) else tuple(key)
    declared = Table(
        topic, topic, schema, columns, keep_versions, max_offsets_per_trigger, Place("", 0)
    )
    return TableInput(declared, spark, {"isolation.level": "read_committed", **kafka})


def enrich(
    stream: DataFrame,
    table: TableInput | DataFrame,
    on: On,
    how: str = "left",
    *,
    prefix: str = "",
    memory_limit: int = DEFAULT_LIMIT,
) -> DataFrame:
    """Put a table's columns beside each event, as the table is now: when the event is processed.

    A table's row is looked up by its key in what each Python worker keeps of the table: a
    micro-batch costs its own events, and what is new in the changelog. A DataFrame, and a table by
    other columns than its key, are joined by Spark, which reads all of them in each micro-batch.

    An event that is processed again, after a crash, may meet a newer row: ``enrich_as_of`` does
    not.

    Args:
        stream: the events.
        table: a table, or a batch DataFrame.
        on: the table's key: a name, several, or ``{stream's column: table's column}``.
        how: ``left`` keeps events without a row, with nulls; ``inner`` drops them.
        prefix: put before the names of the table's columns.
        memory_limit: bytes that the table may take in a Python worker.

    Returns:
        The stream's columns, then the table's but those compared. The watermark stays.

    Raises:
        JoinError: a column is missing, or on both sides.
    """
    check_how(how, tuple(_SPARKS))
    compared = pairs(on)
    check_columns(stream, [name for name, _ in compared], "the stream")
    if not isinstance(table, TableInput):
        return _join(stream, table, compared, how, prefix)
    schema = TableSchema(table.declaration.schema, table.declaration.key)
    key = _key_columns(schema, compared)
    if key is None:
        return _join(stream, table.df, compared, how, prefix)
    from tidemill.spark.table_lookup import value_now

    spec = spec_of(table, memory_limit)
    return _with_row(
        stream, schema, value_now(spec, _key(schema, key)), key, how, prefix, spec.topic
    )


def enrich_as_of(
    stream: DataFrame,
    table: TableInput | DataFrame,
    on: On,
    event_time: str,
    how: str = "left",
    *,
    keep: Duration | None = None,
    valid_from: str | None = None,
    prefix: str = "",
    memory_limit: int = DEFAULT_LIMIT,
) -> DataFrame:
    """Put a table's columns beside each event, as the table was at the time of the event.

    An event gets the version of its row with the greatest ``valid_from`` at or before its time. It
    gets none if there was no row yet, if the row was deleted, or if the version is no longer kept.
    The answer is the same whenever it is asked for, as long as versions are kept and do not come
    later than the events that they hold for.

    Args:
        event_time: the stream's column, a TIMESTAMP.
        keep: how long a version is kept after it was replaced, counted back from the table's newest
            version (or from now if that is earlier); default: ``keep_versions`` of the table. The
            topic must keep as much: ``min.compaction.lag.ms``.
        valid_from: the table's column, a TIMESTAMP, from which a version holds; default: the
            record's timestamp. A deletion holds from its record's timestamp in any case.
        table: a table, by its key; or a batch DataFrame with ``valid_from`` and ``valid_to``.
        Others: as of ``enrich``.

    Raises:
        JoinError: a column is missing, on both sides, or no TIMESTAMP; ``on`` is not the table's
            key; or the table keeps no versions.
        WindowError: ``keep`` is no duration.
    """
    from pyspark.sql import functions as f

    check_how(how, tuple(_SPARKS))
    compared = pairs(on)
    check_columns(stream, [*[name for name, _ in compared], event_time], "the stream")
    kind = next(t for name, t in stream.dtypes if name.lower() == event_time.lower())
    if kind != "timestamp":
        raise JoinError(f"event_time {event_time} is {kind}, not a timestamp")
    if not isinstance(table, TableInput):
        return _join_versions(stream, table, compared, event_time, how, prefix)
    declared = table.declaration
    schema = TableSchema(declared.schema, declared.key)
    check_valid_from(schema, valid_from)
    key = _key_columns(schema, compared)
    if key is None:
        raise JoinError(
            f"on names {', '.join(name for _, name in compared)} of table {declared.name}, whose "
            f"key is {', '.join(schema.key_names)}",
            hint="Versions are of a key. For other columns join with the table's .versions.",
        )
    keep = declared.keep_versions if keep is None else keep
    if keep is None:
        raise JoinError(
            f"table {declared.name} keeps no versions",
            hint='Declare it with keep_versions="30 days", or give keep="30 days"; and let its '
            "topic keep them as long: min.compaction.lag.ms.",
        )
    from tidemill.spark.table_lookup import value_at

    spec = spec_of(table, memory_limit, keep=microseconds(keep), valid_from=valid_from)
    found = value_at(spec, _key(schema, key), f.unix_micros(column(event_time)))
    return _with_row(stream, schema, found, key, how, prefix, spec.topic)


# --- by looking up -------------------------------------------------------------------------------


def _key_columns(schema: TableSchema, compared: tuple[tuple[str, str], ...]) -> list[str] | None:
    """The stream's columns that hold the table's key, in its order; None if others are asked for.

    Raises:
        JoinError: the table lacks a column.
    """
    for _, name in compared:
        if schema.column(name) is None:
            raise JoinError(
                f"the table has no column {name}", hint=f"It has {', '.join(schema.names)}."
            )
    by_key = {theirs.lower(): mine for mine, theirs in compared}
    if set(by_key) != {name.lower() for name in schema.key_names}:
        return None
    return [by_key[name.lower()] for name in schema.key_names]


def _key(schema: TableSchema, columns: list[str]) -> Column:

    return schema.key_text([column(name) for name in columns])


def _with_row(
    stream: DataFrame,
    schema: TableSchema,
    value: Column,
    key: list[str],
    how: str,
    prefix: str,
    topic: str,
) -> DataFrame:
    from pyspark.sql import functions as f

    names = [f"{prefix}{value.name}" for value in schema.values]
    check_distinct(stream.columns, names, "prefix")
    found = stream.withColumn(_VALUE, value)
    if how == "inner":
        found = found.filter(f.col(_VALUE).isNotNull())
    keys = f.concat_ws(", ", *[column(name).cast("string") for name in key])
    where = f.concat(f.lit(f"table {topic}: the value for the row of key "), keys)
    found = schema.with_row(found, _ROW, f.col(_VALUE), where)
    return found.select(
        *map(column, stream.columns),
        *[
            f.col(_ROW).getField(value.name).alias(name)
            for value, name in zip(schema.values, names, strict=True)
        ],
    )


# --- by a join of Spark's ------------------------------------------------------------------------


def _join(
    stream: DataFrame,
    table: DataFrame,
    compared: tuple[tuple[str, str], ...],
    how: str,
    prefix: str,
) -> DataFrame:
    return _spark_join(stream, table, compared, how, prefix, None, ())


def _join_versions(
    stream: DataFrame,
    table: DataFrame,
    compared: tuple[tuple[str, str], ...],
    event_time: str,
    how: str,
    prefix: str,
) -> DataFrame:
    from pyspark.sql import functions as f

    bounds = (VALID_FROM, VALID_TO)
    check_columns(table, bounds, "the table of versions")
    since, until = (f.col(_TABLE + name) for name in bounds)
    at = column(event_time)
    held = (since <= at) & (until.isNull() | (at < until))
    return _spark_join(stream, table, compared, how, prefix, held, bounds)


def _spark_join(
    stream: DataFrame,
    table: DataFrame,
    compared: tuple[tuple[str, str], ...],
    how: str,
    prefix: str,
    condition: Column | None,
    hidden: Sequence[str],
) -> DataFrame:

    if table.isStreaming:
        raise JoinError(
            "the table is a stream", hint="Join streams with stream_stream, within a time bound."
        )
    check_columns(table, [name for _, name in compared], "the table")
    left_out = {name.lower() for _, name in compared} | set(hidden)
    others = [name for name in table.columns if name.lower() not in left_out]
    names = [f"{prefix}{name}" for name in others]
    check_distinct(stream.columns, names, "prefix")
    other = table.select(*[column(name).alias(_TABLE + name.lower()) for name in table.columns])
    for mine, theirs in compared:
        same = column(mine) == column(_TABLE + theirs.lower())
        condition = same if condition is None else condition & same
    joined = stream.join(other, condition, _SPARKS[how])
    return joined.select(
        *map(column, stream.columns),
        *[column(_TABLE + o.lower()).alias(name) for o, name in zip(others, names, strict=True)],
    )
