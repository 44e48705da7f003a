"""Publishing statuses: each change, and an unchanged status from time to time."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tidemill.spark.pipelines.progress import HEARTBEAT_S, QueryStatus
from tidemill.spark.pipelines.status_topic import StatusPublisher, StatusTopic

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
