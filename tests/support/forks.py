"""Starts Python modules as processes that are forked from one that has imported tidemill.

A broker spends half a second of processor time in imports, and a run starts hundreds of brokers. A
``Fork`` is what ``python -m MODULE`` would be, but for the imports: a process with its own session,
variables, folder and output, that ends as any other.

    python -m tests.support.forks FD

is the process that forks. It has no threads. It ends, with all that it has forked, when the process
that started it closes its end of the socket FD. Must not know what the modules do.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORTED = (
    "tidemill.cli.main",
    "tidemill.cli.server.serve",
    "tidemill.cli.server.process",
    "tidemill.cli.server.settings_file",
    "tidemill.engine.engine",
    "tidemill.net.garbage",
    "tidemill.protocols.amqp.server",
    "tidemill.protocols.kafka.server",
    "uvloop",
)
"""The modules that a broker imports, and that are imported once. Those that are missing are not."""
START_S = 120.0
_MOST_BYTES = 1 << 17
_FDS = 256


@dataclass(frozen=True)
class Program:
    """What a fork runs, and where. The files are opened for appending."""

    module: str
    arguments: list[str]
    stdout: str
    stderr: str
    env: dict[str, str]
    cwd: str


# --- in the process that forks --------------------------------------------------------------------


def serve(connection: socket.socket) -> Program | None:
    """Fork what is asked for, and tell what has ended, until the other end is closed.

    Returns:
        In a fork: what it must run. In the process that forks: None, at the end.
    """
    running: set[int] = set()
    awake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([connection, awake], [], [])
        if awake in ready:
            awake.recv(4096)
            _report_ends(connection, running)
        if connection in ready:
            request = connection.recv(_MOST_BYTES)
            if not request:
                break
            pid = os.fork()
            if pid == 0:
                return Program(**json.loads(request))
            running.add(pid)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return None


def _report_ends(connection: socket.socket, running: set[int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        running.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            connection.send(json.dumps({"ended": pid, "code": code}).encode())


def become(program: Program, connection: socket.socket) -> None:
    """Make this fork what a process that was started for the program is, and tell its number."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd, path in ((1, program.stdout), (2, program.stderr)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(opened, fd)
        os.close(opened)
    os.environ.clear()
    os.environ.update(program.env)
    time.tzset()
    os.chdir(program.cwd)
    sys.argv[1:] = program.arguments
    connection.send(json.dumps({"started": os.getpid()}).encode())
    connection.detach()
    os.closerange(3, _FDS)  # the sockets of the process that forks


def main(fd: int) -> None:
    """Run the process that forks, or in a fork its program."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    connection = socket.socket(fileno=fd)
    program = serve(connection)
    if program is not None:
        become(program, connection)
        runpy.run_module(program.module, run_name="__main__", alter_sys=True)


# --- in the process of the tests ------------------------------------------------------------------


class Fork:
    """A process that was forked, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, forks: _Forks, pid: int) -> None:
        self._forks = forks
        self.pid = pid

    def poll(self) -> int | None:
        """Return its exit code, the negative number of the signal that ended it, or None."""
        return self._forks.exit_code(self.pid, 0)

    def wait(self, timeout: float) -> int:
        """Wait for its end, and return its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        code = self._forks.exit_code(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code


class _Forks:
    """The process that forks, as seen by the one that started it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._started: list[int] = []
        self._codes: dict[int, int] = {}
        command = [sys.executable, "-m", __name__, str(other.fileno())]
        with other:
            # Kept, so that its end is not reported as that of a process which nobody waited for.
            self._server = subprocess.Popen(
                command,
                cwd=ROOT,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start(self, program: Program) -> Fork:
        with self._lock:
            self._socket.send(json.dumps(asdict(program)).encode())
            deadline = time.monotonic() + START_S
            while not self._started:
                self._receive(deadline - time.monotonic())
                assert time.monotonic() < deadline, "nothing is forked"
            return Fork(self, self._started.pop())

    def exit_code(self, pid: int, timeout: float) -> int | None:
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                # Others may wait for other processes, so nobody waits long.
                self._receive(min(0.05, max(0.0, deadline - time.monotonic())))
                if pid in self._codes:
                    return self._codes[pid]
            if time.monotonic() >= deadline:
                return None

    def _receive(self, timeout: float) -> None:
        """Read what has come; wait for something if nothing has."""
        while select.select([self._socket], [], [], max(0.0, timeout))[0]:
            timeout = 0
            message = self._socket.recv(_MOST_BYTES)
            assert message, "the process that forks has ended"
            event: dict[str, int] = json.loads(message)
            if "started" in event:
                self._started.append(event["started"])
                self._codes.pop(event["started"], None)  # of an earlier process of that number
            else:
                self._codes[event["ended"]] = event["code"]


_forks: _Forks | None = None


def start(
    module: str,
    arguments: list[str],
    *,
    stdout: Path,
    stderr: Path,
    env: Mapping[str, str],
    cwd: Path,
) -> Fork:
    """Start ``python -m MODULE ARGUMENTS`` as a fork of a process that has imported tidemill.

    Args:
        stdout: the file to which it appends what it prints.
        stderr: the same for its errors.
        env: all its variables. Those of Python itself (``PYTHONPATH``) have no effect.
        cwd: its working folder.
    """
    global _forks
    if _forks is None or _forks.owner != os.getpid():
        _forks = _Forks()
    return _forks.start(
        Program(
            module, arguments, str(stdout.absolute()), str(stderr.absolute()), dict(env), str(cwd)
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
