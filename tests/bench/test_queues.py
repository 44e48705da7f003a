"""The client that measures latencies of queues, and what PerfTest prints."""

from __future__ import annotations

import socket

import pytest
from bench.queues.latency import Latencies, _Frames, measure
from bench.queues.perf_test import Rates, read_summary

from tests.conftest import BrokerFactory

SUMMARY = """\
id: test-1, time 1.003 s, sent: 1006 msg/s, received: 997 msg/s
id: test-1, sending rate avg: 1,030 msg/s
id: test-1, receiving rate avg: 1029 msg/s
"""


def test_the_summary_has_the_rates() -> None:
    assert read_summary(SUMMARY) == Rates(1030.0, 1029.0)
    with pytest.raises(RuntimeError, match="no rates"):
        read_summary("error")


def test_frames_can_arrive_in_pieces() -> None:
    left, right = socket.socketpair()
    with left, right:
        frames = _Frames(right)
        heartbeat = b"\x08\x00\x00\x00\x00\x00\x00\xce"
        body = b"\x03\x00\x01\x00\x00\x00\x02ab\xce"
        left.sendall(heartbeat + body[:5])
        assert list(frames.read()) == [(8, b"")]
        left.sendall(body[5:])
        assert list(frames.read()) == [(3, b"ab")]
        left.close()
        with pytest.raises(ConnectionError, match="closed"):
            next(frames.read())


def test_percentiles_are_of_deliveries_and_of_confirms() -> None:
    numbers = [float(number) for number in range(1, 1001)]
    found = Latencies(numbers, numbers[:100]).figures()
    assert list(found.values()) == [500, 990, 999, 50, 99]


def test_each_message_is_measured_once(
    start_broker: BrokerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.queues.latency.WARM_UP_S", 0.0)
    broker = start_broker()
    url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2F"
    found = measure(url, "classic", "latency", rate=200, seconds=1.0, size=100)
    assert len(found.delivered) == len(found.confirmed) > 0
    assert min(found.delivered) > 0
