"""Pass the command line of a Python worker to the fork server, and act for the forked process.

    python -IS handoff.py -m pyspark.daemon pyspark.worker

Spark started this process and watches it: it sends it signals and reads its exit code. So this
process stays until the fork has ended, forwards signals to it, and ends as it does. If there is no
server, or the server refuses, this process becomes the interpreter that Spark wanted. It runs
without site-packages. Must not know: anything but the standard library.

Message to the server: a length (4 bytes), with the descriptors 0 to 2; then as many bytes, a tuple
in the format of ``marshal``. Answers: a kind (1 byte) and a number (4 bytes). ``STARTED`` comes
from the fork itself, with its process id, before it runs the module: so neither what the fork does
nor the end of the server can overtake it. ``ENDED`` comes from the server, with the exit code of
the fork; ``REFUSED`` comes from the server instead of a fork.
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
STARTED, ENDED, REFUSED = b"S", b"E", b"R"
"""Kinds of answers."""
ANSWER_BYTES = 5

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> None:
    """Have the server fork a process for these arguments, or run the interpreter with them."""
    path = os.environ.get(SOCKET)
    # Spark also asks the interpreter for its version (-c). That needs no module.
    if path and arguments[:1] == ["-m"] and len(arguments) > 1:
        # A signal that comes before the fork is known waits until it can be forwarded.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        server = _connect(path)
        if server is not None:
            pid = _request(server, arguments)
            if pid is not None:
                _act_for(pid, server)
            server.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    os.execv(sys.executable, [sys.executable, *arguments])


def _connect(path: str) -> socket.socket | None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect(path)
    except OSError:
        server.close()
        return None
    return server


def _request(server: socket.socket, arguments: list[str]) -> int | None:
    """Send the request and return the id of the forked process; None if none runs."""
    try:
        # The variables of this module are not meant for programs that a worker starts.
        environ = {k: v for k, v in os.environ.items() if k not in (SOCKET, PYTHON)}
        message = marshal.dumps((arguments, environ, os.getcwd()))
        whole = len(message).to_bytes(LENGTH_BYTES, "big") + message
        sent = socket.send_fds(server, [whole], [0, 1, 2])
        server.sendall(whole[sent:])
    except OSError:
        return None
    # A fork that was killed before it answered has run nothing of the module.
    kind, number = _answer(server)
    return number if kind == STARTED else None


def _act_for(pid: int, server: socket.socket) -> None:
    """Wait until the forked process has ended, and end in the same way."""

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.kill(pid, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    # The fork has these files now. Spark waits for the end of its output.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(nowhere, file)
    # The fork has the other end of this connection, too, so it outlives a server that was killed.
    kind, code = _answer(server)
    if kind != ENDED:
        os._exit(1)
    if code < 0:
        if -code in _FORWARDED:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _answer(server: socket.socket) -> tuple[bytes, int]:
    """Receive an answer; its kind is empty if the other end is closed."""
    content = b""
    while len(content) < ANSWER_BYTES:
        try:
            more = server.recv(ANSWER_BYTES - len(content))
        except OSError:
            more = b""
        if not more:
            return b"", 0
        content += more
    return content[:1], int.from_bytes(content[1:], "big", signed=True)


if __name__ == "__main__":
    main(sys.argv[1:])
