"""The control room, running: its pipeline in a thread, and how far it is.

Knows the runner, which knows Spark; this module imports neither before it is asked to start.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidemill.demo.events import ARRIVALS, DEPARTURES
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.spark.progress import QueryStatus
    from tidemill.spark.runner import Runner


STREAMS = (DEPARTURES, ARRIVALS)
"""Topics of which each query that names them reads all; a table may be looked up only."""


class PipelineFailedError(TidemillError):
    """A query ended with an error, or does nothing though there are reports to read."""


class RunningPipeline:
    """The pipeline of ``control_room``. Use as a context manager.

    Starts a JVM, and ends it when it is left.

    Args:
        bootstrap_servers: of the brokers that have the topics.
        folder: for checkpoints and Spark's log.
    """

    def __init__(self, bootstrap_servers: str, folder: Path) -> None:
        self.log_file = folder / "spark.log"
        self._servers = bootstrap_servers
        self._folder = folder
        self._stop = threading.Event()
        self._runner: Runner | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)

    def __enter__(self) -> Self:
        from tidemill.demo import control_room
        from tidemill.spark.runner import Runner, RunOptions

        options = RunOptions(
            bootstrap_servers=self._servers,
            state=self._folder / "pipelines",
            log_file=self.log_file,
        )
        self._runner = Runner(control_room.pipeline, options)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from tidemill.spark import jvm

        self._stop.set()
        try:
            self._thread.join()
        finally:  # a second Ctrl-C, too
            jvm.shutdown()

    @property
    def statuses(self) -> Sequence[QueryStatus]:
        """Of all queries; none before Spark is up."""
        return self._runner.statuses if self._runner is not None else ()

    def check(self) -> None:
        """Whether all queries run.

        Raises:
            PipelineFailedError: one has failed, or the pipeline was not started.
            TidemillError: what the runner said.
        """
        hint = f"Spark's log is {self.log_file}."
        if isinstance(self._error, TidemillError):
            raise self._error
        failed = [status for status in self.statuses if status.state == "failed"]
        if failed:
            said = "; ".join(f"{status.query}: {status.error}" for status in failed)
            raise PipelineFailedError(f"the pipeline failed: {said}", hint=hint)
        if not self._thread.is_alive():
            raise PipelineFailedError(
                f"the pipeline ended: {self._error or 'without an error'}", hint=hint
            ) from self._error

    def _run(self) -> None:
        assert self._runner is not None
        try:
            self._runner.run(self._stop)
        except BaseException as error:  # handed over: check raises it
            self._error = error


def has_started(status: QueryStatus) -> bool:
    """Whether a query has run a batch. A new one runs one even of nothing; loading and compiling is
    done with it."""
    return status.batch >= 0


def all_have_started(statuses: Sequence[QueryStatus]) -> bool:
    """Whether there are queries, and each has run a batch."""
    return bool(statuses) and all(has_started(status) for status in statuses)


def has_read(status: QueryStatus, ends: Mapping[str, int], time: int) -> bool:
    """Whether a query has read all and published all that is final.

    Args:
        status: of the query.
        ends: sums of the end offsets of the topics that it streams, which do not grow any more.
        time: Unix time in seconds that its watermark is to reach, if it waits for one: if it keeps
            anything in its state.
    """
    read = {source.topic: source.read for source in status.sources}
    streamed = {topic for topic, count in read.items() if count or topic in STREAMS}
    if any(read[topic] < ends[topic] for topic in streamed):
        return False
    waits = status.has_watermark and status.state_rows > 0
    return not waits or watermark(status) >= time


def watermark(status: QueryStatus) -> int:
    """A query's watermark in Unix time in seconds; 0 without one, and before its first."""
    return 0 if status.watermark is None else int(instant(status.watermark))


def instant(text: str) -> float:
    """Unix time in seconds of a time in ISO 8601."""
    return datetime.fromisoformat(text).timestamp()
