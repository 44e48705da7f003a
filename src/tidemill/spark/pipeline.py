"""Pipelines: streams, tables and queries, declared in an ordinary Python module.

    from tidemill.spark.pipeline import Pipeline, TopicSink
    from tidemill.spark.windows import tumbling

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

Declaring does nothing: ``pipeline_check`` says what is wrong with it all, ``runner`` runs it. Must
not know: Spark, Kafka clients, the command line.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from tidemill.errors import PipelineError
from tidemill.spark.sinks import Sink
from tidemill.spark.window_spec import Duration

Mode = Literal["append", "update", "complete"]
Starting = Literal["earliest", "latest"] | int

DEFAULT_TRIGGER = "200 milliseconds"
"""How often a query looks for new records: without a pause, an idle one asks 80 times a second."""

QueryFunction = Callable[..., Any]
Function = TypeVar("Function", bound=QueryFunction)


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in the user's file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Stream:
    """A topic as an endless table.

    Attributes:
        name: how queries call it.
        topic: where its records are.
        schema: columns of a record's value, as DDL; empty for ``raw``.
        format: ``json`` (an object per record) or ``raw`` (the source's own columns).
        event_time: the column that says when something happened, or None.
        watermark: how much later than others a record may come and still count, or None.
        starting: where a new query begins: ``earliest``, ``latest``, or milliseconds since 1970.
        max_offsets_per_trigger: most offsets in a micro-batch, or None.
        dead_letters: topic for records that can't be parsed; None fails the query instead.
        place: where it was declared.
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
    place: Place


@dataclass(frozen=True, slots=True)
class Table:
    """A changelog topic as a table: the last value of each key counts, null deletes.

    Attributes:
        key: columns of the record's key; the schema has them, too.
        keep_versions: how long a version that was replaced is still joined as of its time.
        max_offsets_per_trigger: most offsets of its changes in a micro-batch, or None.
        Others: as of ``Stream``.
    """

    name: str
    topic: str
    schema: str
    key: tuple[str, ...]
    keep_versions: Duration | None
    max_offsets_per_trigger: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class Query:
    """What is computed, and where it goes.

    Attributes:
        name: unique in the pipeline; its checkpoint and its progress are found by it.
        inputs: names of the streams and tables it uses; of a SQL string, all there are.
        build: makes a DataFrame or a SQL string of the inputs; None for ``sql``.
        sql: text, or None.
        mode: Spark's output mode.
        trigger: how often it looks for new records.
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
        name: letters, digits, ``.``, ``_`` and ``-``.
        bootstrap_servers: of the brokers; None leaves it to whoever runs the pipeline.
        kafka: further settings of librdkafka, for all topics.
        spark: settings of Spark; they win over tidemill's.
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
    ) -> Stream:
        """Declare a stream.

        Args:
            name: how queries call it.
            topic: default: the name.
            schema: columns of the value, as in CREATE TABLE: ``"id BIGINT, at TIMESTAMP"``.
            format: ``json``, or ``raw`` for key, value, topic, partition, offset, timestamp,
                timestampType and headers as they are.
            event_time: column of type TIMESTAMP.
            watermark: how long to wait for late records; needs ``event_time``.
            starting: where a new query begins: ``earliest``, ``latest``, or milliseconds since
                1970.
            max_offsets_per_trigger: most offsets in one micro-batch.
            dead_letters: topic for records that can't be parsed; default ``<topic>.dlq``. None
                makes such a record fail the query.
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
        keep_versions: Duration | None = None,
        max_offsets_per_trigger: int | None = None,
    ) -> Table:
        """Declare a table over a changelog topic: upserts by key, a null value deletes.

        Args:
            name: how queries call it.
            key: column or columns that identify a row.
            schema: all columns of the value, the key's among them.
            topic: default: the name.
            keep_versions: for joins as of an event's time: how long after a version was replaced
                events may still ask for it.
            max_offsets_per_trigger: where its changes are a stream (``.changes``, ``join_tables``):
                most offsets in one micro-batch.
        """
        made = Table(
            name=name,
            topic=name if topic is None else topic,
            schema=schema,
            key=(key,) if isinstance(key, str) else tuple(key),
            keep_versions=keep_versions,
            max_offsets_per_trigger=max_offsets_per_trigger,
            place=_caller(),
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

        The names of its parameters without a default say which streams and tables it gets (see
        ``inputs``); it returns a DataFrame, or a SQL string.

        Args:
            bare: nothing; what Python gives where the parentheses were left out.
            sink: where the result goes; must be given.
            mode: Spark's output mode.
            trigger: how often to look for new records.
            name: default: the function's.

        Raises:
            PipelineError: there are no parentheses, or no sink in them.
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
                    inputs=_asked_for(function),
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
        """Declare a query in SQL; streams and tables are there under their names.

        The windows are functions: ``tumbling``, ``sliding``, ``hopping`` and ``session``.
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
        """The stream or table of that name."""
        return next((each for each in self.inputs if each.name == name), None)

    @property
    def inputs(self) -> list[Stream | Table]:
        """All streams and tables."""
        return [*self.streams, *self.tables]


def _asked_for(function: QueryFunction) -> tuple[str, ...]:
    """Names of the parameters that have no value of their own."""
    return tuple(
        name
        for name, each in inspect.signature(function).parameters.items()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    )


def _caller() -> Place:
    """The first line outside of this module that led here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, "dataclasses"):
        frame = frame.f_back
    # A dataclass's __init__ is compiled from a string: its globals are this module's, too.
    return Place(frame.f_code.co_filename, frame.f_lineno)
