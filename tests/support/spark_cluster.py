"""Runs a standalone Spark cluster from PySpark's jars: a master and workers, each a JVM.

Must not know: drivers, queries, brokers.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.support.processes import ServerProcess
from tidemill.spark.base import jvm
from tidemill.spark.base.java import find_java

_START_S = 120.0
_JVM_FLAGS = (
    *("-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    # There is no limit on how often executors are replaced.
    "-Dspark.deploy.maxExecutorRetries=-1",
)
_URL = re.compile(r"Starting Spark master at (spark://\S+)")


class SparkCluster:
    """A master and its workers on this machine.

    Args:
        folder: For logs and the folders of executors.
        workers: Number of workers.
        cores: Cores of each worker.
        memory: Memory of each worker for executors.
    """

    def __init__(
        self, folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "600m"
    ) -> None:
        self._folder = folder
        self._cores, self._memory = cores, memory
        self._started = 0
        self.workers: list[ServerProcess] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.master = self._start("master.Master", "--host", "127.0.0.1", "--port", "0")
        try:
            self.master.wait_until(lambda: self._url() is not None, _START_S)
            for _ in range(workers):
                self.start_worker()
            for worker in self.workers:
                worker.wait_until(partial(_is_registered, worker), _START_S)
        except BaseException:
            self.kill()
            raise

    @property
    def url(self) -> str:
        """The master URL."""
        url = self._url()
        assert url is not None, "not started"
        return url

    def _url(self) -> str | None:
        found = _URL.search(self.master.log_path.read_text(errors="replace"))
        return None if found is None else found[1]

    def start_worker(self) -> ServerProcess:
        """Start a worker, and return without waiting for its registration."""
        work = self._folder / f"work-{self._started}"
        size = ("--cores", str(self._cores), "--memory", self._memory)
        options = ("--host", "127.0.0.1", *size, "--work-dir", str(work))
        worker = self._start("worker.Worker", *options, self.url)
        self.workers.append(worker)
        return worker

    def kill_worker(self, worker: ServerProcess) -> None:
        """Kill a worker, and start another one. Its executors end when they notice it."""
        self.workers.remove(worker)
        worker.kill()
        self.start_worker()

    def processes(self) -> list[psutil.Process]:
        """Return the executors of all workers, and their Python processes."""
        found: list[psutil.Process] = []
        for worker in self.workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += psutil.Process(worker.pid).children(recursive=True)
        return found

    def kill_workers(self) -> None:
        """Kill all workers. Their executors end when they notice it."""
        while self.workers:
            self.workers.pop().kill()

    def kill(self) -> None:
        """Kill the workers with all that they run, and the master."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.kill_workers()
        self.master.kill()

    def _start(self, name: str, *arguments: str) -> ServerProcess:
        import pyspark

        home = Path(next(iter(pyspark.__path__)))
        java = find_java().path
        log4j = self._folder / "log4j2.properties"
        log4j.write_text(_LOG4J)
        self._started += 1
        command = [str(java), *_JVM_FLAGS, *_archive(), f"-Dlog4j2.configurationFile={log4j}"]
        command += ["-cp", str(home / "jars" / "*"), f"org.apache.spark.deploy.{name}"]
        env = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": str(java.resolve().parent.parent),
            "PYSPARK_PYTHON": sys.executable,
        }
        log = self._folder / f"{name}-{self._started}.log"
        options = [*arguments[:2], "--webui-port", "0", *arguments[2:]]
        return ServerProcess(name, [*command, *options], log, env=env)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


def executor_settings() -> dict[str, str]:
    """Return the settings of Spark with which executors use the archive of classes.

    Java uses an archive only if the class path begins with that of the archive. Spark's own begins
    with the folder of settings.
    """
    archive = jvm.class_archive()
    if archive is None or archive.list is not None:
        return {}
    return {
        "spark.executor.extraClassPath": archive.class_path,
        "spark.executor.extraJavaOptions": shlex.join(archive.options),
    }


def _archive() -> Sequence[str]:
    """Return the options for the archive of classes, if it is there. It halves a start."""
    archive = jvm.class_archive()
    return () if archive is None or archive.list is not None else archive.options


def _is_registered(worker: ServerProcess) -> bool:
    return "Successfully registered" in worker.output()


_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex{short}
logger.deploy.name = org.apache.spark.deploy
logger.deploy.level = info
"""
