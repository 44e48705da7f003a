"""Run tidemill's own commands as child processes: the demo's broker, and the worker of its capture.

The broker is ``tidemill serve`` on loopback. This module must not know the inside of a command. It
uses the command line, and the line that the broker prints when it is ready.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tidemill.errors import TidemillError

HOST = "127.0.0.1"

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0

# The demo runs the worker of its capture itself, so that it can use any broker in the same way.
_BROKER_SETTINGS = {
    "TIDEMILL_SOURCES_RUN": "false",
    "TIDEMILL_AMQP_ENABLED": "false",
    "TIDEMILL_GATEWAY_ENABLED": "false",
    "TIDEMILL_HEALTH_ENABLED": "false",
}

# Runs in the child before it becomes the broker. On Linux the kernel sends SIGTERM when the demo's
# process ends, also if it was killed.
_LAUNCHER = """\
import os, sys
from tidemill.system import end_with_parent
end_with_parent()
if os.getppid() != int(sys.argv[1]):
    sys.exit("the demo has ended")
os.execv(sys.executable, [sys.executable, "-m", "tidemill", *sys.argv[2:]])
"""


class BrokerProcessError(TidemillError):
    """The broker did not start, or ended too early."""


class ChildProcess:
    """A command of tidemill as a child process. Create it in the main thread.

    ``check_running`` raises ``error`` if it ends too early; ``what`` names it in the message.
    """

    def __init__(
        self,
        what: str,
        arguments: list[str],
        log_file: Path,
        stdout: Path,
        *,
        environment: Mapping[str, str] | None = None,
        error: type[TidemillError] = TidemillError,
    ) -> None:
        self._what = what
        self._log_file = log_file
        self._error = error
        # So that no settings of the user apply, from a tidemill.toml or from variables.
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMILL_")}
        with log_file.open("ab") as log, stdout.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCHER, str(os.getpid()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                cwd=log_file.parent,
                env={**kept, **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches the demo, which stops its clients first
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def check_running(self) -> None:
        """Check that the process still runs."""
        if (code := self._process.poll()) is not None:
            raise self._error(
                f"{self._what} ended with exit code {code}: {self._last_error()}",
                hint=f"Its log is {self._log_file}.",
            )

    def stop(self) -> None:
        """Stop the process cleanly within ``STOP_TIMEOUT_S``, or kill it."""
        process = self._process
        try:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
        except BaseException as error:  # too slow, or a second Ctrl-C: it must not outlive us
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise

    def _last_error(self) -> str:
        lines = self._log_file.read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if line.startswith("error:")]
        said = errors or lines[-1:]
        return said[-1].removeprefix("error:").strip() if said else "it logged nothing"


class BrokerProcess:
    """A broker with its own data folder. Use it as a context manager, from the main thread."""

    def __init__(self, data_dir: Path, log_file: Path) -> None:
        self.data_dir = data_dir
        self.log_file = log_file
        self._process: ChildProcess | None = None
        self.bootstrap_servers = ""
        """The address for clients, ``host:port``."""

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        assert self._process is not None, "not started"
        return self._process.pid

    def check_running(self) -> None:
        """Check that the broker still runs."""
        if self._process is not None:
            self._process.check_running()

    def __enter__(self) -> Self:
        ready_file = self.log_file.with_suffix(".ready")
        self._process = ChildProcess(
            "the broker",
            [
                *("serve", "--data-dir", str(self.data_dir)),
                *("--host", HOST, "--kafka-port", "0"),
            ],
            self.log_file,
            ready_file,
            environment=_BROKER_SETTINGS,
            error=BrokerProcessError,
        )
        try:
            self.bootstrap_servers = self._wait_until_ready(ready_file)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _wait_until_ready(self, ready_file: Path) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            for line in ready_file.read_bytes().splitlines(keepends=True):
                with suppress(ValueError):  # not JSON, or not all of it yet
                    event = json.loads(line)
                    if line.endswith(b"\n") and event.get("event") == "ready":
                        return str(event["kafka"])
            self.check_running()
            if time.monotonic() > deadline:
                raise BrokerProcessError(
                    f"the broker was not ready within {START_TIMEOUT_S:g} s",
                    hint=f"Its log is {self.log_file}.",
                )
            time.sleep(0.02)  # another process writes the file: it can only be polled

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop()
