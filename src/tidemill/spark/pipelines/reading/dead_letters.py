"""Make dead letters of the records that can't be parsed, in a query of Spark.

A record is a dead letter if its value is not a JSON object, has a field that is not of its column's
type, or has no event time. In the dead-letter topic it keeps its key, its value and its headers,
and gets more headers with the reason and with its position in the stream's topic. Must not know:
how values are parsed, runs of pipelines, sinks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.spark.letters.records import HEADERS
from tidemill.spark.source.planning.parsing import REASON as REASON_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def dead_letters(refused: DataFrame, stream: str, pipeline: str) -> DataFrame:
    """Return dead letters, with ``key``, ``value`` and ``headers``.

    Args:
        refused: the records that can't be parsed, with the columns of the Kafka source, ``headers``
            among them, and with the reason.
        stream: the name of the stream, for the header.
        pipeline: the name of the pipeline, for the header.
    """
    from pyspark.sql import functions as f

    values: tuple[Column, ...] = (
        f.col(REASON_COLUMN),
        f.col("topic"),
        f.col("partition").cast("string"),
        f.col("offset").cast("string"),
        f.unix_millis("timestamp").cast("string"),
        f.lit(pipeline),
        f.lit(stream),
    )
    added = f.array(
        *[
            f.struct(f.lit(name).alias("key"), value.cast("binary").alias("value"))
            for name, value in zip(HEADERS, values, strict=True)
        ]
    )
    own = f.col("headers")
    headers = f.when(own.isNull(), added).otherwise(f.concat(own, added))
    return refused.select("key", "value", headers.alias("headers"))
