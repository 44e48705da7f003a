"""Pass the command line of a Python worker to the fork server, and act for the forked process.

    python -IS handoff.py -m pyspark.daemon pyspark.worker

Spark started this process and watches it: it sends it signals and reads its exit code. So this
process stays until the fork has ended, forwards signals to it, and ends as it does. If there is no
server, or the server refuses, this process becomes the interpreter that Spark wanted. It runs
without site-packages. Must not know: anything but the standard library.

Message to the server: a length (4 bytes), with the descriptors 0 to 2; then as many bytes, a tuple
in the format of ``marshal``. Answers: the process id of the fork or 0, and later its exit code;
each of 4 bytes.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import sys
from types import FrameType

SOCKET = "TIDEMILL_WORKER_SOCKET"
"""Environment variable with the path of the server's socket."""
PYTHON = "TIDEMILL_WORKER_PYTHON"
"""Environment variable with the interpreter."""
LENGTH_BYTES = 4

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> None:
    """Have the server fork a process for these arguments, or run the interpreter with them."""
    path = os.environ.get(SOCKET)
    # Spark also asks the interpreter for its version (-c). That needs no module.
    if path and arguments[:1] == ["-m"] and len(arguments) > 1:
        server = _connect(path)
        pid = 0 if server is None else _request(server, arguments)
        if server is not None and pid > 0:
            _act_for(pid, server)
    os.execv(sys.executable, [sys.executable, *arguments])


def _connect(path: str) -> socket.socket | None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect(path)
    except OSError:
        server.close()
        return None
    return server


def _request(server: socket.socket, arguments: list[str]) -> int:
    """Send the request and return the id of the forked process; 0 if there is none."""
    try:
        # The variables of this module are not meant for programs that a worker starts.
        environ = {k: v for k, v in os.environ.items() if k not in (SOCKET, PYTHON)}
        message = marshal.dumps((arguments, environ, os.getcwd()))
        socket.send_fds(server, [len(message).to_bytes(LENGTH_BYTES, "big")], [0, 1, 2])
        server.sendall(message)
        return _number(server) or 0
    except OSError:
        return 0


def _act_for(pid: int, server: socket.socket) -> None:
    """Wait until the forked process has ended, and end in the same way."""

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.kill(pid, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    # The fork has these files now. Spark waits for the end of its output.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(nowhere, file)
    # The fork has the other end of this connection, too, so it outlives a server that was killed.
    code = _number(server)
    if code is not None and code < 0:
        if -code in _FORWARDED:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(1 if code is None else code)


def _number(server: socket.socket) -> int | None:
    """Receive a number; None if the other end is closed."""
    content = b""
    while len(content) < LENGTH_BYTES:
        try:
            more = server.recv(LENGTH_BYTES - len(content))
        except OSError:
            return None
        if not more:
            return None
        content += more
    return int.from_bytes(content, "big", signed=True)


if __name__ == "__main__":
    main(sys.argv[1:])
