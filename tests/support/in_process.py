"""Runs programs and ``tidemill`` commands in this process, on the Spark session that it has.

A process of its own takes half a second to start, and a JVM takes longer than most of what tests do
with it. A program that runs here gets its own folder and environment, as in a process of its own,
and leaves the session as it was. It can't end the JVM or react to signals.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Result:
    """The exit code and the output of a program or command.

    Attributes:
        output: stdout and stderr, in the order in which they were printed.
    """

    exit_code: int
    stdout: str
    stderr: str
    output: str


class InProcess:
    """Runs programs one after the other.

    Args:
        spark: the session of this process; None if no program needs Spark.
    """

    def __init__(self, spark: SparkSession | None) -> None:
        self._spark = spark

    @property
    def has_spark(self) -> bool:
        """Whether programs can use Spark without starting a JVM."""
        return self._spark is not None

    def run_program(self, code: str, folder: Path, env: Mapping[str, str]) -> Result:
        """Run Python code as ``python -c`` does, in a folder, with these variables."""
        stdout, stderr, both = io.StringIO(), io.StringIO(), io.StringIO()
        exit_code = 0
        with (
            self._place(folder, env),
            contextlib.redirect_stdout(_Tee(stdout, both)),
            contextlib.redirect_stderr(_Tee(stderr, both)),
        ):
            try:
                exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
            except SystemExit as end:
                exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except Exception:
                traceback.print_exc(file=sys.stderr)
                exit_code = 1
        return Result(exit_code, stdout.getvalue(), stderr.getvalue(), both.getvalue())

    def run_command(self, arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> Result:
        """Run ``tidemill`` with these arguments, in a folder, with these variables."""
        from tests.support.cli_runner import CliRunner
        from tidemill.cli.main import app

        with self._place(folder, env):
            done = CliRunner().invoke(app, list(arguments))
        return Result(done.exit_code, done.stdout, done.stderr, done.output)

    @contextlib.contextmanager
    def _place(self, folder: Path, env: Mapping[str, str]) -> Iterator[None]:
        """Make a folder and an environment current, for Python and for the JVM."""
        before = Path.cwd(), dict(os.environ), list(sys.path)
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        with contextlib.ExitStack() as stack:
            if self._spark is not None:
                stack.enter_context(_clean_session(self._spark, folder))
            os.environ.clear()
            os.environ.update(env)
            os.chdir(folder)
            try:
                yield
            finally:
                os.chdir(before[0])
                os.environ.clear()
                os.environ.update(before[1])
                sys.path[:] = before[2]
                for number, handler in handlers.items():
                    signal.signal(number, handler)


@contextlib.contextmanager
def _clean_session(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Make a folder current for the JVM; afterwards restore that and the session's settings.

    Stops queries that still run, and drops temporary views and cached rows.
    """
    settings, working_folder = dict(spark.conf.getAll), Path.cwd()
    _set_working_folder(spark, folder)
    try:
        yield
    finally:
        _set_working_folder(spark, working_folder)
        for query in spark.streams.active:
            query.stop()
        spark.catalog.clearCache()
        # spark.catalog.listTables() fails where Spark compiles no code for stages.
        for table in spark.sql("SHOW TABLES").collect():
            if table.isTemporary:
                spark.catalog.dropTempView(table.tableName)
        for key, value in dict(spark.conf.getAll).items():
            if key not in settings:
                spark.conf.unset(key)
            elif settings[key] != value:
                spark.conf.set(key, settings[key])


def _set_working_folder(spark: SparkSession, folder: Path) -> None:
    """Tell Hadoop's local file system, which resolves relative paths in the JVM."""
    java: Any = spark._jvm
    path = java.org.apache.hadoop.fs.Path(str(folder))
    file_system = java.org.apache.hadoop.fs.FileSystem.get(
        path.toUri(), spark._jsc.hadoopConfiguration()
    )
    file_system.setWorkingDirectory(path)


class _Tee(io.TextIOBase):
    """Writes to two streams."""

    def __init__(self, *streams: io.StringIO) -> None:
        self._streams = streams

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for stream in self._streams:
            stream.write(text)
        return len(text)
