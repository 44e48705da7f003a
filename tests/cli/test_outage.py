"""A broker that is gone is told, and so is its return."""

from __future__ import annotations

import socket
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from tidemill.cli import outage
from tidemill.cli.client import Cluster
from tidemill.cli.outage import Outage
from tidemill.errors import UnreachableError

DOWN = cast("Any", KafkaError)(KafkaError._ALL_BROKERS_DOWN)
TRANSPORT = cast("Any", KafkaError)(KafkaError._TRANSPORT)
OTHER = cast("Any", KafkaError)(KafkaError._MAX_POLL_EXCEEDED)


class Seconds:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    clock = Seconds()
    monkeypatch.setattr(outage, "time", clock)
    return clock


@pytest.mark.parametrize("error", [DOWN, TRANSPORT])
def test_an_outage_is_told_once_and_so_is_its_end(
    clock: Seconds, capsys: pytest.CaptureFixture[str], error: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        watched = Outage(Cluster(f"127.0.0.1:{address[1]}"))
        watched.on_error(error)  # a late report: the broker answers
        watched.check()
        assert capsys.readouterr().err == ""
    clock.now += 60
    watched.on_error(OTHER)
    watched.check()
    assert capsys.readouterr().err == ""
    watched.on_error(error)
    watched.on_error(error)
    assert capsys.readouterr().err.splitlines() == [
        f"warning: no broker answers at 127.0.0.1:{address[1]} any more: waiting for it"
    ]
    assert watched.ongoing
    with socket.create_server(address):
        watched.check()
        assert capsys.readouterr().err == ""
        clock.now += 2
        watched.check()
        watched.check()
        watched.on_error(error)
    said = f"warning: a broker answers at 127.0.0.1:{address[1]} again\n"
    assert capsys.readouterr().err == said
    assert not watched.ongoing


def test_a_broker_that_still_accepts_at_the_error_and_is_gone_a_moment_later_is_told(
    clock: Seconds, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        watched = Outage(Cluster(f"127.0.0.1:{closing.getsockname()[1]}"))
        watched.on_error(TRANSPORT)
    assert capsys.readouterr().err == ""
    clock.now += 2
    watched.check()
    assert "no broker answers" in capsys.readouterr().err


@pytest.mark.parametrize("give_up_seconds", [None, 10.0])
def test_only_a_command_that_ends_by_itself_gives_up(
    clock: Seconds, give_up_seconds: float | None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    watched = Outage(Cluster(f"127.0.0.1:{port}"), give_up_seconds)
    watched.on_error(DOWN)
    clock.now += 9
    watched.check()
    clock.now += 2
    if give_up_seconds is None:
        watched.check()
        return
    with pytest.raises(UnreachableError, match="connection refused"):
        watched.check()
