"""Follow a run from the first report to the check: replay, edits, results, and the end of both.

This module decides the order only. It prints nothing (see ``progress``).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tidemill.demo import topics
from tidemill.demo.check import Check
from tidemill.demo.check_all import Left, check_all
from tidemill.demo.database.capture import Database, RunningCapture
from tidemill.demo.database.delivery import Delivery
from tidemill.demo.database.editor import Editor
from tidemill.demo.database.registry import Registry
from tidemill.demo.events import CLOCK_MARGIN, Report
from tidemill.demo.flights import Stretch
from tidemill.demo.pipeline import PipelineFailedError, RunningPipeline, has_read
from tidemill.demo.progress import Checking, DemoReport, Listener, Replayed, Running
from tidemill.demo.replay import Replay
from tidemill.demo.results import ResultsFollower
from tidemill.local.broker import Broker

if TYPE_CHECKING:
    from tidemill.spark.pipelines.progress import QueryStatus

REFRESH_S = 0.2
STALLED_S = 180.0


class Task:
    """Work in a thread. At the end of the block, the thread has ended.

    Args:
        name: the name of the thread.
        work: the work. It returns soon after the event that it gets is set.
    """

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        self._work = work
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def is_running(self) -> bool:
        """Whether the work is not finished."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise the error with which the work has ended, if there is one."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._work(self._stop)
        except BaseException as error:  # check() raises it in the main thread
            self._failure = error


@dataclass(frozen=True)
class Input:
    """The reports that a run sends, and the rows that it changes."""

    stretch: Stretch
    registry: Registry
    reports: list[Report]


@dataclass(frozen=True)
class Parts:
    """The running parts of a run. Without a search index, or a broker of its own, they are None."""

    address: str
    broker: Broker | None
    database: Database
    capture: RunningCapture
    delivery: Delivery
    editor: Editor
    editing: Task
    pipeline: RunningPipeline
    follower: ResultsFollower
    index: Path | None

    def check(self) -> None:
        """Check that all parts run."""
        if self.broker is not None:
            self.broker.check_running()
        self.capture.check()
        self.editing.check()
        self.pipeline.check()


class Following:
    """The part of a run in which reports are sent, rows are edited, and results are read.

    ``speed`` is a multiple of real time; None: as fast as possible.
    """

    def __init__(self, speed: float | None, given: Input, parts: Parts, listener: Listener) -> None:
        self._input = given
        self._parts = parts
        self._listener = listener
        self._replay = Replay(
            given.reports,
            bootstrap_servers=parts.address,
            speed=speed,
            before=parts.editor.wait_for,
        )

    def follow_to_the_end(self, began: float, folder: Path) -> DemoReport:
        """Replay, wait until the pipeline has published everything, and check the results."""
        parts = self._parts
        with Task("replay", self._replay.run) as replaying:
            while replaying.is_running:
                self._look()
            parts.check()  # the reason of a replay that failed may be there
            replaying.check()
        self._listener(Replayed(self._replay.progress(), parts.editor.progress()))
        captured = [topics.Topic(name) for name in parts.capture.topics.values()]
        read = (*topics.SENT, *captured)
        ends = _by_topic(topics.end_offsets(parts.address, read))
        self._wait_for_the_pipeline(ends)
        parts.follower.read_up_to(topics.end_offsets(parts.address, topics.TOPICS))
        running = self._running()
        self._listener(running)
        self._listener(Checking(sum(running.results.counts.values())))
        return DemoReport(
            stretch=self._input.stretch,
            bootstrap_servers=parts.address,
            database=parts.database.kind,
            checks=self._checks(running),
            results=running.results,
            replay=running.replay,
            edits=running.edits,
            queries=running.queries,
            stored={topic.name: ends[topic.name] for topic in topics.SENT},
            sent=Counter(report.topic for report in self._input.reports),
            folder=folder,
            seconds=time.monotonic() - began,
        )

    def stay(self) -> None:
        """Continue until interrupted."""
        while True:
            self._parts.check()
            self._parts.follower.poll(1.0)

    def _checks(self, running: Running) -> list[Check]:
        parts, given = self._parts, self._input
        tables = parts.database.open()
        try:
            left = Left(
                database={table: tables.rows(table) for table in parts.capture.topics},
                captured={table: rows.values() for table, rows in parts.delivery.rows.items()},
                index=parts.index,
            )
        finally:
            tables.close()
        return check_all(given.stretch, given.registry, given.reports, running.results, left)

    def _wait_for_the_pipeline(self, stored: dict[str, int]) -> None:
        """Wait until each query has read everything and run a batch with the last watermark.

        The last records of both streams are clock signals that move the watermark to the end of the
        stretch. Then all its windows are final and published.
        """
        end = self._input.stretch.end + CLOCK_MARGIN
        seen, since = None, time.monotonic()
        while True:
            queries = self._look().queries
            if all(has_read(status, stored, end) for status in queries):
                return
            state = [(status.batch, status.watermark) for status in queries]
            if state != seen:
                seen, since = state, time.monotonic()
            if time.monotonic() - since > STALLED_S:
                behind = [each for each in queries if not has_read(each, stored, end)]
                raise PipelineFailedError(
                    f"the pipeline has not moved for {STALLED_S:g} s; {names(behind)}",
                    hint=f"Spark's log is {self._parts.pipeline.log_file}.",
                )

    def _look(self) -> Running:
        """Read new results, report the progress, and check that all parts still run."""
        self._parts.follower.poll(REFRESH_S)
        running = self._running()
        self._listener(running)
        self._parts.check()
        return running

    def _running(self) -> Running:
        return Running(
            replay=self._replay.progress(),
            queries=self._parts.pipeline.statuses,
            results=self._parts.follower.results,
            edits=self._parts.editor.progress(),
        )


def names(behind: Iterable[QueryStatus]) -> str:
    """Return the names of queries, each with its error or state."""
    found = (f"{each.query} ({each.error or each.state})" for each in behind)
    return f"waiting for {', '.join(found) or 'Spark'}"


def _by_topic(ends: Mapping[tuple[str, int], int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (topic, _), end in ends.items():
        found[topic] += end
    return dict(found)
