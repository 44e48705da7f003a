"""Records that are alerts, whose times come in any order."""

from __future__ import annotations

import json
from typing import Any

from tidemill.connect.alerts.conditions import TopicCondition
from tidemill.connect.alerts.definition import AlertEntry
from tidemill.connect.webhooks.lanes import Event


def events() -> TopicCondition:
    rule = {"name": "late", "topic": "states", "measure": "events"}
    return TopicCondition(AlertEntry.model_validate(rule))


def add(condition: TopicCondition, state: str, **more: Any) -> None:
    value = {"labels": {"at": "JFK"}, "value": 1, "state": state, **more}
    condition.add(Event(0, 0, 1_000, None, json.dumps(value).encode()), 2_000)


def active(condition: TopicCondition) -> list[bool]:
    return [each.is_active for each in condition.read(2_000)[0]]


def test_of_events_in_any_order_the_one_with_the_latest_time_counts() -> None:
    condition = events()
    add(condition, "resolved", at="2026-03-02T04:55:00.000Z")
    add(condition, "firing", at="2026-03-02T04:25:00.000Z")
    assert active(condition) == [False]
    add(condition, "firing", at="2026-03-02T05:50:00+01:00")  # before, and read later
    assert active(condition) == []
    add(condition, "firing", at="2026-03-02T04:55:00.001Z")
    add(condition, "resolved", at="2026-03-02T04:55:00.001Z")
    assert active(condition) == [False]


def test_events_without_a_time_count_in_the_order_of_the_topic() -> None:
    condition = events()
    add(condition, "firing")
    add(condition, "resolved")
    add(condition, "firing")
    assert active(condition) == [True]


def test_an_event_with_an_invalid_time_is_left_out() -> None:
    condition = events()
    times: list[Any] = ["2026-03-02T04:55:00", "yesterday", 1_772_427_300_000, [], "9" * 1_000_000]
    for at in times:
        add(condition, "firing", at=at)
    assert active(condition) == []
    assert condition.invalid == 5
