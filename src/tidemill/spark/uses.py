"""What a pipeline's queries use, and which queries it has besides those that are declared.

Must not know: Spark, Kafka clients.
"""

from __future__ import annotations

from tidemill.spark import sql_check
from tidemill.spark.pipeline import Pipeline, Query, Stream, Table
from tidemill.spark.sinks import ChangelogSink, TopicSink

LETTERS = ".dlq"
"""Ends the name of a query that writes a stream's dead letters, and of their topic."""

_LETTERS_TRIGGER = "1 second"


def inputs_of(query: Query, pipeline: Pipeline) -> list[Stream | Table]:
    """Streams and tables that a query uses, as far as they are declared."""
    names = query.inputs
    if query.sql is not None:
        found = sql_check.tables_of(query.sql)
        if found is None:  # Spark may know what it names
            return pipeline.inputs
        names = found
    by_name = {each.name.lower(): each for each in pipeline.inputs}
    # SQL does not tell capitals from small letters.
    return [by_name[name.lower()] for name in names if name.lower() in by_name]


def topics_of(query: Query, pipeline: Pipeline) -> list[str]:
    """Topics that a query reads."""
    return list(dict.fromkeys(each.topic for each in inputs_of(query, pipeline)))


def letters_of(pipeline: Pipeline) -> dict[str, Query]:
    """Queries that write dead letters, by the stream: of those whose records some query parses."""
    used = {id(each) for query in pipeline.queries for each in inputs_of(query, pipeline)}
    return {
        stream.name: Query(
            name=f"{stream.name}{LETTERS}",
            inputs=(stream.name,),
            build=None,
            sql=None,
            sink=TopicSink(stream.dead_letters),
            mode="append",
            trigger=_LETTERS_TRIGGER,
            place=stream.place,
        )
        for stream in pipeline.streams
        if id(stream) in used and stream.format != "raw" and stream.dead_letters is not None
    }


def all_queries(pipeline: Pipeline) -> list[Query]:
    """Those that are declared, and those for dead letters."""
    return [*pipeline.queries, *letters_of(pipeline).values()]


Named = list[tuple[str, bool]]
"""Topics, and whether they are changelogs."""


def topics_to_prepare(pipeline: Pipeline) -> tuple[Named, Named]:
    """Topics that are read, tables' among them, and those that are written."""
    written = [
        (query.sink.topic, isinstance(query.sink, ChangelogSink))
        for query in all_queries(pipeline)
        if isinstance(query.sink, (TopicSink, ChangelogSink))
    ]
    changelogs = {table.topic for table in pipeline.tables}
    changelogs |= {name for name, is_changelog in written if is_changelog}
    return [(each.topic, each.topic in changelogs) for each in pipeline.inputs], written
