"""The worker of alerts over a real broker: from a metric or a record to a notice."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.connect.alerts.conftest import Alerts
from tidemill.confluent.clients import Kafka
from tidemill.confluent.metrics import create_topic
from tidemill.confluent.reading import Follower
from tidemill.connect.alerts.machine import Due
from tidemill.connect.alerts.model import Ack, Group, OrderedTest, Silence, WorkerState
from tidemill.connect.alerts.sending import Outgoing
from tidemill.connect.alerts.sources import WorkerMetrics
from tidemill.connect.alerts.store import write_orders
from tidemill.errors import TidemillError
from tidemill.metrics.definition import gauge
from tidemill.metrics.published import encode
from tidemill.metrics.registry import Registry


def test_a_metric_above_its_limit_is_sent_and_its_end_too(alerts: Alerts) -> None:
    alerts.rules = [
        {
            "name": "lag",
            "metric": "tidemill_group_lag_seconds",
            "filter": 'group == "billing"',
            "above": 60,
            "labels": {"severity": "page"},
            "summary": "${group} is ${value} s behind.",
        }
    ]
    series = 'tidemill_group_lag_seconds{group="%s",topic="t"} %s\n'
    alerts.page.text = series % ("billing", 61) + series % ("other", 100)
    alerts.start()
    (body,) = alerts.wait_for("firing")
    (alert,) = body["alerts"]
    assert body["version"] == "4"
    assert body["groupLabels"] == {"alertname": "lag"}
    labels = {"alertname": "lag", "group": "billing", "topic": "t", "severity": "page"}
    assert alert["labels"] == labels
    assert alert["annotations"] == {"summary": "billing is 61 s behind."}
    assert alert["endsAt"] == "0001-01-01T00:00:00Z"
    alerts.page.text = series % ("billing", 1)
    _, ended = alerts.wait_for("firing", "resolved")
    assert ended["alerts"][0]["fingerprint"] == alert["fingerprint"]
    assert ended["alerts"][0]["startsAt"] == alert["startsAt"]
    assert ended["alerts"][0]["endsAt"] > alert["startsAt"]


def test_a_notice_has_the_same_id_at_each_attempt_also_after_a_restart(alerts: Alerts) -> None:
    alerts.rules = [{"name": "x", "metric": "m", "above": 0}]
    alerts.page.values = {"m": 1}
    alerts.hook.reply = lambda request: 503
    alerts.start()
    alerts.wait(lambda: alerts.hook.requests, "the first attempt")
    alerts.stop()
    alerts.page.values = {"m": 0}
    alerts.hook.reply = lambda request: 200
    alerts.start()
    bodies = alerts.wait_for(*["firing"] * len(alerts.hook.requests), "firing", "resolved")
    assert len({each.id for each in alerts.hook.requests}) == 2
    assert all(each["alerts"] == bodies[0]["alerts"] for each in bodies[:-1])


def test_records_of_a_topic_are_counted_over_restarts(alerts: Alerts, name: str) -> None:
    alerts.kafka.create_topics("tests", {name: (2, {})})
    alerts.rules = [
        {"name": "paid", "topic": name, "filter": "cents > 10", "by": ["shop"], "above": 2}
    ]
    alerts.send(name, {"shop": "a", "cents": 11}, {"shop": "a", "cents": 12}, b"not JSON")
    alerts.start()
    alerts.wait(lambda: "worker/state" in alerts.stored(), "the worker runs")
    alerts.stop()
    assert alerts.alerts() == []
    alerts.send(name, {"shop": "a", "cents": 13}, {"shop": "b", "cents": 13}, {"shop": "a"})
    alerts.start()
    (body,) = alerts.wait_for("firing")
    assert [each["labels"] for each in body["alerts"]] == [{"alertname": "paid", "shop": "a"}]
    assert alerts.alerts()[0].value == 3


def test_records_that_are_alerts_are_taken_over_once(alerts: Alerts, name: str) -> None:
    alerts.kafka.create_topics("tests", {name: (1, {})})
    alerts.rules = [{"name": "late", "topic": name, "measure": "events"}]
    event = {"labels": {"airport": "JFK"}, "value": 90, "state": "firing"}
    alerts.send(name, event, {"labels": {}, "state": "unknown"}, [1])
    alerts.start()
    (body,) = alerts.wait_for("firing")
    assert body["alerts"][0]["labels"] == {"alertname": "late", "airport": "JFK"}
    alerts.stop()
    alerts.send(name, {**event, "state": "resolved"})
    alerts.start()
    alerts.wait_for("firing", "resolved")


def test_silences_and_acknowledgements_from_elsewhere_count(alerts: Alerts) -> None:
    now_ms = time.time_ns() // 1_000_000
    alerts.rules = [{"name": "x", "metric": "m", "above": 0}]
    alerts.page.values = {"m": 1}
    silence = Silence(["alertname=x"], now_ms, now_ms + 3_600_000)
    write_orders(alerts.kafka, {"silence/s": silence})
    alerts.start()
    alerts.wait(lambda: [a.muted_by for a in alerts.alerts()] == [["s"]], "it is silenced")
    assert alerts.hook.requests == []
    write_orders(alerts.kafka, {"silence/s": None})
    alerts.wait_for("firing")
    (alert,) = alerts.alerts()
    write_orders(alerts.kafka, {f"ack/{alert.id}": Ack(alert.active_ms, now_ms)})
    alerts.page.values = {"m": 0}
    alerts.wait_for("firing", "resolved")
    alerts.wait(lambda: f"ack/{alert.id}" not in alerts.stored(), "the acknowledgement is gone")


def test_a_name_that_no_metric_has_is_reported_with_a_suggestion(alerts: Alerts) -> None:
    alerts.rules = [
        {"name": "typo", "metric": "tidemill_group_lag_second", "above": 1},
        {"name": "away", "metric": "tidemill_group_lag_seconds", "above": 1},
    ]
    alerts.page.values = {"m": 1}
    alerts.start()
    alerts.wait(lambda: "worker/state" in alerts.stored(), "the worker runs")
    state = alerts.stored()["worker/state"]
    assert isinstance(state, WorkerState)
    assert state.rules["typo"]["error"] == "no process has a metric tidemill_group_lag_second"
    assert state.rules["typo"]["hint"] == "Did you mean tidemill_group_lag_seconds?"
    assert state.rules["away"]["error"] == ""


def test_a_topic_that_can_not_be_read_is_a_problem_of_its_rules_alone(
    alerts: Alerts, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = Kafka.partitions

    def refuse(self: Kafka, client: str, topic: str, *more: Any) -> list[tuple[str, int]]:
        if topic == "secret":
            raise TidemillError("can't describe topic secret: not authorized")
        return partitions(self, client, topic, *more)

    monkeypatch.setattr(Kafka, "partitions", refuse)
    alerts.rules = [
        {"name": "secret", "topic": "secret", "above": 0},
        {"name": "missing", "topic": "missing", "above": 0},
        {"name": "x", "metric": "m", "above": 0},
    ]
    alerts.page.values = {"m": 1}
    alerts.start()
    alerts.wait_for("firing")
    state = alerts.stored()["worker/state"]
    assert isinstance(state, WorkerState)
    said = {name: rule["error"] for name, rule in state.rules.items()}
    assert said == {
        "secret": "can't describe topic secret: not authorized",
        "missing": "topic missing does not exist",
        "x": "",
    }


def test_records_that_the_user_must_not_read_are_a_problem_of_their_rules_alone(
    alerts: Alerts, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Follower, timeout_s: float) -> list[Any]:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    monkeypatch.setattr(Follower, "take", refuse)
    alerts.kafka.create_topics("tests", {name: (1, {})})
    alerts.rules = [
        {"name": "secret", "topic": name, "measure": "events"},
        {"name": "x", "metric": "m", "above": 0},
    ]
    alerts.send(name, {"labels": {}, "state": "firing"})
    alerts.page.values = {"m": 1}
    alerts.start()
    (body,) = alerts.wait_for("firing")
    assert body["groupLabels"] == {"alertname": "x"}

    def is_reported() -> bool:
        state = alerts.stored()["worker/state"]
        return isinstance(state, WorkerState) and (
            "Topic authorization failed" in state.rules["secret"]["error"]
        )

    alerts.wait(is_reported, "the problem is reported")


def test_alerts_stay_while_metrics_can_not_be_read(alerts: Alerts) -> None:
    alerts.rules = [
        {"name": "x", "metric": "m", "above": 0},
        {"name": "gone", "metric": "m", "measure": "absent"},
    ]
    alerts.page.values = {"m": 1}
    alerts.start()
    alerts.wait_for("firing")
    alerts.page.status = 500

    def is_reported() -> bool:
        state = alerts.stored().get("worker/state")
        return isinstance(state, WorkerState) and bool(state.rules["x"]["error"])

    alerts.wait(is_reported, "the problem is reported")
    assert [each.state for each in alerts.alerts()] == ["firing"]
    alerts.page.status = 200
    alerts.page.values = {"other": 1}
    alerts.wait(lambda: len(alerts.hook.requests) == 3, "both change")
    bodies = [each.json for each in alerts.hook.requests]
    assert {(b["groupLabels"]["alertname"], b["status"]) for b in bodies[1:]} == {
        ("x", "resolved"),
        ("gone", "firing"),
    }


def test_an_error_that_no_one_expects_does_not_keep_a_notice_back(
    alerts: Alerts, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, is_first = Outgoing.send, iter([True])

    async def fail_once(self: Outgoing, due: Due) -> str:
        if next(is_first, False):
            raise LookupError("a bug")
        return await send(self, due)

    monkeypatch.setattr(Outgoing, "send", fail_once)
    alerts.rules = [{"name": "x", "metric": "m", "above": 0}]
    alerts.page.values = {"m": 1}
    alerts.start()
    alerts.wait_for("firing")


def test_metrics_of_workers_are_known_at_the_first_look(
    kafka: Kafka, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, late = Follower.take, iter([True])
    monkeypatch.setattr(Follower, "take", lambda *given: [] if next(late, False) else take(*given))
    declared = gauge("tests_rooms", "Rooms.")
    now_ms = time.time_ns() // 1_000_000
    create_topic(kafka)
    producer = Producer({"bootstrap.servers": kafka.servers})
    for process, rooms, at_ms in (("h:1", 7, now_ms - 5), ("h:2", 8, now_ms)):  # h:1 was killed
        registry = Registry()
        registry.gauge(declared).value = rooms
        producer.produce("tidemill.metrics", encode(registry, name, process, at_ms, name), process)
    assert producer.flush(60) == 0
    workers = WorkerMetrics(kafka)
    try:
        workers.catch_up()
        found = [line for line in workers.page().split("\n") if f'worker="{name}"' in line]
    finally:
        workers.close()
    assert found == [f'tests_rooms{{worker="{name}",process="h:2"}} 8']


def test_a_page_that_can_not_be_read_is_reported_also_if_another_one_has_the_metric(
    alerts: Alerts,
) -> None:
    alerts.rules = [{"name": "x", "metric": "m", "above": 0}]
    alerts.page.values = {"m": 0}
    alerts.start(scrape=f"{alerts.page.url},http://127.0.0.1:1/metrics")
    alerts.wait(lambda: "worker/state" in alerts.stored(), "the worker runs")
    state = alerts.stored()["worker/state"]
    assert isinstance(state, WorkerState)
    assert state.rules["x"]["error"] == "not all metrics can be read"
    assert "127.0.0.1:1" in state.rules["x"]["hint"]


def test_a_second_worker_takes_over_and_the_first_sends_nothing_more(alerts: Alerts) -> None:
    alerts.rules = [{"name": "x", "metric": "m", "above": 0}]
    alerts.page.values = {"m": 0}
    alerts.start()
    alerts.wait(lambda: "worker/state" in alerts.stored(), "the first runs")
    other = Alerts(alerts.kafka, alerts.page, alerts.hook)
    other.rules = alerts.rules
    other.start()
    try:
        alerts.page.values = {"m": 1}
        alerts.wait_for("firing")
        alerts.page.values = {"m": 0}
        alerts.wait_for("firing", "resolved")
    finally:
        other.stop()


def test_a_test_notice_is_sent_and_its_failure_reported(alerts: Alerts) -> None:
    alerts.rules = [{"name": "x", "metric": "m", "above": 0}]
    alerts.start()
    now_ms = time.time_ns() // 1_000_000
    write_orders(
        alerts.kafka, {"test/1": OrderedTest("ops", now_ms), "test/2": OrderedTest("no", now_ms)}
    )

    def done() -> dict[str, str | None]:
        found = alerts.stored()
        tests = {key: found[key] for key in ("test/1", "test/2") if key in found}
        return {key: each.error for key, each in tests.items() if isinstance(each, OrderedTest)}

    alerts.wait(lambda: None not in done().values() and len(done()) == 2, "both are tried")
    assert done() == {"test/1": "", "test/2": "there is no receiver no"}
    assert alerts.hook.requests[0].json["alerts"][0]["labels"]["alertname"] == "TestAlert"
    assert not any(isinstance(each, Group) for each in alerts.stored().values())
