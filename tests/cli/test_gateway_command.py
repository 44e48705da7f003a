"""What ``tidemill gateway`` prints when it serves."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tidemill import telemetry
from tidemill.cli.client import Cluster
from tidemill.cli.gateway.commands import gateway
from tidemill.cli.options import Brokers
from tidemill.gateway import run as run_module
from tidemill.gateway.server import Address


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_person_reads_sentences_and_a_program_json(
    on_terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def run(*given: Any) -> None:
        ready: Callable[[Mapping[str, Address]], None] = given[-1]
        ready({"topics": Address("http", "127.0.0.1", 8080), "hooks": Address("https", "::1", 1)})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_module, "run", run)
    # stderr goes to a file, as with 2>gateway.log: the sentences are on the terminal all the same.
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal)
    monkeypatch.setattr(telemetry, "configure", lambda *_, **__: None)
    monkeypatch.setattr(Cluster, "at", lambda brokers: Cluster(brokers.servers))  # asks no broker
    gateway(Brokers("127.0.0.1:1"))
    printed = capsys.readouterr().out
    if on_terminal:
        assert printed.splitlines() == [
            "The gateway serves topics at http://127.0.0.1:8080. "
            "Console: http://127.0.0.1:8080/ Documentation: http://127.0.0.1:8080/docs",
            "The gateway serves hooks at https://[::1]:1.",
        ]
        return
    assert json.loads(printed) == {
        "event": "ready",
        "topics": "http://127.0.0.1:8080",
        "hooks": "https://[::1]:1",
        "pid": os.getpid(),
    }
