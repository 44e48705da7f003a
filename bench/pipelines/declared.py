"""The pipelines whose latency and start are measured. Must not know: how they are run."""

from __future__ import annotations

from typing import Any

from tidemill.spark import ChangelogSink, Pipeline, TopicSink, tumbling

SCHEMA = "n BIGINT, at TIMESTAMP"
WATERMARK, WINDOW = "1 minute", "10 seconds"


def declared(query: str, trigger: str, topic: str) -> Pipeline:
    """Return the pipeline that is measured. It writes to ``<topic>.out``."""
    pipeline = Pipeline(topic)
    pipeline.stream(
        "records",
        topic=topic,
        schema=SCHEMA,
        event_time="at",
        watermark=WATERMARK,
        dead_letters=None,
    )
    result = f"{topic}.out"
    if query == "stateless":

        @pipeline.query(sink=TopicSink(result), trigger=trigger)
        def stateless(records: Any) -> Any:
            return records.df.filter("n >= 0").select("n")

        return pipeline

    @pipeline.query(sink=ChangelogSink(result, key="start"), mode="update", trigger=trigger)
    def windowed(records: Any) -> Any:
        counted = records.df.groupBy(tumbling("at", WINDOW)).agg({"n": "max", "*": "count"})
        return counted.selectExpr("window.start", "`max(n)` AS n", "`count(1)` AS records")

    return pipeline
