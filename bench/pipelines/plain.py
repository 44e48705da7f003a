"""Plain Structured Streaming with Spark's own Kafka connector, as the measured queries need it.

Must not know: tidemill, how queries are measured.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as f


def stream(spark: Any, brokers: str, topic: str, schema: str) -> Any:
    """Return the records of a topic as rows of a schema."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .select(f.from_json(f.col("value").cast("string"), schema).alias("v"))
        .select("v.*")
    )


def as_json(result: Any, key: str = "") -> Any:
    """Return rows as records of JSON, keyed by a column if one is named."""
    value = f.to_json(f.struct(*result.columns)).alias("value")
    if not key:
        return result.select(value)
    return result.select(f.col(key).cast("string").alias("key"), value)
