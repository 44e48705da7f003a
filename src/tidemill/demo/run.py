"""The demo from start to end: broker, topics, pipeline, replay, results, self-check.

Holds the order of things and nothing else. Knows the broker as an address only, whether it has
started it as a child process or was given one. Prints nothing (see ``progress``).

Whatever happens, an interrupt included, what was started is stopped: first the query and the JVM,
then the broker. Both of these children also end by themselves should this process be killed.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidemill.demo import check, pipeline, topics
from tidemill.demo.events import DEPARTURES, Report, lateness, reports
from tidemill.demo.flights import Stretch, flights
from tidemill.demo.process import BrokerProcess
from tidemill.demo.progress import (
    BrokerReady,
    Checking,
    DemoReport,
    FlightsLoaded,
    KeptRunning,
    Listener,
    PipelineStarted,
    Replayed,
    Running,
    SparkStarting,
    Stopping,
    TopicsReady,
)
from tidemill.demo.replay import Replay
from tidemill.demo.results import ResultsFollower
from tidemill.errors import SettingsError, TidemillError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_REFRESH_S = 0.2
_STALLED_S = 120.0


class PipelineFailedError(TidemillError):
    """The Spark query ended with an error, or does nothing though there are reports to read."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to replay, how fast, and where.

    Attributes:
        stretch: the days.
        speed: multiple of life's speed; ``None``: as fast as it goes.
        bootstrap_servers: a broker that runs already, or ``None`` to start one.
        data_dir: folder for the broker's data, the query's checkpoint and the logs; must be new or
            empty, and is kept. ``None``: a temporary one, removed at the end.
        reset: delete the demo's topics first if the broker has them.
        keep_running: leave broker and pipeline on after the check, until interrupted.
    """

    stretch: Stretch
    speed: float | None
    bootstrap_servers: str | None = None
    data_dir: Path | None = None
    reset: bool = False
    keep_running: bool = False


def run_demo(options: DemoOptions, listener: Listener) -> DemoReport:
    """Run the demo. Call it from the main thread.

    Returns:
        the report, which has been given to the listener as well.

    Raises:
        TidemillError: a part of it failed; the message says which.
        KeyboardInterrupt: as usual; all is stopped when it comes out.
    """
    with ExitStack() as stack:
        work = stack.enter_context(_WorkFolder(options.data_dir))
        folder = work.path
        sent = list(_load(options.stretch, listener))
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
        deleted = topics.delete_topics(address) if options.reset else []
        topics.create_topics(address)
        listener(TopicsReady(topics.TOPICS, deleted))
        starting = time.monotonic()
        spark = stack.enter_context(_spark(folder, listener))
        query = stack.enter_context(_query(spark, address, folder))
        _wait_for_the_first_batch(query)
        listener(PipelineStarted(spark.version, _java_version(spark), time.monotonic() - starting))
        follower = stack.enter_context(ResultsFollower(address))
        stack.callback(lambda: listener(Stopping()))

        run = _Run(options, sent, address, broker, query, follower, listener)
        report = run.follow_to_the_end(began, folder)
        work.keep = work.keep or not report.ok
        listener(report)
        if options.keep_running:
            listener(KeptRunning(address))
            with contextlib.suppress(KeyboardInterrupt):  # the way to end it, not a failure
                run.stay()
        return report


def _load(stretch: Stretch, listener: Listener) -> list[Report]:
    sent = reports(flights(stretch), stretch)
    count = Counter(report.topic for report in sent if report.flight is not None)
    listener(
        FlightsLoaded(
            stretch,
            departures=count[DEPARTURES],
            arrivals=count.total() - count[DEPARTURES],
            lateness=lateness(report for report in sent if report.flight is not None),
        )
    )
    return sent


class _WorkFolder:
    """The folder for everything that is written. A temporary one is removed unless ``keep`` is set.

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
                hint="The demo starts afresh: give a new one.",
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


@contextlib.contextmanager
def _spark(folder: Path, listener: Listener) -> Iterator[SparkSession]:
    """A session, on a JVM that ends with it."""
    log_file = folder / "spark.log"
    listener(SparkStarting(log_file))
    from tidemill.spark import jvm
    from tidemill.spark.session import spark_session

    try:
        spark = spark_session("tidemill demo", extra=pipeline.SETTINGS, log_file=log_file)
        yield spark
    finally:
        jvm.shutdown()


@contextlib.contextmanager
def _query(spark: SparkSession, address: str, folder: Path) -> Iterator[StreamingQuery]:
    query = pipeline.start(spark, address, folder / "checkpoint")
    try:
        yield query
    finally:
        query.stop()


def _wait_for_the_first_batch(query: StreamingQuery) -> None:
    """A new query runs one batch even of nothing. Loading and compiling is done with it.

    Replaying earlier would only mean that the first minutes of the replay are not seen live.
    """
    deadline = time.monotonic() + _STALLED_S
    while not pipeline.progress_of(query.recentProgress).batches:
        _check_query(query)
        if time.monotonic() > deadline:
            raise PipelineFailedError(f"the pipeline ran no batch within {_STALLED_S:g} s")
        time.sleep(_REFRESH_S)  # another process's state: there is nothing to wait on


def _check_query(query: StreamingQuery) -> None:
    if not query.isActive:
        error = query.exception()
        raise PipelineFailedError(f"the pipeline ended: {error or 'without an error'}")


def _java_version(spark: SparkSession) -> str:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return str(jvm.java.lang.System.getProperty("java.version"))


class _Run:
    """The part during which reports are sent and results come in."""

    def __init__(
        self,
        options: DemoOptions,
        sent: list[Report],
        address: str,
        broker: BrokerProcess | None,
        query: StreamingQuery,
        follower: ResultsFollower,
        listener: Listener,
    ) -> None:
        self._stretch = options.stretch
        self._sent = Counter(report.topic for report in sent)
        self._address = address
        self._broker = broker
        self._query = query
        self._follower = follower
        self._listener = listener
        self._replay = Replay(sent, bootstrap_servers=address, speed=options.speed)
        self._progress = pipeline.QueryProgress()
        self._failure: BaseException | None = None

    def follow_to_the_end(self, began: float, folder: Path) -> DemoReport:
        """Replay, wait until the pipeline has read all and emitted all, and check.

        Raises:
            TidemillError: replay, pipeline or broker failed.
        """
        with self._replaying() as thread:
            while thread.is_alive():
                self._look()
            self._raise_failure()
        self._listener(Replayed(self._replay.progress()))
        self._wait_for_the_pipeline()
        ends = topics.end_offsets(self._address, topics.TOPICS)
        self._follower.read_up_to(ends, timeout_s=30)
        self._listener(self._running())
        self._listener(Checking(len(self._follower.windows)))
        windows = dict(self._follower.windows)
        expected = check.expected_windows(self._stretch)
        return DemoReport(
            stretch=self._stretch,
            bootstrap_servers=self._address,
            comparison=check.compare(expected, windows),
            windows=windows,
            replay=self._replay.progress(),
            query=pipeline.progress_of(self._query.recentProgress),
            stored={
                topic: sum(end for (name, _), end in ends.items() if name == topic)
                for topic in topics.TOPICS
            },
            sent=self._sent,
            repeated=self._follower.repeated,
            folder=folder,
            seconds=time.monotonic() - began,
        )

    def stay(self) -> None:
        """Go on until interrupted.

        Raises:
            TidemillError: pipeline or broker failed.
        """
        while True:
            self._check_parts()
            self._follower.poll(1.0)

    @contextlib.contextmanager
    def _replaying(self) -> Iterator[threading.Thread]:
        """The replayer in a thread, which has ended when this is left."""
        stop = threading.Event()

        def work() -> None:
            try:
                self._replay.run(stop)
            except BaseException as error:  # handed over: _raise_failure raises it
                self._failure = error

        thread = threading.Thread(target=work, name="replay")
        thread.start()
        try:
            yield thread
        finally:
            stop.set()
            thread.join()

    def _wait_for_the_pipeline(self) -> None:
        """Until a batch has ended that ran with the watermark at the stretch's end.

        The clock signal, the last record of ``departures``, puts it there; with it, every window of
        the stretch is final, and the batch has published those that were not before.
        """
        seen, since = None, time.monotonic()
        while True:
            progress = self._look()
            all_read = progress.read_up_to >= self._sent[DEPARTURES]
            if all_read and progress.watermark >= self._stretch.end:
                return
            if progress != seen:
                seen, since = progress, time.monotonic()
            if time.monotonic() - since > _STALLED_S:
                raise PipelineFailedError(
                    f"the pipeline has not moved for {_STALLED_S:g} s: {progress}"
                )

    def _look(self) -> pipeline.QueryProgress:
        """Take new results, tell the listener, and check that all parts are well."""
        self._follower.poll(_REFRESH_S)
        running = self._running()
        self._listener(running)
        self._check_parts()
        return running.query

    def _running(self) -> Running:
        last = self._query.lastProgress
        # An idle update says nothing new, and is passed over: then what was known still holds.
        progress = pipeline.progress_of([last] if last else [])
        if progress.batches:
            self._progress = progress
        return Running(
            replay=self._replay.progress(),
            query=self._progress,
            windows=self._follower.windows,
        )

    def _check_parts(self) -> None:
        if self._broker is not None:
            self._broker.check_running()
        _check_query(self._query)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
