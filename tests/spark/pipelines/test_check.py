"""Checking a pipeline: a table of mistakes, each reported at its line and with a hint."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tidemill.spark import (
    ChangelogSink,
    ForeachBatchSink,
    ParquetSink,
    PostgresSink,
    SqliteSink,
    TopicSink,
)
from tidemill.spark.errors import PipelineError
from tidemill.spark.pipelines.check import check, problems
from tidemill.spark.pipelines.declared import Pipeline, Place
from tidemill.spark.pipelines.problems import PipelineProblemsError
from tidemill.spark.pipelines.resolve import dead_letter_queries, inputs_of

FLIGHTS = "flight STRING, airport STRING, at TIMESTAMP"


@pytest.fixture
def p() -> Pipeline:
    """A pipeline without mistakes, for tests to add one."""
    p = Pipeline("flights")
    p.stream("departures", schema=FLIGHTS, event_time="at", watermark="1 hour")
    p.stream("late", schema=FLIGHTS)
    p.table("aircraft", key="tail", schema="tail STRING, model STRING")
    p.sql("all_of_them", "SELECT flight FROM departures", sink=TopicSink("all"))
    return p


def test_a_good_pipeline_has_no_problems(p: Pipeline) -> None:
    @p.query(sink=ChangelogSink("x", key="tail"), mode="update")
    def function(departures: Any, aircraft: Any) -> None: ...

    p.sql(
        "grouped",
        "SELECT tumbling(at, '1 hour') w, airport, count(*) n FROM departures GROUP BY 1, 2",
        sink=ParquetSink("out"),
    )
    p.stream("bytes", format="raw", event_time="timestamp", watermark="1 minute", starting=0)
    check(p)


def test_several_queries_may_add_records_to_one_topic(p: Pipeline) -> None:
    p.sql("more", "SELECT flight FROM late", sink=TopicSink("all", key="flight"))
    check(p)


@pytest.mark.parametrize(
    "text",
    [
        # A table that is grouped is whole in each batch.
        """SELECT flight, n FROM late JOIN (SELECT model, count(*) AS n FROM aircraft GROUP BY 1)
           ON model = airport""",
        # One watermark says when the groups of a join are final.
        """SELECT window.start AS hour, count(*) AS n FROM departures d JOIN late l
           ON d.flight = l.flight GROUP BY tumbling(d.at, '1 hour')""",
        # What is grouped has a watermark; what is joined with the groups has none.
        """SELECT l.flight, n FROM late l JOIN (SELECT airport, count(*) AS n FROM departures
           GROUP BY tumbling(at, '1 hour'), airport) USING (airport)""",
    ],
)
def test_groups_that_are_final_are_let_through(p: Pipeline, text: str) -> None:
    p.sql("x", text, sink=TopicSink("t"))

    check(p)


def test_a_stream_under_a_name_that_sql_takes_again_is_an_input() -> None:
    """A common table expression may have the name of the stream that it reads."""
    p = Pipeline("flights")
    p.stream("departures", schema=FLIGHTS)
    text = "WITH departures AS (SELECT flight FROM departures) SELECT flight FROM departures"
    p.sql("x", text, sink=TopicSink("t"))

    check(p)

    assert inputs_of(p.queries[0], p) == p.inputs
    assert list(dead_letter_queries(p)) == ["departures"]


Declare = Callable[[Pipeline], object]


def function_query(p: Pipeline, **options: Any) -> Callable[[Any], Any]:
    return p.query(**{"sink": TopicSink("function.out"), **options})


DEFAULTS: dict[str, dict[str, Any]] = {
    "stream": {"schema": "id INT, at TIMESTAMP"},
    "table": {"key": "id", "schema": "id INT"},
    "query": {"text": "SELECT flight FROM late", "sink": TopicSink("t")},
}
NOT_A_FUNCTION: Any = "upsert"
Mistake = tuple[dict[str, Any], str, str]
"""Options besides the defaults, the rest of the message behind the name, the hint."""

STREAMS: list[Mistake] = [
    ({"schema": "id"}, ": 'id' is not a column with a type", "Write columns as in CREATE TABLE"),
    ({"schema": ""}, ": the schema has no columns", "Write columns as in CREATE TABLE"),
    (
        {"schema": "a INT, A INT"},
        ": the schema has columns whose names differ only in case: a, A",
        "Spark takes such names for the same. Leave one of them out.",
    ),
    (
        {"schema": "id INT, more VARIANT"},
        ": column more: the type VARIANT is not supported",
        "Use BOOLEAN",
    ),
    (
        {"schema": "id INT, _offset INT"},
        ": column _offset INT: this name is reserved for a column of the record",
        "Declare it as _offset BIGINT, or rename it.",
    ),
    ({"schema": "_offset BIGINT"}, ": the schema has no column of the value", "Add one"),
    (
        {"timestamp_format": "unix"},
        ": unknown timestamp format 'unix'",
        "Use one of: iso, epoch_s, epoch_ms, epoch_us.",
    ),
    (
        {"schema": "", "format": "raw", "timestamp_format": "epoch_ms"},
        ": timestamp_format has no effect with the format raw",
        "Remove it",
    ),
    ({"format": "avro"}, ": invalid format 'avro'", "Use one of json, debezium, raw."),
    (
        {"format": "raw"},
        ": a stream with the format raw has fixed columns, so it takes no schema",
        "Remove schema=",
    ),
    ({"event_time": "att"}, ": event_time att is not a column", "Did you mean at?"),
    (
        {"schema": "id INT, at STRING", "event_time": "at"},
        ": event_time at is STRING, not TIMESTAMP",
        "Declare it as TIMESTAMP",
    ),
    (
        {"watermark": "1 hour"},
        " has a watermark but no event_time",
        'For example event_time="event_time".',
    ),
    (
        {"event_time": "at", "watermark": "1 hor"},
        ": watermark: invalid duration '1 hor': unknown unit 'hor'",
        'Write a text like "6 minutes"',
    ),
    ({"event_time": "at", "watermark": "-1 hour"}, ": watermark '-1 hour' is negative", ""),
    (
        {"starting": "beginning"},
        ": invalid starting 'beginning'",
        'Use "earliest", "latest", or milliseconds since 1970.',
    ),
    ({"max_offsets_per_trigger": 0}, ": invalid max_offsets_per_trigger 0", "Use 1 or more."),
    ({"topic": "no such/topic"}, ": invalid topic name 'no such/topic'", "Use letters, digits"),
    (
        {"dead_letters": "lost and found"},
        ": invalid topic name 'lost and found'",
        "Use letters, digits",
    ),
]

TABLES: list[Mistake] = [
    (
        {"key": "a", "schema": "a INT, b INT, B INT"},
        ": the schema has columns whose names differ only in case: b, B",
        "Spark takes such names for the same. Leave one of them out.",
    ),
    ({"key": "idd"}, ": key idd is not a column", "Did you mean id?"),
    ({"key": ()}, " has no key", 'For example key="id"'),
    ({"max_offsets_per_trigger": 0}, ": invalid max_offsets_per_trigger 0", "Use 1 or more."),
    (
        {"schema": "id INT, at DATE", "valid_from": "at"},
        ": valid_from at is DATE, not TIMESTAMP",
        "Declare it as TIMESTAMP",
    ),
    (
        {"schema": "id INT, since TIMESTAMP", "valid_from": "sinc"},
        ": valid_from sinc is not a column",
        "Did you mean since?",
    ),
    (
        {"keep_versions": "a month"},
        ": keep_versions: invalid duration 'a month'",
        'Write a text like "6 minutes"',
    ),
]

QUERIES: list[Mistake] = [
    (
        {"text": "SELECT flight FROM departurs"},
        ": the SQL reads departurs, which is not declared",
        "Did you mean departures?",
    ),
    (
        {"text": "SELECT flihgt FROM departures"},
        ": the SQL names an unknown column flihgt",
        "Did you mean flight?",
    ),
    (
        {"text": "SELECT airport, count(*) FROM late GROUP BY airport"},
        " groups rows in append mode, and late has no watermark: no group would ever be",
        'Declare the stream with event_time=... and watermark="1 hour", or use update mode.',
    ),
    (
        {
            "text": "WITH n AS (SELECT airport, count(*) FROM late GROUP BY 1) "
            "SELECT * FROM n, departures"
        },
        " groups rows in append mode, and late has no watermark: no group would ever be",
        'Declare the stream with event_time=... and watermark="1 hour", or use update mode.',
    ),
    (
        {
            "text": "SELECT session(at, '5 minutes') s, count(*) FROM departures GROUP BY 1",
            "mode": "update",
        },
        ": session windows are not supported in update mode",
        "Use append or complete mode.",
    ),
    ({"mode": "upsert"}, ": invalid output mode 'upsert'", "Use one of append, update, complete."),
    (
        {"sink": ParquetSink("o"), "mode": "update"},
        ": ParquetSink does not support update mode",
        "Use append mode.",
    ),
    (
        {"sink": TopicSink("late")},
        " reads topic late and writes to it: it would never come to an end",
        "",
    ),
    (
        {"trigger": "RealTime"},
        ": Spark's real-time mode does not take this query: its sources and sinks must",
        'Use trigger="0 seconds"',
    ),
    ({"trigger": "often"}, ": trigger: invalid duration 'often'", 'Write a text like "6 minutes"'),
    ({"sink": TopicSink("")}, ": invalid topic name ''", "Use letters, digits"),
    (
        {"sink": SqliteSink("delays", (), "x.db")},
        ": SqliteSink has no key",
        "Name the columns that identify a row",
    ),
    ({"sink": "t"}, ": 't' is not a sink", 'For example sink=TopicSink("x").'),
    ({"sink": ForeachBatchSink(NOT_A_FUNCTION)}, ": 'upsert' is not a function", ""),
    (
        {"sink": PostgresSink("t", "id", dsn="postgres//etl:S3CRET@db")},
        ": can't parse the dsn for PostgreSQL (not shown because it may contain a password)",
        'Write "host=db dbname=flights user=etl", or ',
    ),
    ({"sink": SqliteSink("t", "id", ":memory:")}, ": table t can't be in memory", "Use a file"),
]

OTHERS: list[tuple[Declare, str, str]] = [
    (
        lambda p: p.stream("no name", topic="x", schema="id INT"),
        "stream no name: invalid name 'no name'",
        "Use letters, digits and '_'; the first one must not be a digit.",
    ),
    (
        lambda p: p.stream("Departures", schema="id INT"),
        "there are two streams or tables departures",
        "Rename one of them.",
    ),
    (
        lambda p: p.sql("all_of_them", "SELECT flight FROM late", sink=TopicSink("t")),
        "there are two queries all_of_them",
        "Rename one of them.",
    ),
    (
        lambda p: p.sql("departures.dlq", "SELECT flight FROM late", sink=TopicSink("t")),
        "there are two queries departures.dlq",
        "Rename one of them.",
    ),
    (
        lambda p: p.sql("x", "SELECT flight FROM late", sink=ChangelogSink("all", key="flight")),
        "two queries write to topic all",
        "Give each query a sink of its own.",
    ),
    (
        lambda p: p.sql("x y", "SELECT flight FROM late", sink=TopicSink("t")),
        "invalid query name 'x y'",
        "Use letters, digits",
    ),
    (
        lambda p: p.sql("x", "SELECT 1 FROM late", sink=PostgresSink("t" * 55, "id", dsn="")),
        f"query x: the name of table {'t' * 55} is too long for PostgreSQL",
        "Use at most 54 bytes",
    ),
    (
        lambda p: [
            p.sql(name, "SELECT 1 FROM late", sink=SqliteSink(table, "id", path))
            for name, table, path in (("x", "delays", "x.db"), ("y", "Delays", "./x.db"))
        ],
        "two queries write to table Delays in ./x.db",
        "Give each query a sink of its own.",
    ),
    (
        lambda p: function_query(p)(lambda departure: None),
        "query <lambda> has a parameter departure, and no stream or table has this name",
        "Did you mean departures?",
    ),
    (
        lambda p: function_query(p, name="x")(lambda: None),
        "query x has no parameters, so it gets no stream",
        "Name a stream as a parameter.",
    ),
]


def report(p: Pipeline, message: str, hint: str) -> Place:
    """Return where the one mistake with this message is."""
    found = [each for each in problems(p) if each.message.startswith(message)]
    assert len(found) == 1, [str(each) for each in problems(p)]
    [problem] = found
    assert problem.hint.startswith(hint)
    assert bool(problem.hint) == bool(hint)
    assert problem.place.file == __file__
    return problem.place


@pytest.mark.parametrize(
    ("kind", "options", "message", "hint"),
    [
        (kind, *each)
        for kind, mistakes in zip(DEFAULTS, (STREAMS, TABLES, QUERIES), strict=True)
        for each in mistakes
    ],
)
def test_a_mistake_in_options_is_reported_at_its_line(
    p: Pipeline, kind: str, options: dict[str, Any], message: str, hint: str
) -> None:
    declare: Any = {"stream": p.stream, "table": p.table, "query": p.sql}[kind]
    made = declare("x", **{**DEFAULTS[kind], **options})
    assert report(p, f"{kind} x{message}", hint) == made.place


@pytest.mark.parametrize(("declare", "message", "hint"), OTHERS)
def test_a_mistake_is_reported_at_its_line(
    p: Pipeline, declare: Declare, message: str, hint: str
) -> None:
    declare(p)
    place = report(p, message, hint)
    lines, first = inspect.getsourcelines(declare)
    assert first <= place.line < first + len(textwrap.dedent("".join(lines)).splitlines())


def test_names_that_are_too_long_together_are_reported_before_anything_starts() -> None:
    """Each is allowed by itself; brokers know a query's output by both."""

    def declared(letters: int) -> Pipeline:
        p = Pipeline("p" * 100)
        name = "s" * letters
        p.stream(name, topic="t", schema="id INT", dead_letters="letters")
        p.sql("x", f"SELECT id FROM {name}", sink=TopicSink("out"))
        return p

    check(declared(122))
    [problem] = problems(declared(123))
    assert problem.message == (
        f"the names of query {'s' * 123}.dlq and of the pipeline are too long together"
    )
    assert problem.hint.startswith("They have 227 letters, and may have 226.")


def test_settings_with_which_nothing_can_be_written_to_a_topic_are_reported(p: Pipeline) -> None:
    acks = {"acks": "1"}

    with pytest.raises(PipelineProblemsError) as refusal:
        check(p, acks)

    [problem] = refusal.value.problems
    assert problem.place == p.place
    assert problem.message == (
        "the settings for Kafka: exactly-once delivery excludes kafka.acks=1"
    )
    assert problem.hint == "Remove it: a pipeline writes to topics exactly once."

    p = Pipeline("table")
    p.stream("late", schema=FLIGHTS, dead_letters=None)
    p.sql("x", "SELECT flight FROM late", sink=SqliteSink("t", "flight", "x.db"))
    check(p, acks)  # it writes to no topic
    p.stream("departures", schema=FLIGHTS)
    p.sql("y", "SELECT flight FROM departures", sink=SqliteSink("u", "flight", "x.db"))
    with pytest.raises(PipelineProblemsError, match=r"kafka\.acks=1"):
        check(p, acks)  # but to one of dead letters


def test_two_functions_without_a_name_and_two_databases_are_no_clash(p: Pipeline) -> None:
    for i, sink in enumerate(
        [
            ForeachBatchSink(lambda df, number: None),
            ForeachBatchSink(lambda df, number: None),
            PostgresSink("t", "id", "host=a dbname=x"),
            PostgresSink("t", "id", "host=b dbname=x"),
        ]
    ):
        p.sql(f"q{i}", "SELECT flight AS id FROM departures", sink=sink)
    check(p)


def test_a_pipeline_needs_a_name_and_a_query() -> None:
    p = Pipeline("my flights")

    assert [each.message for each in problems(p)] == [
        "invalid pipeline name 'my flights'",
        "the pipeline has no query",
    ]


def test_all_mistakes_are_reported_together_in_the_order_of_the_file(p: Pipeline) -> None:
    p.sql("x", "SELECT flihgt FROM departures", sink=TopicSink("t"))
    p.stream("y", schema="id INT", watermark="1 hour")

    with pytest.raises(PipelineProblemsError) as caught:
        check(p)

    error = caught.value
    assert isinstance(error, PipelineError)
    lines = [each.place.line for each in error.problems]
    assert lines == sorted(lines)
    assert len(lines) == 2
    assert str(error) == (
        "pipeline flights has 2 mistakes:\n"
        f"  {__file__}:{lines[0]}: query x: the SQL names an unknown column flihgt\n"
        "    hint: Did you mean flight?\n"
        f"  {__file__}:{lines[1]}: stream y has a watermark but no event_time\n"
        '    hint: For example event_time="event_time".'
    )


def test_an_invalid_sink_hides_no_other_mistake(p: Pipeline) -> None:
    nothing: Any = "departures.late"
    p.sql("x", "SELECT flight FROM departures", sink=nothing)
    p.sql("y", "SELECT flihgt FROM departures", sink=TopicSink("t"))
    p.stream("z", schema="id INT", max_offsets_per_trigger=0)

    assert [each.message for each in problems(p)] == [
        "query x: 'departures.late' is not a sink",
        "stream z: invalid max_offsets_per_trigger 0",
        "query y: the SQL names an unknown column flihgt",
    ]


def test_where_a_schema_can_t_be_read_the_sql_is_not_blamed() -> None:
    p = Pipeline("p")
    p.stream("broken", schema="id")
    p.sql("x", "SELECT id, other FROM broken", sink=TopicSink("t"))

    assert [each.message for each in problems(p)] == [
        "stream broken: 'id' is not a column with a type"
    ]
