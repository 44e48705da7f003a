"""A run that does not stop in time is ended, and one that does is left alone."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark.conftest import Broker
from tidemill.spark import ForeachBatchSink
from tidemill.spark.errors import PipelineError
from tidemill.spark.pipelines import supervisor
from tidemill.spark.pipelines.declared import Pipeline
from tidemill.spark.pipelines.runner import Runner, RunOptions
from tidemill.spark.pipelines.supervisor import (
    GRACE_S,
    STOP_TIMEOUT,
    RestartPolicy,
    StopGuard,
    SupervisedQuery,
    limit_of,
)

WITHOUT_UI = SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl=None))
"""A session of Spark, as far as a run asks it before its queries."""


class Jvm:
    """A JVM that keeps a call waiting until it is ended."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def end(self) -> None:
        self.ended.set()

    def exit_code(self, _wait_s: float = 0.0) -> int | None:
        return -9 if self.ended.is_set() else None

    def block(self, *_: Any) -> None:
        assert self.ended.wait(60)
        raise ConnectionResetError("the JVM is gone")


@pytest.mark.parametrize(
    ("setting", "seconds"),
    [("20s", 20), ("500ms", 0.5), ("1500", 1.5), (" 2 MIN ", 120), ("1h", 3600), ("1d", 86400)],
)
def test_the_limit_is_the_stop_timeout_and_a_little_more(setting: str, seconds: float) -> None:
    assert limit_of(setting) == seconds + GRACE_S


def test_a_timeout_of_zero_is_no_limit() -> None:
    assert limit_of("0") is limit_of("0s") is None


def test_what_spark_rejects_has_the_default_limit() -> None:
    assert limit_of("soon") == limit_of(STOP_TIMEOUT)


def test_a_call_that_blocks_after_the_stop_ends_with_the_jvm() -> None:
    stop, jvm = threading.Event(), Jvm()
    with StopGuard(stop, jvm.end, 0.05) as guard:
        stop.set()
        assert jvm.ended.wait(60)
        assert guard.has_fired
    assert "did not stop within 0.05 s" in guard.reason


def test_a_stop_that_blocks_ends_with_the_jvm_also_if_no_one_asked_for_it() -> None:
    jvm = Jvm()
    with StopGuard(threading.Event(), jvm.end, 0.05) as guard:
        guard.begin()
        assert jvm.ended.wait(60)
    assert guard.has_fired


def test_a_run_that_stops_in_time_keeps_its_jvm() -> None:
    stop, jvm = threading.Event(), Jvm()
    with StopGuard(stop, jvm.end, 60) as guard:
        stop.set()
        guard.begin()
    assert not guard.has_fired
    assert not jvm.ended.is_set()


def test_a_run_that_is_not_asked_to_stop_may_take_any_time() -> None:
    jvm = Jvm()
    with StopGuard(threading.Event(), jvm.end, 0.0) as guard:
        assert not jvm.ended.wait(0.5)
    assert not guard.has_fired


def test_without_a_limit_nothing_is_ended() -> None:
    stop, jvm = threading.Event(), Jvm()
    stop.set()
    with StopGuard(stop, jvm.end, None) as guard:
        guard.begin()
        assert not jvm.ended.wait(0.3)
    assert not guard.has_fired


class Workerless:
    """A query whose batch waits for workers. Nothing can stop it."""

    is_active = True

    def __init__(self, jvm: Jvm) -> None:
        self.stop = jvm.block

    def updates(self) -> list[dict[str, Any]]:
        return []

    def error(self) -> BaseException | None:
        return None


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Jvm:
    """The JVM of a run that may take 0.2 seconds to stop."""
    made = Jvm()
    monkeypatch.setattr("tidemill.spark.base.jvm.kill", made.end)
    monkeypatch.setattr("tidemill.spark.base.jvm.exit_code", made.exit_code)
    monkeypatch.setattr(supervisor, "GRACE_S", 0.1)
    return made


@pytest.fixture
def warnings() -> list[str]:
    """The warnings of a run."""
    return []


@pytest.fixture
def runner(tidemill_broker: Broker, tmp_path: Path, warnings: list[str]) -> Runner:
    name = f"p-{uuid.uuid4().hex[:8]}"
    pipeline = Pipeline(name, spark={"spark.sql.streaming.stopTimeout": "100ms"})
    pipeline.stream("flights", topic=f"{name}.flights", schema="id INT", dead_letters=None)
    pipeline.query(name="x", sink=ForeachBatchSink(print))(lambda flights: flights.df)
    options = RunOptions(tidemill_broker.bootstrap, tmp_path)
    return Runner(pipeline, options, warn=warnings.append)


def test_a_run_ends_although_a_query_can_t_be_stopped(
    runner: Runner, jvm: Jvm, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    def started(_: Runner, ready: str) -> SupervisedQuery:
        def start() -> Workerless:
            stop.set()
            return Workerless(jvm)

        return SupervisedQuery(runner.statuses[0], start, RestartPolicy())

    monkeypatch.setattr(Runner, "_session", lambda _: WITHOUT_UI)
    monkeypatch.setattr(Runner, "_build", lambda *_: ["x"])
    monkeypatch.setattr(Runner, "_supervised", started)
    [status] = runner.run(stop)

    assert status.state == "stopped"
    assert status.error is not None
    assert "did not stop within 0.2 s" in status.error
    assert "workers that are gone" in status.error


def test_a_run_ends_although_spark_does_not_answer(
    runner: Runner, jvm: Jvm, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    def session(_: Runner) -> None:
        stop.set()
        jvm.block()

    monkeypatch.setattr(Runner, "_session", session)
    [status] = runner.run(stop)

    assert (status.state, status.error) == ("stopped", None)
    assert len(warnings) == 1
    assert "did not stop within 0.2 s" in warnings[0]


def test_a_jvm_that_ends_by_itself_while_the_run_stops_is_an_error(
    runner: Runner, jvm: Jvm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "GRACE_S", 60.0)
    stop = threading.Event()

    def session(_: Runner) -> None:
        stop.set()
        jvm.end()
        jvm.block()

    monkeypatch.setattr(Runner, "_session", session)
    with pytest.raises(PipelineError, match="JVM ended while the pipeline ran"):
        runner.run(stop)
