"""The demo's own broker: ``tidemill serve`` as a child process on loopback.

Knows the command line and what it says when it is ready; the broker itself only as a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemill.errors import TidemillError

HOST = "127.0.0.1"

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0

# Runs in the child before it becomes the broker: PR_SET_PDEATHSIG (prctl(2), Linux) has the kernel
# send SIGTERM when the demo is gone, even if it was killed and could clean nothing up.
_LAUNCHER = """\
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the demo has ended")
os.execv(sys.executable, [sys.executable, "-m", "tidemill", *sys.argv[2:]])
"""


class BrokerProcessError(TidemillError):
    """The broker did not start, or ended while it was needed."""


class BrokerProcess:
    """A broker with a data folder of its own. Use as a context manager, from the main thread.

    Args:
        data_dir: its data folder.
        log_file: gets what it logs.
    """

    def __init__(self, data_dir: Path, log_file: Path) -> None:
        self.data_dir = data_dir
        self.log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for clients."""
        return self._address

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        assert self._process is not None, "not started"
        return self._process.pid

    def check_running(self) -> None:
        """Whether it still runs.

        Raises:
            BrokerProcessError: it does not.
        """
        if self._process is not None and (code := self._process.poll()) is not None:
            raise BrokerProcessError(
                f"the broker ended with exit code {code}: {self._last_words()}",
                hint=f"Its log is {self.log_file}.",
            )

    def __enter__(self) -> Self:
        ready_file = self.log_file.with_suffix(".ready")
        with self.log_file.open("ab") as log, ready_file.open("wb") as ready:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _LAUNCHER, str(os.getpid())),
                    *("serve", "--data-dir", str(self.data_dir)),
                    *("--host", HOST, "--kafka-port", "0"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=ready,
                stderr=log,
                cwd=self.log_file.parent,  # no tidemill.toml of the user's is meant for it
                start_new_session=True,  # Ctrl-C is for the demo, which stops its clients first
            )
        try:
            self._address = self._wait_until_ready(ready_file)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
            time.sleep(0.02)  # a file that another process writes: there is nothing to wait on

    def _stop(self) -> None:
        """Clean if it can be, within ``STOP_TIMEOUT_S``; in any case it is gone afterwards."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
        except BaseException as error:  # too slow, or a second Ctrl-C: it must not outlive us
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise

    def _last_words(self) -> str:
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if line.startswith("error:")]
        said = errors or lines[-1:]
        return said[-1].removeprefix("error:").strip() if said else "it said nothing"
