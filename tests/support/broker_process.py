"""Starts, kills and restarts a tidemill broker in a process of its own.

Knows the command line (``tidemill serve``) only.
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

NO_RETENTION = {"log.retention_check_ms": str(24 * 3_600_000)}
"""By default a broker looks every five minutes for records that are older than seven days, and
deletes them. Many tests write records with times of long ago, and a busy machine runs them in the
sixth minute of a broker that they share."""

ALONE = {"gateway.enabled": "false", "health.enabled": "false"}
"""Without what a broker offers besides its protocols: they have fixed ports."""


class BrokerProcess:
    """``tidemill serve`` on loopback over one data folder. Use as a context manager.

    A restart keeps the port, so that clients find the broker again.

    Args:
        folder: for the data folder, the log and the output. It is created, and kept.
        settings: ``--set`` values, e.g. ``{"default_partitions": "4"}``. Those of ``NO_RETENTION``
            and ``ALONE`` are the default.
        env: variables in addition to the present ones, of which those of tidemill are removed.
        command: replaces ``python -m tidemill``, e.g. a wrapper that injects faults.
        fresh: start a Python of its own. By default, ``python -m`` is forked from a process that
            has imported tidemill, which saves half a second of processor time.
        plain: pass only ``settings``, for a version that may not know the others.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "tidemill"),
        fresh: bool = False,
        plain: bool = False,
    ) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.log_path = folder / "broker.log"
        self.ready_event: dict[str, Any] = {}
        own = {} if plain else {**NO_RETENTION, **ALONE, "amqp.port": str(reserve_port())}
        self._settings = {**own, **(settings or {})}
        inherited = environment.without_settings()
        self._env = {**inherited, **(env or {})}
        self._command = list(command)
        self._is_forked = not fresh and self._command[:2] == [sys.executable, "-m"]
        self._port = reserve_port()
        self._starts = 0
        self._process: ServerProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """The port of the Kafka protocol."""
        return self._port

    @property
    def amqp_port(self) -> int:
        """The port of AMQP, known after the first start if the settings name port 0."""
        return int(self._settings["amqp.port"])

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
            raise AssertionError("the broker runs already")
        self._starts += 1
        stdout = self.folder / f"stdout-{self._starts}"
        # A second BrokerProcess over the same folder must not read the first one's line.
        stdout.unlink(missing_ok=True)
        self._process = ServerProcess(
            "tidemill serve",
            [
                *self._command,
                *("serve", "--data-dir", str(self.data_dir)),
                *("--host", "127.0.0.1", "--kafka-port", str(self._port)),
                *(f"--set={key}={value}" for key, value in self._settings.items()),
            ],
            self.log_path,
            stdout_path=stdout,
            env=self._env,
            cwd=self.folder,
            forked=self._is_forked,
        )
        try:
            self._process.wait_until(lambda: self._read_ready(stdout), timeout)
        except AssertionError:
            self._process.kill()
            raise
        return self

    def _read_ready(self, stdout: Path) -> bool:
        """Read the line on stdout that reports the broker's address. Return whether it is there."""
        line, newline, _ = stdout.read_text().partition("\n")
        if not newline:
            return False
        self.ready_event = json.loads(line)
        self._port = int(str(self.ready_event["kafka"]).rpartition(":")[2])
        if "amqp" in self.ready_event:
            # A restart keeps it.
            self._settings["amqp.port"] = str(self.ready_event["amqp"]).rpartition(":")[2]
        return True

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self.process.kill()

    def terminate(self, timeout: float = 120) -> int:
        """Stop it gracefully (SIGTERM) and return the exit code."""
        return self.process.terminate(timeout)

    def restart(self, timeout: float = 120) -> Self:
        """Stop it gracefully, then start it on the same port and data."""
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
