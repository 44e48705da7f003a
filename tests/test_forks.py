"""A fork of ``tests/support/forks.py`` is what ``python -m`` would have started.

This module is also the program that is forked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import forks
from tests.support.processes import poll_until

WAIT_S = 90.0
Run = Callable[..., forks.Fork]


def program() -> None:
    """Print what a process knows of itself; end with the code, or wait to be killed."""
    about = {
        "arguments": sys.argv[1:],
        "variables": dict(os.environ),
        "folder": os.getcwd(),
        "session": os.getsid(0),
        "imported": "tidemill.engine.engine" in sys.modules,
        "sockets": [fd for fd in os.listdir("/proc/self/fd") if _is_socket(fd)],
    }
    print(json.dumps(about), flush=True)
    print("an error", file=sys.stderr)
    if sys.argv[1] == "wait":
        time.sleep(60)
    sys.exit(int(sys.argv[1]))


def _is_socket(fd: str) -> bool:
    path = f"/proc/self/fd/{fd}"
    return os.path.lexists(path) and os.readlink(path).startswith("socket:")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Fork the program, with its output in ``out`` and ``err``. At the end it is killed."""
    started: list[forks.Fork] = []

    def start(*arguments: str) -> forks.Fork:
        fork = forks.start(
            "tests.test_forks",
            list(arguments),
            stdout=tmp_path / "out",
            stderr=tmp_path / "err",
            env={"ONLY": "this"},
            cwd=tmp_path,
        )
        started.append(fork)
        return fork

    yield start
    for fork in started:
        if fork.poll() is None:
            os.killpg(fork.pid, signal.SIGKILL)
            fork.wait(WAIT_S)


def test_a_fork_has_its_own_place_and_tidemill_is_imported(run: Run, tmp_path: Path) -> None:
    fork = run("3", "an argument")

    assert fork.wait(WAIT_S) == 3
    assert fork.poll() == 3
    about: dict[str, Any] = json.loads((tmp_path / "out").read_text())
    assert about["arguments"] == ["3", "an argument"]
    assert about["variables"] == {"ONLY": "this"}
    assert about["folder"] == str(tmp_path)
    assert about["session"] == fork.pid
    assert about["imported"]
    assert about["sockets"] == [], "those of the process that forks are closed"
    assert (tmp_path / "err").read_text() == "an error\n"


def test_a_signal_ends_a_fork_and_no_other(run: Run, tmp_path: Path) -> None:
    first, second = run("wait"), run("wait")
    poll_until(lambda: (tmp_path / "out").read_text().count("\n") == 2, WAIT_S, "both run")

    os.killpg(first.pid, signal.SIGKILL)

    assert first.wait(WAIT_S) == -signal.SIGKILL
    assert second.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.01)


def test_what_a_program_raises_is_printed_and_is_its_code(run: Run, tmp_path: Path) -> None:
    fork = run("no number")

    assert fork.wait(WAIT_S) == 1
    assert "ValueError: invalid literal" in (tmp_path / "err").read_text()


if __name__ == "__main__":
    program()
