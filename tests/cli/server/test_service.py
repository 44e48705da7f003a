"""What the broker reports to systemd: ready, alive, stopping; and nothing without it."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tidemill.cli.server.service import ServiceManager


@pytest.fixture
def manager() -> Iterator[tuple[str, socket.socket]]:
    """The address of a socket as systemd gives it, and the socket: an abstract one of Linux."""
    name = f"tidemill-test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        receiver.settimeout(60)
        yield "@" + name, receiver


def test_a_broker_reports_that_it_is_ready_alive_and_stopping(
    tmp_path: Path, manager: tuple[str, socket.socket]
) -> None:
    address, receiver = manager
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000"}
    with BrokerProcess(tmp_path, env=env) as broker:
        first = receiver.recv(1000).decode().splitlines()
        assert first[0] == "READY=1"
        assert first[1] == f"STATUS=Serves Kafka clients at {broker.bootstrap}"
        assert [receiver.recv(1000) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        assert broker.terminate() == 0
    rest = set(iter(lambda: receiver.recv(1000), b"STOPPING=1\nSTATUS=Stopping"))
    assert rest <= {b"WATCHDOG=1"}


async def test_a_watchdog_of_another_process_is_not_fed(
    manager: tuple[str, socket.socket],
) -> None:
    address, receiver = manager
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "OTHER": "x"}
    service = ServiceManager(environ)
    assert environ == {"OTHER": "x"}  # workers must not report in the broker's name
    service.ready("Serves")
    await asyncio.sleep(0)
    service.stopping()
    service.close()
    assert receiver.recv(1000) == b"READY=1\nSTATUS=Serves"
    assert receiver.recv(1000).startswith(b"STOPPING=1")


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "relative", "WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "vsock:2:1234"},
        {"NOTIFY_SOCKET": "/does/not/exist", "WATCHDOG_USEC": "-5"},
        {"NOTIFY_SOCKET": "/" + "x" * 500, "WATCHDOG_USEC": "9" * 1000},
        {"NOTIFY_SOCKET": "/dev/null", "WATCHDOG_USEC": "many", "WATCHDOG_PID": str(os.getpid())},
    ],
)
async def test_a_service_manager_that_can_not_be_reached_is_no_error(
    environ: dict[str, str],
) -> None:
    service = ServiceManager(dict(environ))
    service.ready("Serves")
    service.stopping()
    service.close()
