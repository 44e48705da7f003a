"""Run the control room's pipeline in a thread, and say how far it is.

This module imports Spark only when the pipeline starts.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tidemill.demo.events import ARRIVALS, DEPARTURES
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.spark.pipelines.progress import QueryStatus
    from tidemill.spark.pipelines.runner import Runner


STREAMS = (DEPARTURES, ARRIVALS)
"""The topics of reports."""
LOOKING_UP = frozenset({"enriched"})
"""The queries that look rows of tables up. All others read the changes of their tables."""


class PipelineFailedError(TidemillError):
    """A query ended with an error, or makes no progress although there are records to read."""


class RunningPipeline:
    """The running pipeline of ``control_room``. Use it as a context manager.

    It starts a JVM, and ends it at the end of the block.
    """

    def __init__(
        self, bootstrap_servers: str, folder: Path, tables: Mapping[str, str], index: Path | None
    ) -> None:
        self.log_file = folder / "spark.log"
        self._servers = bootstrap_servers
        self._folder = folder
        self._tables = tables
        self._index = index
        self._stop = threading.Event()
        self._runner: Runner | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)

    def __enter__(self) -> Self:
        from tidemill.demo import control_room
        from tidemill.spark.pipelines.runner import Runner, RunOptions

        control_room.use_topics(self._tables)
        if self._index is not None:
            control_room.add_search_index(self._index)
        options = RunOptions(
            bootstrap_servers=self._servers,
            state=self._folder / "pipelines",
            log_file=self.log_file,
        )
        self._runner = Runner(control_room.pipeline, options)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        from tidemill.spark.base import jvm

        self._stop.set()
        try:
            self._thread.join()
        finally:  # a second Ctrl-C, too
            jvm.shutdown()

    @property
    def statuses(self) -> Sequence[QueryStatus]:
        """The status of each query; empty before Spark has started."""
        return self._runner.statuses if self._runner is not None else ()

    def check(self) -> None:
        """Check that all queries run."""
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
        except BaseException as error:  # check() raises it in the main thread
            self._error = error


def has_started(status: QueryStatus) -> bool:
    """Whether a query has run a batch.

    A new query runs a batch even without records, and has loaded and compiled its code with it.
    """
    return status.batch >= 0


def all_have_started(statuses: Sequence[QueryStatus]) -> bool:
    """Whether there are queries, and each has run a batch."""
    return bool(statuses) and all(has_started(status) for status in statuses)


def has_read(status: QueryStatus, ends: Mapping[str, int], time: int) -> bool:
    """Whether a query has read all records and published all final results.

    ``ends`` has the ends of topics, which do not grow any more. A query with state must reach the
    watermark ``time``, in Unix seconds.
    """
    read = {source.topic: source.read for source in status.sources}
    streamed = [topic for topic in read if topic in STREAMS or status.query not in LOOKING_UP]
    if any(read[topic] < ends[topic] for topic in streamed):
        return False
    waits = status.has_watermark and status.state_rows != 0
    return not waits or watermark(status) >= time


def watermark(status: QueryStatus) -> int:
    """Return a query's watermark in Unix seconds, or 0 if it has none yet."""
    return 0 if status.watermark is None else int(instant(status.watermark))


def instant(text: str) -> float:
    """Return the Unix time in seconds of a time in ISO 8601."""
    return datetime.fromisoformat(text).timestamp()
