"""Starts, watches and kills server processes, and keeps their output for the failure report.

Knows no particular server: ``broker_process`` and ``apache_kafka`` know the command, and when a
server is ready.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import forks


class StartFailedError(AssertionError):
    """The process ended, or was not ready in time; the message holds the end of its output."""


class NotInstalledError(Exception):
    """A program that a test needs is missing here; the message says which one."""


@contextlib.contextmanager
def skip_if_missing() -> Iterator[None]:
    """Skip the test or fixture where what the block needs is not installed."""
    import pytest

    try:
        yield
    except NotInstalledError as error:
        pytest.skip(str(error))


@contextlib.contextmanager
def own_folder(name: str) -> Iterator[Path]:
    """Make a folder for a server, and remove it at the end.

    It is not below the tests' folder: another user could not get there, and a socket's path must be
    short.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"tidemill-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def as_user(name: str, folder: Path) -> list[str]:
    """Return the prefix of a command that runs as a user, who gets the folder; empty without root.

    Raises:
        NotInstalledError: there is no such user.
    """
    if os.getuid() != 0:
        return []
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise NotInstalledError(f"root can't run the server, and there is no user {name}") from None
    if shutil.which("setpriv") is None:
        raise NotInstalledError("root can't run the server without setpriv (util-linux)")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def accepts_connections(host: str, port: int) -> bool:
    """Return whether a process listens on this port."""
    try:
        with socket.create_connection((host, port), timeout=10):
            return True
    except OSError:
        return False


LEAST_PATIENCE_S = 90.0
"""No wait for a condition gives up earlier: a deadline that is never reached costs nothing."""


def poll_until(
    condition: Callable[[], bool], timeout: float, what: str, interval: float = 0.01
) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it did not hold within ``timeout`` seconds, or LEAST_PATIENCE_S if that is
            more.
    """
    timeout = max(timeout, LEAST_PATIENCE_S)
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {what}")
        time.sleep(interval)


def assert_stays(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Check for so long that a condition holds all the time.

    It can show that something happened which must not, and never that it can't happen.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"not for {seconds} s: {what}"
        time.sleep(0.01)


class ServerProcess:
    """One server in its own process group, with its output in files.

    Args:
        name: its name in messages.
        command: program and arguments.
        log_path: file for stderr. Restarts append to it.
        stdout_path: file for stdout; default: the same as stderr.
        env: its environment; default: the present one.
        cwd: working folder.
        forked: start ``python -m MODULE`` without the imports (``tests/support/forks.py``).
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        *,
        stdout_path: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        forked: bool = False,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | forks.Fork
        if forked:
            _, option, module, *arguments = command
            assert option == "-m"
            self._process = forks.start(
                module,
                arguments,
                stdout=stdout_path or log_path,
                stderr=log_path,
                env=os.environ if env is None else env,
                cwd=cwd or Path.cwd(),
            )
            return
        with log_path.open("ab") as log, (stdout_path or log_path).open("ab") as stdout:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=log,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id; the process may have ended."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative signal number where a signal ended it."""
        return self._process.poll()

    def output(self, last_characters: int = 8000) -> str:
        """Return the end of its output."""
        return self.log_path.read_text(errors="replace")[-last_characters:]

    def wait_until(self, ready: Callable[[], bool], timeout: float) -> None:
        """Wait for a condition while the process runs.

        Raises:
            StartFailedError: the process ended, or did not get ready, as with ``poll_until``.
        """
        timeout = max(timeout, LEAST_PATIENCE_S)
        deadline = time.monotonic() + timeout
        while not ready():
            if self.exit_code is not None:
                raise StartFailedError(
                    f"{self.name} ended with {self.exit_code} before it was ready:\n{self.output()}"
                )
            if time.monotonic() > deadline:
                raise StartFailedError(
                    f"{self.name} was not ready within {timeout} s:\n{self.output()}"
                )
            time.sleep(0.01)

    def wait(self, timeout: float) -> int:
        """Wait until it ends, and return its exit code.

        Raises:
            TimeoutError: it still runs after ``timeout`` seconds.
        """
        try:
            return self._process.wait(timeout=max(timeout, LEAST_PATIENCE_S))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} still runs:\n{self.output()}") from None

    def send_signal(self, number: int) -> None:
        """Send a signal to the whole process group, if it still runs."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL (no handler runs, no buffer is flushed) and wait until it has ended."""
        self.send_signal(signal.SIGKILL)
        self._process.wait(timeout=60)

    def terminate(self, timeout: float = 120) -> int:
        """Send SIGTERM, wait, and return the exit code. Kill it if it does not end.

        Raises:
            TimeoutError: it still ran after ``timeout`` seconds.
        """
        self.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout=max(timeout, LEAST_PATIENCE_S))
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(
                f"{self.name} ignored SIGTERM for {timeout} s:\n{self.output()}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
