"""Run the demo from start to end: broker, topics, pipeline, replay, results, check.

This module decides the order only. It uses the broker by its address, whether the demo has started
it or not, and prints nothing (see ``progress``).

After an error or an interrupt, everything that was started is stopped: first the pipeline and the
JVM, then the broker. If this process is killed, both children end by themselves.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidemill.demo import check, check_results, topics
from tidemill.demo.events import CLOCK_MARGIN, Report, lateness, reports
from tidemill.demo.flights import Flight, Stretch, flights
from tidemill.demo.pipeline import (
    PipelineFailedError,
    RunningPipeline,
    all_have_started,
    has_read,
    has_started,
)
from tidemill.demo.process import BrokerProcess
from tidemill.demo.progress import (
    BrokerReady,
    Checking,
    DemoReport,
    FlightsLoaded,
    KeptRunning,
    Listener,
    PipelineStarted,
    QueriesStarting,
    Replayed,
    Running,
    SparkStarting,
    Stopping,
    TopicsReady,
)
from tidemill.demo.registry import Registry, registry
from tidemill.demo.replay import Replay
from tidemill.demo.results import Results, ResultsFollower
from tidemill.errors import SettingsError, TidemillError

if TYPE_CHECKING:
    from tidemill.spark.pipelines.progress import QueryStatus

_REFRESH_S = 0.2
_STALLED_S = 180.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of a run.

    Attributes:
        stretch: the days to replay.
        speed: how many times faster than real time; ``None`` for as fast as possible.
        bootstrap_servers: the address of a running broker, or ``None`` to start one.
        data_dir: the folder for the broker's data, the checkpoints and the logs. It must be new or
            empty, and is kept. ``None`` is a temporary folder that is removed at the end.
        reset: whether to delete the demo's topics of an earlier run first.
        keep_running: whether broker and pipeline continue after the check, until interrupted.
    """

    stretch: Stretch
    speed: float | None
    bootstrap_servers: str | None = None
    data_dir: Path | None = None
    reset: bool = False
    keep_running: bool = False


@dataclass(frozen=True)
class _Input:
    """The records that a run sends.

    Attributes:
        stretch: the days.
        registry: the tables and their changes.
        first_rows: the first rows of the tables.
        reports: all other records, in the order in which they are sent.
    """

    stretch: Stretch
    registry: Registry
    first_rows: list[Report]
    reports: list[Report]


def run_demo(options: DemoOptions, listener: Listener) -> DemoReport:
    """Run the demo. Call it from the main thread.

    Returns:
        the report, which the listener has received, too.

    Raises:
        TidemillError: a part of the demo failed. The message says which.
        KeyboardInterrupt: the user stopped the demo. Everything is stopped by then.
    """
    with ExitStack() as stack:
        work = stack.enter_context(_WorkFolder(options.data_dir))
        folder = work.path
        sent = _load(options.stretch, listener)
        began = time.monotonic()
        broker: BrokerProcess | None = None
        address = options.bootstrap_servers
        if address is None:
            broker = stack.enter_context(BrokerProcess(folder / "broker", folder / "broker.log"))
            address = broker.bootstrap_servers
        else:
            topics.check_reachable(address)
        listener(
            BrokerReady(
                address,
                time.monotonic() - began,
                pid=broker.pid if broker else None,
                data_dir=broker.data_dir if broker else None,
            )
        )
        _prepare_topics(address, sent, listener, reset=options.reset)
        starting = time.monotonic()
        listener(SparkStarting(folder / "spark.log"))
        pipeline = stack.enter_context(RunningPipeline(address, folder))
        _wait_for_the_first_batches(pipeline, listener)
        listener(_started(pipeline, time.monotonic() - starting))
        follower = stack.enter_context(ResultsFollower(address))
        stack.callback(lambda: listener(Stopping()))

        run = _Run(options, sent, address, broker, pipeline, follower, listener)
        report = run.follow_to_the_end(began, folder)
        work.keep = work.keep or not report.ok
        listener(report)
        if options.keep_running:
            listener(KeptRunning(address))
            with contextlib.suppress(KeyboardInterrupt):  # the user ends the demo so
                run.stay()
        return report


def _load(stretch: Stretch, listener: Listener) -> _Input:
    near: list[Flight] = list(flights(stretch))
    tables = registry(near, stretch)
    sent = reports(near, stretch)
    merged = sorted([*tables.reports(), *sent], key=lambda report: report.reported_at)
    counts = Counter(str(report.kind) for report in merged)
    listener(FlightsLoaded(stretch, counts, lateness(sent)))
    return _Input(stretch, tables, list(tables.loaded(stretch.start)), merged)


def _prepare_topics(address: str, sent: _Input, listener: Listener, *, reset: bool) -> None:
    """Create all topics and write the first rows, so that each departure finds its aircraft."""
    deleted = topics.delete_topics(address) if reset else []
    topics.create_topics(address)
    Replay(sent.first_rows, bootstrap_servers=address, speed=None).run(threading.Event())
    rows = Counter(report.topic for report in sent.first_rows)
    listener(TopicsReady([topic.name for topic in topics.TOPICS], deleted, rows))


class _WorkFolder:
    """The folder for all files of a run. A temporary one is removed unless ``keep`` is set.

    Raises:
        SettingsError: the given folder is not empty.
    """

    def __init__(self, given: Path | None) -> None:
        self._given = given
        self.keep = given is not None
        self.path = Path()

    def __enter__(self) -> Self:
        if self._given is None:
            self.path = Path(tempfile.mkdtemp(prefix="tidemill-demo-"))
            return self
        self._given.mkdir(parents=True, exist_ok=True)
        if any(self._given.iterdir()):
            raise SettingsError(
                f"the folder {self._given} is not empty",
                hint="The demo needs a new or an empty folder.",
            )
        self.path = self._given.absolute()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, TidemillError) and any(self.path.iterdir()):
            self.keep = True
            error.hint = f"{error.hint} Logs and data are in {self.path}.".strip()
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)


def _wait_for_the_first_batches(pipeline: RunningPipeline, listener: Listener) -> None:
    """Wait until each query has run a batch, so that the first hours can be seen live."""
    count, deadline = 0, time.monotonic() + _STALLED_S
    while not all_have_started(statuses := pipeline.statuses):
        pipeline.check()
        if (started := sum(has_started(status) for status in statuses)) > count:
            count, deadline = started, time.monotonic() + _STALLED_S
        listener(QueriesStarting(started, len(statuses)))
        if time.monotonic() > deadline:
            behind = [status for status in statuses if not has_started(status)]
            raise PipelineFailedError(
                f"no query has started for {_STALLED_S:g} s; {_names(behind)}",
                hint=f"Spark's log is {pipeline.log_file}.",
            )
        time.sleep(_REFRESH_S)  # the state of another process can only be polled


def _started(pipeline: RunningPipeline, seconds: float) -> PipelineStarted:
    import pyspark

    from tidemill.spark.base.java import find_java

    return PipelineStarted(
        spark_version=pyspark.__version__,
        java=str(find_java().version),
        seconds=seconds,
        queries=len(pipeline.statuses),
    )


class _Run:
    """The part of a run in which reports are sent and results are read."""

    def __init__(
        self,
        options: DemoOptions,
        sent: _Input,
        address: str,
        broker: BrokerProcess | None,
        pipeline: RunningPipeline,
        follower: ResultsFollower,
        listener: Listener,
    ) -> None:
        self._input = sent
        self._address = address
        self._broker = broker
        self._pipeline = pipeline
        self._follower = follower
        self._listener = listener
        self._replay = Replay(sent.reports, bootstrap_servers=address, speed=options.speed)
        self._failure: BaseException | None = None

    def follow_to_the_end(self, began: float, folder: Path) -> DemoReport:
        """Replay, wait until the pipeline has published everything, and check the results.

        Raises:
            TidemillError: replay, pipeline or broker failed.
        """
        with self._replaying() as thread:
            while thread.is_alive():
                self._look()
            self._raise_failure()
        self._listener(Replayed(self._replay.progress()))
        stored = _by_topic(topics.end_offsets(self._address, topics.SENT))
        self._wait_for_the_pipeline(stored)
        ends = topics.end_offsets(self._address, topics.TOPICS)
        self._follower.read_up_to(ends, timeout_s=60)
        running = self._running()
        self._listener(running)
        self._listener(Checking(sum(running.results.counts.values())))
        return DemoReport(
            stretch=self._input.stretch,
            bootstrap_servers=self._address,
            checks=_checks(self._input, running.results),
            results=running.results,
            replay=self._replay.progress(),
            queries=running.queries,
            stored=stored,
            sent=Counter(each.topic for each in (*self._input.first_rows, *self._input.reports)),
            folder=folder,
            seconds=time.monotonic() - began,
        )

    def stay(self) -> None:
        """Continue until interrupted.

        Raises:
            TidemillError: pipeline or broker failed.
        """
        while True:
            self._check_parts()
            self._follower.poll(1.0)

    @contextlib.contextmanager
    def _replaying(self) -> Iterator[threading.Thread]:
        """Run the replayer in a thread. At the end of the block, the thread has ended."""
        stop = threading.Event()

        def work() -> None:
            try:
                self._replay.run(stop)
            except BaseException as error:  # _raise_failure raises it in the main thread
                self._failure = error

        thread = threading.Thread(target=work, name="replay")
        thread.start()
        try:
            yield thread
        finally:
            stop.set()
            thread.join()

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
            if time.monotonic() - since > _STALLED_S:
                behind = [each for each in queries if not has_read(each, stored, end)]
                raise PipelineFailedError(
                    f"the pipeline has not moved for {_STALLED_S:g} s; {_names(behind)}",
                    hint=f"Spark's log is {self._pipeline.log_file}.",
                )

    def _look(self) -> Running:
        """Read new results, report the progress, and check that all parts still run."""
        self._follower.poll(_REFRESH_S)
        running = self._running()
        self._listener(running)
        self._check_parts()
        return running

    def _running(self) -> Running:
        return Running(
            replay=self._replay.progress(),
            queries=self._pipeline.statuses,
            results=self._follower.results,
        )

    def _check_parts(self) -> None:
        if self._broker is not None:
            self._broker.check_running()
        self._pipeline.check()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _checks(sent: _Input, results: Results) -> list[check.Check]:
    """Compare each query's results, and the reports that could not be parsed."""
    facts = check_results.Facts(sent.stretch, check_results.legs(sent.stretch), sent.registry)
    found = [
        check.compare(
            query, expected(facts), results.records[query], check_results.IDENTITIES[query]
        )
        for query, expected in check_results.EXPECTED.items()
    ]
    for topic, values in results.unreadable.items():
        cut_short = [
            report.value
            for report in sent.reports
            if report.kind == "cut short" and f"{report.topic}.dlq" == topic
        ]
        found.append(check.compare(topic, _texts(cut_short), _texts(values), ("value",)))
    return found


def _names(behind: Iterable[QueryStatus]) -> str:
    """Return the names of queries, each with its error or state."""
    found = (f"{each.query} ({each.error or each.state})" for each in behind)
    return f"waiting for {', '.join(found) or 'Spark'}"


def _texts(values: Iterable[bytes | None]) -> list[check.Record]:
    return [{"value": (value or b"").decode(errors="replace")} for value in values]


def _by_topic(ends: Mapping[tuple[str, int], int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (topic, _), end in ends.items():
        found[topic] += end
    return dict(found)
