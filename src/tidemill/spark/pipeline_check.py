"""What is wrong with a pipeline, all of it at once, before Spark starts.

What only Spark can see (columns that a query function uses, what a plan's output mode may be) is
looked at by ``runner``, after the session is up and before any query starts, and told in the same
way. Must not know: Spark, Kafka clients.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass

from tidemill.errors import OptionError, PipelineError, SchemaError, TidemillError, WindowError
from tidemill.spark import sql_check
from tidemill.spark.checkpoint import ID_LETTERS
from tidemill.spark.ddl import Column, columns
from tidemill.spark.options import TOPIC_NAME
from tidemill.spark.pipeline import Pipeline, Place, Query, Stream, Table
from tidemill.spark.sink_options import MAX_SINK_ID, check_pipeline
from tidemill.spark.sinks import MODES, ChangelogSink, ForeachBatchSink, Sink, TableSink, TopicSink
from tidemill.spark.uses import inputs_of, letters_of
from tidemill.spark.window_spec import Duration, microseconds

FORMATS = ("json", "raw")
RAW_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""Columns of a stream in the format ``raw``: those of the source."""

LONGEST_NAMES = MAX_SINK_ID - ID_LETTERS - 2
"""Letters of a pipeline's and a query's names together: brokers know an output by
``<pipeline>.<query>.<id>``."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake.

    Attributes:
        place: where it stands in the user's file.
        message: what is wrong.
        hint: what to do, or an empty string.
    """

    place: Place
    message: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f"\n    hint: {self.hint}" if self.hint else ""
        return f"{self.place}: {self.message}{hint}"


class PipelineProblemsError(PipelineError):
    """All that is wrong with a pipeline.

    Attributes:
        problems: in the order of the file.
    """

    def __init__(self, name: str, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems, key=lambda each: (each.place.file, each.place.line))
        count = len(self.problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        what = "a mistake" if count == 1 else f"{count} mistakes"
        super().__init__(f"pipeline {name} has {what}:\n{lines}")


def check(pipeline: Pipeline, kafka: Mapping[str, object] | None = None) -> None:
    """Look at all that can be seen without Spark.

    Args:
        kafka: the settings of librdkafka that it is to run with, where they are known.

    Raises:
        PipelineProblemsError: something is wrong.
    """
    found = [*problems(pipeline), *_settings(pipeline, kafka or {})]
    if found:
        raise PipelineProblemsError(pipeline.name, found)


def problems(pipeline: Pipeline) -> Iterator[Problem]:
    """What ``check`` would complain of."""
    if not _NAME.fullmatch(pipeline.name):
        yield Problem(
            pipeline.place,
            f"{pipeline.name!r} is no name of a pipeline",
            "Letters, digits, '.', '_' and '-', at most 100 of them.",
        )
    if not pipeline.queries:
        yield Problem(
            pipeline.place, "there is no query", "Declare one with @pipeline.query(sink=...)."
        )
    known: dict[str, tuple[Column, ...]] = {}
    for query in pipeline.queries:
        if not isinstance(query.sink, Sink):
            yield Problem(
                query.place,
                f"query {query.name}: {query.sink!r} is no sink",
                f'For example sink=TopicSink("{query.name}").',
            )
    pipeline = _with_sinks(pipeline)
    yield from _clashes(pipeline)
    for stream in pipeline.streams:
        yield from _stream(stream, known)
    for table in pipeline.tables:
        yield from _table(table, known)
    for query in pipeline.queries:
        yield from _query(query, pipeline, known)


def _settings(pipeline: Pipeline, kafka: Mapping[str, object]) -> Iterator[Problem]:
    """Of Kafka: such as exclude what any query does that writes to a topic."""
    writes = [*pipeline.queries, *letters_of(pipeline).values()]
    if not any(isinstance(each.sink, (TopicSink, ChangelogSink)) for each in writes):
        return
    try:
        check_pipeline(kafka)
    except OptionError as error:
        yield Problem(pipeline.place, f"the settings for Kafka: {error}", error.hint)


def _with_sinks(pipeline: Pipeline) -> Pipeline:
    """Without the queries that have none: of them, nothing else can be said."""
    found = copy(pipeline)
    found.queries = [query for query in pipeline.queries if isinstance(query.sink, Sink)]
    return found


# --- names ---------------------------------------------------------------------------------------


def _clashes(pipeline: Pipeline) -> Iterator[Problem]:
    yield from _twice(
        [(each.name.lower(), each.place) for each in pipeline.inputs],
        "there are two streams or tables",
    )
    letters = letters_of(pipeline)
    named = [(q.name, q.place) for q in [*letters.values(), *pipeline.queries]]
    yield from _twice(named, "there are two queries")
    yield from _twice(
        [(query.sink.place, query.place) for query in pipeline.queries],
        "two queries write to",
        "Give each query a sink of its own.",
        {query.sink.place: query.sink.target for query in pipeline.queries},
    )
    for query in [*pipeline.queries, *letters.values()]:
        letters_of_both = len(pipeline.name) + len(query.name)
        if letters_of_both > LONGEST_NAMES:
            yield Problem(
                query.place,
                f"the name of query {query.name} and the pipeline's are too long",
                f"Together they may have {LONGEST_NAMES} letters, and have {letters_of_both}.",
            )
    for query in [*pipeline.queries, *letters.values()]:
        for each in inputs_of(query, pipeline):
            if query.sink.target == f"topic {each.topic}":
                yield Problem(
                    query.place,
                    f"query {query.name} reads topic {each.topic} and writes to it: it would never "
                    "come to an end",
                )


def _twice(
    names: Iterable[tuple[Hashable, Place]],
    what: str,
    hint: str = "Rename one of them.",
    shown: Mapping[Hashable, str] | None = None,
) -> Iterator[Problem]:
    """Names that are there twice; ``shown`` where they are not for the eye."""
    names = list(names)
    counts = Counter(name for name, _ in names)
    first: dict[Hashable, Place] = {}
    for name, place in names:
        if counts[name] > 1 and name in first:
            text = name if shown is None else shown[name]
            yield Problem(place, f"{what} {text} (the other: {first[name]})", hint)
        first.setdefault(name, place)


# --- streams and tables --------------------------------------------------------------------------


def _stream(stream: Stream, known: dict[str, tuple[Column, ...]]) -> Iterator[Problem]:
    what = f"stream {stream.name}"
    yield from _names(what, stream)
    yield from _reading(what, stream)
    if stream.format not in FORMATS:
        yield Problem(
            stream.place,
            f"{what}: there is no format {stream.format!r}",
            f"One of {', '.join(FORMATS)}.",
        )
        return
    if stream.format == "raw" and stream.schema:
        yield Problem(
            stream.place,
            f"{what}: the columns of the format raw are fixed",
            "Leave schema out, or take the format json.",
        )
        return
    try:
        made = columns(RAW_SCHEMA if stream.format == "raw" else stream.schema)
    except SchemaError as error:
        yield Problem(stream.place, f"{what}: {error}", error.hint)
        return
    known[stream.name] = made
    yield from _event_time(what, stream, made)


def _reading(what: str, stream: Stream) -> Iterator[Problem]:
    """How its topic is read."""
    starting: object = stream.starting
    if starting not in ("earliest", "latest") and (
        not isinstance(starting, int) or isinstance(starting, bool) or starting < 0
    ):
        yield Problem(
            stream.place,
            f"{what}: starting {starting!r} is no place to begin",
            '"earliest", "latest", or milliseconds since 1970.',
        )
    yield from _most(what, stream)
    if stream.dead_letters is not None and not TOPIC_NAME.fullmatch(stream.dead_letters):
        yield _no_topic(what, stream.dead_letters, stream.place)


def _most(what: str, each: Stream | Table) -> Iterator[Problem]:
    most = each.max_offsets_per_trigger
    if most is not None and most < 1:
        yield Problem(each.place, f"{what}: max_offsets_per_trigger {most} lets nothing through")


def _event_time(what: str, stream: Stream, made: tuple[Column, ...]) -> Iterator[Problem]:
    if stream.watermark is not None:
        if stream.event_time is None:
            yield Problem(
                stream.place,
                f"{what} has a watermark, and no event_time that it could be measured by",
                'For example event_time="event_time".',
            )
        yield from _duration(what, "watermark", stream.watermark, stream.place)
    if stream.event_time is None:
        return
    types = {column.name.lower(): column.type for column in made}
    kind = types.get(stream.event_time.lower())
    if kind is None:
        yield _no_column(what, "event_time", stream.event_time, made, stream.place)
    elif kind != "TIMESTAMP":
        yield Problem(
            stream.place,
            f"{what}: event_time {stream.event_time} is {kind}, not TIMESTAMP",
            "Declare it as TIMESTAMP: ISO 8601 texts are read as such.",
        )


def _table(table: Table, known: dict[str, tuple[Column, ...]]) -> Iterator[Problem]:
    what = f"table {table.name}"
    yield from _names(what, table)
    try:
        made = columns(table.schema)
    except SchemaError as error:
        yield Problem(table.place, f"{what}: {error}", error.hint)
        return
    known[table.name] = made
    if not table.key:
        yield Problem(table.place, f"{what} has no key", 'For example key="id".')
    names = {column.name.lower() for column in made}
    for name in table.key:
        if name.lower() not in names:
            yield _no_column(what, "key", name, made, table.place)
    if table.keep_versions is not None:
        yield from _duration(what, "keep_versions", table.keep_versions, table.place)
    yield from _most(what, table)


def _names(what: str, each: Stream | Table) -> Iterator[Problem]:
    if not _IDENTIFIER.fullmatch(each.name):
        yield Problem(
            each.place,
            f"{what}: a name is made of letters, digits and '_', and begins with no digit",
        )
    if not TOPIC_NAME.fullmatch(each.topic):
        yield _no_topic(what, each.topic, each.place)


def _no_topic(what: str, name: str, place: Place) -> Problem:
    return Problem(
        place,
        f"{what}: {name!r} is no name of a topic",
        "Letters, digits, '.', '_' and '-', at most 249 of them.",
    )


def _duration(what: str, name: str, value: Duration, place: Place) -> Iterator[Problem]:
    try:
        if microseconds(value) < 0:
            yield Problem(place, f"{what}: {name} {value!r} is below zero")
    except WindowError as error:
        yield Problem(place, f"{what}: {name}: {error}", error.hint)


def _no_column(what: str, role: str, name: str, made: tuple[Column, ...], place: Place) -> Problem:
    names = [column.name for column in made]
    return Problem(place, f"{what}: {role} {name} is no column", sql_check.meant(name, names))


# --- queries -------------------------------------------------------------------------------------


def _query(
    query: Query, pipeline: Pipeline, known: Mapping[str, tuple[Column, ...]]
) -> Iterator[Problem]:
    what = f"query {query.name}"
    if not _NAME.fullmatch(query.name):
        yield Problem(query.place, f"{query.name!r} is no name of a query")
    yield from _duration(what, "trigger", query.trigger, query.place)
    yield from _mode(what, query)
    yield from _sink(what, query)
    for name in query.inputs:
        if pipeline.find(name) is None:
            declared = [each.name for each in pipeline.inputs]
            yield Problem(
                query.place,
                f"{what} asks for {name}, which is not declared",
                sql_check.meant(name, declared) or "Declare it with pipeline.stream or .table.",
            )
    if query.build is not None and not query.inputs:
        yield Problem(
            query.place,
            f"{what} has no parameters, so it gets no stream",
            "Name a stream as a parameter.",
        )
    if query.sql is not None:
        yield from _sql(what, query, query.sql, pipeline, known)


def _mode(what: str, query: Query) -> Iterator[Problem]:
    if query.mode not in MODES:
        yield Problem(
            query.place,
            f"{what}: there is no output mode {query.mode!r}",
            f"One of {', '.join(MODES)}.",
        )
    elif query.mode not in query.sink.modes:
        yield Problem(
            query.place,
            f"{what}: {type(query.sink).__name__} takes no results in {query.mode} mode",
            f"Use {' or '.join(query.sink.modes)} mode.",
        )


def _sink(what: str, query: Query) -> Iterator[Problem]:
    sink = query.sink
    if isinstance(sink, (TopicSink, ChangelogSink)) and not TOPIC_NAME.fullmatch(sink.topic):
        yield _no_topic(what, sink.topic, query.place)
    if isinstance(sink, (ChangelogSink, TableSink)) and not sink.key_columns:
        yield Problem(
            query.place,
            f"{what}: {type(sink).__name__} has no key",
            'Name the columns that identify a row, for example key="id".',
        )
    try:
        sink.check()
    except TidemillError as error:
        yield Problem(query.place, f"{what}: {error}", error.hint)
    if isinstance(sink, ForeachBatchSink) and not callable(sink.function):
        yield Problem(query.place, f"{what}: {sink.function!r} is no function")


def _sql(
    what: str,
    query: Query,
    text: str,
    pipeline: Pipeline,
    known: Mapping[str, tuple[Column, ...]],
) -> Iterator[Problem]:
    declared = {each.name for each in pipeline.inputs}
    if declared <= set(known):  # a schema that can't be read has been told of
        for message, hint in sql_check.mistakes(text, known):
            yield Problem(query.place, f"{what}: {message}", hint)
    reads = inputs_of(query, pipeline)
    streams = [each for each in reads if isinstance(each, Stream)]
    if query.mode == "update" and sql_check.groups_by_session(text):
        yield Problem(
            query.place,
            f"{what}: session windows can't be had in update mode",
            "Use append or complete mode.",
        )
    if query.mode == "append":
        yield from _never_final(what, query, text, streams)


def _never_final(
    what: str, query: Query, text: str, streams: Iterable[Stream]
) -> Iterator[Problem]:
    """Groups of a stream's rows that no watermark ends. A table is whole in each batch."""
    by_name = {each.name.lower(): each for each in streams}
    for names in sql_check.groups(text):
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
