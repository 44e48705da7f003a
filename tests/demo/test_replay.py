"""The replayer keeps order and pace, waits for the broker, and stops on request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tests.demo.support import flight
from tidemill.demo import replay as module
from tidemill.demo.database.editor import EditorStalledError
from tidemill.demo.events import Report, reports
from tidemill.demo.flights import Stretch
from tidemill.demo.replay import Replay, parse_speed
from tidemill.errors import SettingsError
from tidemill.spark.errors import DeliveryError

STRETCH = Stretch(date(2013, 1, 1), 1)
REPORTS = reports([flight(n, departed=STRETCH.start + n * 600) for n in range(20)], STRETCH)


class FakeProducer:
    """librdkafka's queue without a network: what is polled is acknowledged."""

    made: FakeProducer

    capacity = 1000
    error: KafkaError | None = None
    stop_after: int | None = None
    stop: threading.Event

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.produced: list[tuple[str, bytes | None, int]] = []
        self.waiting: list[Callable[[KafkaError | None, None], None]] = []
        FakeProducer.made = self

    def __len__(self) -> int:
        return len(self.waiting)

    def produce(
        self, topic: str, *, value: bytes, key: bytes | None, timestamp: int, on_delivery: Any
    ) -> None:
        if len(self.waiting) >= self.capacity:
            raise BufferError
        self.produced.append((topic, value, timestamp))
        self.waiting.append(on_delivery)
        if len(self.produced) == self.stop_after:
            self.stop.set()

    def poll(self, timeout: float) -> int:
        if self.capacity == 1 and not timeout:
            return 0
        waiting, self.waiting = self.waiting, []
        for on_delivery in waiting:
            on_delivery(self.error, None)
        return len(waiting)

    def flush(self, timeout: float) -> int:
        self.poll(timeout)
        return 0

    def purge(self) -> None:
        self.waiting.clear()


class Wait(threading.Event):
    """An event whose ``wait`` moves a clock instead of waiting."""

    now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return self.is_set()


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Wait:
    monkeypatch.setattr(module, "Producer", FakeProducer)
    return Wait()


def replay(stop: Wait, speed: float | None, sent: list[Report] = REPORTS) -> Replay:
    return Replay(sent, bootstrap_servers="nowhere:1", speed=speed, monotonic=lambda: stop.now)


def test_all_reports_are_sent_in_order_with_the_time_of_their_report(stop: Wait) -> None:
    run = replay(stop, None)
    run.run(stop)
    assert FakeProducer.made.produced == [
        (report.topic, report.value, report.reported_at * 1000) for report in REPORTS
    ]
    progress = run.progress()
    assert progress.finished
    assert progress.acknowledged == progress.sent == progress.total == len(REPORTS)
    assert progress.simulated_time == REPORTS[-1].reported_at


def test_order_survives_retries_and_acknowledged_means_on_disk(stop: Wait) -> None:
    replay(stop, None).run(stop)
    assert FakeProducer.made.config["enable.idempotence"] is True
    assert FakeProducer.made.config["acks"] == "all"


def test_an_hour_takes_a_second_at_3600_times_real_time(stop: Wait) -> None:
    run = replay(stop, 3600.0)
    run.run(stop)
    simulated = REPORTS[-1].reported_at - REPORTS[0].reported_at
    assert run.progress().seconds == pytest.approx(simulated / 3600)


def test_at_full_speed_nothing_waits(stop: Wait) -> None:
    replay(stop, None).run(stop)
    assert stop.now == 0


def test_what_must_be_there_before_a_report_is_asked_for_at_each_report(stop: Wait) -> None:
    asked: list[tuple[int, int]] = []

    def before(moment: int, _stop: threading.Event) -> None:
        asked.append((moment, len(FakeProducer.made.produced)))

    Replay(REPORTS, bootstrap_servers="nowhere:1", speed=None, before=before).run(stop)
    assert asked == [(report.reported_at, number) for number, report in enumerate(REPORTS)]


def test_what_is_not_there_ends_the_replay_before_its_report(stop: Wait) -> None:
    def before(moment: int, _stop: threading.Event) -> None:
        if moment >= REPORTS[3].reported_at:
            raise EditorStalledError("not there")

    run = Replay(REPORTS, bootstrap_servers="nowhere:1", speed=None, before=before)
    with pytest.raises(EditorStalledError):
        run.run(stop)
    assert len(FakeProducer.made.produced) == 3


def test_a_full_queue_is_waited_for(stop: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProducer, "capacity", 1)
    run = replay(stop, None)
    run.run(stop)
    assert run.progress().finished


def test_a_refused_report_ends_the_replay_with_the_brokers_reason(
    stop: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProducer, "error", KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    run = replay(stop, None)
    with pytest.raises(DeliveryError, match="nowhere:1"):
        run.run(stop)
    assert not run.progress().finished


def test_a_replay_that_is_stopped_sends_no_more(
    stop: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProducer, "stop_after", 3)
    monkeypatch.setattr(FakeProducer, "stop", stop, raising=False)
    run = replay(stop, 3600.0)
    run.run(stop)
    assert len(FakeProducer.made.produced) == 3
    assert not run.progress().finished


@pytest.mark.parametrize(
    ("text", "speed"),
    [("3600x", 3600.0), ("0.5X", 0.5), ("60", 60.0), ("max", None), (" MAX ", None)],
)
def test_speeds(text: str, speed: float | None) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize("text", ["", "fast", "0x", "-1x", "1e3x", "nan", "x"])
def test_an_invalid_speed_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_speed(text)
