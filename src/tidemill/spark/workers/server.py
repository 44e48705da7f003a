"""Starts and stops the fork server of this program.

Must not know: sessions, the JVM, Kafka.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tidemill.spark.workers import handoff
from tidemill.system import is_linux

log = logging.getLogger("tidemill.spark")

LAUNCHER = Path(__file__).with_name("launcher.sh")
"""The program that Spark runs instead of the interpreter."""
SWITCH = "TIDEMILL_SPARK_FORK_SERVER"
"""Environment variable; ``0`` starts no server."""

_MODULE = "tidemill.spark.workers.fork_server"
_STOP_TIMEOUT_S = 5.0


class WorkerServer:
    """A fork server. It ends when this process does.

    Args:
        process: the server, which serves until its input ends.
        folder: the folder of its socket; it is deleted at the end.
        environ: variables that a JVM needs so that its Python processes use the server.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, environ: Mapping[str, str]
    ) -> None:
        self.environ = environ
        self._process = process
        self._folder = folder

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def stop(self) -> None:
        """End the server. Its forks continue."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def start_server(output: IO[bytes] | None = None) -> WorkerServer | None:
    """Start a fork server.

    Returns:
        The server, or None if this system can't have one, or the user does not want one. Then each
        Python process of Spark imports for itself.
    """
    if os.environ.get(SWITCH) == "0" or not is_linux():
        return None
    if not os.access(LAUNCHER, os.X_OK):  # an installer dropped the bit, or noexec
        log.info("%s is not executable: Spark's Python processes start more slowly", LAUNCHER)
        return None
    folder: Path | None = None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        folder = Path(tempfile.mkdtemp(prefix="tidemill-workers-"))
        path = folder / "socket"
        # Before the server runs: a process that connects meanwhile waits for it.
        listener.bind(str(path))
        listener.listen(socket.SOMAXCONN)
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=output if output is not None else sys.__stderr__,
            stderr=output if output is not None else sys.__stderr__,
            # Spark gives its Python processes this seed, so that all hash alike.
            env={**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")},
            pass_fds=(listener.fileno(),),
            start_new_session=True,
        )
    except OSError as error:  # no space, or a path that is too long for a socket
        log.info("no fork server for Spark's Python processes: %s", error)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return None
    finally:
        listener.close()
    environ = {
        handoff.SOCKET: str(path),
        handoff.PYTHON: sys.executable,
        "PYSPARK_PYTHON": str(LAUNCHER),
    }
    return WorkerServer(process, folder, environ)
