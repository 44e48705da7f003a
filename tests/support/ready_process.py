"""Starts, kills and restarts a command that prints a line of JSON when it is ready.

Knows no command: ``broker_process`` and ``gateway_process`` do.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.processes import ServerProcess


class ReadyProcess(ABC):
    """A server on loopback. Use as a context manager. A restart keeps its ports.

    Args:
        name: its name in messages.
        folder: for its output, and its working folder. It is created, and kept.
        log: the name of its log there.
        env: its environment.
        forked: start ``python -m MODULE`` without the imports (``tests/support/forks.py``).

    Attributes:
        ready_event: what it printed when it was ready, at the last start.
    """

    def __init__(
        self, name: str, folder: Path, log: str, env: Mapping[str, str], *, forked: bool
    ) -> None:
        self.folder = folder
        self.log_path = folder / log
        self.ready_event: dict[str, Any] = {}
        self._name = name
        self._env = env
        self._is_forked = forked
        self._starts = 0
        self._process: ServerProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the program and its arguments."""

    @property
    def process(self) -> ServerProcess:
        """The process of the last start."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        return self.process.pid

    def start(self, timeout: float = 120) -> Self:
        """Start and wait until it reports that it is ready.

        Raises:
            StartFailedError: it ended or was not ready in time; the message holds its log.
        """
        if self._process is not None and self._process.exit_code is None:
            raise AssertionError(f"{self._name} runs already")
        self._starts += 1
        stdout = self.folder / f"stdout-{self._starts}"
        # A second process over the same folder must not read the first one's line.
        stdout.unlink(missing_ok=True)
        self._process = ServerProcess(
            self._name,
            self.command(),
            self.log_path,
            stdout_path=stdout,
            env=self._env,
            cwd=self.folder,
            forked=self._is_forked,
        )
        try:
            self._process.wait_until(lambda: "\n" in stdout.read_text(), timeout)
        except AssertionError:
            self._process.kill()
            raise
        self.ready_event = json.loads(stdout.read_text().partition("\n")[0])
        return self

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self.process.kill()

    def terminate(self, timeout: float = 120) -> int:
        """Stop it gracefully (SIGTERM) and return the exit code."""
        return self.process.terminate(timeout)

    def restart(self, timeout: float = 120) -> Self:
        """Stop it gracefully, then start it on the same ports and data."""
        self.terminate()
        return self.start(timeout)

    def log(self, last_characters: int = 8000) -> str:
        """Return the end of its log, of all starts."""
        return self.process.output(last_characters)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
