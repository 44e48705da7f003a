"""Running pipelines: their results, their statuses, and their failures.

The session is that of the whole test run; a pipeline that loses its JVM is tested with the command
line, in a process of its own.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Broker
from tests.support.committed import read_to_end
from tests.support.processes import poll_until
from tidemill.spark import ChangelogSink, ForeachBatchSink, ParquetSink, SqliteSink, TopicSink
from tidemill.spark.errors import PipelineError, PipelineRunningError
from tidemill.spark.pipelines.checkpoint import Checkpoint, PipelineLock
from tidemill.spark.pipelines.declared import Pipeline
from tidemill.spark.pipelines.problems import PipelineProblemsError
from tidemill.spark.pipelines.progress import QueryStatus, now_text
from tidemill.spark.pipelines.runner import Runner, RunOptions, find_error
from tidemill.spark.pipelines.status_topic import StatusTopic, read_statuses
from tidemill.spark.sinks.base import Sink
from tidemill.spark.windows.functions import tumbling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("spark"),
]

WAIT_S = 180
SCHEMA = "id STRING, airport STRING, delay INT, at TIMESTAMP"


def record(number: int, airport: str, delay: int, at: str) -> str:
    row = {"id": str(number), "airport": airport, "delay": delay, "at": f"2026-03-01T{at}:00Z"}
    return json.dumps(row)


class Place:
    """A broker, a folder for checkpoints, and topics of one test."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.state = folder / "pipelines"
        self.name = f"p-{uuid.uuid4().hex[:8]}"
        self.statuses: list[QueryStatus] = []

    def topic(self, name: str) -> str:
        return f"{self.name}.{name}"

    def pipeline(self, **stream: Any) -> Pipeline:
        p = Pipeline(self.name)
        declared = {"schema": SCHEMA, "event_time": "at", "watermark": "1 minute", **stream}
        p.stream("flights", topic=self.topic("flights"), **declared)
        return p

    def copying(self, name: str = "x", sink: Sink | None = None) -> Pipeline:
        """A pipeline whose one query writes the flights as they are."""
        p = self.pipeline(dead_letters=None)
        p.query(sink=sink or TopicSink(self.topic(name)), name=name)(lambda flights: flights.df)
        return p

    def run(
        self, pipeline: Pipeline, stop: threading.Event | None = None, **options: Any
    ) -> list[QueryStatus]:
        given = {"until_caught_up": stop is None, **options}
        made = RunOptions(self.broker.bootstrap, self.state, **given)
        return Runner(pipeline, made, self.statuses.append).run(stop)

    def produce(self, *values: str) -> None:
        self.broker.produce(self.topic("flights"), values)

    def records(self, name: str) -> list[tuple[str | None, Any]]:
        """Keys and values of a topic, as text and JSON."""
        found: list[Any] = list(read_to_end(self.broker.bootstrap, self.topic(name)))
        return [
            (
                None if each.key() is None else each.key().decode(),
                None if each.value() is None else json.loads(each.value()),
            )
            for each in found
        ]


@pytest.fixture
def place(tidemill_broker: Broker, tmp_path: Path) -> Place:
    made = Place(tidemill_broker, tmp_path)
    made.broker.topic(name=made.topic("flights"))
    return made


def all_kinds(place: Place) -> Pipeline:
    """A query of each kind, with each kind of topic as its sink."""
    p = place.pipeline()
    p.stream("bytes", topic=place.topic("flights"), format="raw")

    @p.query(sink=TopicSink(place.topic("plain"), key="id"))
    def plain(flights: Any) -> Any:
        return flights.df.filter("delay > 0")

    @p.query(sink=ChangelogSink(place.topic("worst"), key="airport"), mode="update")
    def worst(flights: Any) -> Any:
        found = flights.df.groupBy("airport").agg({"delay": "max"})
        return found.selectExpr("airport", "`max(delay)` AS delay", "`max(delay)` > 90 AS _deleted")

    @p.query(sink=TopicSink(place.topic("raw")))
    def raw(bytes: Any) -> Any:  # noqa: A002 - the name of a stream
        return bytes.df.selectExpr("offset", "length(value) AS size")

    p.sql(
        "hourly",
        "SELECT window.start AS hour, count(*) AS n FROM flights GROUP BY tumbling(at, '1 hour')",
        sink=TopicSink(place.topic("hourly")),
    )
    return p


FIRST = [
    record(1, "JFK", 5, "12:01"),
    record(2, "LGA", 0, "12:02"),
    "rubbish",
    record(3, "JFK", 30, "13:20"),
]


def test_all_kinds_of_queries_until_they_have_caught_up(place: Place) -> None:
    place.produce(*FIRST)
    first = place.run(all_kinds(place))

    assert find_error(first) is None
    assert {s.query: s.state for s in first} == dict.fromkeys(
        ["plain", "worst", "raw", "hourly", "flights.dlq"], "done"
    )
    assert [key for key, _ in place.records("plain")] == ["1", "3"]
    row = {"id": "1", "airport": "JFK", "delay": 5, "at": "2026-03-01T12:01:00.000Z"}
    assert place.records("plain")[0][1] == row
    assert sorted(place.records("worst")) == [
        ("JFK", {"airport": "JFK", "delay": 30}),
        ("LGA", {"airport": "LGA", "delay": 0}),
    ]
    assert [value["offset"] for _, value in place.records("raw")] == [0, 1, 2, 3]
    assert place.records("hourly") == [(None, {"hour": "2026-03-01T12:00:00.000Z", "n": 2})]
    [letter] = read_to_end(place.broker.bootstrap, place.topic("flights.dlq"))
    given: Any = letter.headers()
    headers = {name: value.decode() for name, value in given}
    assert letter.value() == b"rubbish"
    assert headers["error.reason"] == "the value is not a JSON object"
    assert (headers["pipeline"], headers["source.offset"]) == (place.name, "2")
    check_that_topics_are_made_as_needed(place)
    check_that_statuses_tell_all(place, first)

    # Without new records nothing is written, and each checkpoint fits its query, built again.
    again = place.run(all_kinds(place))
    assert {(s.state, s.rows) for s in again} == {("done", 0)}
    assert len(place.records("plain")) == 2
    assert len(place.records("worst")) == 2

    # New records continue the state; late records are counted; a key is deleted.
    place.produce(record(4, "LGA", 99, "14:30"), record(5, "JFK", 7, "12:03"))
    place.produce(record(6, "SFO", 1, "16:00"))
    third = {s.query: s for s in place.run(all_kinds(place))}
    assert sorted(place.records("worst")[2:], key=str) == [
        ("JFK", {"airport": "JFK", "delay": 30}),
        ("LGA", None),
        ("SFO", {"airport": "SFO", "delay": 1}),
    ]
    assert third["hourly"].late_rows == 1
    assert [value["n"] for _, value in place.records("hourly")] == [2, 1, 1]


def check_that_topics_are_made_as_needed(place: Place) -> None:
    from confluent_kafka.admin import ConfigResource

    names = {place.topic("worst"): "compact", place.topic("plain"): "delete"}
    resources = [ConfigResource("topic", name) for name in [*names, "tidemill.pipelines"]]
    found = {
        resource.name: future.result(60)["cleanup.policy"].value
        for resource, future in place.broker.admin.describe_configs(resources).items()
    }
    assert found == {**names, "tidemill.pipelines": "compact"}


def check_that_statuses_tell_all(place: Place, ended: list[QueryStatus]) -> None:
    stored = {s.query: s for s in read_statuses(place.broker.kafka, place.name)}
    assert stored == {s.query: s for s in ended}
    hourly = stored["hourly"]
    assert hourly.sink == f"topic {place.topic('hourly')}"
    assert hourly.mode == "append"
    assert hourly.watermark == "2026-03-01T13:19:00.000Z"
    assert (hourly.rows, hourly.state_rows, hourly.late_rows) == (3, None, 0)
    assert (stored["raw"].rows, stored["flights.dlq"].rows) == (4, 1)
    assert [(s.topic, s.lag, s.name, s.kind) for s in hourly.sources] == [
        (place.topic("flights"), 0, "flights", "stream")
    ]
    assert (hourly.writes, hourly.ui) == ((place.topic("hourly"),), None)
    assert sum(rows for _, _, rows, _ in hourly.history) == 3
    assert hourly.rows_per_second > 0
    assert hourly.latency_p50_ms is not None
    assert hourly.latency_p99_ms is not None
    assert 0 < hourly.latency_p50_ms <= hourly.latency_p99_ms
    # The listener heard of it from the first moment on.
    states = [s.state for s in place.statuses if s.query == "hourly"]
    assert (states[0], states[-1]) == ("starting", "done")


def test_a_query_that_fails_is_restarted_and_loses_nothing(place: Place) -> None:
    place.produce(*FIRST[:2])
    seen: list[list[str]] = []

    def write(df: Any, batch: int) -> None:
        rows = [row.id for row in df.select("id").collect()]
        seen.append(rows)
        if len(seen) == 1:
            raise ConnectionError("the search index is away")

    def running() -> bool:
        return any(s.state == "running" and s.restarts == 1 and s.rows for s in place.statuses)

    p = place.copying("index", ForeachBatchSink(write))
    p.query(sink=TopicSink(place.topic("other")), name="other")(lambda flights: flights.df)
    stop = threading.Event()
    ended = in_background(lambda: place.run(p, stop), stop, running)

    assert seen[0] == seen[1] == ["1", "2"]
    index, other = ended
    assert index.restarts == 1
    assert index.error is not None
    assert index.error.startswith("ConnectionError: the search index is away (")
    assert Path(__file__).name in index.error  # the line of the user's function
    assert index.state == "stopped"
    waiting = [s for s in place.statuses if s.state == "waiting"]
    assert {s.query for s in waiting} == {"index"}
    assert (other.restarts, other.error) == (0, None)  # it continued meanwhile
    assert len(place.records("other")) == 2


def in_background(
    run: Callable[[], list[QueryStatus]], stop: threading.Event, until: Callable[[], bool]
) -> list[QueryStatus]:
    """Run until a condition holds, then stop; what the run came to."""
    results: list[list[QueryStatus]] = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    try:
        poll_until(lambda: until() or not thread.is_alive(), WAIT_S, "what the test waits for")
    finally:
        stop.set()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    assert results, "the run failed"
    return results[0]


def test_a_run_that_is_to_end_does_not_try_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.spark.pipelines.runner.MAX_RESTARTS_TO_CATCH_UP", 1)
    place.produce(*FIRST[:1])
    calls = []

    def write(df: Any, batch: int) -> None:
        calls.append(batch)
        raise ValueError("no good")

    ended = place.run(place.copying("bad", ForeachBatchSink(write)))

    assert calls == [0, 0]
    assert ended[0].state == "failed"
    error = find_error(ended)
    assert error is not None
    assert str(error).startswith("1 of 1 queries failed: bad: ValueError: no good (")


def counted(place: Place, size: str, sink: Sink | None = None) -> Pipeline:
    p = place.pipeline(dead_letters=None)

    @p.query(sink=sink or TopicSink(place.topic("counted")))
    def counted(flights: Any) -> Any:
        return flights.df.groupBy(tumbling("at", size)).count()

    @p.query(sink=TopicSink(place.topic("plain")))
    def plain(flights: Any) -> Any:
        return flights.df

    return p


def test_settings_of_a_run_are_looked_at_before_anything_starts(place: Place) -> None:
    with pytest.raises(PipelineProblemsError, match=r"excludes kafka\.acks=1"):
        place.run(all_kinds(place), kafka={"acks": "1"})

    assert not place.state.exists()
    assert place.statuses == []


def test_a_changed_query_is_explained_before_anything_starts(place: Place) -> None:
    place.produce(*FIRST[:2])
    place.run(counted(place, "1 hour"))
    place.produce(FIRST[3])

    with pytest.raises(PipelineProblemsError) as caught:
        place.run(counted(place, "2 hours"))

    [problem] = caught.value.problems
    assert problem.place.file == __file__
    assert problem.message == (
        "query counted: it can't continue from its checkpoint: what it keeps in its state has "
        "changed; before: with window of at: 1 hour; now: with window of at: 2 hours"
    )
    assert f"tidemill pipeline reset {place.name} --query counted" in problem.hint
    assert len(place.records("plain")) == 2  # the other one has not started, either
    stored = {s.query: s for s in read_statuses(place.broker.kafka, place.name)}
    assert stored["counted"].state == "failed"
    assert "can't continue from its checkpoint" in (stored["counted"].error or "")
    assert (stored["plain"].state, stored["plain"].error) == ("stopped", None)
    # The values of the run before are kept.
    assert (stored["plain"].batch, stored["plain"].rows) == (0, 2)
    assert [(s.lag, s.read) for s in stored["plain"].sources] == [(0, 2)]

    # The unchanged query continues: the fingerprint of the refused one was not saved.
    place.run(counted(place, "1 hour"))
    assert len(place.records("plain")) == 3


def test_if_fingerprints_can_t_be_compared_spark_s_own_refusal_is_explained(place: Place) -> None:
    place.produce(*FIRST[:2])
    place.run(counted(place, "1 hour"))
    checkpoint = Checkpoint(place.state, place.name, "counted")
    content = json.loads((checkpoint.folder / "identity.json").read_text())
    content["shape"]["made_by"] = "an older tidemill"
    (checkpoint.folder / "identity.json").write_text(json.dumps(content))
    place.produce(FIRST[3])
    p = place.pipeline(dead_letters=None)
    p.query(sink=TopicSink(place.topic("counted")), name="counted")(
        lambda flights: flights.df.groupBy(tumbling("at", "1 hour"), "airport").count()
    )

    [ended] = place.run(p)

    assert ended.state == "failed"
    assert ended.restarts == 0
    assert (ended.error or "").startswith(
        "the query keeps other columns in its state than its checkpoint has (Spark: "
    )
    assert (ended.error or "").endswith(
        f"reset the query: tidemill pipeline reset {place.name} --query counted"
    )


def test_mistakes_in_functions_are_all_reported_before_anything_starts(place: Place) -> None:
    p = place.pipeline()

    @p.query(sink=TopicSink(place.topic("a")))
    def unknown_column(flights: Any) -> Any:
        good = flights.df.filter("delay > 0")
        return good.select("delya")

    @p.query(sink=TopicSink(place.topic("b")))
    def own_error(flights: Any) -> Any:
        return dict[str, int]()["x"]

    @p.query(sink=TopicSink(place.topic("c")))
    def no_frame(flights: Any) -> Any:
        return 7

    @p.query(sink=TopicSink(place.topic("d")))
    def never_final(flights: Any) -> Any:
        return flights.df.groupBy("airport").count()

    @p.query(sink=TopicSink(place.topic("e"), key="flight"))
    def no_key(flights: Any) -> Any:
        return flights.df

    @p.query(sink=TopicSink(place.topic("f")))
    def bad_sql(flights: Any) -> Any:
        return "SELECT id FORM flights"

    @p.query(sink=TopicSink(place.topic("h")))
    def counts_now(flights: Any) -> Any:
        return flights.df.count()

    @p.query(sink=TopicSink(place.topic("i")))
    def sorts(flights: Any) -> Any:
        return flights.df.orderBy("delay")

    p.query(sink=TopicSink(place.topic("g")), name="good")(lambda flights: flights.df)

    with pytest.raises(PipelineProblemsError) as caught:
        place.run(p)

    found = {each.message.split(": ", 1)[0]: each for each in caught.value.problems}
    assert {name: each.message.split(": ", 1)[1][:60] for name, each in found.items()} == {
        "query unknown_column": "A column, variable, or function parameter with name `delya` ",
        "query own_error": "KeyError: 'x'",
        "query no_frame": "it returns int, which is not a DataFrame",
        "query never_final": "Spark refuses append mode: Invalid streaming output mode: ap",
        "query counts_now": "Queries with streaming sources must be executed with writeSt",
        "query sorts": "Spark refuses append mode: Sorting is not supported on strea",
        "query no_key": "the result has no column flight, which TopicSink needs",
        "query bad_sql": found["query bad_sql"].message.split(": ", 1)[1][:60],
    }
    assert "Syntax error at or near 'flights'" in found["query bad_sql"].message
    assert all(each.place.file == __file__ for each in found.values())
    line_of = {name: each.place.line for name, each in found.items()}
    source = Path(__file__).read_text().splitlines()
    assert 'good.select("delya")' in source[line_of["query unknown_column"] - 1]
    assert '()["x"]' in source[line_of["query own_error"] - 1]
    assert not (place.state / place.name / "good").exists()
    hints = {name: each.hint for name, each in found.items()}
    assert "Give the stream event_time= and watermark=" in hints["query never_final"]
    assert "Return a DataFrame that describes" in hints["query counts_now"]
    assert "Sort when you read the result" in hints["query sorts"]
    # No topic is left behind, either, but for those that are read.
    topics = place.broker.admin.list_topics(timeout=60).topics
    assert [each for each in topics if each.startswith(place.name)] == [place.topic("flights")]
    stored = {s.query: s for s in read_statuses(place.broker.kafka, place.name)}
    assert stored["no_frame"].error == (
        "it returns int, which is not a DataFrame. Return a DataFrame, or a SQL string."
    )


def test_what_two_checkpoints_would_mix_in_one_folder_is_refused(place: Place) -> None:
    place.produce(*FIRST[:2])
    p = counted(place, "1 hour", ParquetSink(f"file://{place.folder}/out"))
    place.run(p)
    Checkpoint(place.state, place.name, "counted").remove()

    with pytest.raises(PipelineProblemsError, match="contains batches of another checkpoint"):
        place.run(p)


def test_a_checkpoint_continues_in_the_folder_that_it_has_begun(place: Place) -> None:
    def files(folder: str) -> list[QueryStatus]:
        return place.run(place.copying("files", ParquetSink(place.folder / folder)))

    files("one")  # nothing is there to be written
    place.produce(FIRST[0])
    files("one")
    place.produce(FIRST[1])

    with pytest.raises(PipelineProblemsError, match="two contains none of the batches") as refusal:
        files("two")
    [problem] = refusal.value.problems
    assert f"tidemill pipeline reset {place.name} --query files" in problem.hint
    assert [s.rows for s in files("one")] == [1]


def test_a_query_whose_checkpoint_was_removed_by_hand_writes_anew(place: Place) -> None:
    """Neither the table nor the topic takes what it writes for what is there."""
    place.produce(*FIRST[:2])
    path = place.folder / "out.db"
    p = place.copying("plain")
    p.query(sink=SqliteSink("t", "id", path), name="table", mode="update")(
        lambda flights: flights.df.select("id", "delay")
    )
    place.run(p)
    place.run(p)  # continues: no new records
    assert len(place.records("plain")) == 2
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE t SET delay = -1")
    for query in ("plain", "table"):
        shutil.rmtree(Checkpoint(place.state, place.name, query).spark_folder)

    place.run(p)

    assert len(place.records("plain")) == 4
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT delay FROM t ORDER BY id").fetchall() == [(5,), (0,)]


def test_where_new_queries_begin_can_be_set(place: Place) -> None:
    place.produce(*FIRST[:2])
    p = counted(place, "1 hour")
    assert [s.rows for s in place.run(p, starting="latest")] == [0, 0]
    place.produce(FIRST[3])
    assert [s.rows for s in place.run(p, starting="earliest")] == [1, 1]  # checkpoints know better


def test_a_pipeline_runs_once_at_a_time(place: Place) -> None:
    with PipelineLock(place.state, place.name), pytest.raises(PipelineRunningError):
        place.run(counted(place, "1 hour"))


def test_queries_that_are_gone_have_no_status_any_more(place: Place) -> None:
    with StatusTopic(place.broker.kafka) as topic:
        topic.create([])
        topic.publish(QueryStatus(place.name, "gone", "done"))
        topic.publish(QueryStatus(f"{place.name}-other", "kept", "done"))
    place.run(place.copying())

    assert [s.query for s in read_statuses(place.broker.kafka, place.name)] == ["x"]
    assert [s.query for s in read_statuses(place.broker.kafka, f"{place.name}-other")] == ["kept"]


def warnings_after(place: Place, state: str, **last: Any) -> list[str]:
    """Return the warnings of two runs, before which another folder ran the pipeline."""
    before = QueryStatus(place.name, "x", state, runner="elsewhere:/data/pipelines", **last)
    with StatusTopic(place.broker.kafka) as topic:
        topic.create([])
        topic.publish(before)
    warned: list[str] = []
    stop = threading.Event()
    stop.set()
    for _ in range(2):  # the second time, it was this folder's own run
        options = RunOptions(place.broker.bootstrap, place.state)
        Runner(place.copying(), options, warn=warned.append).run(stop)
    return warned


def test_another_runner_with_another_folder_is_warned_of(place: Place) -> None:
    assert warnings_after(place, "running", updated=now_text()) == [
        f"pipeline {place.name} also runs from another data folder (elsewhere:/data/pipelines): "
        "both runs write all results"
    ]


def test_a_start_without_the_checkpoints_of_another_folder_is_warned_of(place: Place) -> None:
    [warning] = warnings_after(place, "done", batch=7)
    assert f"has no checkpoint in {place.state} for x, and ran before with those in" in warning
    assert warning.endswith("--data-dir /data")


def test_a_jvm_that_is_cut_off_before_it_is_gone_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = False

    def exit_code(wait_s: float = 0.0) -> int | None:
        nonlocal gone
        gone = gone or wait_s > 0
        return -9 if gone else None

    def refuse(_: Runner) -> None:
        raise ConnectionRefusedError("connection refused")

    monkeypatch.setattr("tidemill.spark.base.jvm.exit_code", exit_code)
    monkeypatch.setattr(Runner, "_session", refuse)
    with pytest.raises(
        PipelineError, match=r"JVM ended while the pipeline ran \(killed by signal 9"
    ):
        place.run(place.copying())


def test_spark_s_own_source_is_asked_for_by_its_name(place: Place, spark: SparkSession) -> None:
    """Its jar is not here: Spark's answer shows that it was asked, and the hint how to get it."""
    with pytest.raises(PipelineProblemsError) as caught:
        place.run(counted(place, "1 hour"), source_format="kafka")

    problem = caught.value.problems[0]
    assert problem.message.startswith("query counted: Failed to find data source: kafka.")
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:" in problem.hint


# --- rows that a sink can't write ---------------------------------------------------------------


@pytest.fixture
def flights(place: Place) -> Pipeline:
    """A pipeline whose topic has two flights, one of them without an airport."""
    place.produce('{"id": "1", "airport": "JFK"}', '{"id": "2"}')
    return place.pipeline(
        schema="id STRING, airport STRING", event_time=None, watermark=None, dead_letters=None
    )


def failure_of(place: Place, pipeline: Pipeline) -> str:
    """Return why the one query of a pipeline has failed without a restart."""
    [status] = place.run(pipeline)
    assert (status.state, status.restarts) == ("failed", 0)
    assert status.error is not None
    return status.error


def test_a_row_without_its_key_ends_a_query_that_keeps_a_changelog(
    place: Place, flights: Pipeline
) -> None:
    topic = place.topic("now")
    flights.sql("now", "SELECT * FROM flights", sink=ChangelogSink(topic, key="airport"))
    error = failure_of(place, flights)
    assert error.startswith(f"a row for topic {topic} has no airport, which is part of the key")
    assert error.endswith('Filter out such rows: filter("`airport` IS NOT NULL").')


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SELECT * FROM flights", "1 of 2 rows for table t in {} have no airport, which is part"),
        (
            "SELECT 'JFK' AS airport FROM flights",
            "more than one row of a batch for table t in {} h",
        ),
    ],
)
def test_rows_that_no_table_can_take_end_a_query(
    place: Place, flights: Pipeline, text: str, told: str
) -> None:
    path = place.folder / "out.db"
    flights.sql("now", text, sink=SqliteSink("t", "airport", path), mode="update")
    assert failure_of(place, flights).startswith(told.format(path))


@pytest.mark.parametrize("kind", ["topic", "changelog", "table"])
def test_a_record_that_is_no_row_ends_a_query_that_has_nowhere_to_put_it(
    place: Place, flights: Pipeline, kind: str
) -> None:
    sinks: dict[str, Sink] = {
        "topic": TopicSink(place.topic("out")),
        "changelog": ChangelogSink(place.topic("out"), "id"),
        "table": SqliteSink("t", "id", path=place.folder / "out.db"),
    }
    place.produce("nothing")
    flights.sql("all", "SELECT * FROM flights", sink=sinks[kind])
    error = failure_of(place, flights)
    assert error.startswith(
        f"topic {place.topic('flights')}: the record at offset 2 of partition 0 can't be parsed: "
    )
    assert 'dead_letters="' in error


def test_a_result_that_no_record_can_hold_starts_nothing(place: Place, flights: Pipeline) -> None:
    text = "SELECT *, airport AS id FROM flights"
    flights.sql("twice", text, sink=TopicSink(place.topic("out")))
    with pytest.raises(
        PipelineProblemsError, match="twice: the result has columns with the same name: i"
    ):
        place.run(flights)
