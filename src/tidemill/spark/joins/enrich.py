"""Join a stream with a table: as it is now, or as it was at the time of each event.

Rows are looked up by the table's key in what Python workers keep of the table, if its source
supports that; else Spark joins with all rows. Must not know: runs of pipelines, sinks, single
sources of tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.duration import Duration
from tidemill.spark.errors import JoinError
from tidemill.spark.joins.columns import (
    On,
    check_columns,
    check_distinct,
    check_how,
    column,
    pairs,
)
from tidemill.spark.pipelines.inputs import TableInput
from tidemill.spark.tables.changes import DEFAULT_LIMIT
from tidemill.spark.tables.records import TableSchema
from tidemill.spark.tables.source import VALID_FROM, VALID_TO

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TABLE = "__tidemill_table_"
_ROW = "__tidemill_row"
_JOIN_TYPES = {"left": "left_outer", "inner": "inner"}

_Pairs = tuple[tuple[str, str], ...]


def enrich(
    stream: DataFrame,
    table: TableInput | DataFrame,
    on: On,
    how: str = "left",
    *,
    prefix: str = "",
    memory_limit: int = DEFAULT_LIMIT,
) -> DataFrame:
    """Add a table's columns to each event, as the table is when the event is processed.

    A row is looked up by the table's key in what each Python worker keeps of the table, so a
    micro-batch costs its own events and the new records of the changelog. A DataFrame, a table by
    other columns than its key, and a source without look-ups are joined by Spark, which reads all
    rows in each micro-batch.

    An event that is processed again after a crash may meet a newer row. With ``enrich_as_of`` it
    meets the same row.

    Args:
        stream: the events.
        table: a table, or a batch DataFrame.
        on: the table's key: a name, several names, or ``{stream's column: table's column}``.
        how: ``left`` keeps events without a row, with nulls; ``inner`` drops them.
        prefix: added before the names of the table's columns.
        memory_limit: most bytes that the table may take in a Python worker.

    Returns:
        The stream's columns, then the table's columns except those that were compared. The
        watermark is kept.

    Raises:
        JoinError: a column is missing, or both sides have a column of the same name.
    """
    check_how(how, tuple(_JOIN_TYPES))
    compared = pairs(on)
    check_columns(stream, [name for name, _ in compared], "the stream")
    if not isinstance(table, TableInput):
        return _spark_join(stream, table, compared, how, prefix)
    schema = table.schema
    key = _key_columns(schema, compared)
    value = None
    if key is not None:
        value = table.declaration.source.value_now(table.context(memory_limit), _key(schema, key))
    if key is None or value is None:
        return _spark_join(stream, table.df, compared, how, prefix)
    return _with_row(stream, table, value, how, prefix)


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
    """Add a table's columns to each event, as the table was at the time of the event.

    An event gets the version of its row with the greatest ``valid_from`` that is not after the
    event's time. It gets no row if there was none yet, if it was deleted, or if the version is no
    longer kept. The result is the same whenever it is computed, as long as versions are kept and
    arrive before the events for which they are valid.

    Args:
        stream: the events.
        table: a table, by its key; or a batch DataFrame with ``valid_from`` and ``valid_to``.
        on: the table's key, as in ``enrich``.
        event_time: the stream's column with the time of an event, a TIMESTAMP.
        how: ``left`` or ``inner``, as in ``enrich``.
        keep: how long a version is kept after another one replaced it. The time counts back from
            the table's newest version, or from now if that is earlier. Default: ``keep_versions``
            of the table. The topic must keep the records as long: ``min.compaction.lag.ms``.
        valid_from: the table's column, a TIMESTAMP, from which a version is valid. Default:
            ``valid_from`` of the table, else the record's timestamp, or the time of the commit. A
            deletion is always valid from that time.
        prefix: added before the names of the table's columns.
        memory_limit: most bytes that the table may take in a Python worker.

    Returns:
        Columns as in ``enrich``.

    Raises:
        JoinError: a column is missing, on both sides, or not a TIMESTAMP; ``on`` is not the
            table's key; or the table keeps no versions.
        DurationError: ``keep`` is not a duration.
    """
    check_how(how, tuple(_JOIN_TYPES))
    compared = pairs(on)
    _check_event_time(stream, compared, event_time)
    if not isinstance(table, TableInput):
        return _join_versions(stream, table, compared, event_time, how, prefix)
    from pyspark.sql import functions as f

    valid_from = table.declaration.valid_from if valid_from is None else valid_from
    table.schema.check_valid_from(valid_from)
    key = _version_key(table, compared)
    keep = _kept(table, keep)
    source, context = table.declaration.source, table.context(memory_limit)
    at = f.unix_micros(column(event_time))
    value = source.value_at(context, _key(table.schema, key), at, keep=keep, valid_from=valid_from)
    if value is None:
        versions = source.versions(context, keep=keep, valid_from=valid_from)
        return _join_versions(stream, versions, compared, event_time, how, prefix)
    return _with_row(stream, table, value, how, prefix)


def _check_event_time(stream: DataFrame, compared: _Pairs, event_time: str) -> None:
    check_columns(stream, [*[name for name, _ in compared], event_time], "the stream")
    kind = next(t for name, t in stream.dtypes if name.lower() == event_time.lower())
    if kind != "timestamp":
        raise JoinError(f"event_time {event_time} is {kind}, not a timestamp")


def _version_key(table: TableInput, compared: _Pairs) -> list[str]:
    """Return the stream's columns with the table's key."""
    key = _key_columns(table.schema, compared)
    if key is None:
        raise JoinError(
            f"on names {', '.join(name for _, name in compared)} of table "
            f"{table.declaration.name}, whose key is {', '.join(table.schema.key_names)}",
            hint="A table keeps versions by its key. To compare other columns, join with the "
            "table's .versions.",
        )
    return key


def _kept(table: TableInput, keep: Duration | None) -> Duration:
    """Return how long versions are kept."""
    keep = table.declaration.keep_versions if keep is None else keep
    if keep is None:
        raise JoinError(
            f"table {table.declaration.name} keeps no versions",
            hint='Declare it with keep_versions="30 days", or give keep="30 days"; and set '
            "min.compaction.lag.ms of its topic to at least as much.",
        )
    return keep


# --- by looking up -------------------------------------------------------------------------------


def _key_columns(schema: TableSchema, compared: _Pairs) -> list[str] | None:
    """Return the stream's columns with the table's key, in its order.

    Returns:
        None if other columns of the table are compared.
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
    stream: DataFrame, table: TableInput, value: Column, how: str, prefix: str
) -> DataFrame:
    """Add the columns of the row whose JSON object is ``value``.

    The expressions are part of the fingerprints of queries that aggregate the result.
    """
    from pyspark.sql import functions as f

    from tidemill.spark.tables.parsing import row_of

    schema = table.schema
    names = [f"{prefix}{value.name}" for value in schema.values]
    check_distinct(stream.columns, names, "prefix")
    source = ", ".join(table.declaration.topics) or table.declaration.source.description
    found = stream.withColumn(_ROW, row_of(value, schema, source))
    if how == "inner":
        found = found.filter(f.col(_ROW).isNotNull())
    return found.select(
        *map(column, stream.columns),
        *[
            f.col(_ROW).getField(value.name).alias(name)
            for value, name in zip(schema.values, names, strict=True)
        ],
    )


# --- by a join of Spark's ------------------------------------------------------------------------


def _join_versions(
    stream: DataFrame, table: DataFrame, compared: _Pairs, event_time: str, how: str, prefix: str
) -> DataFrame:
    from pyspark.sql import functions as f

    bounds = (VALID_FROM, VALID_TO)
    check_columns(table, bounds, "the table of versions")
    since, until = (f.col(_TABLE + name) for name in bounds)
    at = column(event_time)
    is_valid = (since <= at) & (until.isNull() | (at < until))
    return _spark_join(stream, table, compared, how, prefix, is_valid, bounds)


def _spark_join(
    stream: DataFrame,
    table: DataFrame,
    compared: _Pairs,
    how: str,
    prefix: str,
    condition: Column | None = None,
    hidden: Sequence[str] = (),
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
    joined = stream.join(other, condition, _JOIN_TYPES[how])
    return joined.select(
        *map(column, stream.columns),
        *[column(_TABLE + o.lower()).alias(name) for o, name in zip(others, names, strict=True)],
    )
