"""The process that imports what Spark's Python processes need, and forks them.

    python -m tidemill.spark.workers.fork_server FD

FD is a listening Unix socket. ``handoff`` sends a request for each process that Spark starts. The
fork gets the arguments, the environment, the folder and the standard files that Spark gave to
``handoff``, and runs the module as ``python -m`` does. If ``handoff`` is killed, so is the fork.
The server ends when its standard input does: that is when the program that started it has ended.
Must not know: sessions, options.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import marshal
import os
import runpy
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill.spark.workers.handoff import ENDED, LENGTH_BYTES, REFUSED, STARTED
from tidemill.system import set_process_name

MODULES = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pandas",
    "pyarrow",
    "tidemill.spark.datasource.data_source",
    "tidemill.spark.datasource.worker_daemon",
    "tidemill.spark.datasource.writers",
    "tidemill.spark.sinks.topic.delivery.exactly_once",
    "tidemill.spark.source.cluster",
    "tidemill.reading.fetch",
    "tidemill.reading.librdkafka",
    "tidemill.reading.own",
    "tidemill.reading.parse.json_parser",
    "tidemill.spark.source.parse.types",
    "tidemill.spark.source.planning.planner",
    "tidemill.spark.source.rows",
)
"""Modules that are imported before the first fork. One that can't be imported is left out."""

_REQUEST_TIMEOUT_S = 10.0
_LONGEST_REQUEST = 16 << 20
"""Bytes. Linux limits arguments and environment to a few megabytes."""
_READ_AT_START = (
    "PYTHONHASHSEED",
    "PYTHONHOME",
    "PYTHONUTF8",
    "PYTHONIOENCODING",
    "PYTHONWARNINGS",
    "PYTHONOPTIMIZE",
    "PYTHONDEVMODE",
    "PYTHONMALLOC",
    "PYTHONNOUSERSITE",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
)
"""Variables that have an effect only when an interpreter starts."""
_INSTEAD = {"pyspark.daemon": "tidemill.spark.datasource.worker_daemon"}
"""By module: the module that is run instead. Spark SQL ignores ``spark.python.daemon.module``."""
_NAMES = {"pyspark.sql.streaming.python_streaming_source_runner": "spark-planner"}
"""By module: the name that ``ps`` shows for its process, at most 15 bytes."""


@dataclass(frozen=True)
class Request:
    """The process that Spark wants.

    Attributes:
        arguments: the arguments of the interpreter: ``-m``, a module, and the module's arguments.
        environ: its environment.
        folder: its working folder.
        files: descriptors for its standard input, output and error.
    """

    arguments: Sequence[str]
    environ: Mapping[str, str]
    folder: str
    files: Sequence[int]


class ForkServer:
    """Accepts requests and forks."""

    def __init__(self, listener: socket.socket, environ: Mapping[str, str]) -> None:
        self._listener = listener
        self._environ = environ
        self._launchers: set[socket.socket] = set()  # have connected, and sent nothing yet
        self._forks: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._wake_end = socket.socketpair()

    def serve(self) -> Request | None:
        """Serve until standard input ends.

        Returns:
            None when the server is to end. In a forked process: the request that it has to run.
        """
        self._wake.setblocking(False)
        self._wake_end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)
        for file in (0, self._listener, self._wake):
            self._selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    if not os.read(0, 1024):
                        return None
                elif key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._launchers.add(connection)
                    self._selector.register(connection, selectors.EVENT_READ)
                elif key.fileobj is self._wake:
                    with contextlib.suppress(BlockingIOError):
                        self._wake.recv(1024)
                    self._reap()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._launchers:
                    request = self._fork_for(key.fileobj)
                    if request is not None:
                        return request
                else:
                    self._launcher_has_ended(key.fileobj)

    def _fork_for(self, connection: socket.socket) -> Request | None:
        """Answer one request. Return it in the forked process, and None in the server."""
        self._launchers.remove(connection)
        self._selector.unregister(connection)
        connection.settimeout(_REQUEST_TIMEOUT_S)
        request = _receive(connection)
        if request is None or not self._can_run(request):
            pid = -1
        else:
            try:
                pid = os.fork()
            except OSError:
                pid = -1
        if pid == 0:
            self._leave()
            # The fork answers, and not the server: the launcher knows the fork before the module
            # runs, whenever the server is next given a core, and also if it is killed.
            _answer(connection, STARTED, os.getpid())
            connection.setblocking(True)
            connection.detach()  # stays open until this process ends
            return request
        _close(() if request is None else request.files)
        if pid < 0:
            _answer(connection, REFUSED, 0)
            connection.close()
        else:
            self._forks[pid] = connection
            self._selector.register(connection, selectors.EVENT_READ)
        return None

    def _can_run(self, request: Request) -> bool:
        """Whether a fork of this interpreter is as good as the interpreter that Spark wanted."""
        return all(
            request.environ.get(each, self._environ.get(each)) == self._environ.get(each)
            for each in _READ_AT_START
        )

    def _leave(self) -> None:
        """Release in the forked process what belongs to the server."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        own = (self._listener, self._wake, self._wake_end)
        for each in (*own, *self._launchers, *self._forks.values()):
            each.close()
        self._launchers.clear()
        self._forks.clear()

    def _reap(self) -> None:
        """Report the ends of forks."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self._forks.pop(pid, None)
            if connection is not None:
                self._selector.unregister(connection)
                _answer(connection, ENDED, os.waitstatus_to_exitcode(status))
                connection.close()

    def _launcher_has_ended(self, connection: object) -> None:
        """Kill the fork of a launcher that was killed. Its end is reaped later."""
        for pid, each in self._forks.items():
            if each is connection:
                self._selector.unregister(each)
                os.kill(pid, signal.SIGKILL)
                each.close()
                del self._forks[pid]
                return


def _receive(connection: socket.socket) -> Request | None:
    """Return a request; None if it is not complete and valid."""
    files: list[int] = []
    try:
        head, files, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 3)
        length = int.from_bytes(head, "big")
        if len(head) == LENGTH_BYTES and len(files) == 3 and length <= _LONGEST_REQUEST:
            content = bytearray()
            while len(content) < length:
                more = connection.recv(length - len(content))
                if not more:
                    break
                content += more
            arguments, environ, folder = marshal.loads(content)
            return Request(arguments, environ, folder, files)
    except (OSError, EOFError, TypeError, ValueError):
        pass
    _close(files)
    return None


def _answer(connection: socket.socket, kind: bytes, number: int) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(kind + number.to_bytes(4, "big", signed=True))


def _close(files: Sequence[int]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)


def search_path(request: Request, own: Sequence[str], started_with: str) -> list[str]:
    """Return ``sys.path`` of a process.

    Args:
        own: ``sys.path`` of this interpreter.
        started_with: PYTHONPATH of this interpreter.
    """
    was_named = {os.path.abspath(each) for each in started_with.split(os.pathsep) if each}
    named = [each for each in request.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    # The first entry of each is the working folder, as after python -m.
    rest = [each for each in own[1:] if each not in was_named]
    return list(dict.fromkeys([request.folder, *map(os.path.abspath, named), *rest]))


def run(request: Request, started_with: str) -> None:
    """Become the process of a request, and run its module."""
    for number, file in enumerate(request.files):
        os.dup2(file, number)
    _close(request.files)
    os.setpgid(0, 0)
    with contextlib.suppress(OSError):
        os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environ)
    sys.path[:] = search_path(request, sys.path, started_with)
    _, module, *arguments = request.arguments
    module = _INSTEAD.get(module, module)
    sys.argv[:] = [module, *arguments]
    for stream in (sys.stdout, sys.stderr):  # as PYTHONUNBUFFERED, which Spark sets
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    if module in _NAMES:
        set_process_name(_NAMES[module])
    sys.modules.pop(module, None)  # runpy runs it under the name __main__
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def preload() -> None:
    """Import the modules."""
    # Threads do not survive a fork, and NumPy's OpenBLAS starts one for each core when it is
    # imported. A worker runs one task, and a task has one core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # tidemill does not use pandas, so its version does not matter.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # a collection in a fork would copy the pages that it shares with the server


def main() -> None:
    """Import, then serve."""
    environ = dict(os.environ)
    # Ctrl-C and a closed terminal concern the program that started the server.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    preload()
    request = ForkServer(listener, environ).serve()
    if request is not None:
        run(request, environ.get("PYTHONPATH", ""))


if __name__ == "__main__":
    main()
