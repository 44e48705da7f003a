"""Check the streams and tables that a pipeline declares, before Spark starts.

Must not know: queries, sinks, Spark, Kafka clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidemill.duration import Duration, microseconds
from tidemill.errors import DurationError, TidemillError
from tidemill.spark.base.ddl import Column, columns
from tidemill.spark.base.options import ISO, TOPIC_NAME
from tidemill.spark.errors import SchemaError
from tidemill.spark.pipelines.declared import Place, Stream, Table
from tidemill.spark.pipelines.problems import Problem, invalid_topic
from tidemill.spark.pipelines.sql import suggestion
from tidemill.spark.source.captured.schema import event_schema
from tidemill.spark.source.parse.ddl_schema import schema_of
from tidemill.spark.tables.changelog import ChangelogTopic

FORMATS = ("json", "debezium", "raw")
RAW_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""Columns of a stream with the format ``raw``, which are those of the source."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Schemas = dict[str, tuple[Column, ...]]
"""The columns of each stream and table whose schema is valid, by name."""


def stream_problems(stream: Stream, schemas: Schemas) -> Iterator[Problem]:
    """Yield the mistakes of a stream; add its columns to ``schemas``."""
    what = f"stream {stream.name}"
    yield from _name(what, stream)
    if not TOPIC_NAME.fullmatch(stream.topic):
        yield invalid_topic(what, stream.topic, stream.place)
    yield from _reading(what, stream)
    if stream.format not in FORMATS:
        yield Problem(
            stream.place,
            f"{what}: invalid format {stream.format!r}",
            f"Use one of {', '.join(FORMATS)}.",
        )
        return
    if stream.format == "raw" and stream.schema:
        yield Problem(
            stream.place,
            f"{what}: a stream with the format raw has fixed columns, so it takes no schema",
            'Remove schema=, or use format="json".',
        )
        return
    try:
        made = stream_columns(stream)
    except SchemaError as error:
        yield Problem(stream.place, f"{what}: {error}", error.hint)
        return
    schemas[stream.name] = made
    mistakes = list(_event_time(what, stream, made))
    yield from mistakes
    yield from _parsing(what, stream, made, with_event_time=not mistakes)


def row_schema(stream: Stream) -> str:
    """Return the columns of a stream's rows as DDL."""
    if stream.format == "raw":
        return RAW_SCHEMA
    return event_schema(stream.schema) if stream.format == "debezium" else stream.schema


def stream_columns(stream: Stream) -> tuple[Column, ...]:
    """Return the columns of a stream's rows."""
    return columns(row_schema(stream))


def table_problems(table: Table, schemas: Schemas) -> Iterator[Problem]:
    """Yield the mistakes of a table; add its columns to ``schemas``."""
    what = f"table {table.name}"
    yield from _name(what, table)
    try:
        table.source.check()
    except TidemillError as error:
        yield Problem(table.place, f"{what}: {error}", error.hint)
    try:
        made = columns(table.schema)
    except SchemaError as error:
        yield Problem(table.place, f"{what}: {error}", error.hint)
        return
    schemas[table.name] = made
    if not table.key:
        yield Problem(table.place, f"{what} has no key", 'For example key="id".')
    names = {column.name.lower() for column in made}
    for name in table.key:
        if name.lower() not in names:
            yield _unknown_column(what, "key", name, made, table.place)
    if table.keep_versions is not None:
        yield from duration_problems(what, "keep_versions", table.keep_versions, table.place)
    if table.valid_from is not None:
        yield from _time_column(what, "valid_from", table.valid_from, made, table.place)
    if isinstance(table.source, ChangelogTopic):  # other sources may have columns of any type
        yield from _types(what, table)
    yield from _max_offsets(what, table)


def duration_problems(what: str, name: str, value: Duration, place: Place) -> Iterator[Problem]:
    """Yield the mistake of a parameter that is not a duration, or a negative one."""
    try:
        if microseconds(value) < 0:
            yield Problem(place, f"{what}: {name} {value!r} is negative")
    except DurationError as error:
        yield Problem(place, f"{what}: {name}: {error}", error.hint)


def _name(what: str, each: Stream | Table) -> Iterator[Problem]:
    if not _IDENTIFIER.fullmatch(each.name):
        yield Problem(
            each.place,
            f"{what}: invalid name {each.name!r}",
            "Use letters, digits and '_'; the first one must not be a digit.",
        )


def _reading(what: str, stream: Stream) -> Iterator[Problem]:
    """Yield the mistakes in how a stream's topic is read."""
    starting: object = stream.starting
    if starting not in ("earliest", "latest") and (
        not isinstance(starting, int) or isinstance(starting, bool) or starting < 0
    ):
        yield Problem(
            stream.place,
            f"{what}: invalid starting {starting!r}",
            'Use "earliest", "latest", or milliseconds since 1970.',
        )
    yield from _max_offsets(what, stream)
    if stream.dead_letters is not None and not TOPIC_NAME.fullmatch(stream.dead_letters):
        yield invalid_topic(what, stream.dead_letters, stream.place)


def _max_offsets(what: str, each: Stream | Table) -> Iterator[Problem]:
    value = each.max_offsets_per_trigger
    if value is not None and value < 1:
        yield Problem(
            each.place, f"{what}: invalid max_offsets_per_trigger {value}", "Use 1 or more."
        )


def _event_time(what: str, stream: Stream, made: tuple[Column, ...]) -> Iterator[Problem]:
    if stream.watermark is not None:
        if stream.event_time is None:
            yield Problem(
                stream.place,
                f"{what} has a watermark but no event_time",
                'For example event_time="event_time".',
            )
        yield from duration_problems(what, "watermark", stream.watermark, stream.place)
    if stream.event_time is None:
        return
    yield from _time_column(what, "event_time", stream.event_time, made, stream.place)


def _time_column(
    what: str, role: str, name: str, made: tuple[Column, ...], place: Place
) -> Iterator[Problem]:
    """Yield the mistake of a column that is missing, or that is not a TIMESTAMP."""
    types = {column.name.lower(): column.type for column in made}
    kind = types.get(name.lower())
    if kind is None:
        yield _unknown_column(what, role, name, made, place)
    elif kind != "TIMESTAMP":
        yield Problem(
            place,
            f"{what}: {role} {name} is {kind}, not TIMESTAMP",
            "Declare it as TIMESTAMP: ISO 8601 texts are parsed as timestamps.",
        )


def _parsing(
    what: str, stream: Stream, made: tuple[Column, ...], *, with_event_time: bool
) -> Iterator[Problem]:
    """Yield the mistake for which the source could not parse the values."""
    if stream.format == "raw":
        if stream.timestamp_format != ISO:
            yield Problem(
                stream.place,
                f"{what}: timestamp_format has no effect with the format raw",
                "Remove it: the values are not parsed.",
            )
        return
    # Not earlier: it imports Arrow, which takes a while.
    from tidemill.spark.source.rows import parse_schema

    event_time = stream.event_time if with_event_time else None
    try:
        ddl = row_schema(stream)
        parse_schema(made, ddl, event_time, stream.timestamp_format)
    except TidemillError as error:
        yield Problem(stream.place, f"{what}: {error}", error.hint)


def _types(what: str, table: Table) -> Iterator[Problem]:
    """Yield the mistake of a column's type that values can't be parsed to."""
    # Not earlier: it imports Arrow, which takes a while.

    try:
        schema_of(table.schema)
    except SchemaError as error:
        yield Problem(table.place, f"{what}: {error}", error.hint)


def _unknown_column(
    what: str, role: str, name: str, made: tuple[Column, ...], place: Place
) -> Problem:
    names = [column.name for column in made]
    return Problem(place, f"{what}: {role} {name} is not a column", suggestion(name, names))
