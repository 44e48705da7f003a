"""Run tidemill's own commands as child processes, which end with this one.

Must not know: the inside of a command.
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

from tidemill.errors import TidemillError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_LOOK_S = 0.02

# Runs in the child before it becomes the command. On Linux the kernel sends SIGTERM when the parent
# ends, also if it was killed.
_LAUNCHER = """\
import os, sys
from tidemill.system import end_with_parent
end_with_parent()
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that started it has ended")
os.execv(sys.executable, [sys.executable, "-m", "tidemill", *sys.argv[2:]])
"""


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
                start_new_session=True,  # Ctrl-C reaches the parent, which stops its clients first
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

    def wait_until_ready(self, stdout: Path) -> Mapping[str, object]:
        """Return the event ``ready`` that the command writes to its stdout, with its addresses.

        Raises the ``error`` of this process if it ends or is not ready within ``START_TIMEOUT_S``.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            for line in stdout.read_bytes().splitlines(keepends=True):
                with suppress(ValueError):  # not JSON, or not all of it yet
                    event = json.loads(line)
                    if line.endswith(b"\n") and event.get("event") == "ready":
                        return dict(event)
            self.check_running()
            if time.monotonic() > deadline:
                raise self._error(
                    f"{self._what} was not ready within {START_TIMEOUT_S:g} s",
                    hint=f"Its log is {self._log_file}.",
                )
            time.sleep(_LOOK_S)  # another process writes the file: it can only be polled

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
