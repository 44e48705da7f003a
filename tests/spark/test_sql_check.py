"""What is said of a SQL string before Spark starts: nothing but certain mistakes."""

from __future__ import annotations

import pytest

from tidemill.spark.ddl import columns
from tidemill.spark.sql_check import aggregates, groups_by_session, meant, mistakes, tables_of

KNOWN = {
    "departures": columns("flight STRING, airport STRING, delay INT, event_time TIMESTAMP"),
    "aircraft": columns("tail STRING, model STRING, seats ARRAY<STRING>"),
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
]


@pytest.mark.parametrize("text", GOOD)
def test_what_may_be_right_is_let_through(text: str) -> None:
    assert mistakes(text, KNOWN) == []


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "SELECT flight FROM departure",
            "the SQL reads departure, which is not declared",
            "Did you mean departures?",
        ),
        (
            "SELECT x FROM nothing_like_it",
            "the SQL reads nothing_like_it, which is not declared",
            "There are departures, aircraft.",
        ),
        (
            "SELECT fligth FROM departures",
            "the SQL names a column fligth that is not there",
            "Did you mean flight?",
        ),
        (
            "SELECT flight FROM departures WHERE dely > 3",
            "the SQL names a column dely that is not there",
            "Did you mean delay?",
        ),
        (
            "SELECT tumbling(eventtime, '1 hour') w, count(*) FROM departures GROUP BY 1",
            "the SQL names a column eventtime that is not there",
            "Did you mean event_time?",
        ),
        ("DROP TABLE departures", "the SQL is no query", "A query begins with SELECT or WITH."),
    ],
)
def test_what_is_certainly_wrong_is_told(text: str, message: str, hint: str) -> None:
    assert mistakes(text, KNOWN) == [(message, hint)]


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT 1 FROM departures", ("departures",)),
        ("SELECT 1 FROM STREAM departures d JOIN aircraft", ("departures", "aircraft")),
        ("WITH a AS (SELECT * FROM departures) SELECT * FROM a", ("departures",)),
        ("SELECT 1", ()),
        ("nonsense ( here", None),
    ],
)
def test_the_tables_that_are_read(text: str, tables: tuple[str, ...] | None) -> None:
    assert tables_of(text) == tables


def test_grouping_is_seen() -> None:
    assert aggregates("SELECT a FROM (SELECT a, count(*) FROM t GROUP BY a)")
    assert not aggregates("SELECT a FROM t")
    assert aggregates("nonsense ( here") is None


def test_session_windows_are_seen() -> None:
    assert groups_by_session("SELECT 1 FROM t GROUP BY Session (at, '5 minutes')")
    assert not groups_by_session("SELECT session FROM t")
    assert not groups_by_session("nonsense ( here")


def test_a_hint_names_what_is_near_or_all_there_is() -> None:
    assert meant("Flihgt", ["flight", "airport"]) == "Did you mean flight?"
    assert meant("zzz", ["flight", "airport"]) == "There are flight, airport."
    assert meant("zzz", []) == ""
