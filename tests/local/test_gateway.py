"""A gateway that a program starts for itself."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

import tidemill
from tidemill.confluent.clients import Kafka
from tidemill.local.gateway import GatewayProcessError


def test_a_gateway_serves_topics_to_a_page_and_leaves_nothing_behind() -> None:
    with tidemill.Broker() as broker:
        check_gateway(broker.bootstrap_servers)


def check_gateway(servers: str) -> None:
    Kafka(servers).create_topics("test", {"gateway-of-a-program": (1, {})})
    origin = "http://localhost:3000"
    with tidemill.Gateway(servers, settings={"gateway.origins": origin}) as gateway:
        process = psutil.Process(gateway.pid)
        gateway.check_running()
        request = Request(f"{gateway.url}/topics/gateway-of-a-program", headers={"origin": origin})
        with urlopen(request, timeout=60) as answer:
            assert json.load(answer)["topic"] == "gateway-of-a-program"
            assert answer.headers["access-control-allow-origin"] == origin
        assert gateway.url in repr(gateway)
    assert not process.is_running()
    assert "stopped" in repr(gateway)
    gateway.stop()
    with pytest.raises(GatewayProcessError, match="stopped"):
        _ = gateway.pid


def test_a_gateway_that_can_not_start_says_why(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "gateway.log"
    with pytest.raises(GatewayProcessError, match="orgins") as raised:
        tidemill.Gateway("localhost:1", settings={"gateway.orgins": "x"}, log_file=log)
    assert "gateway.log" in raised.value.hint
