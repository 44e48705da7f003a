"""Records that can't be parsed: told from the others, and described for a dead-letter topic.

A record is a dead letter if its value is no JSON object, has a field that is not of its column's
type, or lacks the event time. It keeps its key, its value and its headers, and gets more headers
that say why and where from. Must not know: pipelines' runs, sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill.spark.ddl import columns, struct
from tidemill.spark.pipeline import Stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON = "error.reason"
HEADERS = (
    REASON,
    "source.topic",
    "source.partition",
    "source.offset",
    "source.timestamp",
    "pipeline",
    "stream",
)
"""Headers of a dead letter, all of them text; the timestamp is in milliseconds since 1970."""

_ROW = "__tidemill_row"
_END = "__tidemill_end"
_ALL = "__tidemill_all"
_CORRUPT = "__tidemill_corrupt"
_WHY = "__tidemill_why"

Observe = Callable[["DataFrame"], "DataFrame"]


def parse(
    source: DataFrame, stream: Stream, pipeline: str, observe: Observe = lambda df: df
) -> tuple[DataFrame, DataFrame]:
    """Records as rows of the stream's schema, and those that can't be that.

    Args:
        source: with the columns of the Kafka source, headers among them.
        stream: what they should be; where it names no topic for dead letters, the first of them
            fails the query.
        pipeline: its name, for the header.
        observe: looks at all records on their way to rows, by their ``timestamp``.

    Returns:
        Rows with exactly the schema's columns; and records with ``key``, ``value``, ``headers``.
    """
    from pyspark.sql import functions as f

    letters = source.filter(_row(stream).isNull()).withColumn(_WHY, _reason(stream))
    row = _row(stream, _failure(stream) if stream.dead_letters is None else None)
    # What is observed is computed before, once: the optimizer would move a filter below a column
    # that it looks at, and have each record parsed for both. And what a filter looks at is never
    # left out, though nobody asks for a column: no record is counted that should fail the query.
    read = observe(source.select("timestamp", row.alias(_ROW))).filter(f.col(_ROW).isNotNull())
    names = [column.name for column in columns(stream.schema)]
    rows = read.select(*[f.col(_ROW).getField(name).alias(name) for name in names])
    return rows, letters.select("key", "value", _headers(stream, pipeline).alias("headers"))


def _row(stream: Stream, otherwise: Column | None = None) -> Column:
    """A record as a row, or if it is a dead letter what is asked for, else null.

    Spark's parser stops after the first value of a text, whatever follows. So it gets the text as
    one entry of two in an object: more than one value, or less, makes another number of entries,
    or no JSON at all.
    """
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    parsed = f.from_json(
        f.concat(f.lit(f'{{"{_ALL}":'), _as_entry(text), f.lit("}")),
        f"{_ALL} MAP<STRING, {struct(stream.schema)}>, {_CORRUPT} STRING",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT},
    )

    def good_row(parsed: Column) -> Column:
        entries = parsed.getField(_ALL)
        row = entries.getItem(_ROW)
        good = parsed.getField(_CORRUPT).isNull() & (f.size(entries) == 2)
        good &= f.map_contains_key(entries, _END)
        good &= f.is_valid_utf8(f.col("value"))  # texts would get replacement characters
        if stream.event_time is not None:
            good &= row.getField(stream.event_time).isNotNull()
        found = f.when(good, row)
        return found if otherwise is None else found.otherwise(otherwise)

    # As the variable of a function: where it stood in each condition it would be parsed for each.
    return f.transform(f.array(parsed), good_row).getItem(0)


def _failure(stream: Stream) -> Column:
    """An error that says which record is none, and why."""
    from pyspark.sql import functions as f

    message = f.concat_ws(
        " ",
        f.lit(f"stream {stream.name}: the record at offset"),
        f.col("offset"),
        f.lit("of partition"),
        f.col("partition"),
        f.lit("can't be parsed:"),
        _reason(stream),
    )
    return f.raise_error(message)


def _as_entry(text: Column) -> Column:
    """An object with a text as its first entry, and a second one that ends it."""
    from pyspark.sql import functions as f

    return f.concat(f.lit(f'{{"{_ROW}":'), text, f.lit(f',"{_END}":null}}'))


def _reason(stream: Stream) -> Column:
    """Why a record is a dead letter, in words; computed for dead letters only."""
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    row = f.from_json(text, struct(stream.schema))
    fields = f.from_json(text, "map<string, string>")
    entries = f.from_json(_as_entry(text), "map<string, string>")
    is_one = (f.size(entries) == 2) & f.map_contains_key(entries, _END)
    wrong = [
        f.when(
            f.element_at(fields, column.name).isNotNull() & row.getField(column.name).isNull(),
            f.concat(
                f.lit(f"{column.name} is no {column.type}: "),
                f.substring(f.element_at(fields, column.name), 1, 100),
            ),
        )
        for column in columns(stream.schema)
    ]
    reason = f.when(f.col("value").isNull(), "the value is null")
    reason = reason.when(~f.is_valid_utf8(f.col("value")), "the value is no UTF-8 text")
    reason = reason.when(fields.isNull(), "the value is no JSON object")
    more = ~f.coalesce(is_one, f.lit(False))
    reason = reason.when(more, "the value has more than its JSON object")
    found = f.concat_ws("; ", *wrong)
    reason = reason.when(found != "", found)
    if stream.event_time is not None:
        missing = row.getField(stream.event_time).isNull()
        reason = reason.when(missing, f"there is no event time {stream.event_time}")
    return reason.otherwise("a field has not the type of its column")


def _headers(stream: Stream, pipeline: str) -> Column:
    from pyspark.sql import functions as f

    values: tuple[Column, ...] = (
        f.col(_WHY),
        f.col("topic"),
        f.col("partition").cast("string"),
        f.col("offset").cast("string"),
        f.unix_millis("timestamp").cast("string"),
        f.lit(pipeline),
        f.lit(stream.name),
    )
    added = f.array(
        *[
            f.struct(f.lit(name).alias("key"), value.cast("binary").alias("value"))
            for name, value in zip(HEADERS, values, strict=True)
        ]
    )
    return f.when(f.col("headers").isNull(), added).otherwise(f.concat(f.col("headers"), added))
