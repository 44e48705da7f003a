"""Probes of a broker process: they are answered at its limits, and a busy port is a warning."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.ports import reserve_port
from tests.support.processes import poll_until

HEALTH = {"health.enabled": "true"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {**HEALTH, "health.port": str(reserve_port()), "limits.connections": "2"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=settings) as process:
        yield process


def test_a_broker_that_is_full_of_clients_is_alive_and_ready(broker: BrokerProcess) -> None:
    clients = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(4)]
    with httpx.Client(base_url=f"http://{broker.ready_event['health']}", trust_env=False) as http:
        for path, status in (("live", "live"), ("ready", "ready"), ("ready?verbose", "ready")):
            answer = http.get(f"/health/{path}")
            assert (answer.status_code, answer.json()) == (200, {"status": status})
        assert http.head("/health/ready").status_code == 200
        assert http.get("/metric").status_code == 404
        refused = http.post("/health/ready")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        assert http.post("/health/ready", content=b"x").status_code == 413
    for client in clients:
        client.close()


def test_curl_and_a_pipelining_client_are_answered_in_order(broker: BrokerProcess) -> None:
    address = broker.ready_event["health"]
    command = ["curl", "-sS", "--fail", "--http1.0", f"http://{address}/health/ready"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert done.stdout == b'{"status": "ready"}\n'
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as client:
        requests = [f"GET /health/{name} HTTP/1.1\r\nHost: x\r\n\r\n" for name in ("live", "ready")]
        client.sendall("".join(requests * 50).encode() + b"nonsense\r\n\r\n")
        received = b""
        while chunk := client.recv(65536):
            received += chunk
    statuses = [line for line in received.splitlines() if line.startswith(b"HTTP/1.1")]
    assert statuses == [b"HTTP/1.1 200 OK"] * 100 + [b"HTTP/1.1 400 Bad Request"]


def test_probes_have_a_limit_of_their_own_connections(broker: BrokerProcess) -> None:
    host, _, port = broker.ready_event["health"].rpartition(":")
    clients: list[socket.socket] = []

    def is_refused() -> bool:
        clients.append(socket.create_connection((host, int(port)), 10))
        clients[-1].sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            return not clients[-1].recv(100)
        return True

    poll_until(is_refused, 60, "a connection is refused", interval=0)
    assert len(clients) > 60
    for client in clients:
        client.close()


def test_a_busy_port_is_a_warning_and_the_broker_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = {**HEALTH, "health.port": str(other.getsockname()[1])}
        with BrokerProcess(tmp_path, settings=settings) as broker:
            assert "health" not in broker.ready_event
            assert "listener.not_served" in broker.log()
            assert broker.terminate() == 0
