"""Run tidemill's own commands as child processes, which end with this one.

Must not know: the inside of a command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tidemill.errors import TidemillError

STOP_TIMEOUT_S = 20.0

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
