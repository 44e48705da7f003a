"""The gateway's page of metrics: its own, and those that workers publish."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from socket import gethostname

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tidemill import telemetry
from tidemill.confluent import metrics
from tidemill.confluent.clients import Kafka
from tidemill.confluent.metrics import MetricsPublisher, create_topic, read_metrics
from tidemill.connect.direct.metrics import add_bridges
from tidemill.errors import UnreachableError
from tidemill.metrics.published import encode
from tidemill.metrics.registry import Registry
from tidemill.metrics.text import OPENMETRICS, PROMETHEUS

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_shows_the_gateway_and_what_workers_publish(
    http: httpx.Client, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PERIOD_S", 0.2)
    registry = Registry()
    status = {"phase": "running", "received": 7, "lost": None, "details": {"x": 1}}
    add_bridges(registry, lambda: {"statsd": status})
    assert http.get("/topics").status_code == 200
    page = http.get("/metrics")
    assert (page.status_code, page.headers["content-type"]) == (200, PROMETHEUS)
    assert re.search(
        r'tidemill_http_request_seconds_count\{worker="gateway",process="\S+",'
        r'listener="topics",method="GET",status="200"\} [1-9]',
        page.text,
    )
    with MetricsPublisher(kafka, "bridges", registry):
        poll_until(lambda: _workers(kafka) >= {"bridges"}, 60, "the metrics are published")
        poll_until(lambda: 'worker="bridges"' in http.get("/metrics").text, 60, "they are shown")
        text = http.get("/metrics").text
        assert re.search(
            r"\ntidemill_bridge_received_total"
            r'\{worker="bridges",process="\S+",bridge="statsd"\} 7\n',
            text,
        )
        assert 'bridge="statsd",phase="running"} 1\n' in text
        assert "tidemill_bridge_lost_total" not in text
    assert "bridges" not in _workers(kafka)  # it ended by itself, and says so


def _workers(kafka: Kafka) -> set[str]:
    return {each.worker for each in read_metrics(kafka)}


def test_a_worker_publishes_nothing_until_something_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PERIOD_S", 0.1)
    monkeypatch.setenv("TIDEMILL_WORKER", "bridges")
    with BrokerProcess(tmp_path) as broker:
        kafka = Kafka(broker.bootstrap)
        with MetricsPublisher(kafka, "bridges", Registry()):
            assert read_metrics(kafka) == []
            assert metrics.TOPIC not in kafka.list_topics("tests")
            create_topic(kafka)
            poll_until(lambda: _workers(kafka) == {"bridges"}, 60, "the metrics are published")
            (found,) = read_metrics(kafka)
            assert found.supervised == "bridges"
            # A process that was killed, and published last before this one began.
            killed = encode(Registry(), "bridges", f"{gethostname()}:1", 1, "bridges")
            producer = kafka.producer("tests")
            producer.produce(metrics.TOPIC, killed, f"bridges@{gethostname()}:1")
            assert producer.flush(60) == 0
            assert [each.process for each in read_metrics(kafka)] == [found.process]
        assert kafka.topic_configs("tests", metrics.TOPIC)["cleanup.policy"] == "compact,delete"


def test_every_metric_of_workers_is_documented(http: httpx.Client) -> None:
    documented = set(re.findall(r"^\| `([a-z0-9_]+)` \|", DOCS.read_text(), re.M))
    shown = set(re.findall(r"^# TYPE (\S+) ", http.get("/metrics").text, re.M))
    assert shown
    assert shown <= documented


def test_openmetrics_is_served_to_clients_that_accept_it(http: httpx.Client) -> None:
    page = http.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert page.headers["content-type"] == OPENMETRICS
    assert page.text.endswith("# EOF\n")


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool of the package prometheus is not installed"
)
def test_promtool_finds_nothing_wrong(http: httpx.Client) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=http.get("/metrics").text,
        text=True,
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_broker_that_is_away_is_reported_once_and_no_error_of_the_worker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics, "PERIOD_S", 0.05)
    tried: list[int] = []

    def partitions(*_: object) -> list[tuple[str, int]]:
        tried.append(1)
        raise UnreachableError("no answer")

    monkeypatch.setattr(Kafka, "partitions", partitions)
    telemetry.configure("info", "logfmt", stream=sys.stdout)
    try:
        with MetricsPublisher(Kafka("127.0.0.1:1"), "bridges", Registry()):
            poll_until(lambda: len(tried) > 3, 60, "it is tried again")
    finally:
        telemetry.configure("warning")
    assert capsys.readouterr().out.count("metrics.not_published") == 1
