"""A query's life: started, failed, restarted after growing pauses, given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tidemill.errors import PipelineError
from tidemill.spark.progress import QueryStatus, SourceStatus
from tidemill.spark.watch import HEALTHY_S, LONGEST_PAUSE_S, Terms, Watched

STATUS = QueryStatus("flights", "hourly", "starting", sources=(SourceStatus("a"),))


@dataclass
class Query:
    """A query that does what a test says."""

    is_active: bool = True
    failure: BaseException | None = None
    told: list[dict[str, Any]] = field(default_factory=list)
    stopped: bool = False
    refuses_to_stop: bool = False

    def updates(self) -> list[dict[str, Any]]:
        told, self.told = self.told, []
        return told

    def error(self) -> BaseException | None:
        return self.failure

    def fail(self, error: str = "ValueError: no good") -> None:
        self.is_active, self.failure = False, RuntimeError(error)

    def stop(self) -> None:
        if self.refuses_to_stop:
            raise TimeoutError("still busy")
        self.stopped, self.is_active = True, False


class World:
    """A watched query, with every start of it and a clock that stands."""

    def __init__(self, terms: Terms | None = None) -> None:
        self.now = 1000.0
        self.starts: list[Query] = []
        self.on_start: Callable[[], None] = lambda: None
        self.watched = Watched(STATUS, self._begin, terms or Terms(), lambda: self.now)

    def _begin(self) -> Query:
        self.on_start()
        self.starts.append(Query())
        return self.starts[-1]

    @property
    def state(self) -> str:
        return self.watched.status().state

    def fail(self) -> None:
        self.starts[-1].fail()
        self.watched.look()


def test_it_runs_once_started() -> None:
    world = World()
    assert world.state == "starting"
    world.watched.start()
    world.watched.look()

    assert world.state == "running"
    assert not world.watched.is_over


def test_a_failure_is_told_and_followed_by_a_restart() -> None:
    world = World()
    world.watched.start()
    world.fail()

    assert world.state == "waiting"
    assert world.watched.status().error == "ValueError: no good"
    world.watched.look()
    assert len(world.starts) == 1  # not before its time

    world.now += 1
    world.watched.look()
    assert world.state == "running"
    assert world.watched.status().restarts == 1
    assert world.watched.status().error == "ValueError: no good"  # the last one, still of interest


def test_pauses_double_up_to_a_minute() -> None:
    world = World()
    world.watched.start()
    pauses = []
    for _ in range(9):
        world.fail()
        assert world.watched.due_in_s is not None
        pauses.append(world.watched.due_in_s)
        world.now += pauses[-1]
        world.watched.look()

    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_after_a_healthy_minute_the_pause_is_short_again() -> None:
    world = World()
    world.watched.start()
    for _ in range(5):
        world.fail()
        world.now += 60
        world.watched.look()
    world.now += HEALTHY_S + 1
    world.watched.look()
    world.fail()

    assert world.watched.due_in_s == 1


def test_a_start_that_fails_counts_as_a_failure() -> None:
    world = World()

    def refuse() -> None:
        raise RuntimeError("not now")

    world.on_start = refuse
    world.watched.start()

    assert world.state == "waiting"
    assert world.watched.status().error == "not now"


def test_what_trying_again_can_t_help_is_not_tried_again() -> None:
    world = World()

    def refuse() -> None:
        raise PipelineError("it was changed", hint="Reset it.")

    world.on_start = refuse
    world.watched.start()

    assert world.state == "failed"
    assert world.watched.is_over
    assert world.watched.status().error == "it was changed. Reset it."


def test_restarts_may_be_limited() -> None:
    world = World(Terms(most_restarts=2))
    world.watched.start()
    for _ in range(2):
        world.fail()
        assert world.state == "waiting"
        world.now += 60
        world.watched.look()
    world.fail()

    assert world.state == "failed"
    assert len(world.starts) == 3


@pytest.mark.parametrize(("until_caught_up", "state"), [(True, "done"), (False, "stopped")])
def test_a_query_that_ends_by_itself_is_over(until_caught_up: bool, state: str) -> None:
    world = World(Terms(until_caught_up=until_caught_up))
    world.watched.start()
    world.starts[0].is_active = False
    world.watched.look()

    assert world.state == state
    assert world.watched.is_over


def test_progress_reaches_the_status() -> None:
    world = World()
    world.watched.start()
    batch = {
        "batchId": 3,
        "numInputRows": 10,
        "timestamp": "2026-11-20T15:05:13.200Z",
        "durationMs": {"addBatch": 1, "triggerExecution": 100},
        "sources": [{"endOffset": {"b": {"0": 1}}, "latestOffset": {"b": {"0": 3}}}],
    }
    world.starts[0].told = [batch]
    world.watched.look()
    status = world.watched.status()

    assert (status.batch, status.rows, status.rows_per_second) == (3, 10, 100.0)
    assert [(each.topic, each.lag) for each in status.sources] == [("a", -1), ("b", 2)]
    assert status.updated


def test_what_was_told_before_the_end_is_not_missed() -> None:
    world = World()
    world.watched.start()
    world.starts[0].told = [{"batchId": 0, "durationMs": {"addBatch": 1}}]
    world.fail()

    assert world.watched.status().batch == 0


BEFORE = QueryStatus(
    *("flights", "hourly", "starting"),
    batch=8,
    rows=70,
    watermark="2026-03-01T14:19:00.000Z",
    state_rows=3,
    sources=(SourceStatus("a", 0, 70),),
)


def test_what_the_last_run_came_to_is_told_until_this_one_begins() -> None:
    watched = Watched(BEFORE, Query, Terms())
    watched.end()

    assert replace(watched.status(), updated="") == replace(BEFORE, state="stopped")


def test_a_run_that_has_read_nothing_yet_goes_on_from_the_last_one() -> None:
    watched = Watched(BEFORE, Query, Terms())
    watched.start()
    status = watched.status()

    assert (status.batch, status.watermark, status.state_rows) == (8, BEFORE.watermark, 3)
    assert status.sources == BEFORE.sources
    assert status.rows == 0  # of this run


def test_the_end_stops_what_runs() -> None:
    world = World()
    world.watched.start()
    world.watched.end()

    assert world.starts[0].stopped
    assert world.state == "stopped"


def test_a_query_that_does_not_stop_in_time_is_told() -> None:
    world = World()
    world.watched.start()
    world.starts[0].refuses_to_stop = True
    world.watched.end()

    assert world.state == "stopped"
    assert world.watched.status().error == "still busy"


def test_the_end_changes_nothing_for_what_is_over() -> None:
    world = World(Terms(most_restarts=0))
    world.watched.start()
    world.fail()
    world.watched.end()

    assert world.state == "failed"
    assert not world.starts[0].stopped


def test_what_can_t_be_asked_any_more_has_failed() -> None:
    world = World()
    world.watched.start()
    world.watched.give_up("Spark is gone")

    assert world.state == "failed"
    assert world.watched.status().error == "Spark is gone"
