"""Nexmark's queries as pipelines of tidemill. Must not know: how they are run and measured."""

from __future__ import annotations

from bench.nexmark.frames import FRAMES
from bench.nexmark.queries import QUERIES, SCHEMAS, TOPICS, WATERMARK
from tidemill.spark import Pipeline, TopicSink


def pipeline(query: str, topic: str) -> Pipeline:
    """Return the pipeline of one query.

    Args:
        query: Name of the query.
        topic: Topic of the result.
    """
    made = Pipeline(topic)
    for name in QUERIES[query].inputs:
        made.stream(
            name,
            topic=TOPICS[name],
            schema=SCHEMAS[name],
            event_time="dateTime",
            watermark=WATERMARK,
        )
    made.query(sink=TopicSink(topic))(FRAMES[query])
    return made
