"""The page of alerts: it shows what is stored, and orders silences and acknowledgements."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from tidemill.confluent.clients import Kafka
from tidemill.connect.alerts.model import Ack, Alert, Group, Silence, Stored, WorkerState
from tidemill.connect.alerts.store import read_alerts, write_orders

HOSTILE = '<script>alert(1)</script>" onload="x'


@pytest.fixture
def alert(kafka: Kafka, http: httpx.Client) -> Iterator[Alert]:
    """An alert that fires, and a worker. All is deleted behind the test: tests share a broker."""
    now_ms = time.time_ns() // 1_000_000
    labels = {"alertname": "lag", "group": HOSTILE}
    made = Alert(
        "lag", "firing", labels, 61, now_ms, now_ms, annotations={"summary": f"Late. {HOSTILE}"}
    )
    rules = {"lag": {"source": "m", "measure": "value", "series": 1, "error": "", "hint": ""}}
    receivers = {"ops": {"kind": "webhook", "waiting": 1, "error": "status 503"}}
    group = Group("ops", {"alertname": "lag"}, {made.id: made.fired_ms}, now_ms)
    records: dict[str, Stored | None] = {
        f"alert/{made.id}": made,
        f"group/{group.id}": group,
        "worker/state": WorkerState(now_ms, "here:1", 1000, rules, receivers),
    }
    write_orders(kafka, records)
    post(http, action="ack", id="none")  # after an order, the next look asks again
    yield made
    write_orders(kafka, dict.fromkeys(read_alerts(kafka)))


def post(http: httpx.Client, **fields: str) -> str:
    """Send a form of the page, and return the page that follows."""
    page = http.get("/console/alerts")
    token = re.search(r'name="csrf" value="(\w+)"', page.text)
    assert token is not None
    answer = http.post("/console/alerts", data={"csrf": token[1], **fields}, follow_redirects=True)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_the_page_shows_what_fires_and_its_twin_has_the_same(
    http: httpx.Client, alert: Alert
) -> None:
    page = http.get("/console/alerts").text
    assert "1 firing, 0 pending" in page
    assert "status 503" in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    twin = http.get("/console/alerts.json", params={"q": alert.id}).json()
    (shown,) = twin["alerts"]["rows"]
    assert (shown["id"], shown["sent_to"], shown["value"]) == (alert.id, ["ops"], 61)
    assert http.get("/console/alerts.json", params={"q": "no"}).json()["alerts"]["rows"] == []
    overview = http.get("/console/overview.json").json()
    texts = [each["text"] for each in overview["attention"]]
    assert any(text.startswith("Alert lag fires. Late.") for text in texts)


def test_the_page_shows_an_alert_whose_rule_has_no_summary(
    http: httpx.Client, kafka: Kafka, alert: Alert
) -> None:
    plain = replace(alert, labels={"alertname": "plain"}, rule="plain", annotations={})
    write_orders(kafka, {f"alert/{plain.id}": plain})
    post(http, action="ack", id="none")  # after an order, the next look asks again
    assert "2 firing, 0 pending" in http.get("/console/alerts").text


def test_an_alert_is_acknowledged_and_silenced_from_the_page(
    http: httpx.Client, kafka: Kafka, alert: Alert
) -> None:
    assert "lag is acknowledged" in post(http, action="ack", id=alert.id)
    acked = read_alerts(kafka)[f"ack/{alert.id}"]
    assert isinstance(acked, Ack)
    assert acked.active_ms == alert.active_ms
    fields = {"matchers": "alertname=lag\r\ngroup=*\r\n", "duration": "1h", "by": "ada"}
    assert "covers 1 alerts" in post(http, action="silence", **fields)
    ((key, silence),) = (
        (key, each) for key, each in read_alerts(kafka).items() if isinstance(each, Silence)
    )
    assert silence.matchers == ["alertname=lag", "group=*"]
    assert silence.by == "ada"
    assert "The silence has ended" in post(http, action="unsilence", id=key.partition("/")[2])
    assert key not in read_alerts(kafka)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"action": "ack", "id": "none"}, "there is no alert none"),
        ({"action": "unsilence", "id": "none"}, "there is no silence none"),
        ({"action": "silence", "matchers": "nonsense", "duration": "1h"}, "invalid matcher"),
        ({"action": "silence", "matchers": "a=b", "duration": "1y"}, "invalid duration"),
    ],
)
def test_what_is_wrong_with_an_order_is_said_on_the_page(
    http: httpx.Client, fields: dict[str, str], problem: str
) -> None:
    assert problem in post(http, **fields)
