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
from tidemill.spark.pipelines.declared import Pipeline
from tidemill.spark.pipelines.problems import PipelineProblemsError
from tidemill.spark.pipelines.resolve import dead_letter_queries, inputs_of

FLIGHTS = "flight STRING, airport STRING, at TIMESTAMP"


def good() -> Pipeline:
    """A pipeline without mistakes, for tests to add one."""
    p = Pipeline("flights")
    p.stream("departures", schema=FLIGHTS, event_time="at", watermark="1 hour")
    p.stream("late", schema=FLIGHTS)
    p.table("aircraft", key="tail", schema="tail STRING, model STRING")
    p.sql("all_of_them", "SELECT flight FROM departures", sink=TopicSink("all"))
    return p


def test_a_good_pipeline_has_no_problems() -> None:
    p = good()

    @p.query(sink=ChangelogSink("x", key="tail"), mode="update")
    def function(departures: Any, aircraft: Any) -> None: ...

    p.sql(
        "grouped",
        "SELECT tumbling(at, '1 hour') w, airport, count(*) n FROM departures GROUP BY 1, 2",
        sink=ParquetSink("out"),
    )
    p.stream("bytes", format="raw", event_time="timestamp", watermark="1 minute", starting=0)
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
def test_groups_that_are_final_are_let_through(text: str) -> None:
    p = good()
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


MISTAKES: list[tuple[Declare, str, str]] = [
    (
        lambda p: p.stream("x", schema="id"),
        "stream x: 'id' is not a column with a type",
        "Write columns as in CREATE TABLE",
    ),
    (
        lambda p: p.stream("x"),
        "stream x: the schema has no columns",
        "Write columns as in CREATE TABLE",
    ),
    (
        lambda p: p.stream("x", schema="a INT, A INT"),
        "stream x: the schema has columns whose names differ only in case: a, A",
        "Spark takes such names for the same. Leave one of them out.",
    ),
    (
        lambda p: p.stream("x", schema="a STRUCT<b: INT, B: INT>"),
        "stream x: column a of the schema has fields whose names differ only in case: b, B",
        "Spark takes such names for the same. Leave one of them out.",
    ),
    (
        lambda p: p.table("x", key="a", schema="a INT, b INT, B INT"),
        "table x: the schema has columns whose names differ only in case: b, B",
        "Spark takes such names for the same. Leave one of them out.",
    ),
    (
        lambda p: p.stream("x", schema="id INT, more VARIANT"),
        "stream x: column more: the type VARIANT is not supported",
        "Use BOOLEAN",
    ),
    (
        lambda p: p.stream("x", schema="id INT, _offset INT"),
        "stream x: column _offset INT: this name is reserved for a column of the record",
        "Declare it as _offset BIGINT, or rename it.",
    ),
    (
        lambda p: p.stream("x", schema="_offset BIGINT"),
        "stream x: the schema has no column of the value",
        "Add one",
    ),
    (
        lambda p: p.stream("x", schema="at TIMESTAMP", timestamp_format="unix"),
        "stream x: unknown timestamp format 'unix'",
        "Use one of: iso, epoch_s, epoch_ms, epoch_us.",
    ),
    (
        lambda p: p.stream("x", format="raw", timestamp_format="epoch_ms"),
        "stream x: timestamp_format has no effect with the format raw",
        "Remove it",
    ),
    (
        lambda p: p.stream("x", schema="id INT", format="avro"),
        "stream x: invalid format 'avro'",
        "Use one of json, debezium, raw.",
    ),
    (
        lambda p: p.stream("x", schema="id INT", format="raw"),
        "stream x: a stream with the format raw has fixed columns, so it takes no schema",
        "Remove schema=",
    ),
    (
        lambda p: p.stream("x", schema="id INT, at TIMESTAMP", event_time="att"),
        "stream x: event_time att is not a column",
        "Did you mean at?",
    ),
    (
        lambda p: p.stream("x", schema="id INT, at STRING", event_time="at"),
        "stream x: event_time at is STRING, not TIMESTAMP",
        "Declare it as TIMESTAMP",
    ),
    (
        lambda p: p.stream("x", schema="id INT", watermark="1 hour"),
        "stream x has a watermark but no event_time",
        'For example event_time="event_time".',
    ),
    (
        lambda p: p.stream("x", schema="at TIMESTAMP", event_time="at", watermark="1 hor"),
        "stream x: watermark: invalid duration '1 hor': unknown unit 'hor'",
        'Write a text like "6 minutes"',
    ),
    (
        lambda p: p.stream("x", schema="at TIMESTAMP", event_time="at", watermark="-1 hour"),
        "stream x: watermark '-1 hour' is negative",
        "",
    ),
    (
        lambda p: p.stream("x", schema="id INT", starting="beginning"),  # type: ignore[arg-type]
        "stream x: invalid starting 'beginning'",
        'Use "earliest", "latest", or milliseconds since 1970.',
    ),
    (
        lambda p: p.stream("x", schema="id INT", max_offsets_per_trigger=0),
        "stream x: invalid max_offsets_per_trigger 0",
        "Use 1 or more.",
    ),
    (
        lambda p: p.stream("x", topic="no such/topic", schema="id INT"),
        "stream x: invalid topic name 'no such/topic'",
        "Use letters, digits",
    ),
    (
        lambda p: p.stream("x", schema="id INT", dead_letters="lost and found"),
        "stream x: invalid topic name 'lost and found'",
        "Use letters, digits",
    ),
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
        lambda p: p.table("x", key="idd", schema="id INT"),
        "table x: key idd is not a column",
        "Did you mean id?",
    ),
    (lambda p: p.table("x", key=(), schema="id INT"), "table x has no key", 'For example key="id"'),
    (
        lambda p: p.table("x", key="id", schema="id INT", max_offsets_per_trigger=0),
        "table x: invalid max_offsets_per_trigger 0",
        "Use 1 or more.",
    ),
    (
        lambda p: p.table("x", key="id", schema="id INT, at DATE", valid_from="at"),
        "table x: valid_from at is DATE, not TIMESTAMP",
        "Declare it as TIMESTAMP",
    ),
    (
        lambda p: p.table("x", key="id", schema="id INT, since TIMESTAMP", valid_from="sinc"),
        "table x: valid_from sinc is not a column",
        "Did you mean since?",
    ),
    (
        lambda p: p.table("x", key="id", schema="id INT", keep_versions="a month"),
        "table x: keep_versions: invalid duration 'a month'",
        'Write a text like "6 minutes"',
    ),
    (
        lambda p: p.sql("x", "SELECT flight FROM departurs", sink=TopicSink("t")),
        "query x: the SQL reads departurs, which is not declared",
        "Did you mean departures?",
    ),
    (
        lambda p: p.sql("x", "SELECT flihgt FROM departures", sink=TopicSink("t")),
        "query x: the SQL names an unknown column flihgt",
        "Did you mean flight?",
    ),
    (
        lambda p: p.sql(
            "x", "SELECT airport, count(*) FROM late GROUP BY airport", sink=TopicSink("t")
        ),
        "query x groups rows in append mode, and late has no watermark: no group would ever be",
        'Declare the stream with event_time=... and watermark="1 hour", or use update mode.',
    ),
    (
        lambda p: p.sql(
            "x",
            "WITH n AS (SELECT airport, count(*) FROM late GROUP BY 1) SELECT * FROM n, departures",
            sink=TopicSink("t"),
        ),
        "query x groups rows in append mode, and late has no watermark: no group would ever be",
        'Declare the stream with event_time=... and watermark="1 hour", or use update mode.',
    ),
    (
        lambda p: p.sql(
            "x",
            "SELECT session(at, '5 minutes') s, count(*) FROM departures GROUP BY 1",
            sink=TopicSink("t"),
            mode="update",
        ),
        "query x: session windows are not supported in update mode",
        "Use append or complete mode.",
    ),
    (
        lambda p: p.sql("x", "SELECT 1", sink=TopicSink("t"), mode="upsert"),  # type: ignore[arg-type]
        "query x: invalid output mode 'upsert'",
        "Use one of append, update, complete.",
    ),
    (
        lambda p: p.sql("x", "SELECT flight FROM departures", sink=ParquetSink("o"), mode="update"),
        "query x: ParquetSink does not support update mode",
        "Use append mode.",
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
        lambda p: p.sql("x", "SELECT flight FROM late", sink=TopicSink("late")),
        "query x reads topic late and writes to it: it would never come to an end",
        "",
    ),
    (
        lambda p: p.sql("x", "SELECT 1 FROM late", sink=TopicSink("t"), trigger="RealTime"),
        "query x: Spark's real-time mode does not take this query: its sources and sinks must",
        'Use trigger="0 seconds"',
    ),
    (
        lambda p: p.sql("x", "SELECT 1 FROM late", sink=TopicSink("t"), trigger="often"),
        "query x: trigger: invalid duration 'often'",
        'Write a text like "6 minutes"',
    ),
    (
        lambda p: p.sql("x y", "SELECT flight FROM late", sink=TopicSink("t")),
        "invalid query name 'x y'",
        "Use letters, digits",
    ),
    (
        lambda p: p.sql("x", "SELECT flight FROM late", sink=TopicSink("")),
        "query x: invalid topic name ''",
        "Use letters, digits",
    ),
    (
        lambda p: p.sql("x", "SELECT flight FROM late", sink=SqliteSink("delays", (), "x.db")),
        "query x: SqliteSink has no key",
        "Name the columns that identify a row",
    ),
    (
        lambda p: p.sql("x", "SELECT flight FROM late", sink="t"),  # type: ignore[arg-type]
        "query x: 't' is not a sink",
        'For example sink=TopicSink("x").',
    ),
    (
        lambda p: p.sql(
            "x",
            "SELECT flight FROM late",
            sink=ForeachBatchSink("upsert"),  # type: ignore[arg-type]
        ),
        "query x: 'upsert' is not a function",
        "",
    ),
    (
        lambda p: p.sql(
            "x", "SELECT 1 FROM late", sink=PostgresSink("t", "id", dsn="postgres//etl:S3CRET@db")
        ),
        "query x: can't parse the dsn for PostgreSQL (not shown because it may contain a password)",
        'Write "host=db dbname=flights user=etl", or ',
    ),
    (
        lambda p: p.sql("x", "SELECT 1 FROM late", sink=PostgresSink("t" * 55, "id", dsn="")),
        f"query x: the name of table {'t' * 55} is too long for PostgreSQL",
        "Use at most 54 bytes",
    ),
    (
        lambda p: p.sql("x", "SELECT 1 FROM late", sink=SqliteSink("t", "id", ":memory:")),
        "query x: table t can't be in memory",
        "Use a file",
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


@pytest.mark.parametrize(
    ("declare", "message", "hint"), MISTAKES, ids=[message[:60] for _, message, _ in MISTAKES]
)
def test_a_mistake_is_reported_at_its_line(declare: Declare, message: str, hint: str) -> None:
    p = good()
    declare(p)

    found = [each for each in problems(p) if each.message.startswith(message)]

    assert len(found) == 1, [str(each) for each in problems(p)]
    [problem] = found
    assert problem.hint.startswith(hint)
    assert bool(problem.hint) == bool(hint)
    lines, first = inspect.getsourcelines(declare)
    assert problem.place.file == __file__
    assert first <= problem.place.line < first + len(textwrap.dedent("".join(lines)).splitlines())


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


def test_settings_with_which_nothing_can_be_written_to_a_topic_are_reported() -> None:
    p = good()
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


def test_two_functions_without_a_name_and_two_databases_are_no_clash() -> None:
    p = good()
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


def test_all_mistakes_are_reported_together_in_the_order_of_the_file() -> None:
    p = good()
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


def test_an_invalid_sink_hides_no_other_mistake() -> None:
    p = good()
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
