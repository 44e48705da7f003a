"""Declaring a pipeline: what is remembered, and where it was said."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tidemill.spark import ChangelogSink, ForeachBatchSink, TopicSink
from tidemill.spark.errors import PipelineError
from tidemill.spark.pipelines.declared import DEFAULT_TRIGGER, Pipeline
from tidemill.spark.pipelines.resolve import (
    all_queries,
    dead_letter_queries,
    inputs_of,
    topics_of,
    topics_to_create,
)
from tidemill.spark.tables.changelog import ChangelogTopic

SINK = TopicSink("out")
THIS_FILE = __file__


@pytest.fixture
def p() -> Pipeline:
    return Pipeline("p")


def here() -> int:
    """Line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_topics_have_the_names_of_streams_and_tables_by_default(p: Pipeline) -> None:
    assert p.stream("departures", schema="id INT").topic == "departures"
    assert p.stream("a", topic="b", schema="id INT").topic == "b"
    assert p.table("aircraft", key="id", schema="id INT").topics == ("aircraft",)
    assert p.table("c", topic="d", key="id", schema="id INT").source == ChangelogTopic("d")


def test_dead_letters_go_beside_the_topic_elsewhere_or_nowhere() -> None:
    p = Pipeline("p")

    assert p.stream("a", topic="t", schema="id INT").dead_letters == "t.dlq"
    assert p.stream("b", schema="id INT", dead_letters="lost").dead_letters == "lost"
    assert p.stream("c", schema="id INT", dead_letters=None).dead_letters is None


def test_everything_knows_its_line() -> None:
    p = Pipeline("p")
    line = here() - 1
    stream = p.stream(
        "a",
        schema="id INT",
    )
    table = p.table("t", key="id", schema="id INT")
    query = p.sql("s", "SELECT id FROM a", sink=SINK)

    @p.query(sink=TopicSink("other"))
    def function(a: Any) -> Any:
        return a.df

    assert (p.place.file, p.place.line) == (THIS_FILE, line)
    assert stream.place.line == line + 2
    assert table.place.line == line + 6
    assert query.place.line == line + 7
    assert p.queries[1].place.line == line + 9
    assert str(stream.place) == f"{THIS_FILE}:{line + 2}"


def test_parameters_are_inputs_but_for_those_with_a_value_of_their_own(p: Pipeline) -> None:
    @p.query(sink=SINK, name="renamed")
    def query(a: Any, b: Any, *more: Any, limit: int = 5, **others: Any) -> None: ...

    made = p.queries[0]
    assert made.inputs == ("a", "b")
    assert (made.name, made.mode, made.trigger) == ("renamed", "append", DEFAULT_TRIGGER)
    assert made.build is query  # the decorated function can still be called


def test_a_query_uses_what_it_asks_for(p: Pipeline) -> None:
    a = p.stream("a", topic="topic.a", schema="id INT")
    b = p.stream("b", schema="id INT")
    t = p.table("t", key="id", schema="id INT")

    @p.query(sink=SINK)
    def function(t: Any, a: Any) -> None: ...

    p.sql("sql", "SELECT id FROM B JOIN t USING (id)", sink=SINK)
    p.sql("strange", "what is this?", sink=SINK)

    assert inputs_of(p.queries[0], p) == [t, a]
    assert [*topics_of(p.queries[0], p)] == ["t", "topic.a"]
    assert inputs_of(p.queries[1], p) == [b, t]
    assert inputs_of(p.queries[2], p) == [a, b, t]


def test_dead_letters_are_queries_of_the_streams_that_are_parsed(p: Pipeline) -> None:
    p.stream("used", topic="u", schema="id INT")
    p.stream("raw", format="raw")
    p.stream("strict", schema="id INT", dead_letters=None)
    p.stream("unused", schema="id INT")

    @p.query(sink=SINK)
    def query(used: Any, raw: Any, strict: Any) -> None: ...

    assert [each.name for each in all_queries(p)] == ["query", "used.dlq"]
    letters = dead_letter_queries(p)["used"]
    assert letters.sink == TopicSink("u.dlq")
    assert letters.place == p.streams[0].place
    assert [*topics_of(letters, p)] == ["u"]


def test_topics_are_those_that_are_read_and_those_that_are_written(p: Pipeline) -> None:
    p.stream("a", schema="id INT")
    p.stream("b", schema="id INT", dead_letters=None)
    p.table("t", key="id", schema="id INT")
    p.sql("one", "SELECT id FROM a JOIN t USING (id)", sink=ChangelogSink("b", key="id"))
    p.sql("two", "SELECT id FROM b", sink=TopicSink("c"))

    read, written = topics_to_create(p)
    assert read == [("a", False), ("b", True), ("t", True)]
    assert written == [("b", True), ("c", False), ("a.dlq", False)]


def test_a_query_without_parentheses_or_sink_is_refused(p: Pipeline) -> None:
    bare: Any = p.query
    for given in ((print,), ()):
        with pytest.raises(PipelineError) as caught:
            bare(*given)
        assert "@pipeline.query(sink=" in caught.value.hint
    assert p.queries == []


def test_find_knows_streams_and_tables_by_name(p: Pipeline) -> None:
    stream, table = p.stream("a", schema="id INT"), p.table("t", key="id", schema="id INT")

    assert p.find("a") is stream
    assert p.find("t") is table
    assert p.find("x") is None


def test_a_table_s_key_may_be_one_column_or_several(p: Pipeline) -> None:
    assert p.table("a", key="id", schema="id INT").key == ("id",)
    assert p.table("b", key=["id", "day"], schema="id INT, day DATE").key == ("id", "day")


def test_a_function_s_sink_is_named_after_it() -> None:
    def upsert(df: Any, batch: int) -> None: ...

    assert ForeachBatchSink(upsert).target.endswith("upsert")
    assert ForeachBatchSink(upsert, name="search index").target == "function search index"
