"""Progress of queries summed up, statuses as records, and when they are published."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tidemill.spark.pipelines.progress import (
    HEARTBEAT_S,
    HISTORY_MS,
    HISTORY_STEP_S,
    HISTORY_STEPS,
    LOST_AFTER_S,
    Meter,
    QueryStatus,
    SourceStatus,
    decode,
    errors_of,
    now_text,
    runner_text,
    warnings_of,
)
from tidemill.spark.pipelines.status_topic import StatusPublisher, StatusTopic

BEGAN = datetime(2026, 11, 20, 15, 5, 13, 200_000, tzinfo=UTC)
BEGAN_MS = int(BEGAN.timestamp() * 1000)


def progress(
    batch: int,
    rows: int = 0,
    *,
    ms: int | None = 200,
    end: dict[str, Any] | str | None = None,
    latest: dict[str, Any] | str | None = None,
    appended: tuple[int, int] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One update as Spark 4.3 reports it; ``ms`` None for an idle one."""
    took = {"latestOffset": 3, "triggerExecution": 8}
    if ms is not None:
        took |= {"addBatch": ms - 1, "triggerExecution": ms}
    metrics = {} if appended is None else dict(zip(("oldest", "newest"), appended, strict=True))
    return {
        "runId": "r",
        "timestamp": "2026-11-20T15:05:13.200Z",
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": took,
        "stateOperators": [],
        "sources": [{"endOffset": end, "latestOffset": latest}],
        "observedMetrics": {"tidemill_appended_a": metrics} if metrics else {},
        **more,
    }


def metered(*updates: dict[str, Any]) -> Meter:
    """Return the sum of updates."""
    meter = Meter()
    meter.take_all(updates)
    return meter


def test_batches_are_added_up() -> None:
    meter = metered(progress(0, 500, ms=1000), progress(1, 100, ms=50))

    assert (meter.batch, meter.rows, meter.batch_ms) == (1, 600, 50)
    assert meter.rows_per_second == 2000.0


def test_an_idle_query_s_next_batch_has_not_been_yet() -> None:
    """Spark reports it, with its number and without rows, again and again before it runs."""
    meter = metered(progress(0, 5), progress(1, ms=None), progress(1, ms=None))
    assert (meter.batch, meter.rows) == (0, 5)

    meter.take(progress(1, 3))
    assert (meter.batch, meter.rows) == (1, 8)


def test_a_batch_without_rows_closes_windows_and_leaves_the_speed_alone() -> None:
    meter = Meter()
    state = [{"numRowsTotal": 7, "numRowsDroppedByWatermark": 2}]
    meter.take(progress(0, 100, ms=100, stateOperators=state))
    meter.take(progress(1, 0, ms=10, stateOperators=[{"numRowsTotal": 3}]))

    assert (meter.batch, meter.state_rows, meter.late_rows) == (1, 3, 2)
    assert (meter.batch_ms, meter.rows_per_second) == (100, 1000.0)


def test_rows_that_spark_does_not_count_are_unknown() -> None:
    meter = metered(progress(0, 100, stateOperators=[{"numRowsTotal": 3}, {}]))

    assert meter.state_rows is None


def test_the_history_has_the_batches_of_each_step_and_is_bounded() -> None:
    meter = metered(
        progress(0, 5, ms=100, timestamp="2026-11-20T15:05:10.000Z"),
        progress(1, 7, ms=300, timestamp="2026-11-20T15:05:19.999Z"),
        progress(2, 0, ms=20, timestamp="2026-11-20T15:05:20.000Z"),
        progress(3, ms=None, timestamp="2026-11-20T15:05:30.000Z"),  # idle: not a batch
        progress(3, 1, ms=40, timestamp="2026-11-20T15:05:12.000Z"),  # the clock was set back
    )
    first = int(datetime(2026, 11, 20, 15, 5, 10, tzinfo=UTC).timestamp())
    assert meter.history == ((first, 2, 12, 300), (first + HISTORY_STEP_S, 2, 1, 40))

    for number in range(3 * HISTORY_STEPS):
        later = BEGAN + timedelta(seconds=HISTORY_STEP_S * number)
        meter.take(progress(number, 1, timestamp=later.isoformat()))
    assert len(meter.history) == HISTORY_STEPS
    assert meter.history[-1][0] - meter.history[0][0] == HISTORY_STEP_S * (HISTORY_STEPS - 1)


def test_late_rows_of_all_operators_and_batches_count() -> None:
    meter = Meter()
    two = [{"numRowsDroppedByWatermark": 1}, {"numRowsDroppedByWatermark": 4}]
    meter.take_all([progress(0, 9, stateOperators=two), progress(1, 9, stateOperators=two)])

    assert meter.late_rows == 10


def test_the_watermark_stays_until_there_is_a_newer_one() -> None:
    meter = metered(
        progress(0, 1, eventTime={"watermark": "2026-03-01T14:19:00.000Z"}),
        progress(1, 1, eventTime={}),
    )

    assert meter.watermark == "2026-03-01T14:19:00.000Z"


def test_the_epoch_is_no_watermark() -> None:
    """Spark tells it until there is one."""
    meter = metered(progress(0, 1, eventTime={"watermark": "1970-01-01T00:00:00.000Z"}))

    assert meter.watermark is None
    assert meter.has_watermark
    meter.take(progress(1, 1, eventTime={}))
    assert meter.has_watermark
    assert not metered(progress(0, 1, eventTime={})).has_watermark


def test_a_restart_begins_with_batch_numbers_of_before_and_counts_on() -> None:
    meter = metered(progress(4, 10), progress(5, 10, runId="another"))
    meter.take(progress(5, 10, runId="third"))

    assert (meter.batch, meter.rows) == (5, 30)


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        ({"a": {"0": 5}}, {"a": {"0": 9}}, 4),
        ({"a": {"0": 5, "1": 2}}, {"a": {"0": 5, "1": 3}}, 1),
        ({"a": {"0": 5}}, {"a": {"0": 5, "1": 3}}, 3),  # a partition that is new
        ({"a": {"0": 5}}, {"a": {"0": 4}}, 0),  # asked for a moment earlier
        ({"#topicIds": {"a": "x"}, "a": {"0": 5}}, {"#topicIds": {}, "a": {"0": 6}}, 1),
        ('{"a": {"0": 5}}', '{"a": {"0": 7}}', 2),  # as Spark's own source has it
        ({"a": {"0": 5}}, None, -1),
        ({"a": {"0": 5}}, "no JSON", -1),
        ({"a": {"0": 5}}, {}, -1),
    ],
)
def test_the_lag_is_what_has_not_been_read(end: Any, latest: Any, lag: int) -> None:
    meter = metered(progress(0, 5, end=end, latest=latest))

    assert meter.lags == {"a": lag}


def test_a_source_without_offsets_has_no_lag() -> None:
    meter = metered(progress(0, 5, end=None, latest=None))
    meter.take(progress(1, 5, end=7, latest=9))  # type: ignore[arg-type]  # of a rate source

    assert meter.lags == {}


def test_an_idle_query_s_lag_is_reported_too() -> None:
    meter = metered(
        progress(0, 5, end={"a": {"0": 5}}, latest={"a": {"0": 5}}),
        progress(1, ms=None, end={"a": {"0": 5}}, latest={"a": {"0": 8}}),
    )

    assert meter.lags == {"a": 3}


def test_how_far_it_has_been_read_is_known_before_the_first_batch_of_a_run() -> None:
    meter = metered(
        progress(8, ms=None, end={"a": {"0": 5, "1": 2}}, latest={"a": {"0": 5, "1": 2}})
    )

    assert meter.read == {"a": 7}


def test_latency_is_from_append_to_the_batch_s_end() -> None:
    meter = metered(progress(0, 5, ms=200, appended=(BEGAN_MS - 300, BEGAN_MS - 100)))

    assert meter.percentile(0.01) in range(300, 305)  # the newest record
    assert meter.percentile(0.99) in range(490, 501)  # the oldest
    assert meter.percentile(0.5) == 400


@pytest.mark.parametrize(
    "more",
    [
        {"appended": (BEGAN_MS - HISTORY_MS - 2000,) * 2},  # old
        {"appended": (0, 0)},
        {"appended": (BEGAN_MS + 10_000,) * 2},  # in the future
        {"observedMetrics": {"mine": {"newest": BEGAN_MS}}},
        {"observedMetrics": {"tidemill_appended_a": None}},
        {"observedMetrics": {"tidemill_appended_a": {"newest": None}}},
        {"observedMetrics": None},
    ],
    ids=str,
)
def test_what_says_nothing_of_the_pipeline_is_no_latency(more: dict[str, Any]) -> None:
    assert metered(progress(0, 5, **more)).percentile(0.5) is None


def test_a_record_that_came_while_the_batch_began_took_no_negative_time() -> None:
    meter = metered(progress(0, 1, ms=100, appended=(BEGAN_MS + 500, BEGAN_MS + 500)))

    assert meter.percentile(0.5) == 0


STATUS = QueryStatus(
    pipeline="flights",
    query="hourly",
    state="running",
    rows=7,
    error="ValueError: Zürich",
    sources=(SourceStatus("a", 3, 9, "trips", "stream"), SourceStatus("b")),
    writes=("c",),
    history=((1_763_650_000, 2, 12, 300),),
    ui="http://127.0.0.1:4040",
    updated="2026-11-20T15:05:13.200+00:00",
)


def test_a_status_is_a_record() -> None:
    assert STATUS.key == "flights/hourly"
    assert decode(STATUS.encode()) == STATUS


def test_fields_of_a_newer_version_are_passed_over_and_missing_ones_have_defaults() -> None:
    content = {"pipeline": "p", "query": "q", "state": "running", "colour": "blue"}

    assert decode(json.dumps(content).encode()) == QueryStatus("p", "q", "running")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"7",
        b"[]",
        b'{"pipeline": "p"}',
        b"\xff",
        b'"text"',
        b'{"pipeline": "p", "query": "q", "state": "x", "history": [[1]]}',
        b'{"pipeline": "p", "query": "q", "state": "x", "rows": "7"}',
        b'{"pipeline": "p", "query": "q", "state": "x", "rows": NaN}',
        b'{"pipeline": "p", "query": "q", "state": "x", "rows": 1e400}',
        b'{"pipeline": "p", "query": "q", "state": 7}',
        b'{"pipeline": "p", "query": "q", "state": "x", "watermark": ["now"]}',
    ],
)
def test_what_is_no_status(value: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of json, or its own
        decode(value)


@pytest.mark.parametrize(
    ("state", "age_s", "is_lost"),
    [
        ("running", LOST_AFTER_S - 1, False),
        ("running", LOST_AFTER_S + 1, True),
        ("waiting", LOST_AFTER_S + 1, True),
        ("starting", LOST_AFTER_S + 1, True),
        ("done", 10 * LOST_AFTER_S, False),
        ("failed", 10 * LOST_AFTER_S, False),
        ("stopped", 10 * LOST_AFTER_S, False),
    ],
)
def test_who_is_silent_for_long_is_lost(state: str, age_s: float, is_lost: bool) -> None:
    told = datetime.fromisoformat(STATUS.updated)

    assert replace(STATUS, state=state).is_lost(told + timedelta(seconds=age_s)) == is_lost


def test_now_is_reported_with_its_zone() -> None:
    assert datetime.fromisoformat(now_text()).tzinfo is not None
    assert now_text().endswith("Z")  # as watermarks do


def test_queries_with_the_same_error_share_a_line() -> None:
    def failed(query: str, error: str | None) -> QueryStatus:
        return QueryStatus("p", query, "failed", error=error)

    reset = "the state has changed. Reset it: tidemill pipeline reset p --query {}"
    lines = errors_of(
        [
            failed("a", reset.format("a")),
            failed("b", "ValueError: no good"),
            failed("c", reset.format("c")),
            failed("d", None),
        ]
    )

    assert lines == [
        f"a, c: {reset.format('QUERY')}",
        "b: ValueError: no good",
        "d: unknown",
    ]
    assert errors_of([failed("a", reset.format("a"))]) == [f"a: {reset.format('a')}"]


HERE, THERE = "host:/here/tidemill-data/pipelines", "host:/there/tidemill-data/pipelines"
DONE = QueryStatus("p", "q", "done", batch=7, runner=THERE, updated=now_text())


def test_a_start_without_the_checkpoints_of_the_last_run_is_warned_of() -> None:
    [warning] = warnings_of([DONE, replace(DONE, query="r")], HERE, {"q", "r"})

    assert warning == (
        "pipeline p has no checkpoint in /here/tidemill-data/pipelines for q, r, and ran before "
        "with those in /there/tidemill-data/pipelines on host: results are computed and written "
        "again from the start. To continue from there, stop this run and add --data-dir "
        "/there/tidemill-data"
    )


@pytest.mark.parametrize(
    ("before", "fresh"),
    [
        (DONE, set()),  # the folder was moved here
        (replace(DONE, batch=-1), {"q"}),  # it never ran
        (replace(DONE, runner=HERE), {"q"}),  # it was reset here
        (replace(DONE, runner=""), {"q"}),
    ],
    ids=["moved", "never ran", "reset", "unknown"],
)
def test_an_ordinary_start_is_not_warned_of(before: QueryStatus, fresh: set[str]) -> None:
    assert list(warnings_of([before], HERE, fresh)) == []


def test_a_run_elsewhere_at_the_same_time_is_the_only_warning() -> None:
    running = replace(DONE, state="running", updated=now_text())
    [warning] = warnings_of([running, DONE], HERE, {"q"})

    assert "also runs from another data folder" in warning


def test_the_text_of_a_runner_has_an_absolute_folder() -> None:
    assert runner_text("host", Path("x")) == f"host:{Path.cwd() / 'x'}"


# --- published statuses ---

FIRST = QueryStatus("flights", "hourly", "starting", updated="2026-03-01T12:00:00Z")
LATER = replace(FIRST, updated="2026-03-01T12:00:05Z")
RUNNING = replace(LATER, state="running")


class RecordingTopic(StatusTopic):
    """A topic that records what is published instead of sending it."""

    def __init__(self) -> None:
        super().__init__({"bootstrap.servers": "nowhere:9092"})
        self.published: list[QueryStatus] = []

    def publish(self, status: QueryStatus) -> None:
        self.published.append(status)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic time, in a list of one element."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_change_is_published_and_passed_to_the_listener(clock: list[float]) -> None:
    topic, heard = RecordingTopic(), list[QueryStatus]()
    publisher = StatusPublisher(topic, heard.append)
    publisher.publish([FIRST])
    publisher.publish([RUNNING])

    assert topic.published == heard == [FIRST, RUNNING]
    assert publisher.latest == {"hourly": RUNNING}


def test_another_time_of_the_same_status_is_not_a_change(clock: list[float]) -> None:
    topic = RecordingTopic()
    publisher = StatusPublisher(topic)
    publisher.publish([FIRST])
    clock[0] += HEARTBEAT_S / 2
    publisher.publish([LATER])

    assert topic.published == [FIRST]
    assert publisher.latest == {"hourly": FIRST}


def test_an_unchanged_status_is_published_again_as_a_heartbeat(clock: list[float]) -> None:
    topic, heard = RecordingTopic(), list[QueryStatus]()
    publisher = StatusPublisher(topic, heard.append)
    publisher.publish([FIRST])
    clock[0] += HEARTBEAT_S
    publisher.publish([LATER])

    assert topic.published == [FIRST, LATER]
    assert heard == [FIRST]
