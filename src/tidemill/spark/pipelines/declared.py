"""Declare a pipeline: streams, tables and queries, in an ordinary Python module.

    from tidemill.spark import Pipeline, TopicSink, tumbling

    pipeline = Pipeline("flights")
    pipeline.stream(
        "departures",
        schema="flight STRING, airport STRING, event_time TIMESTAMP",
        event_time="event_time",
        watermark="2 hours",
    )

    @pipeline.query(sink=TopicSink("departures.hourly", key="airport"))
    def hourly(departures):
        return departures.df.groupBy(tumbling("event_time", "1 hour"), "airport").count()

A declaration starts nothing: ``check`` reports all mistakes in it, and ``runner`` runs it. Must not
know: Spark, Kafka clients, the command line.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from tidemill.duration import Duration
from tidemill.spark.base.options import ISO
from tidemill.spark.errors import PipelineError
from tidemill.spark.sinks.base import Sink
from tidemill.spark.tables.captured import CapturedTopic
from tidemill.spark.tables.changelog import ChangelogTopic
from tidemill.spark.tables.source import TableSource

Mode = Literal["append", "update", "complete"]
Starting = Literal["earliest", "latest"] | int

DEFAULT_TRIGGER = "200 milliseconds"
"""How often a query looks for new records. Without a pause, an idle one asks 80 times a second."""

QueryFunction = Callable[..., Any]
Function = TypeVar("Function", bound=QueryFunction)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Stream:
    """A topic as an endless table.

    Attributes:
        name: the name by which queries use the stream.
        topic: the topic with its records.
        schema: columns of a record's value, as DDL; empty for the format ``raw``.
        format: ``json`` (each record is a JSON object), ``debezium`` (each record is a change of a
            captured table) or ``raw`` (the source's own columns).
        event_time: the column with the time of an event, or None.
        watermark: how long to wait for late records, or None.
        starting: where a new query begins: ``earliest``, ``latest``, or milliseconds since 1970.
        max_offsets_per_trigger: most offsets in a micro-batch, or None.
        dead_letters: the topic for records that can't be parsed; None: such a record fails the
            query.
        timestamp_format: what a number in a TIMESTAMP column means.
        place: the line that declares the stream.
    """

    name: str
    topic: str
    schema: str
    format: str
    event_time: str | None
    watermark: Duration | None
    starting: Starting
    max_offsets_per_trigger: int | None
    dead_letters: str | None
    timestamp_format: str
    place: Place

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that a query reads for this stream."""
        return (self.topic,)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that are found by a key, and that change while queries run.

    Attributes:
        name: the name by which queries use the table.
        source: where the rows come from.
        schema: all columns, as DDL.
        key: the columns that identify a row; the schema has them, too.
        keep_versions: how long a version can be joined after another one replaced it, or None.
        max_offsets_per_trigger: most changes in a micro-batch, or None.
        place: the line that declares the table.
        valid_from: the column with the time from which a version of a row is valid, or None for
            the time of its record, or of its commit.
    """

    name: str
    source: TableSource
    schema: str
    key: tuple[str, ...]
    keep_versions: Duration | None
    max_offsets_per_trigger: int | None
    place: Place
    valid_from: str | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that a query reads for this table."""
        return self.source.topics


@dataclass(frozen=True, slots=True)
class Query:
    """A computation and its sink.

    Attributes:
        name: unique in the pipeline; the name of its checkpoint and of its status.
        inputs: names of the streams and tables that a function uses; empty for SQL.
        build: makes a DataFrame or a SQL text of the inputs; None for SQL.
        sql: a SQL text, or None.
        sink: where the result goes.
        mode: Spark's output mode.
        trigger: how often the query looks for new records.
        place: the line that declares the query.
    """

    name: str
    inputs: tuple[str, ...]
    build: QueryFunction | None
    sql: str | None
    sink: Sink
    mode: str
    trigger: str
    place: Place


@dataclass
class Pipeline:
    """A named set of streams, tables and queries.

    Attributes:
        name: letters, digits, ``.``, ``_`` and ``-``, at most 100 of them.
        bootstrap_servers: addresses of the brokers, ``host:port`` with commas between; None: those
            with which the pipeline is run.
        kafka: further settings of librdkafka, for all topics.
        spark: settings of Spark; they override tidemill's defaults.
        place: the line that declares the pipeline.
        streams: the declared streams.
        tables: the declared tables.
        queries: the declared queries.
        writes_dead_letters: whether a run writes the records that can't be parsed; a rebuild does
            not write them again.
    """

    name: str
    bootstrap_servers: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = _caller()
        self.streams: list[Stream] = []
        self.tables: list[Table] = []
        self.queries: list[Query] = []
        self.writes_dead_letters = True

    def stream(
        self,
        name: str,
        *,
        topic: str | None = None,
        schema: str = "",
        format: str = "json",  # noqa: A002 - Spark's own word
        event_time: str | None = None,
        watermark: Duration | None = None,
        starting: Starting = "earliest",
        max_offsets_per_trigger: int | None = None,
        dead_letters: str | None = "",
        timestamp_format: str = ISO,
    ) -> Stream:
        """Declare a stream.

        Args:
            name: the name by which queries use the stream.
            topic: the topic with its records; default: the name.
            schema: columns of the value, as in CREATE TABLE: ``"id BIGINT, at TIMESTAMP"``. The
                columns ``_key BINARY``, ``_topic STRING``, ``_partition INT``, ``_offset BIGINT``,
                ``_timestamp TIMESTAMP`` and ``_headers ARRAY<STRUCT<key: STRING, value: BINARY>>``
                come from the record.
            format: ``json``; ``debezium`` for the changes of a captured table, as the columns op,
                before, after (with the columns of ``schema``), commit_time, _version, source and
                transaction_id; or ``raw`` for the columns key, value, topic, partition, offset,
                timestamp, timestampType and headers as they are.
            event_time: a column of type TIMESTAMP with the time of an event.
            watermark: how long to wait for late records; needs ``event_time``.
            starting: where a new query begins: ``earliest``, ``latest``, or milliseconds since
                1970.
            max_offsets_per_trigger: most offsets in one micro-batch.
            dead_letters: the topic for records that can't be parsed; default: ``<topic>.dlq``.
                None: such a record fails the query.
            timestamp_format: what a number in a TIMESTAMP column means: ``epoch_s``, ``epoch_ms``
                or ``epoch_us``, since 1970; with ``iso`` it can't be parsed. A query that keeps
                state can't continue from its checkpoint after a change of the unit.

        Returns:
            The declaration.
        """
        topic = name if topic is None else topic
        made = Stream(
            name=name,
            topic=topic,
            schema=schema,
            format=format,
            event_time=event_time,
            watermark=watermark,
            starting=starting,
            max_offsets_per_trigger=max_offsets_per_trigger,
            dead_letters=f"{topic}.dlq" if dead_letters == "" else dead_letters,
            timestamp_format=timestamp_format,
            place=_caller(),
        )
        self.streams.append(made)
        return made

    def table(
        self,
        name: str,
        *,
        key: str | Sequence[str],
        schema: str,
        topic: str | None = None,
        format: str = "json",  # noqa: A002 - Spark's own word
        timestamp_format: str = ISO,
        source: TableSource | None = None,
        keep_versions: Duration | None = None,
        valid_from: str | None = None,
        max_offsets_per_trigger: int | None = None,
    ) -> Table:
        """Declare a table: rows that are found by a key, and that change while queries run.

        Args:
            name: the name by which queries use the table.
            key: the column or columns that identify a row.
            schema: all columns, as in CREATE TABLE, those of the key among them.
            topic: a changelog topic with the rows: a record replaces the row of its key, a null
                value deletes it; default: the name.
            format: ``json`` for rows as JSON objects, or ``debezium`` for a captured table: its
                versions are valid from the time at which the database committed them.
            timestamp_format: what a number in a TIMESTAMP column means, as in ``stream``; with
                ``debezium`` only if records have no schema that says so.
            source: another source of the rows, instead of ``topic``.
            keep_versions: how long after a version was replaced events may still be joined with
                it (``enrich_as_of``).
            valid_from: a TIMESTAMP column with the time from which a version of a row is valid,
                for ``enrich_as_of`` and ``.versions``; default: the time of the record, or of the
                commit. A deletion has no row, so it is valid from that time always.
            max_offsets_per_trigger: most changes in one micro-batch, where the changes are used as
                a stream (``.changes``, ``join_tables``).

        Returns:
            The declaration.

        Raises:
            PipelineError: both ``topic`` and ``source`` are given, or the format is unknown.
        """
        if source is not None and topic is not None:
            raise PipelineError(
                f"table {name} has both topic= and source=", hint="Give one of the two."
            )
        source = source or _of_topic(name, topic or name, format, timestamp_format)
        made = Table(
            name=name,
            source=source,
            schema=schema,
            key=(key,) if isinstance(key, str) else tuple(key),
            keep_versions=keep_versions,
            max_offsets_per_trigger=max_offsets_per_trigger,
            place=_caller(),
            valid_from=valid_from,
        )
        self.tables.append(made)
        return made

    def query(
        self,
        bare: None = None,
        /,
        *,
        sink: Sink | None = None,
        mode: Mode = "append",
        trigger: str = DEFAULT_TRIGGER,
        name: str | None = None,
    ) -> Callable[[Function], Function]:
        """Declare the decorated function as a query.

        The function gets the streams and tables that its parameters without a default value name.
        It returns a DataFrame or a SQL text.

        Args:
            bare: must not be given; Python passes the function here if the parentheses are missing.
            sink: where the result goes; must be given.
            mode: Spark's output mode.
            trigger: how often to look for new records; ``0 seconds``: without a pause.
            name: the name of the query; default: the name of the function.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            PipelineError: the parentheses or the sink are missing.
        """
        if bare is not None or sink is None:
            raise PipelineError(
                "a query needs a sink", hint='Write @pipeline.query(sink=TopicSink("results")).'
            )

        def declare(function: Function) -> Function:
            code = inspect.unwrap(function).__code__
            self.queries.append(
                Query(
                    name=name or function.__name__,
                    inputs=_input_names(function),
                    build=function,
                    sql=None,
                    sink=sink,
                    mode=mode,
                    trigger=trigger,
                    place=Place(code.co_filename, code.co_firstlineno),
                )
            )
            return function

        return declare

    def sql(
        self,
        name: str,
        text: str,
        *,
        sink: Sink,
        mode: Mode = "append",
        trigger: str = DEFAULT_TRIGGER,
    ) -> Query:
        """Declare a query in SQL. Streams and tables are available under their names.

        The windows are functions: ``tumbling``, ``sliding``, ``hopping`` and ``session``.

        Args:
            name: the name of the query.
            text: one SELECT statement.
            sink: where the result goes.
            mode: Spark's output mode.
            trigger: how often to look for new records; ``0 seconds``: without a pause.

        Returns:
            The declaration.
        """
        made = Query(
            name=name,
            inputs=(),
            build=None,
            sql=text,
            sink=sink,
            mode=mode,
            trigger=trigger,
            place=_caller(),
        )
        self.queries.append(made)
        return made

    def find(self, name: str) -> Stream | Table | None:
        """Return the stream or table of a name; None if there is none."""
        return next((each for each in self.inputs if each.name == name), None)

    @property
    def inputs(self) -> list[Stream | Table]:
        """All streams and tables."""
        return [*self.streams, *self.tables]


def _of_topic(name: str, topic: str, format: str, timestamp_format: str) -> TableSource:  # noqa: A002
    """Return the source of a table that is read from a topic."""
    formats = {"json": ChangelogTopic, "debezium": CapturedTopic}
    if format not in formats:
        raise PipelineError(
            f"table {name}: invalid format {format!r}", hint=f"Use one of: {', '.join(formats)}."
        )
    return formats[format](topic, timestamp_format)


def _input_names(function: QueryFunction) -> tuple[str, ...]:
    """Return the names of a function's parameters that have no default value."""
    return tuple(
        name
        for name, each in inspect.signature(function).parameters.items()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    )


def _caller() -> Place:
    """Return the innermost line outside of this module that led to this call."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, "dataclasses"):
        frame = frame.f_back
    # A dataclass's __init__ is compiled from a string: its globals are this module's, too.
    return Place(frame.f_code.co_filename, frame.f_lineno)
