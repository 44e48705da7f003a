"""A broker process that the tests of this folder share, and ways to call the command line."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import environment
from tests.support.broker_process import BrokerProcess
from tests.support.cli_runner import CliRunner
from tidemill.cli.main import app

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"groups.initial_rebalance_delay_ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=settings) as process:
        yield process


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Done:
    """A call that has ended."""

    returncode: int
    stdout: str
    stderr: str


class CommandLine:
    """Runs ``tidemill`` with the broker in the environment: in this process, or in its own."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.folder = folder
        kept = environment.without_settings()
        self.env = kept | {"TIDEMILL_BOOTSTRAP_SERVERS": bootstrap}

    def run(self, *arguments: str, stdin: str | bytes = b"") -> Done:
        """Call it here: the same code, without the 0.3 s that a process takes to start."""
        result = CliRunner().invoke(app, arguments, input=stdin, env=self.env)
        return Done(result.exit_code, result.stdout, result.stderr)

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "tidemill", *arguments]

    def ok(self, *arguments: str, stdin: str | bytes = b"") -> str:
        """stdout of a call that must succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def records(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the records that ``topic consume`` prints."""
        text = self.ok("topic", "consume", *arguments)
        return [json.loads(line) for line in text.splitlines()]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.folder,
        )

    def on_terminal(
        self,
        *arguments: str,
        until: str | None = None,
        act: Callable[[subprocess.Popen[bytes]], object] = lambda _: None,
        answer: bytes = b"",
        **streams: int,
    ) -> tuple[int, str]:
        """Run it on a terminal; return its exit code and what it has shown.

        Args:
            until: the text after which nothing more is read; None reads to the end.
            act: called then with the process.
            answer: typed then.
            streams: those that are not the terminal, by name.
        """
        ours, theirs = pty.openpty()
        ends: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), theirs) | streams
        with subprocess.Popen(self.command(*arguments), env=self.env, **ends) as process:
            os.close(theirs)
            shown = ""
            with contextlib.suppress(OSError):  # the other end was closed
                while until is None or until not in shown:
                    shown += os.read(ours, 4096).decode()
            act(process)
            if answer:
                os.write(ours, answer)
            code = process.wait(60)
        os.close(ours)
        return code, shown


@pytest.fixture
def tidemill(broker: BrokerProcess, tmp_path: Path) -> CommandLine:
    return CommandLine(broker.bootstrap, tmp_path)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic{next(_NUMBERS)}"


@pytest.fixture
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no settings of tidemill: no variables, and an empty folder to work in."""
    for name in [name for name in os.environ if name.startswith("TIDEMILL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
