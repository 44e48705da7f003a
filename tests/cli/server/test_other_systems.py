"""The broker without what only Linux has: it serves, recovers and stops as on Linux."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.other_system import hide_linux

LINES = [f"line {number}" for number in range(500)]


def client(broker: BrokerProcess) -> Callable[..., list[str]]:
    def run(*arguments: str, stdin: str = "") -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "tidemill", *arguments, "-b", broker.bootstrap],
            input=stdin, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_linux_is_hidden(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.platform, hasattr(os, 'fdatasync'))\nimport uvloop"
    done = subprocess.run(
        [sys.executable, "-c", program], env=hide_linux(tmp_path), capture_output=True, text=True
    )
    assert done.stdout == "darwin False\n"
    assert "import of uvloop halted" in done.stderr


@pytest.mark.slow
def test_a_broker_serves_recovers_and_stops_without_linux(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "b", env=hide_linux(tmp_path / "hidden"), fresh=True) as broker:
        run = client(broker)
        run("topic", "create", "t", "--partitions", "1")
        run("topic", "create", "many", "--partitions", "20")  # one sync for many folders
        run("topic", "produce", "t", stdin="\n".join(LINES))
        consume = ("topic", "consume", "t", "--from", "beginning", "--until-end")
        assert [json.loads(line)["value"] for line in run(*consume)] == LINES
        broker.kill()
        broker.start()
        assert [json.loads(line)["value"] for line in run(*consume)] == LINES
        assert broker.terminate() == 0
        broker.start()
        assert [json.loads(line)["value"] for line in run(*consume)] == LINES
        assert "Traceback" not in broker.log(100_000)


def test_a_development_broker_stops_on_an_interrupt_without_linux(tmp_path: Path) -> None:
    program = "import sys; sys.argv[1] = 'dev'; from tidemill.cli.main import main; main()"
    command = (sys.executable, "-c", program)
    env = hide_linux(tmp_path / "hidden")
    with BrokerProcess(tmp_path / "b", env=env, command=command) as broker:
        broker.process.send_signal(signal.SIGINT)
        assert broker.process.wait(60) == 0
        assert broker.log() == ""
