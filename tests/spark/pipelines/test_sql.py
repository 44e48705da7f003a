"""Parsing a SQL text before Spark starts: only certain mistakes are reported."""

from __future__ import annotations

from typing import Any

import pytest
import sqlglot

from tidemill.spark import TopicSink
from tidemill.spark.base.ddl import columns
from tidemill.spark.pipelines import sql
from tidemill.spark.pipelines.check import problems
from tidemill.spark.pipelines.declared import Pipeline
from tidemill.spark.pipelines.resolve import all_queries, topics_of, topics_to_create
from tidemill.spark.pipelines.sql import parse, suggestion

KNOWN = {
    "departures": columns("flight STRING, airport STRING, delay INT, event_time TIMESTAMP"),
    "aircraft": columns("tail STRING, model STRING, seats ARRAY<STRING>"),
    "bags": columns("flight STRING, tags ARRAY<STRUCT<x: INT>>, owners MAP<STRING, STRING>"),
}

GOOD = [
    "SELECT flight FROM departures",
    "SELECT * FROM departures WHERE delay > 5",
    "SELECT FLIGHT, d.Airport FROM Departures d",
    "SELECT flight FROM STREAM departures",
    "SELECT tumbling(event_time, '1 hour') AS w, count(*) FROM departures GROUP BY 1",
    "SELECT window.start, count(*) FROM departures GROUP BY tumbling(event_time, '1 hour')",
    "SELECT hopping(event_time, size => '6 minutes', hop => '10 minutes') w, avg(delay) "
    "FROM departures GROUP BY 1",
    "SELECT session(event_time, '5 minutes') AS s, flight FROM departures GROUP BY 1, 2",
    "SELECT session_window.end, flight FROM departures "
    "GROUP BY session(event_time, '5 minutes'), 2",
    "WITH late AS (SELECT flight AS f FROM departures WHERE delay > 9) SELECT f FROM late",
    "SELECT flight, model FROM departures JOIN aircraft ON tail = flight",
    "SELECT s FROM aircraft LATERAL VIEW explode(seats) x AS s",
    "SELECT transform(seats, each -> upper(each)) FROM aircraft",
    "SELECT airport, count(*) AS n FROM departures GROUP BY airport HAVING n > 3",
    "SELECT flight FROM departures WHERE airport IN (SELECT model FROM aircraft)",
    "SELECT airport FROM departures UNION ALL SELECT model FROM aircraft",
    "SELECT flight FROM departures DISTRIBUTE ODDLY",  # Spark has to say what it thinks of it
    # Tables that are not the pipeline's
    "SELECT flight, city FROM departures JOIN parquet.`/data/airports` a ON a.code = airport",
    "SELECT flight, city FROM departures JOIN hub.public.departures b ON b.code = airport",
    "SELECT flight, id FROM departures JOIN range(5)",
    "SELECT flight, col1 FROM departures JOIN VALUES ('JFK', 1)",
    # Names that Spark gives
    "SELECT flight, pos, col FROM bags LATERAL VIEW posexplode(tags)",
    "SELECT flight, pos, t.col FROM bags LATERAL VIEW posexplode(tags) t",
    "SELECT flight, x FROM bags LATERAL VIEW inline(tags)",
    "SELECT flight, col FROM bags, LATERAL explode(tags)",
    "SELECT flight, col.x FROM (SELECT flight, explode(tags) FROM bags)",
    "SELECT flight, x FROM (SELECT flight, inline(tags) FROM bags)",
    "SELECT flight, `key`, value FROM (SELECT flight, explode(owners) FROM bags)",
    "SELECT flight, a, b FROM (SELECT flight, explode(owners) AS (a, b) FROM bags)",
    "SELECT flight, col0 FROM (SELECT flight, stack(2, 1, 2) FROM departures)",
    "WITH exploded AS (SELECT posexplode(tags) FROM bags) SELECT pos FROM exploded",
    "SELECT `count(1)` AS n FROM (SELECT count(1) FROM departures GROUP BY airport)",
    "SELECT x FROM (SELECT 'x' FROM departures)",
    "SELECT airport, count(*) AS n FROM departures GROUP BY airport ORDER BY `count(1)`",
    "SELECT JFK FROM departures PIVOT (count(flight) FOR airport IN ('JFK', 'LGA'))",
    "SELECT airport, count(*) AS n, window.start AS s FROM departures GROUP BY ALL",
    # Hints name aliases
    "SELECT /*+ BROADCAST(a), MERGE(a, d) */ flight FROM departures d, aircraft a",
    "SELECT /*+ REPARTITION(3, flight), COALESCE(2), nonsense */ flight FROM departures",
    "SELECT flight FROM (SELECT /*+ MAPJOIN(d) */ flight FROM departures AS d)",
    # A name within its own definition is the outer one
    "WITH departures AS (SELECT * FROM departures WHERE delay > 0) SELECT airport FROM departures",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_may_be_right_is_let_through(text: str) -> None:
    assert parse(text).mistakes(KNOWN) == []


UNKNOWN = "the SQL names an unknown column {}"
UNDECLARED = "the SQL reads {}, which is not declared"


@pytest.mark.parametrize(
    ("text", "message", "name", "hint"),
    [
        ("SELECT flight FROM departure", UNDECLARED, "departure", "Did you mean departures?"),
        ("SELECT x FROM nix", UNDECLARED, "nix", "Known names: departures, aircraft, bags."),
        ("SELECT fligth FROM departures", UNKNOWN, "fligth", "Did you mean flight?"),
        ("SELECT flight FROM departures WHERE dely > 3", UNKNOWN, "dely", "Did you mean delay?"),
        (
            "SELECT tumbling(eventtime, '1 hour') w, count(*) FROM departures GROUP BY 1",
            UNKNOWN,
            "eventtime",
            "Did you mean event_time?",
        ),
        (
            "SELECT fligth, count(*) FROM departures GROUP BY 1",  # Spark's names count further out
            UNKNOWN,
            "fligth",
            "Did you mean flight?",
        ),
        (
            "WITH departure AS (SELECT * FROM departure) SELECT * FROM departure",
            UNDECLARED,
            "departure",
            "Did you mean departures?",
        ),
        (
            "DROP TABLE departures",
            "the SQL statement is not a query",
            "",
            "A query begins with SELECT or WITH.",
        ),
    ],
)
def test_what_is_certainly_wrong_is_reported(text: str, message: str, name: str, hint: str) -> None:
    assert parse(text).mistakes(KNOWN) == [(message.format(name), hint)]


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT 1 FROM departures", ("departures",)),
        ("SELECT 1 FROM STREAM departures d JOIN aircraft", ("departures", "aircraft")),
        ("WITH a AS (SELECT * FROM departures) SELECT * FROM a", ("departures",)),
        ("WITH d AS (SELECT * FROM d) SELECT * FROM d", ("d",)),
        ("WITH D AS (SELECT * FROM d) SELECT * FROM d JOIN e", ("d", "e")),
        ("WITH b AS (SELECT 1 FROM c), a AS (SELECT 1 FROM b) SELECT * FROM a, b", ("c",)),
        ("WITH a AS (SELECT 1 FROM b), b AS (SELECT 1 FROM c) SELECT * FROM a", ("b", "c")),
        ("WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT 1 FROM r, t) SELECT * FROM r", ("t",)),
        ("SELECT * FROM (WITH a AS (SELECT 1 FROM t) SELECT * FROM a) JOIN a", ("t", "a")),
        ("SELECT 1 FROM d WHERE x IN (SELECT y FROM e)", ("d", "e")),
        ("SELECT 1 FROM d JOIN csv.`/x` JOIN hub.e", ("d",)),
        ("WITH e AS (SELECT 1) SELECT 1 FROM hub.e, e", ()),
        ("SELECT /*+ BROADCAST(d) */ 1 FROM departures AS d", ("departures",)),
        ("SELECT 1 FROM (SELECT /*+ MAPJOIN(x), MERGE(d, x) */ 1 FROM d, e AS x)", ("d", "e")),
        ("SELECT 1", ()),
        ("nonsense ( here", None),
    ],
)
def test_the_tables_that_are_read(text: str, tables: tuple[str, ...] | None) -> None:
    assert parse(text).tables == tables


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("SELECT a FROM t", []),
        ("SELECT a, count(*) FROM t GROUP BY a", [("t",)]),
        ("SELECT a FROM (SELECT a, count(*) FROM t GROUP BY a)", [("t",)]),
        ("SELECT 1 FROM s JOIN (SELECT a, count(*) FROM t GROUP BY a) USING (a)", [("t",)]),
        ("SELECT a, count(*) FROM s WHERE a IN (SELECT a FROM t) GROUP BY a", [("s", "t")]),
        ("WITH x AS (SELECT a FROM t) SELECT a, count(*) FROM x GROUP BY a", [("t",)]),
        ("WITH x AS (SELECT a FROM t GROUP BY a) SELECT * FROM x JOIN s", [("t",)]),
        ("WITH t AS (SELECT a FROM t) SELECT a FROM t GROUP BY ALL", [("t",)]),
        ("SELECT a FROM t GROUP BY a UNION ALL SELECT a FROM s", [("t",)]),
        ("SELECT /*+ SHUFFLE_HASH(x) */ a FROM t AS x GROUP BY a", [("t",)]),
        ("nonsense ( here", []),
    ],
)
def test_the_tables_whose_rows_are_grouped(text: str, grouped: list[tuple[str, ...]]) -> None:
    assert parse(text).groups == grouped


def test_session_windows_are_seen() -> None:
    assert parse("SELECT 1 FROM t GROUP BY Session (at, '5 minutes')").has_session_windows
    assert not parse("SELECT session FROM t").has_session_windows
    assert not parse("nonsense ( here").has_session_windows


def test_a_hint_names_what_is_near_or_all_there_is() -> None:
    assert suggestion("Flihgt", ["flight", "airport"]) == "Did you mean flight?"
    assert suggestion("zzz", ["flight", "airport"]) == "Known names: flight, airport."
    assert suggestion("zzz", []) == ""


def test_a_text_is_parsed_once_for_all_checks_and_users(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse_one = sqlglot.parse_one

    def counted(text: str, **options: Any) -> Any:
        parsed.append(text)
        return parse_one(text, **options)

    monkeypatch.setattr(sql, "parse_one", counted)
    parse.cache_clear()
    p = Pipeline("flights")
    p.stream("departures", schema="flight STRING, airport STRING")
    p.table("aircraft", key="tail", schema="tail STRING, model STRING")
    texts = [
        "SELECT flight, model FROM departures JOIN aircraft ON tail = flight",
        "SELECT airport FROM departures",
        "nonsense ( here",
    ]
    for number, text in enumerate(texts):
        p.sql(f"query{number}", text, sink=TopicSink(f"topic{number}"))
    for _ in range(2):
        assert list(problems(p)) == []
        topics_to_create(p)
        for query in all_queries(p):
            topics_of(query, p)

    assert parsed == texts


def test_the_windows_of_a_text_are_rewritten_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten: list[str] = []

    def counted(spark: object, text: str) -> str:
        rewritten.append(text)
        return f"rewritten {text}"

    monkeypatch.setattr(sql, "rewrite", counted)
    parse.cache_clear()
    text = "SELECT tumbling(at, '1 hour') FROM t"

    for _ in range(2):
        assert parse(text).rewritten(None) == f"rewritten {text}"
    assert rewritten == [text]
    parse.cache_clear()


def test_a_check_leaves_the_shared_tree_as_it_was() -> None:
    text = "SELECT window.start, count(*) FROM departures GROUP BY tumbling(event_time, '1 hour')"
    for _ in range(2):
        assert parse(text).mistakes(KNOWN) == []
    without = {**KNOWN, "departures": columns("flight STRING")}
    message = "the SQL names an unknown column event_time"
    assert [found for found, _ in parse(text).mistakes(without)] == [message]
    assert parse(text).tables == ("departures",)
