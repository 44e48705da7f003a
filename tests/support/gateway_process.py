"""Starts, kills and restarts a gateway in a process of its own.

Knows the command line (``tidemill gateway``) only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support import environment
from tests.support.ports import reserve_port
from tests.support.processes import ServerProcess


class GatewayProcess:
    """``tidemill gateway`` on loopback. Use as a context manager. A restart keeps the port.

    Args:
        folder: for the output. It is created, and kept.
        bootstrap: address of the brokers.
        settings: ``--set`` values, e.g. ``{"gateway.body_bytes": "2048"}``.
        config: a settings file.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        *,
        settings: Mapping[str, str] | None = None,
        config: Path | None = None,
    ) -> None:
        self.folder = folder
        self.port = reserve_port()
        self.ready_event: dict[str, Any] = {}
        self._command: Sequence[str] = [
            *(sys.executable, "-m", "tidemill", "gateway", "-b", bootstrap),
            *("--port", str(self.port)),
            *(() if config is None else ("--config", str(config))),
            *(f"--set={key}={value}" for key, value in (settings or {}).items()),
        ]
        self._starts = 0
        self._process: ServerProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """The address of the topics, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> ServerProcess:
        """The process of the last start."""
        assert self._process is not None, "not started"
        return self._process

    def start(self, timeout: float = 120) -> Self:
        """Start and wait until it reports that it is ready."""
        self._starts += 1
        stdout = self.folder / f"stdout-{self._starts}"
        stdout.unlink(missing_ok=True)
        self._process = ServerProcess(
            "tidemill gateway",
            self._command,
            self.folder / "gateway.log",
            stdout_path=stdout,
            env={
                **environment.without_settings(),
                "XDG_CACHE_HOME": str(self.folder / "cache"),  # of indexes
            },
            cwd=self.folder,
            forked=True,
        )
        self._process.wait_until(lambda: "\n" in stdout.read_text(), timeout)
        self.ready_event = json.loads(stdout.read_text())
        return self

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self.process.kill()

    def terminate(self, timeout: float = 120) -> int:
        """Stop it (SIGTERM) and return the exit code."""
        return self.process.terminate(timeout)

    def log(self) -> str:
        """Return the end of its log, of all starts."""
        return self.process.output()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
