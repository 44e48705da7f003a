"""The gateway as a worker of a broker: it is started, started again, and its port can be in use."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.certificates import self_signed
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


@pytest.mark.nightly
def test_workers_trust_a_certificate_that_replaces_the_broker_s(tmp_path: Path) -> None:
    """Each signs itself, and librdkafka reads the file of the first one only once."""
    port, cert, key = reserve_port(), tmp_path / "broker.pem", tmp_path / "broker.key"

    def replace(name: str) -> None:
        (tmp_path / name).mkdir()
        for made, used in zip(self_signed(tmp_path / name), (cert, key), strict=True):
            used.write_bytes(made.read_bytes())
        key.chmod(0o600)

    def answers() -> bool:
        try:
            found = httpx.get(f"http://127.0.0.1:{port}/topics", timeout=30, trust_env=False)
        except httpx.TransportError:
            return False
        return found.status_code == 200

    replace("one")
    settings = {
        "gateway.enabled": "true",
        "gateway.port": str(port),
        "kafka.tls_cert": str(cert),
        "kafka.tls_key": str(key),
    }
    with BrokerProcess(tmp_path / "broker", settings=settings) as broker:
        poll_until(answers, 60, "the gateway answers")

        def restarted(times: int) -> bool:
            return broker.log().count("event=worker.restarting") == times

        for number, name in enumerate(("two", "three"), 1):
            replace(name)
            os.kill(broker.pid, signal.SIGHUP)
            done = partial(restarted, number)
            poll_until(done, 60, "the gateway is restarted")
            poll_until(answers, 60, "the gateway answers again")
        assert broker.terminate() == 0


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


def test_both_listeners_of_a_broker_s_gateway_can_have_tls(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    port, hooks = reserve_port(), reserve_port()
    tls = f"tls_cert='{cert.name}'\ntls_key='{key.name}'\n"  # relative to the file
    (tmp_path / "tidemill.toml").write_text(
        f"[gateway]\n{tls}[hooks]\nport={hooks}\n{tls}"
        "[[hook]]\nname='open'\ntopic='open'\nverifier='none'\n"
    )
    settings = {"gateway.enabled": "true", "gateway.port": str(port)}
    trust = ssl.create_default_context(cafile=cert)
    with (
        BrokerProcess(tmp_path, settings=settings) as broker,
        httpx.Client(verify=trust, timeout=60, trust_env=False) as client,
    ):

        def is_up() -> bool:
            try:
                return client.get(f"https://127.0.0.1:{port}/docs").status_code == 200
            except httpx.TransportError:
                return False

        poll_until(is_up, 60, "the gateway answers")
        stored = client.post(f"https://localhost:{hooks}/hooks/open", content=b"x" * 100_000)
        assert stored.status_code == 200
        answer = client.get(f"https://127.0.0.1:{port}/topics/open/partitions/0")
        assert answer.json()["records"][0]["value"] == "x" * 100_000
        own = {"origin": f"https://127.0.0.1:{port}"}  # a page of the gateway's own
        assert client.get(f"https://127.0.0.1:{port}/topics", headers=own).status_code == 200
        with pytest.raises(httpx.TransportError):
            client.get(f"http://127.0.0.1:{port}/docs")
        assert broker.terminate() == 0
