"""Parse a stream's records, and separate those that can't be parsed: the dead letters.

A record is a dead letter if its value is not a JSON object, has a field that is not of its column's
type, or has no event time. In the dead-letter topic it keeps its key, its value and its headers,
and gets more headers with the reason and with its position in the stream's topic. Must not know:
runs of pipelines, sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill.spark.base.ddl import columns, struct
from tidemill.spark.pipelines.declared import Stream

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
"""Headers that are added to a dead letter. All are text; the timestamp is in milliseconds since
1970."""

_ROW = "__tidemill_row"
_END = "__tidemill_end"
_ALL = "__tidemill_all"
_CORRUPT = "__tidemill_corrupt"
_WHY = "__tidemill_why"

Observe = Callable[["DataFrame"], "DataFrame"]


def parse(
    source: DataFrame, stream: Stream, pipeline: str, observe: Observe = lambda df: df
) -> tuple[DataFrame, DataFrame]:
    """Parse records as rows of a stream's schema.

    Args:
        source: the records, with the columns of the Kafka source, ``headers`` among them.
        stream: the stream; if it has no topic for dead letters, a dead letter fails the query.
        pipeline: the name of the pipeline, for the header.
        observe: adds a metric of the ``timestamp`` of all records that are parsed.

    Returns:
        The rows, with exactly the schema's columns; and the dead letters, with ``key``, ``value``
        and ``headers``.
    """
    from pyspark.sql import functions as f

    letters = source.filter(_row(stream).isNull()).withColumn(_WHY, _reason(stream))
    row = _row(stream, _failure(stream) if stream.dead_letters is None else None)
    # The row is computed below the metric, so each record is parsed once: otherwise the optimizer
    # would parse it for the filter and again for the columns. The filter also keeps Spark from
    # skipping the parser when a query uses no columns, so a dead letter always fails the query.
    read = observe(source.select("timestamp", row.alias(_ROW))).filter(f.col(_ROW).isNotNull())
    names = [column.name for column in columns(stream.schema)]
    rows = read.select(*[f.col(_ROW).getField(name).alias(name) for name in names])
    return rows, letters.select("key", "value", _headers(stream, pipeline).alias("headers"))


def _row(stream: Stream, otherwise: Column | None = None) -> Column:
    """Return a record as a row; for a dead letter, ``otherwise`` or null.

    Spark's parser stops after the first value of a text and ignores the rest. So the text is
    wrapped as the first of two entries in an object: a text that is not exactly one value then
    makes another number of entries, or is not JSON at all.
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
        good &= f.is_valid_utf8(f.col("value"))  # else texts would have replacement characters
        if stream.event_time is not None:
            good &= row.getField(stream.event_time).isNotNull()
        found = f.when(good, row)
        return found if otherwise is None else found.otherwise(otherwise)

    # A lambda's variable: if each condition contained the parser, it would run for each of them.
    return f.transform(f.array(parsed), good_row).getItem(0)


def _failure(stream: Stream) -> Column:
    """Return an expression that fails the query with the record's position and the reason."""
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
    """Return an object with a text as its first entry, and a second entry that marks its end."""
    from pyspark.sql import functions as f

    return f.concat(f.lit(f'{{"{_ROW}":'), text, f.lit(f',"{_END}":null}}'))


def _reason(stream: Stream) -> Column:
    """Return the reason why a record is a dead letter. It is computed for dead letters only."""
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
                f.lit(f"{column.name} is not {column.type}: "),
                f.substring(f.element_at(fields, column.name), 1, 100),
            ),
        )
        for column in columns(stream.schema)
    ]
    reason = f.when(f.col("value").isNull(), "the value is null")
    reason = reason.when(~f.is_valid_utf8(f.col("value")), "the value is not UTF-8 text")
    reason = reason.when(fields.isNull(), "the value is not a JSON object")
    more = ~f.coalesce(is_one, f.lit(False))
    reason = reason.when(more, "the value has more than its JSON object")
    found = f.concat_ws("; ", *wrong)
    reason = reason.when(found != "", found)
    if stream.event_time is not None:
        missing = row.getField(stream.event_time).isNull()
        reason = reason.when(missing, f"the event time {stream.event_time} is missing")
    return reason.otherwise("a field does not have the type of its column")


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
