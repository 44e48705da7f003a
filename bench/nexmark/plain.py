"""Runs Nexmark's queries as plain Structured Streaming with Spark's own Kafka connector.

Must not know: how queries are measured.
"""

from __future__ import annotations

from typing import Any

from bench.nexmark.frames import FRAMES, plain
from bench.nexmark.queries import QUERIES, SCHEMAS, TOPICS, WATERMARK
from bench.pipelines.plain import as_json, stream


def start(spark: Any, bootstrap: str, query: str, topic: str, checkpoint: str) -> Any:
    """Start a query that reads what there is, writes its result to a topic, and ends.

    Args:
        spark: The session. Its class path has the connector.
        bootstrap: Address of the broker.
        query: Name of the query.
        topic: Topic of the result.
        checkpoint: Folder of the checkpoint.

    Returns:
        The streaming query.
    """
    inputs = [
        stream(spark, bootstrap, TOPICS[name], SCHEMAS[name]).withWatermark("dateTime", WATERMARK)
        for name in QUERIES[query].inputs
    ]
    return (
        as_json(FRAMES[query](*inputs, of=plain()))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
