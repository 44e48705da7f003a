"""Supervising a query: its start, its failures, its restarts after growing pauses, its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tidemill.spark.errors import PipelineError
from tidemill.spark.pipelines.progress import QueryStatus, SourceStatus
from tidemill.spark.pipelines.supervisor import (
    BUSY_PATIENCE_S,
    BUSY_PAUSE_S,
    CONCURRENT_STARTS,
    HEALTHY_S,
    LONGEST_PAUSE_S,
    STARTUP_TIMEOUT_S,
    RestartPolicy,
    SupervisedQuery,
    never_started,
    start_some,
    stop_all,
)

PROGRESS: dict[str, Any] = {"batchId": 0, "durationMs": {}}
STATUS = QueryStatus("flights", "hourly", "starting", sources=(SourceStatus("a"),))


@dataclass
class Query:
    """A running query that a test controls."""

    is_active: bool = True
    failure: BaseException | None = None
    progress: list[dict[str, Any]] = field(default_factory=list)
    stopped: bool = False
    refuses_to_stop: bool = False

    def updates(self) -> list[dict[str, Any]]:
        found, self.progress = self.progress, []
        return found

    def error(self) -> BaseException | None:
        return self.failure

    def fail(self, error: str = "ValueError: no good") -> None:
        self.is_active, self.failure = False, RuntimeError(error)

    def stop(self) -> None:
        if self.refuses_to_stop:
            raise TimeoutError("still busy")
        self.stopped, self.is_active = True, False


class Supervised:
    """A supervised query that records each start, with a clock that the test sets."""

    def __init__(self, policy: RestartPolicy | None = None) -> None:
        self.now = 1000.0
        self.starts: list[Query] = []
        self.on_start: Callable[[], None] = lambda: None
        self.query = SupervisedQuery(
            STATUS, self._begin, policy or RestartPolicy(), lambda: self.now
        )

    def _begin(self) -> Query:
        self.on_start()
        self.starts.append(Query())
        return self.starts[-1]

    @property
    def state(self) -> str:
        return self.query.status().state

    def fail(self, error: str = "ValueError: no good") -> None:
        self.starts[-1].fail(error)
        self.query.poll()

    def wait(self, seconds: float) -> None:
        """Let time pass, and do what the runner does then."""
        self.now += seconds
        start_some([self.query])
        self.query.poll()


def started(policy: RestartPolicy | None = None) -> Supervised:
    made = Supervised(policy)
    made.query.start()
    return made


@pytest.fixture
def supervised() -> Supervised:
    """A query that was started."""
    return started()


def test_it_runs_once_started() -> None:
    supervised = Supervised()
    assert supervised.state == "starting"
    supervised.query.start()
    supervised.query.poll()

    assert supervised.state == "running"
    assert not supervised.query.is_over


def test_a_failure_is_reported_and_followed_by_a_restart(supervised: Supervised) -> None:
    supervised.fail()

    assert supervised.state == "waiting"
    assert supervised.query.status().error == "ValueError: no good"
    supervised.wait(0.9)
    assert len(supervised.starts) == 1  # not before the pause is over

    supervised.wait(0.1)
    assert supervised.state == "running"
    assert supervised.query.status().restarts == 1
    assert supervised.query.status().error == "ValueError: no good"  # the last error is kept


def test_pauses_double_up_to_a_minute(supervised: Supervised) -> None:
    pauses = []
    for _ in range(9):
        supervised.fail()
        assert supervised.query.restart_in_s is not None
        pauses.append(supervised.query.restart_in_s)
        supervised.wait(pauses[-1])

    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_after_a_healthy_minute_the_pause_is_short_again(supervised: Supervised) -> None:
    for _ in range(5):
        supervised.fail()
        supervised.wait(60)
    supervised.wait(HEALTHY_S + 1)
    supervised.fail()

    assert supervised.query.restart_in_s == 1


def test_a_start_that_fails_counts_as_a_failure() -> None:
    supervised = Supervised()

    def refuse() -> None:
        raise RuntimeError("not now")

    supervised.on_start = refuse
    supervised.query.start()

    assert supervised.state == "waiting"
    assert supervised.query.status().error == "not now"


def test_what_trying_again_can_t_help_is_not_tried_again() -> None:
    supervised = Supervised()

    def refuse() -> None:
        raise PipelineError("it was changed", hint="Reset it.")

    supervised.on_start = refuse
    supervised.query.start()

    assert supervised.state == "failed"
    assert supervised.query.is_over
    assert supervised.query.status().error == "it was changed. Reset it."


def test_restarts_may_be_limited() -> None:
    supervised = started(RestartPolicy(max_restarts=2))
    for _ in range(2):
        supervised.fail()
        assert supervised.state == "waiting"
        supervised.wait(60)
    supervised.fail()

    assert supervised.state == "failed"
    assert len(supervised.starts) == 3


@pytest.mark.parametrize(("until_caught_up", "state"), [(True, "done"), (False, "stopped")])
def test_a_query_that_ends_by_itself_is_over(until_caught_up: bool, state: str) -> None:
    supervised = started(RestartPolicy(until_caught_up=until_caught_up))
    supervised.starts[0].is_active = False
    supervised.query.poll()

    assert supervised.state == state
    assert supervised.query.is_over


def test_progress_reaches_the_status(supervised: Supervised) -> None:
    batch = {
        "batchId": 3,
        "numInputRows": 10,
        "timestamp": "2026-11-20T15:05:13.200Z",
        "durationMs": {"addBatch": 1, "triggerExecution": 100},
        "sources": [{"endOffset": {"b": {"0": 1}}, "latestOffset": {"b": {"0": 3}}}],
    }
    supervised.starts[0].progress = [batch]
    supervised.query.poll()
    status = supervised.query.status()

    assert (status.batch, status.rows, status.rows_per_second) == (3, 10, 100.0)
    assert [(each.topic, each.lag) for each in status.sources] == [("a", -1), ("b", 2)]
    assert status.updated


def test_progress_before_the_end_is_not_missed(supervised: Supervised) -> None:
    supervised.starts[0].progress = [
        {"batchId": 0, "timestamp": "2026-11-20T15:05:13.200Z", "durationMs": {"addBatch": 1}}
    ]
    supervised.fail()

    assert supervised.query.status().batch == 0


BEFORE = QueryStatus(
    *("flights", "hourly", "starting"),
    batch=8,
    rows=70,
    watermark="2026-03-01T14:19:00.000Z",
    state_rows=3,
    sources=(SourceStatus("a", 0, 70),),
)


def test_the_end_of_a_query_is_seen_before_it_is_polled() -> None:
    running = Query()
    query = SupervisedQuery(BEFORE, lambda: running, RestartPolicy(until_caught_up=True))
    assert not query.has_ended
    query.start()
    assert not query.has_ended
    running.is_active = False
    assert query.has_ended
    query.poll()
    assert not query.has_ended
    assert query.is_over


def test_what_the_last_run_came_to_is_reported_until_this_one_begins() -> None:
    query = SupervisedQuery(BEFORE, Query, RestartPolicy())
    query.stop()

    assert replace(query.status(), updated="") == replace(BEFORE, state="stopped")


def test_a_run_that_has_read_nothing_yet_continues_from_the_last_one() -> None:
    query = SupervisedQuery(BEFORE, Query, RestartPolicy())
    query.start()
    status = query.status()

    assert (status.batch, status.watermark, status.state_rows) == (8, BEFORE.watermark, 3)
    assert status.sources == BEFORE.sources
    assert status.rows == 0  # of this run


def test_the_end_stops_what_runs(supervised: Supervised) -> None:
    supervised.query.stop()

    assert supervised.starts[0].stopped
    assert supervised.state == "stopped"


def test_a_query_that_does_not_stop_in_time_is_reported(supervised: Supervised) -> None:
    supervised.starts[0].refuses_to_stop = True
    supervised.query.stop()

    assert supervised.state == "stopped"
    assert supervised.query.status().error == "still busy"


def test_the_end_changes_nothing_for_what_is_over() -> None:
    supervised = started(RestartPolicy(max_restarts=0))
    supervised.fail()
    supervised.query.stop()

    assert supervised.state == "failed"
    assert not supervised.starts[0].stopped


def test_what_can_t_be_asked_any_more_has_failed(supervised: Supervised) -> None:
    supervised.query.mark_failed("Spark is gone")

    assert supervised.state == "failed"
    assert supervised.query.status().error == "Spark is gone"


def new_queries(count: int) -> tuple[list[Supervised], list[SupervisedQuery]]:
    several = [Supervised() for _ in range(count)]
    return several, [each.query for each in several]


def test_only_a_few_queries_start_at_the_same_time() -> None:
    several, queries = new_queries(CONCURRENT_STARTS + 1)
    start_some(queries)
    start_some(queries)
    assert [each.state for each in several] == ["running"] * CONCURRENT_STARTS + ["starting"]

    several[0].starts[0].progress = [{"batchId": 0, "durationMs": {}}]
    several[0].query.poll()  # its first progress ends the start of the query
    start_some(queries)
    assert several[-1].state == "running"


def test_a_start_that_takes_too_long_does_not_hold_up_others() -> None:
    several, queries = new_queries(CONCURRENT_STARTS + 1)
    start_some(queries)
    several[0].now += STARTUP_TIMEOUT_S
    start_some(queries)

    assert several[-1].state == "running"


def test_restarts_are_staggered_as_first_starts_are() -> None:
    """All queries fail together when the machine is busy, and would start together again."""
    several, queries = new_queries(2 * CONCURRENT_STARTS + 1)
    for each in several:
        each.query.start()
        each.starts[0].progress = [PROGRESS]
        each.fail()
        each.now += 60
    start_some(queries)
    start_some(queries)

    assert sum(each.state == "running" for each in several) == CONCURRENT_STARTS
    for each in several[:CONCURRENT_STARTS]:
        each.starts[-1].progress = [PROGRESS]
        each.query.poll()
    start_some(queries)
    assert sum(each.state == "running" for each in several) == 2 * CONCURRENT_STARTS


BUSY = [
    "org.apache.spark.SparkException: Python worker failed to connect back.",
    "Timed out while waiting for the Python worker to connect back after 10000 ms",
]


@pytest.mark.parametrize("error", BUSY)
def test_a_python_process_that_started_too_slowly_is_no_failure_of_the_query(error: str) -> None:
    supervised = started(RestartPolicy(max_restarts=2))
    for _ in range(20):
        supervised.fail(error)
        assert supervised.state == "waiting"
        assert supervised.query.restart_in_s == BUSY_PAUSE_S  # it does not grow
        supervised.wait(BUSY_PAUSE_S)
    status = supervised.query.status()

    assert len(supervised.starts) == 21
    assert status.restarts == 0
    assert status.error is not None
    assert "the machine may be too busy" in status.error
    supervised.fail()
    assert supervised.query.restart_in_s == 1  # the first failure that counts


def test_a_start_that_is_too_slow_is_logged(
    supervised: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="tidemill.spark"):
        supervised.fail(BUSY[0])

    assert "flights/hourly: a Python process did not answer Spark" in caplog.text


def test_python_that_never_starts_is_a_failure_after_a_while() -> None:
    supervised = started(RestartPolicy(max_restarts=2))
    starts = 0
    while supervised.state != "failed":
        supervised.now += 10
        supervised.fail(BUSY[0])
        supervised.wait(60)
        starts += 1

    assert starts > BUSY_PATIENCE_S / 70
    assert supervised.query.status().restarts == 2


def test_progress_ends_the_patience_with_a_busy_machine() -> None:
    supervised = started(RestartPolicy(max_restarts=0))
    for _ in range(3):
        supervised.fail(BUSY[0])
        supervised.wait(BUSY_PAUSE_S)
        supervised.starts[-1].progress = [PROGRESS]
        supervised.wait(BUSY_PATIENCE_S)
        assert not supervised.query.is_held_up

    assert supervised.state == "running"


def test_on_a_busy_machine_queries_start_one_after_the_other() -> None:
    several, queries = new_queries(3)
    start_some(queries)
    several[0].fail(BUSY[0])
    several[1].starts[0].progress = [PROGRESS]
    several[1].query.poll()
    for each in several:
        each.now += BUSY_PAUSE_S
    start_some(queries)

    assert [each.state for each in several] == ["waiting", "running", "running"]
    several[2].starts[0].progress = [PROGRESS]
    several[2].query.poll()
    start_some(queries)
    assert several[0].state == "running"


def test_all_queries_are_stopped_together() -> None:
    several = [started() for _ in range(3)]
    stop_all([each.query for each in several])

    assert all(each.starts[0].stopped for each in several)
    stop_all([])


def test_a_query_that_was_never_started_has_a_last_status() -> None:
    stopped, failed = never_started(STATUS), never_started(STATUS, "no such column")
    assert (stopped.state, stopped.error) == ("stopped", None)
    assert (failed.state, failed.error) == ("failed", "no such column")

    done = replace(STATUS, state="done")
    assert never_started(done, "no such column") == done
