"""Check a declared pipeline before Spark starts, and report all of its mistakes together.

Some mistakes are visible to Spark only: the columns that a query function uses, or the output
modes that a plan allows. ``runner`` checks those after the session has started and before the
first query starts, and reports them in the same way. Must not know: Spark, Kafka clients.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from copy import copy

from tidemill.errors import TidemillError
from tidemill.spark.base.ddl import Column
from tidemill.spark.pipelines.check_inputs import (
    Schemas,
    duration_problems,
    stream_problems,
    table_problems,
)
from tidemill.spark.pipelines.checkpoint import ID_LENGTH
from tidemill.spark.pipelines.declared import Pipeline, Place, Query, Stream
from tidemill.spark.pipelines.problems import PipelineProblemsError, Problem
from tidemill.spark.pipelines.resolve import all_queries, dead_letter_queries, inputs_of
from tidemill.spark.pipelines.sql import SqlText, parse, suggestion
from tidemill.spark.sinks.base import MODES, QueryContext, is_sink
from tidemill.spark.sinks.topic.options import MAX_SINK_ID

MAX_NAMES_LENGTH = MAX_SINK_ID - ID_LENGTH - 2
"""Most letters that the names of a pipeline and of a query may have together: brokers know the
query's output by ``<pipeline>.<query>.<id>``."""

REAL_TIME = "realtime"
"""A trigger that Spark has, and a pipeline can't have."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check(pipeline: Pipeline, kafka: Mapping[str, object] | None = None) -> None:
    """Check everything that is visible without Spark.

    Args:
        kafka: the librdkafka settings that it will run with, if they are known.

    Raises:
        PipelineProblemsError: the pipeline has mistakes.
    """
    found = [*problems(pipeline), *_kafka_problems(pipeline, kafka or {})]
    if found:
        raise PipelineProblemsError(pipeline.name, found)


def problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield the mistakes of a pipeline that are visible without Spark and without settings."""
    if not _NAME.fullmatch(pipeline.name):
        yield Problem(
            pipeline.place,
            f"invalid pipeline name {pipeline.name!r}",
            "Use letters, digits, '.', '_' and '-', at most 100 of them; begin with a letter or "
            "a digit.",
        )
    if not pipeline.queries:
        yield Problem(
            pipeline.place,
            "the pipeline has no query",
            "Declare one with @pipeline.query(sink=...).",
        )
    for query in pipeline.queries:
        if not is_sink(query.sink):
            yield Problem(
                query.place,
                f"query {query.name}: {query.sink!r} is not a sink",
                f'For example sink=TopicSink("{query.name}").',
            )
    pipeline = _with_sinks(pipeline)
    yield from _name_problems(pipeline)
    schemas: Schemas = {}
    for stream in pipeline.streams:
        yield from stream_problems(stream, schemas)
    for table in pipeline.tables:
        yield from table_problems(table, schemas)
    for query in pipeline.queries:
        yield from _query_problems(query, pipeline, schemas)


def _kafka_problems(pipeline: Pipeline, kafka: Mapping[str, object]) -> Iterator[Problem]:
    """Yield the mistake of settings with which no query could write to a topic."""
    writers = all_queries(pipeline)
    found = dict.fromkeys(mistake for each in writers for mistake in each.sink.check_kafka(kafka))
    for mistake in found:
        yield Problem(pipeline.place, f"the settings for Kafka: {mistake.message}", mistake.hint)


def _with_sinks(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline without queries whose sink is invalid: they can't be checked further."""
    found = copy(pipeline)
    found.queries = [query for query in pipeline.queries if is_sink(query.sink)]
    return found


# --- names ---------------------------------------------------------------------------------------


def _name_problems(pipeline: Pipeline) -> Iterator[Problem]:
    yield from _duplicates(
        [(each.name.lower(), each.place) for each in pipeline.inputs],
        "there are two streams or tables",
    )
    queries = [*dead_letter_queries(pipeline).values(), *pipeline.queries]
    yield from _duplicates([(q.name, q.place) for q in queries], "there are two queries")
    replaced = {query.sink.place for query in pipeline.queries if not query.sink.adds_only}
    yield from _duplicates(
        [(q.sink.place, q.place) for q in pipeline.queries if q.sink.place in replaced],
        "two queries write to",
        "Give each query a sink of its own.",
        {query.sink.place: query.sink.target for query in pipeline.queries},
    )
    for query in all_queries(pipeline):
        length = len(pipeline.name) + len(query.name)
        if length > MAX_NAMES_LENGTH:
            yield Problem(
                query.place,
                f"the names of query {query.name} and of the pipeline are too long together",
                f"They have {length} letters, and may have {MAX_NAMES_LENGTH}.",
            )
    for query in all_queries(pipeline):
        for each in inputs_of(query, pipeline):
            for topic in each.topics:
                if topic in {each.name for each in query.sink.topics()}:
                    yield Problem(
                        query.place,
                        f"query {query.name} reads topic {topic} and writes to it: it would never "
                        "come to an end",
                    )


def _duplicates(
    names: Iterable[tuple[Hashable, Place]],
    what: str,
    hint: str = "Rename one of them.",
    texts: Mapping[Hashable, str] | None = None,
) -> Iterator[Problem]:
    """Yield a problem for each name that occurs again.

    Args:
        what: the beginning of the message.
        texts: the text that a message shows for a name, where that is not the name itself.
    """
    names = list(names)
    counts = Counter(name for name, _ in names)
    first: dict[Hashable, Place] = {}
    for name, place in names:
        if counts[name] > 1 and name in first:
            text = name if texts is None else texts[name]
            yield Problem(place, f"{what} {text} (the other: {first[name]})", hint)
        first.setdefault(name, place)


# --- queries -------------------------------------------------------------------------------------


def _query_problems(
    query: Query, pipeline: Pipeline, schemas: Mapping[str, tuple[Column, ...]]
) -> Iterator[Problem]:
    what = f"query {query.name}"
    if not _NAME.fullmatch(query.name):
        yield Problem(
            query.place,
            f"invalid query name {query.name!r}",
            "Use letters, digits, '.', '_' and '-', at most 100 of them; begin with a letter or "
            "a digit.",
        )
    yield from _trigger_problems(what, query)
    yield from _mode_problems(what, query)
    yield from _sink_problems(what, query, pipeline)
    for name in query.inputs:
        if pipeline.find(name) is None:
            declared = [each.name for each in pipeline.inputs]
            yield Problem(
                query.place,
                f"{what} has a parameter {name}, and no stream or table has this name",
                suggestion(name, declared) or "Declare it with pipeline.stream or .table.",
            )
    if query.build is not None and not query.inputs:
        yield Problem(
            query.place,
            f"{what} has no parameters, so it gets no stream",
            "Name a stream as a parameter.",
        )
    if query.sql is not None:
        yield from _sql_problems(what, query, query.sql, pipeline, schemas)


def _trigger_problems(what: str, query: Query) -> Iterator[Problem]:
    """Yield the mistake of a trigger that is not a duration.

    Source of what real-time mode takes: ``RealTimeModeAllowlist`` of Spark 4.3.
    """
    if isinstance(query.trigger, str) and query.trigger.strip().lower() == REAL_TIME:
        yield Problem(
            query.place,
            f"{what}: Spark's real-time mode does not take this query: its sources and sinks must "
            "be written in Java, and those of a pipeline are not",
            'Use trigger="0 seconds": each batch starts as soon as the one before has ended. For '
            'real-time mode use Spark itself: spark.readStream.format("kafka"), '
            'writeStream.format("kafka") and trigger(realTime="5 minutes").',
        )
        return
    yield from duration_problems(what, "trigger", query.trigger, query.place)


def _mode_problems(what: str, query: Query) -> Iterator[Problem]:
    if query.mode not in MODES:
        yield Problem(
            query.place,
            f"{what}: invalid output mode {query.mode!r}",
            f"Use one of {', '.join(MODES)}.",
        )
    elif query.mode not in query.sink.modes:
        yield Problem(
            query.place,
            f"{what}: {type(query.sink).__name__} does not support {query.mode} mode",
            f"Use {' or '.join(query.sink.modes)} mode.",
        )


def _sink_problems(what: str, query: Query, pipeline: Pipeline) -> Iterator[Problem]:
    context = QueryContext(pipeline.name, query.name, query.mode)
    try:
        for mistake in query.sink.check(context):
            yield Problem(query.place, f"{what}: {mistake.message}", mistake.hint)
    except TidemillError as error:
        yield Problem(query.place, f"{what}: {error}", error.hint)


def _sql_problems(
    what: str,
    query: Query,
    text: str,
    pipeline: Pipeline,
    schemas: Mapping[str, tuple[Column, ...]],
) -> Iterator[Problem]:
    parsed = parse(text)
    # Where a schema is invalid, that has been reported, and columns can't be checked.
    if {each.name for each in pipeline.inputs} <= set(schemas):
        for message, hint in parsed.mistakes(schemas):
            yield Problem(query.place, f"{what}: {message}", hint)
    if query.mode == "update" and parsed.has_session_windows:
        yield Problem(
            query.place,
            f"{what}: session windows are not supported in update mode",
            "Use append or complete mode.",
        )
    if query.mode == "append":
        streams = [each for each in inputs_of(query, pipeline) if isinstance(each, Stream)]
        yield from _watermark_problems(what, query, parsed, streams)


def _watermark_problems(
    what: str, query: Query, parsed: SqlText, streams: Iterable[Stream]
) -> Iterator[Problem]:
    """Yield the mistake of grouping a stream's rows in append mode without a watermark.

    Rows of a table may be grouped: each batch reads the whole table.
    """
    by_name = {each.name.lower(): each for each in streams}
    for names in parsed.groups:
        grouped = [by_name[name.lower()] for name in names if name.lower() in by_name]
        if grouped and all(each.watermark is None for each in grouped):
            yield Problem(
                query.place,
                f"{what} groups rows in append mode, and "
                f"{', '.join(each.name for each in grouped)} has no watermark: no group would ever "
                "be final",
                'Declare the stream with event_time=... and watermark="1 hour", or use update '
                "mode.",
            )
            return
