"""Resolve what a pipeline's queries read and write, and add the queries for dead letters.

Must not know: Spark, Kafka clients.
"""

from __future__ import annotations

from tidemill.spark.pipelines.declared import Pipeline, Query, Stream, Table
from tidemill.spark.pipelines.sql import parse
from tidemill.spark.sinks.topic.sink import TopicSink

DEAD_LETTERS = ".dlq"
"""Suffix of a query that writes a stream's dead letters, and of their topic."""

_DEAD_LETTERS_TRIGGER = "1 second"

Topics = list[tuple[str, bool]]
"""The names of topics, and whether each is a changelog."""


def inputs_of(query: Query, pipeline: Pipeline) -> list[Stream | Table]:
    """Return the declared streams and tables that a query uses."""
    names = query.inputs
    if query.sql is not None:
        found = parse(query.sql).tables
        if found is None:  # Spark may understand the text, so it may use all of them.
            return pipeline.inputs
        names = found
    # Names in SQL are case-insensitive.
    by_name = {each.name.lower(): each for each in pipeline.inputs}
    return [by_name[name.lower()] for name in names if name.lower() in by_name]


def topics_of(query: Query, pipeline: Pipeline) -> dict[str, Stream | Table]:
    """Return the topics that a query reads, each with the first of its inputs that has it."""
    found: dict[str, Stream | Table] = {}
    for each in inputs_of(query, pipeline):
        for topic in each.topics:
            found.setdefault(topic, each)
    return found


def dead_letter_queries(pipeline: Pipeline) -> dict[str, Query]:
    """Return the queries that write dead letters, by the name of their stream.

    There is one for each stream that a query uses, that is parsed, and that has a topic for dead
    letters.
    """
    if not pipeline.writes_dead_letters:
        return {}
    used = {id(each) for query in pipeline.queries for each in inputs_of(query, pipeline)}
    return {
        stream.name: Query(
            name=f"{stream.name}{DEAD_LETTERS}",
            inputs=(stream.name,),
            build=None,
            sql=None,
            sink=TopicSink(stream.dead_letters),
            mode="append",
            trigger=_DEAD_LETTERS_TRIGGER,
            place=stream.place,
        )
        for stream in pipeline.streams
        if id(stream) in used and stream.format != "raw" and stream.dead_letters is not None
    }


def all_queries(pipeline: Pipeline) -> list[Query]:
    """Return the declared queries, then those for dead letters."""
    return [*pipeline.queries, *dead_letter_queries(pipeline).values()]


def topics_to_create(pipeline: Pipeline) -> tuple[Topics, Topics]:
    """Return the topics that the pipeline reads, and those that it writes."""
    written = [
        (topic.name, topic.is_compacted)
        for query in all_queries(pipeline)
        for topic in query.sink.topics()
    ]
    changelogs = {topic for table in pipeline.tables for topic in table.topics}
    changelogs |= {name for name, is_changelog in written if is_changelog}
    read = [(topic, topic in changelogs) for each in pipeline.inputs for topic in each.topics]
    return read, written
