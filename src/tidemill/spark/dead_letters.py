"""Records that can't be parsed: told from the others, and described for a dead-letter topic.

A record is a dead letter if its value is no JSON object, has a field that is not of its column's
type, or lacks the event time. It keeps its key, its value and its headers, and gets more headers
that say why and where from. Must not know: pipelines' runs, sinks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.spark.ddl import columns
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

_BLANKS = " \t\r\n"  # of JSON
_ROW = "__tidemill_row"
_CORRUPT = "__tidemill_corrupt"
_WHY = "__tidemill_why"


def parse(source: DataFrame, stream: Stream, pipeline: str) -> tuple[DataFrame, DataFrame]:
    """Records as rows of the stream's schema, and those that can't be that.

    Args:
        source: with the columns of the Kafka source, headers among them.
        stream: what they should be; where it names no topic for dead letters, the first of them
            fails the query.
        pipeline: its name, for the header.

    Returns:
        Rows with exactly the schema's columns; and records with ``key``, ``value``, ``headers``.
    """
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    parsed = f.from_json(
        text,
        f"{stream.schema}, {_CORRUPT} STRING",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT},
    )
    # An array of objects would pass as its first element. And the condition keeps the optimizer
    # from reading only those fields that are used: it would not see that another is malformed.
    read = source.withColumn(_ROW, f.when(f.ltrim(text, f.lit(_BLANKS)).startswith("{"), parsed))
    bad_row = ~_is_good(stream)
    names = [column.name for column in columns(stream.schema)]
    good, row = read, f.col(_ROW)
    if stream.dead_letters is None:
        message = f.concat_ws(
            " ",
            f.lit(f"stream {stream.name}: the record at offset"),
            f.col("offset"),
            f.lit("of partition"),
            f.col("partition"),
            f.lit("can't be parsed:"),
            _reason(stream),
        )
        checked = f.when(bad_row, f.raise_error(message)).otherwise(row)
        good = read.withColumn(_ROW, checked)
    else:
        good = read.filter(~bad_row)
    rows = good.select(*[f.col(_ROW).getField(name).alias(name) for name in names])
    letters = read.filter(bad_row).withColumn(_WHY, _reason(stream))
    return rows, letters.select("key", "value", _headers(stream, pipeline).alias("headers"))


def _is_good(stream: Stream) -> Column:
    from pyspark.sql import functions as f

    good = f.col(_ROW).isNotNull() & f.col(f"{_ROW}.{_CORRUPT}").isNull()
    good &= f.is_valid_utf8(f.col("value"))  # texts would get replacement characters
    if stream.event_time is not None:
        good &= f.col(_ROW).getField(stream.event_time).isNotNull()
    return f.coalesce(good, f.lit(False))


def _reason(stream: Stream) -> Column:
    """Why a record is a dead letter, in words; computed for dead letters only."""
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    fields = f.from_json(text, "map<string, string>")
    wrong = [
        f.when(
            f.element_at(fields, column.name).isNotNull()
            & f.col(_ROW).getField(column.name).isNull(),
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
    found = f.concat_ws("; ", *wrong)
    reason = reason.when(found != "", found)
    if stream.event_time is not None:
        missing = f.col(_ROW).getField(stream.event_time).isNull()
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
