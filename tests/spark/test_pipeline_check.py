"""A table of mistakes: each is told at its line, with what is wrong and what to do."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tidemill.errors import PipelineError
from tidemill.spark.pipeline import Pipeline
from tidemill.spark.pipeline_check import PipelineProblemsError, check, problems
from tidemill.spark.sinks import (
    ChangelogSink,
    ForeachBatchSink,
    ParquetSink,
    PostgresSink,
    SqliteSink,
    TopicSink,
)
from tidemill.spark.uses import inputs_of, letters_of

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
    """Of a query whose common table expression is called like the stream that it reads."""
    p = Pipeline("flights")
    p.stream("departures", schema=FLIGHTS)
    text = "WITH departures AS (SELECT flight FROM departures) SELECT flight FROM departures"
    p.sql("x", text, sink=TopicSink("t"))

    check(p)

    assert inputs_of(p.queries[0], p) == p.inputs
    assert list(letters_of(p)) == ["departures"]


Declare = Callable[[Pipeline], object]


def function_query(p: Pipeline, **options: Any) -> Callable[[Any], Any]:
    return p.query(**{"sink": TopicSink("function.out"), **options})


MISTAKES: list[tuple[Declare, str, str]] = [
    (
        lambda p: p.stream("x", schema="id"),
        "stream x: 'id' is no column with a type",
        "Columns as in CREATE TABLE",
    ),
    (lambda p: p.stream("x"), "stream x: the schema has no columns", "Columns as in CREATE TABLE"),
    (
        lambda p: p.stream("x", schema="a INT, A INT"),
        "stream x: the schema names a twice",
        "",
    ),
    (
        lambda p: p.stream("x", schema="id INT", format="avro"),
        "stream x: there is no format 'avro'",
        "One of json, raw.",
    ),
    (
        lambda p: p.stream("x", schema="id INT", format="raw"),
        "stream x: the columns of the format raw are fixed",
        "Leave schema out",
    ),
    (
        lambda p: p.stream("x", schema="id INT, at TIMESTAMP", event_time="att"),
        "stream x: event_time att is no column",
        "Did you mean at?",
    ),
    (
        lambda p: p.stream("x", schema="id INT, at STRING", event_time="at"),
        "stream x: event_time at is STRING, not TIMESTAMP",
        "Declare it as TIMESTAMP",
    ),
    (
        lambda p: p.stream("x", schema="id INT", watermark="1 hour"),
        "stream x has a watermark, and no event_time that it could be measured by",
        'For example event_time="event_time".',
    ),
    (
        lambda p: p.stream("x", schema="at TIMESTAMP", event_time="at", watermark="1 hor"),
        "stream x: watermark: '1 hor' is no duration: 'hor' in it",
        'Write a text like "6 minutes"',
    ),
    (
        lambda p: p.stream("x", schema="at TIMESTAMP", event_time="at", watermark="-1 hour"),
        "stream x: watermark '-1 hour' is below zero",
        "",
    ),
    (
        lambda p: p.stream("x", schema="id INT", starting="beginning"),  # type: ignore[arg-type]
        "stream x: starting 'beginning' is no place to begin",
        '"earliest", "latest", or milliseconds since 1970.',
    ),
    (
        lambda p: p.stream("x", schema="id INT", max_offsets_per_trigger=0),
        "stream x: max_offsets_per_trigger 0 lets nothing through",
        "",
    ),
    (
        lambda p: p.stream("x", topic="no such/topic", schema="id INT"),
        "stream x: 'no such/topic' is no name of a topic",
        "Letters, digits",
    ),
    (
        lambda p: p.stream("x", schema="id INT", dead_letters="lost and found"),
        "stream x: 'lost and found' is no name of a topic",
        "Letters, digits",
    ),
    (
        lambda p: p.stream("no name", topic="x", schema="id INT"),
        "stream no name: a name is made of letters, digits and '_', and begins with no digit",
        "",
    ),
    (
        lambda p: p.stream("Departures", schema="id INT"),
        "there are two streams or tables departures",
        "Rename one of them.",
    ),
    (
        lambda p: p.table("x", key="idd", schema="id INT"),
        "table x: key idd is no column",
        "Did you mean id?",
    ),
    (lambda p: p.table("x", key=(), schema="id INT"), "table x has no key", 'For example key="id"'),
    (
        lambda p: p.table("x", key="id", schema="id INT", max_offsets_per_trigger=0),
        "table x: max_offsets_per_trigger 0 lets nothing through",
        "",
    ),
    (
        lambda p: p.table("x", key="id", schema="id INT", keep_versions="a month"),
        "table x: keep_versions: 'a month' is no duration",
        'Write a text like "6 minutes"',
    ),
    (
        lambda p: p.sql("x", "SELECT flight FROM departurs", sink=TopicSink("t")),
        "query x: the SQL reads departurs, which is not declared",
        "Did you mean departures?",
    ),
    (
        lambda p: p.sql("x", "SELECT flihgt FROM departures", sink=TopicSink("t")),
        "query x: the SQL names a column flihgt that is not there",
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
        "query x: session windows can't be had in update mode",
        "Use append or complete mode.",
    ),
    (
        lambda p: p.sql("x", "SELECT 1", sink=TopicSink("t"), mode="upsert"),  # type: ignore[arg-type]
        "query x: there is no output mode 'upsert'",
        "One of append, update, complete.",
    ),
    (
        lambda p: p.sql("x", "SELECT flight FROM departures", sink=ParquetSink("o"), mode="update"),
        "query x: ParquetSink takes no results in update mode",
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
        lambda p: p.sql("x", "SELECT 1 FROM late", sink=TopicSink("t"), trigger="often"),
        "query x: trigger: 'often' is no duration",
        'Write a text like "6 minutes"',
    ),
    (
        lambda p: p.sql("x y", "SELECT flight FROM late", sink=TopicSink("t")),
        "'x y' is no name of a query",
        "",
    ),
    (
        lambda p: p.sql("x", "SELECT flight FROM late", sink=TopicSink("")),
        "query x: '' is no name of a topic",
        "Letters, digits",
    ),
    (
        lambda p: p.sql("x", "SELECT flight FROM late", sink=SqliteSink("delays", (), "x.db")),
        "query x: SqliteSink has no key",
        "Name the columns that identify a row",
    ),
    (
        lambda p: p.sql("x", "SELECT flight FROM late", sink="t"),  # type: ignore[arg-type]
        "query x: 't' is no sink",
        'For example sink=TopicSink("x").',
    ),
    (
        lambda p: p.sql(
            "x",
            "SELECT flight FROM late",
            sink=ForeachBatchSink("upsert"),  # type: ignore[arg-type]
        ),
        "query x: 'upsert' is no function",
        "",
    ),
    (
        lambda p: p.sql(
            "x", "SELECT 1 FROM late", sink=PostgresSink("t", "id", dsn="postgres//etl:S3CRET@db")
        ),
        "query x: the dsn for PostgreSQL can't be read (it is not shown: it may be secret)",
        'Write "host=db dbname=flights user=etl", or ',
    ),
    (
        lambda p: p.sql("x", "SELECT 1 FROM late", sink=PostgresSink("t" * 55, "id", dsn="")),
        f"query x: the name of table {'t' * 55} is too long for PostgreSQL",
        "At most 54 bytes",
    ),
    (
        lambda p: p.sql("x", "SELECT 1 FROM late", sink=SqliteSink("t", "id", ":memory:")),
        "query x: table t would be kept in memory",
        "Name a file",
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
        "query <lambda> asks for departure, which is not declared",
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
def test_a_mistake_is_told_at_its_line(declare: Declare, message: str, hint: str) -> None:
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


def test_names_that_are_too_long_together_are_told_before_anything_starts() -> None:
    """Each is allowed by itself; brokers know a query's output by both."""

    def declared(letters: int) -> Pipeline:
        p = Pipeline("p" * 100)
        name = "s" * letters
        p.stream(name, topic="t", schema="id INT", dead_letters="letters")
        p.sql("x", f"SELECT id FROM {name}", sink=TopicSink("out"))
        return p

    check(declared(122))
    [problem] = problems(declared(123))
    assert problem.message == f"the name of query {'s' * 123}.dlq and the pipeline's are too long"
    assert problem.hint.startswith("Together they may have 226 letters, and have 227.")


def test_settings_with_which_nothing_can_be_written_to_a_topic_are_told() -> None:
    p = good()
    acks = {"acks": "1"}

    with pytest.raises(PipelineProblemsError) as refusal:
        check(p, acks)

    [problem] = refusal.value.problems
    assert problem.place == p.place
    assert problem.message == (
        "the settings for Kafka: exactly-once delivery excludes kafka.acks=1"
    )
    assert problem.hint == "Leave it out: a pipeline writes to topics exactly once."

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
        "'my flights' is no name of a pipeline",
        "there is no query",
    ]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
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
        f"  {__file__}:{lines[0]}: query x: the SQL names a column flihgt that is not there\n"
        "    hint: Did you mean flight?\n"
        f"  {__file__}:{lines[1]}: stream y has a watermark, and no event_time that it could be "
        "measured by\n"
        '    hint: For example event_time="event_time".'
    )


def test_what_is_no_sink_hides_no_other_mistake() -> None:
    p = good()
    nothing: Any = "departures.late"
    p.sql("x", "SELECT flight FROM departures", sink=nothing)
    p.sql("y", "SELECT flihgt FROM departures", sink=TopicSink("t"))
    p.stream("z", schema="id INT", max_offsets_per_trigger=0)

    assert [each.message for each in problems(p)] == [
        "query x: 'departures.late' is no sink",
        "stream z: max_offsets_per_trigger 0 lets nothing through",
        "query y: the SQL names a column flihgt that is not there",
    ]


def test_where_a_schema_can_t_be_read_the_sql_is_not_blamed() -> None:
    p = Pipeline("p")
    p.stream("broken", schema="id")
    p.sql("x", "SELECT id, other FROM broken", sink=TopicSink("t"))

    assert [each.message for each in problems(p)] == [
        "stream broken: 'id' is no column with a type"
    ]
