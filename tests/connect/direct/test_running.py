"""How one worker runs bridges: one that misbehaves, and another worker of the same bridge."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tests.connect.direct.conftest import Running
from tests.support.ports import reserve_port
from tests.support.processes import ServerProcess, poll_until
from tidemill.connect.direct import registry
from tidemill.connect.direct.contract import Bridge, Counts, Place
from tidemill.connect.direct.errors import DefinitionError
from tidemill.connect.direct.registry import BUILT_IN, GROUP, bridge_class
from tidemill.settings.section import Section


class OddOptions(Section):
    """No options."""


class Odd(Bridge):
    """Ends at once, and can't be described."""

    options_type = OddOptions
    runs = 0

    def __init__(self, place: Place, options: Any) -> None:
        pass

    async def run(self, running: Callable[[], None]) -> None:
        Odd.runs += 1
        running()

    def counts(self) -> Counts:
        return Counts()

    def details(self) -> Mapping[str, Any]:
        return {"bytes": b"no JSON value"}


def test_a_bridge_that_ends_or_can_t_be_described_fails_for_itself_only(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUILT_IN, "odd", (__name__, "Odd", ""))
    running.define("odd")
    running.start()
    status = running.wait_for_phase("waiting")
    assert "has ended by itself" in status["error"]
    assert "TypeError" in status["details"]["unknown"]
    assert Odd.runs < 10


def test_a_kind_that_can_t_be_loaded_is_named_with_its_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = EntryPoint("clock", "nowhere.clock:Clock", GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    with pytest.raises(DefinitionError, match="kind clock can't be loaded: ModuleNotFoundError"):
        bridge_class("clock")


@pytest.mark.crash
def test_of_two_workers_the_last_one_that_was_started_runs_a_bridge(
    running: Running, tmp_path: Path
) -> None:
    """It waits until the first one has left the port, and only it publishes statuses."""
    port = reserve_port()
    running.define(listen=[f"tcp://127.0.0.1:{port}"], interval_s=0.2)
    command = [sys.executable, "-m", "tidemill", "bridge", "run", running.name]
    command += ["-b", running.kafka.servers]
    environment = dict(os.environ)
    with contextlib.ExitStack() as opened:
        first = ServerProcess("first", command, tmp_path / "first.log", env=environment)
        opened.callback(first.kill)
        running.wait_for_phase("running")
        second = ServerProcess("second", command, tmp_path / "second.log", env=environment)
        opened.callback(second.kill)
        assert first.wait(60) != 0
        assert "another worker has taken over" in (tmp_path / "first.log").read_text()
        poll_until(
            lambda: (
                running.status().get("worker", "").endswith(f":{second.pid}")
                and running.status()["phase"] == "running"
            ),
            60,
            "the second one runs",
        )
