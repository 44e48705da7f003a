"""Queries that are followed give, batch by batch, what a query over all records gives."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("duckdb", minversion="1.5", reason="the extra tidemill[sql] needs it")


from tests.sql.conftest import Topics
from tests.support.topics import remove_before, write
from tidemill import sql
from tidemill.errors import DataLossError, DurationError
from tidemill.spark.base.ddl import columns
from tidemill.sql import feed
from tidemill.sql.errors import (
    OtherTopicError,
    SqlError,
    StatementRefusedError,
    UnknownTableError,
)
from tidemill.sql.session import Connection
from tidemill.sql.topics import Topics as ReadTopics


@pytest.fixture
def connection(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.setattr(feed, "BATCH", 100)
    with sql.connect(topics.servers, threads=1) as made:
        yield made


def followed(connection: Connection, statement: str, *parameters: Any, **more: Any) -> list[Any]:
    more = {"start": "beginning", "until_end": True, **more}
    with connection.follow(statement, parameters, **more) as follower:
        return list(follower)


def put(topics: Topics, topic: str, *values: Any, **more: Any) -> None:
    write(topics.servers, topic, *values, **more)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT n, who || '!' AS loud FROM {t} WHERE n % 3 = ?",
        "SELECT * EXCLUDE (_headers) FROM {t} WHERE n < 200 AND who <> ?::VARCHAR",
        "SELECT n, window_start FROM hop({t}, t, INTERVAL 20 SECOND, INTERVAL 60 SECOND) "
        "WHERE n > ?",
        "SELECT o.n, p.n FROM {t} o LEFT JOIN {t}$latest p ON o.who = p._key AND p.n > ?",
    ],
)
def test_rows_that_are_followed_are_those_of_the_query(
    connection: Connection, events: str, query: str
) -> None:
    statement = query.format(t=events)
    whole = connection.execute(statement, [1]).fetchall()
    assert sorted(map(repr, followed(connection, statement, 1))) == sorted(map(repr, whole))
    assert len(whole) > 50


WINDOWS = [
    "tumble({t}, t, INTERVAL 30 SECOND)",
    "hop({t}, t, INTERVAL 20 SECOND, INTERVAL 1 MINUTE)",
]


@pytest.mark.parametrize(
    "window", [*WINDOWS, "hop({t}, t, INTERVAL 30 SECOND, INTERVAL 10 SECOND)"]
)
def test_windows_are_those_of_the_query_when_they_are_complete(
    connection: Connection, events: str, ended: str, window: str
) -> None:
    aggregates = (
        "count(*), count(n) FILTER (WHERE n > 50) AS c, sum(n), min(n), max(who), avg(n) AS mean"
    )
    statement = (
        f"SELECT window_start, who, window_end, {aggregates} FROM {window} w WHERE n <> 5 "
        + ("GROUP BY ALL" if "tumble" in window else "GROUP BY w.window_start, 2, window_end")
    )
    whole = connection.execute(statement.format(t=events)).fetchall()
    assert followed(connection, statement.format(t=events), watermark="2 minutes") == []
    complete = followed(connection, statement.format(t=ended), watermark="2 minutes")
    assert sorted(complete) == sorted(whole)


def test_rows_behind_the_watermark_are_counted_and_left_out(
    connection: Connection, topics: Topics
) -> None:
    times = ["00:00:01", "00:01:00", "00:00:02", "00:00:59", "00:03:00"]
    topic = topics.fill([("k", {"t": f"2026-01-01T{each}Z"}) for each in times])
    statement = (
        f"SELECT epoch(window_start) % 3600 AS s, count(*) "
        f"FROM tumble({topic}, t, INTERVAL 10 SECOND) GROUP BY window_start, 1"
    )
    with connection.follow(
        statement, start="beginning", until_end=True, watermark="20 seconds"
    ) as follower:
        monkey = pytest.MonkeyPatch()
        with monkey.context() as patched:
            patched.setattr(feed.Feed.read, "__defaults__", (1,))
            assert list(follower) == [(0, 1), (50, 1), (60, 1)]
        assert follower.late == 1
        (warning,) = follower.warnings
        assert warning.startswith("1 row came after the end of their windows")


def test_a_followed_query_gives_rows_that_come_later(
    connection: Connection, topics: Topics
) -> None:
    topic = topics.fill([("k", {"n": 1})])
    with connection.follow(f"SELECT n FROM {topic} LIMIT 2") as follower:
        put(topics, topic, {"n": 2}, {"n": 3}, {"n": 4})
        assert list(follower) == [(2,), (3,)]
        assert [each[0] for each in follower.description] == ["n"]


def test_a_join_sees_the_table_as_it_is_when_a_row_comes(
    connection: Connection, topics: Topics
) -> None:
    orders = topics.fill([("o", {"user": "ann"})])
    users = topics.fill([("ann", {"city": "Ulm"}), ("ben", {"city": "Bonn"})])
    query = f"SELECT city FROM {orders} o LEFT JOIN {users}$latest u ON o.user = u._key LIMIT 3"
    with connection.follow(query, start="beginning") as follower:
        rows = iter(follower)
        assert next(rows) == ("Ulm",)
        put(topics, users, ("ann", {"city": "Rome"}))
        put(topics, orders, {"user": "ann"})
        assert next(rows) == ("Rome",)
        put(topics, users, ("ann", None))
        put(topics, orders, {"user": "ann"})
        assert next(rows) == (None,)


def test_a_condition_on_offset_or_time_says_where_it_begins(
    connection: Connection, topics: Topics
) -> None:
    topic = topics.fill([("k", {"n": n}) for n in range(10)])
    query = f"SELECT n FROM {topic} WHERE _offset >= 7"
    assert followed(connection, query, start="end") == [(7,), (8,), (9,)]
    recent = f"SELECT count(*) AS c FROM {topic} WHERE _timestamp > now() - INTERVAL 1 HOUR"
    with pytest.raises(StatementRefusedError):
        connection.follow(recent)
    recent = recent.replace("count(*) AS c", "n")
    assert len(followed(connection, recent, start="end")) == 10


def test_a_condition_on_the_first_offset_says_where_it_begins(
    connection: Connection, topics: Topics
) -> None:
    topic = topics.fill([("k", {"n": n}) for n in range(3)])
    query = f"SELECT n FROM {topic} WHERE _offset >= 0"
    assert followed(connection, query, start="end") == [(0,), (1,), (2,)]


def test_a_join_needs_no_records_of_a_table_that_were_removed(
    connection: Connection, topics: Topics
) -> None:
    users = topics.fill([("ann", {"city": "Ulm"}), ("ben", {"city": "Bonn"})])
    remove_before(topics.servers, users, 1)
    orders = topics.fill([("o", {"user": "ann"}), ("o", {"user": "ben"})])
    query = f"SELECT user, city FROM {orders} o LEFT JOIN {users}$latest u ON o.user = u._key"
    assert followed(connection, query) == [("ann", None), ("ben", "Bonn")]


def test_a_table_that_changes_without_a_pause_holds_up_no_join(
    connection: Connection, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = topics.fill([("ann", {"city": "Ulm"})])
    orders = topics.fill([("o", {"user": "ann"})])
    part, left = ReadTopics.part, [50]

    def changing(self: Any, ranges: Any, *more: Any) -> Any:
        if ranges[0].topic == users:
            left[0] -= 1
            assert left[0], "the table is read for ever"
            put(topics, users, ("ben", {"city": "Bonn"}))
        return part(self, ranges, *more)

    monkeypatch.setattr(ReadTopics, "part", changing)
    query = f"SELECT city FROM {orders} o JOIN {users}$latest u ON o.user = u._key"
    assert followed(connection, query) == [("Ulm",)]


def test_large_records_are_read_in_parts_of_all_partitions_in_turn(
    connection: Connection, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "BATCH_BYTES", 1)
    monkeypatch.setattr("tidemill.sql.topics._ROWS", 10)
    topic = topics.fill([("k", {"n": n, "pad": "x" * 1000}) for n in range(90)], partitions=3)
    query = f"SELECT n, _partition FROM {topic}"
    with connection.follow(query, start="beginning", until_end=True) as follower:
        batches = [batch.to_pylist() for batch in follower.batches()]
    assert [{row["_partition"] for row in batch} for batch in batches] == [{0}, {1}, {2}] * 3
    assert sorted(row["n"] for batch in batches for row in batch) == list(range(90))


def test_a_topic_that_is_deleted_or_created_again_ends_the_query(
    connection: Connection, topics: Topics
) -> None:
    for again, error in ((False, UnknownTableError), (True, OtherTopicError)):
        topic = topics.fill([("k", {"n": n}) for n in range(5)])
        with connection.follow(f"SELECT n FROM {topic}", start="beginning") as follower:
            rows = iter(follower)
            assert [next(rows) for _ in range(5)] == [(n,) for n in range(5)]
            topics.kafka.delete_topics("test", [topic])
            if again:
                topics.fill([("k", {"n": n}) for n in range(7)], name=topic)
            with pytest.raises(error, match=f"topic {topic} was deleted"):
                next(rows)


def test_a_log_that_has_become_shorter_ends_the_query(
    connection: Connection, topics: Topics
) -> None:
    topic = topics.fill([("k", {"n": 1})])
    with connection.follow(f"SELECT n FROM {topic}") as follower:
        follower._feed.source.positions[0] = 9
        with pytest.raises(
            DataLossError, match=f"{topic}-0 ends at offset 1, and was read up to 9"
        ):
            next(iter(follower))


def test_times_that_no_clock_shows_are_in_no_window(connection: Connection, topics: Topics) -> None:
    absurd = ["infinity", "-infinity", "99999-01-01", "294247-01-10 04:00:54", "44-03-15 (BC)"]
    times = [*absurd, "0001-01-01T00:00:01Z", "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z"]
    topic = topics.fill([("k", {"t": time}) for time in times])
    tumbling = f"FROM tumble({topic}, t, INTERVAL 1 MINUTE) GROUP BY ALL"
    counted = [(1,), (1,)]
    for statement in (f"SELECT count(*) AS c, window_end {tumbling}", f"SELECT t {tumbling}, t"):
        assert len(followed(connection, statement.replace(" GROUP BY ALL, t", ""))) >= 2
    found = followed(connection, f"SELECT window_end, count(*) AS c {tumbling}")
    assert [row[1:] for row in found] == counted
    hopping = f"hop({topic}, t, INTERVAL 1 MINUTE, INTERVAL 1 HOUR)"
    query = f"SELECT window_start, t FROM {hopping} WHERE t < '0002'"
    assert followed(connection, query)[-1][0] == "0000-12-31 23:01:00.000000"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT who, count(*) FROM {t} GROUP BY who", "never end"),
        ("SELECT median(n) FROM tumble({t}, t, INTERVAL 1 MINUTE)", "median is not"),
        ("SELECT * FROM {t} ORDER BY n", "ORDER BY"),
        ("SELECT * FROM {t} a JOIN {t} b ON a.n = b.n", "joins with something else"),
        ("SELECT DISTINCT n FROM {t}", "DISTINCT"),
        ("WITH x AS (SELECT 1) SELECT n FROM {t}", "WITH"),
        ("SELECT n FROM {t} UNION ALL SELECT n FROM {t}", "UNION"),
        ("SELECT n FROM (SELECT n FROM {t})", "something else than a topic"),
        ("SELECT n FROM {t} WHERE n IN (SELECT max(n) FROM {t})", "subquery"),
    ],
)
def test_what_cannot_be_followed_prints_the_pipeline_that_can(
    connection: Connection, events: str, query: str, why: str
) -> None:
    with pytest.raises(StatementRefusedError, match=why) as raised:
        connection.follow(query.format(t=events))
    program = raised.value.hint.split("\n\n", 1)[1]
    schema = "n BIGINT, t STRING, who STRING"
    assert f"pipeline.stream({events!r}, topic={events!r}, schema=" in program
    assert all(column in program for column in schema.split(", "))
    compile(program, "pipeline.py", "exec")


def test_the_pipeline_is_valid_whatever_names_and_texts_there_are(
    connection: Connection, topics: Topics
) -> None:
    topic = topics.fill([("k", {"my `field`": {"a b": 1}, 'quo"te': 2})])
    query = f'SELECT \'"""\\d\' AS "a""b", count(*) FROM {topic} ORDER BY 1'
    with pytest.raises(StatementRefusedError) as raised:
        connection.follow(query)
    calls = ast.parse(raised.value.hint.split("\n\n", 1)[1]).body
    (schema,) = _texts(calls[2], "STRUCT")
    assert columns(schema)[0].name == "my `field`"
    assert _texts(calls[3], "SELECT") == [query]


def _texts(node: ast.AST, part: str) -> list[str]:
    constants = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return [str(each.value) for each in constants if part in str(each.value)]


def test_errors_of_a_followed_query(connection: Connection, topics: Topics) -> None:
    topic = topics.fill([("k", {"n": 1, "s": "a"})])
    with pytest.raises(UnknownTableError):
        connection.follow("SELECT * FROM nosuch")
    with pytest.raises(SqlError, match="nosuch"):
        connection.follow(f"SELECT nosuch FROM {topic}")
    with pytest.raises(DurationError):
        connection.follow(f"SELECT n FROM {topic}", watermark="soon")
    with pytest.raises(DurationError, match="negative"):
        connection.follow(f"SELECT n FROM {topic}", watermark="-1 hour")
    with pytest.raises(SqlError, match="LIMIT is negative"):
        connection.follow(f"SELECT n FROM {topic} LIMIT -1")
    with pytest.raises(SqlError, match="Could not convert"):
        followed(connection, f"SELECT s::INTEGER FROM {topic}")
    with pytest.raises(StatementRefusedError):
        connection.follow(f"INSERT INTO {topic} SELECT 1 AS n")


def test_a_followed_query_ends_when_it_is_cancelled(connection: Connection, topics: Topics) -> None:
    topic = topics.fill([("k", {"n": 1})])
    with connection.follow(f"SELECT n FROM {topic}", start="beginning") as follower:
        rows = iter(follower)
        assert next(rows) == (1,)
        began = time.monotonic()
        threading.Timer(0.1, follower.cancel).start()
        assert list(rows) == []
        assert time.monotonic() - began < 10


def test_windows_in_a_query_that_is_not_followed(connection: Connection, topics: Topics) -> None:
    rows = [("k", {"t": f"2026-01-01T00:00:{s:02}Z", "s": s}) for s in range(20)]
    topic = topics.fill(rows, name="dotted.name")
    query = (
        'SELECT second(window_start) AS s, count(*), max(_offset) FROM tumble("dotted.name", t, '
        "INTERVAL 5 SECOND) WHERE _offset < 10 GROUP BY window_start ORDER BY 1"
    )
    assert connection.execute(query).fetchall() == [(0, 5, 4), (5, 5, 9)]
    (plan,) = connection.plan(query)
    assert (plan.topic, plan.offsets, plan.columns) == (topic, 10, ("t",))
