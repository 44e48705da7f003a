"""A command of tidemill that runs until it is stopped, as a process that tests kill and start."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import ServerProcess

_LONGEST_S = 24 * 3600


class WorkerProcess:
    """A worker that is started again whenever it ends by itself, as a supervisor does.

    It does so where its broker is killed while it starts.

    Args:
        command: the arguments of ``tidemill``.
        log: file that gets the output of all its processes.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = [sys.executable, "-m", "tidemill", *command]
        self._log = log
        self._process: ServerProcess | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start it, until ``kill``."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        self._process = ServerProcess("worker", self._command, self._log, env=dict(os.environ))
        threading.Thread(target=self._keep, args=(self._process,), daemon=True).start()

    def _keep(self, process: ServerProcess) -> None:
        with contextlib.suppress(TimeoutError):
            process.wait(_LONGEST_S)
        with self._lock:
            if self._process is process:
                self._start()

    def kill(self) -> None:
        """Send SIGKILL, if it was started."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()

    def log(self) -> str:
        """Return the end of its output."""
        return self._log.read_text(errors="replace")[-4000:]
