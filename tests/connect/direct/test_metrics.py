"""A worker of bridges publishes its metrics."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from tests.connect.direct.conftest import Running, place
from tests.connect.direct.test_statsd import FAST
from tidemill.confluent import metrics
from tidemill.confluent.metrics import create_topic, read_metrics
from tidemill.metrics.published import Published, merged


def samples(processes: list[Published]) -> Mapping[tuple[str, ...], Any]:
    return {
        (metric.name, *labels): value
        for metric, rows in merged(processes, processes[0].at_ms if processes else 0)
        for labels, value in rows
    }


def test_a_worker_publishes_what_its_bridges_do(
    running: Running, sender: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PERIOD_S", 0.2)
    create_topic(running.kafka)
    running.define(**FAST)
    running.start()
    status = running.wait_for_phase("running")
    sender.sendto(b"hits:1|c", place(status["details"]["addresses"][0]))

    def received() -> object:
        process = f"{socket.gethostname()}:{os.getpid()}"  # the broker has a worker, too
        key = ("tidemill_bridge_received_total", "bridges", process, running.name)
        return samples(read_metrics(running.kafka)).get(key)

    running.wait(lambda: received() == status["received"] + 1, "the metric is published")
