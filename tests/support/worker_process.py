"""A command of tidemill that runs until it is stopped, as a process that tests kill and start."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import ServerProcess


class WorkerProcess:
    """A worker.

    Args:
        command: the arguments of ``tidemill``.
        log: file that gets the output of all its processes.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = [sys.executable, "-m", "tidemill", *command]
        self._log = log
        self._process: ServerProcess | None = None

    def start(self) -> None:
        self._process = ServerProcess("worker", self._command, self._log, env=dict(os.environ))

    def kill(self) -> None:
        """Send SIGKILL, if it was started."""
        if self._process is not None:
            self._process.kill()

    def check(self) -> None:
        """Start it again if it ended: the broker was possibly not there when it started."""
        if self._process is not None and self._process.exit_code is not None:
            self.start()

    def log(self) -> str:
        """Return the end of its output."""
        return self._log.read_text(errors="replace")[-4000:]
