"""Metrics of a broker process: documented, valid, for this machine only, and bounded."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.protocols.kafka.broker import Broker
from tests.support.broker_process import BrokerProcess
from tests.support.ports import reserve_port
from tests.support.topics import write
from tidemill.engine.engine import Engine
from tidemill.metrics.registry import Family
from tidemill.metrics.text import OPENMETRICS, PROMETHEUS
from tidemill.protocols.http.codec import Request
from tidemill.protocols.http.metrics import MetricsPages
from tidemill.protocols.http.server import Answer, HealthServer
from tidemill.protocols.http.settings import HealthListener
from tidemill.settings import Settings

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"health.enabled": "true", "health.port": str(reserve_port())}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=settings) as process:
        write(process.bootstrap, "orders", *map(str, range(100)))
        yield process


@pytest.fixture
def http(broker: BrokerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=f"http://{broker.ready_event['health']}", trust_env=False, timeout=60
    ) as client:
        yield client


def test_a_scrape_shows_what_clients_have_done(http: httpx.Client) -> None:
    page = http.get("/metrics")
    assert (page.status_code, page.headers["content-type"]) == (200, PROMETHEUS)
    assert '\ntidemill_topic_records_in_total{topic="orders"} 100\n' in page.text
    count = re.search(r'tidemill_kafka_request_seconds_count\{api="Produce"\} (\d+)', page.text)
    assert count is not None
    assert int(count[1]) > 0
    assert '\ntidemill_connections{listener="health"} 1\n' in page.text
    assert "\nprocess_resident_memory_bytes " in page.text
    assert 'topic="orders",partition="0"' not in page.text
    partitions = http.get("/metrics/partitions").text
    assert '\ntidemill_partition_high_watermark{topic="orders",partition="0"} 100\n' in partitions


def test_openmetrics_is_served_to_clients_that_accept_it(http: httpx.Client) -> None:
    page = http.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    assert page.headers["content-type"] == OPENMETRICS
    assert page.text.endswith("\n# EOF\n")


def test_every_metric_is_documented(http: httpx.Client) -> None:
    documented = set(re.findall(r"^\| `([a-z0-9_]+)` \|", DOCS.read_text(), re.M))
    for path in ("/metrics", "/metrics/partitions"):
        shown = set(re.findall(r"^# TYPE (\S+) ", http.get(path).text, re.M))
        assert shown
        assert shown <= documented


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool of the package prometheus is not installed"
)
@pytest.mark.parametrize("path", ["/metrics", "/metrics/partitions"])
def test_promtool_finds_nothing_wrong_with_names_and_text(http: httpx.Client, path: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=http.get(path).text, text=True, capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_requests_on_one_connection_are_answered_in_their_order(broker: BrokerProcess) -> None:
    paths = ["/metrics", "/health/live", "/metrics/partitions", "/none", "/metrics"] * 20
    sent = "".join(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in paths[:-1])
    last = "HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    host, _, port = broker.ready_event["health"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall((sent + last).encode())
        received = b"".join(iter(lambda: client.recv(65_536), b"")).decode()
    found = re.findall(r"HTTP/1.1 (\d+) .*?content-type: (\w+/\w+)", received, re.S)
    kinds = {"/metrics": ("200", "text/plain"), "/health/live": ("200", "application/json")}
    kinds |= {"/metrics/partitions": ("200", "text/plain"), "/none": ("404", "application/json")}
    assert found == [kinds[path] for path in paths]


def test_an_absurd_number_of_scrapes_at_a_time_is_answered(broker: BrokerProcess) -> None:
    host, _, port = broker.ready_event["health"].rpartition(":")
    clients = [socket.create_connection((host, int(port)), timeout=60) for _ in range(60)]
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    for client in clients:
        client.sendall(request)
    for client in clients:
        assert client.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"
        client.close()


def answered(engine: Engine, access: str, host: str) -> int | None:
    """The status of a scrape; None if the page is being written."""
    section = HealthListener.model_validate({"metrics": access})
    server = HealthServer(engine, Settings(sections=(section,)))
    server._pages.get = lambda *_: b""  # type: ignore[method-assign]
    found = server.answers(Request("GET", "/metrics", True), host)
    assert isinstance(found, Answer)
    return found.status


def test_metrics_are_for_this_machine_unless_the_settings_say_otherwise() -> None:
    broker = Broker()
    try:
        for access, host, status in (
            ("loopback", "127.0.0.1", 200),
            ("loopback", "::1", 200),
            ("loopback", "::ffff:127.0.0.5", 200),
            ("loopback", "10.1.2.3", 403),
            ("loopback", "::ffff:10.1.2.3", 403),
            ("anywhere", "10.1.2.3", 200),
            ("off", "127.0.0.1", 404),
        ):
            assert answered(broker.engine, access, host) == status
    finally:
        broker.close()


async def test_scrapes_within_a_second_share_one_text_and_a_bug_is_no_hang() -> None:
    engine = Engine(Settings())
    calls: list[int] = []

    def collect() -> list[Family]:
        calls.append(1)
        return []

    engine.metrics.collect(collect)
    pages = MetricsPages(engine.metrics)
    first, second = pages.get("/metrics", PROMETHEUS), pages.get("/metrics", PROMETHEUS)
    assert first is second
    assert not isinstance(first, bytes)
    assert await first == pages.get("/metrics", PROMETHEUS)
    assert calls == [1]
    engine.metrics.collect(lambda: [1 / 0])  # type: ignore[list-item]
    broken = pages.get("/metrics", OPENMETRICS)
    assert not isinstance(broken, bytes)
    with pytest.raises(ZeroDivisionError):
        await broken
    assert pages._running == {}
