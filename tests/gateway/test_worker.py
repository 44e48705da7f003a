"""The gateway as a worker of a broker: it is started, started again, and its port can be in use."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import httpx

from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.ports import reserve_port
from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka


def test_a_broker_starts_its_gateway_and_starts_it_again_after_a_kill(tmp_path: Path) -> None:
    port = reserve_port()
    url = f"http://127.0.0.1:{port}"
    settings = {"gateway.enabled": "true", "gateway.port": str(port), "telemetry.level": "info"}

    def answers(path: str) -> bool:
        try:
            return httpx.get(url + path, timeout=30, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    with BrokerProcess(tmp_path, settings=settings) as broker:
        Kafka(broker.bootstrap).create_topics("tests", {"events": (1, {})})
        poll_until(lambda: answers("/topics/events"), 60, "the gateway answers")
        (pid,) = re.findall(r"event=worker.started worker=gateway pid=(\d+)", broker.log())
        os.kill(int(pid), signal.SIGKILL)
        poll_until(lambda: "worker.ended" in broker.log(), 60, "the end is logged")
        poll_until(lambda: answers("/topics/events"), 60, "the gateway answers again")
        assert broker.terminate() == 0
        assert not answers("/docs")


def test_a_busy_port_is_a_warning_and_the_broker_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        settings = {"gateway.enabled": "true", "gateway.port": port}
        with BrokerProcess(tmp_path, settings=settings) as broker:
            reason = f"another process listens on 127.0.0.1:{port}"
            poll_until(lambda: reason in broker.log(), 60, "the reason is logged")
            Kafka(broker.bootstrap).create_topics("tests", {"events": (1, {})})
            assert broker.terminate() == 0


def test_a_listener_whose_port_is_in_use_takes_nothing_from_the_other_and_is_tried_again(
    tmp_path: Path, broker: BrokerProcess
) -> None:
    def status(url: str) -> int:
        try:
            return httpx.get(url, timeout=30, trust_env=False).status_code
        except httpx.TransportError:
            return 0

    hooks, file = reserve_port(), tmp_path / "tidemill.toml"
    hook = "[[hook]]\nname='open'\ntopic='open'\nverifier='none'\n"
    file.write_text(f"[hooks]\nport={hooks}\n{hook}")
    gateway = GatewayProcess(tmp_path / "gateway", broker.bootstrap, config=file)
    urls = {
        gateway.port: (f"{gateway.url}/docs", 200),
        hooks: (f"http://127.0.0.1:{hooks}/hooks/open", 405),
    }
    for busy, other in ((gateway.port, hooks), (hooks, gateway.port)):
        with socket.create_server(("127.0.0.1", busy)) as taken, gateway:
            url, expected = urls[other]
            assert status(url) == expected
            assert f"another process listens on 127.0.0.1:{busy}" in gateway.log()
            taken.close()
            url, expected = urls[busy]
            poll_until(lambda: status(url) == expected, 60, "the port is used")  # noqa: B023
