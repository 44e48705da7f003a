"""The broker's metrics, as a StatsD server gets them."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.support.broker_process import BrokerProcess
from tests.support.topics import write
from tidemill.direct.statsd import Aggregator, Dialect, Options
from tidemill.direct.statsd.series import Series
from tidemill.settings.broker import Telemetry
from tidemill.settings.section import host_and_port


def test_a_statsd_server_gets_counters_gauges_and_timers(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        settings = {
            "telemetry.statsd": f"localhost:{server.getsockname()[1]}",
            "telemetry.statsd_prefix": "test",
            "telemetry.statsd_interval_ms": "100",
            "telemetry.statsd_tags": "true",
        }
        with BrokerProcess(tmp_path, settings=settings) as broker:
            write(broker.bootstrap, "orders", *[b"x" * 100] * 50)
            aggregator = Aggregator(Options(dialect=Dialect.dogstatsd))
            found: dict[str, Series] = {}
            deadline = time.monotonic() + 30
            while not set(found) >= WANTED:
                assert time.monotonic() < deadline, sorted(found)
                packet = server.recv(65536)
                assert len(packet) <= 1400
                aggregator.feed(packet)
                flush = aggregator.flush(0, 100)
                found |= {f"{each.name}|{','.join(each.tags)}": each for each in flush.series}
    assert aggregator.counts().malformed_lines == 0
    assert found["test.tidemill_topic_bytes_in_total|topic:orders"].total > 50
    assert found["test.process_resident_memory_bytes|"].total > 1 << 20
    assert found["test.tidemill_event_loop_lag_seconds|"].weight >= 1


WANTED = {
    "test.tidemill_topic_bytes_in_total|topic:orders",
    "test.process_resident_memory_bytes|",
    "test.tidemill_event_loop_lag_seconds|",
}


def test_a_name_that_can_not_be_resolved_is_logged_once_and_stops_nothing(tmp_path: Path) -> None:
    settings = {
        "telemetry.statsd": "nowhere.invalid",
        "telemetry.statsd_interval_ms": "100",
    }
    with BrokerProcess(tmp_path, settings=settings) as broker:
        deadline = time.monotonic() + 30
        while "telemetry.not_sent" not in broker.log_path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        write(broker.bootstrap, "orders", b"1")
    assert broker.log_path.read_text().count("telemetry.not_sent") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", ("localhost", 8125)),
        ("10.0.0.1:99", ("10.0.0.1", 99)),
        ("[::1]:99", ("::1", 99)),
        ("[::1]", ("::1", 8125)),
    ],
)
def test_an_address_has_a_host_and_perhaps_a_port(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port(text, 8125) == expected


@pytest.mark.parametrize("text", ["a:b", "a:99999", "::1", "udp://a:1", "a b", "a:1:2"])
def test_another_address_is_an_error_of_the_setting(text: str) -> None:
    with pytest.raises(ValidationError, match="expected HOST:PORT"):
        Telemetry(statsd=text)
