"""Run the demo from start to end: broker, page, database, capture, pipeline, replay, check.

This module decides the order only. It uses the broker by its address, whether the demo has started
it or not, and prints nothing (see ``progress``).

After an error or an interrupt, everything that was started is stopped: first the pipeline and the
JVM, then the capture and the broker. If this process is killed, its children end by themselves.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tidemill.demo import topics
from tidemill.demo.check_all import index_can_be_kept
from tidemill.demo.database.capture import (
    SQLITE,
    CaptureFailedError,
    Database,
    RunningCapture,
    database_of,
    forget_source,
)
from tidemill.demo.database.delivery import Delivery
from tidemill.demo.database.editor import Editor, lead_for
from tidemill.demo.database.registry import AIRCRAFT, AIRLINES, Registry, registry
from tidemill.demo.events import lateness, reports
from tidemill.demo.flights import Flight, Stretch, flights
from tidemill.demo.following import REFRESH_S, STALLED_S, Following, Input, Parts, Task, names
from tidemill.demo.pipeline import (
    PipelineFailedError,
    RunningPipeline,
    all_have_started,
    has_started,
)
from tidemill.demo.progress import (
    BrokerReady,
    DatabaseReady,
    DemoReport,
    FlightsLoaded,
    KeptRunning,
    Listener,
    PageReady,
    PipelineStarted,
    QueriesStarting,
    SparkStarting,
    Stopping,
    TopicsReady,
)
from tidemill.demo.results import ResultsFollower
from tidemill.errors import SettingsError, TidemillError
from tidemill.extras import how_to_install
from tidemill.local.broker import Broker
from tidemill.local.gateway import Gateway


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of a run.

    Attributes:
        speed: how many times faster than real time; ``None`` for as fast as possible.
        bootstrap_servers: the address of a running broker, or ``None`` to start one.
        data_dir: a new or empty folder for data, checkpoints and logs, which is kept. ``None`` is a
            temporary folder that is removed at the end.
        reset: whether to delete the demo's topics of an earlier run first.
        keep_running: whether broker and pipeline continue after the check, until interrupted.
        database: where the tables are: ``sqlite``, or the URL of a PostgreSQL server.
    """

    stretch: Stretch
    speed: float | None
    bootstrap_servers: str | None = None
    data_dir: Path | None = None
    reset: bool = False
    keep_running: bool = False
    database: str = SQLITE


def run_demo(options: DemoOptions, listener: Listener) -> DemoReport:
    """Run the demo, and return the report, which the listener gets too. Call it in the main thread.

    Raises:
        TidemillError: a part of the demo failed. The message says which.
        KeyboardInterrupt: the user stopped the demo. Everything is stopped by then.
    """
    with ExitStack() as stack:
        work = stack.enter_context(_WorkFolder(options.data_dir))
        folder = work.path
        database = database_of(options.database, folder)
        given = _load(options.stretch, listener)
        began = time.monotonic()
        broker, address = _broker(options, folder, stack, listener, began)
        stack.enter_context(_with_tables(database, given.registry, listener, reset=options.reset))
        capture = RunningCapture(address, database, folder)
        _prepare_topics(address, capture, listener, reset=options.reset)
        page = _page(address, folder, stack, listener)
        stack.enter_context(capture)
        delivery = Delivery(address, capture.topics, given.registry)
        stack.callback(delivery.close)
        edits = given.registry.edits
        editor = Editor(database.open, delivery, edits, lead_for(options.speed))
        editing = stack.enter_context(Task("editor", editor.run))

        starting = time.monotonic()
        followed = folder / "search" if index_can_be_kept() else None
        listener(SparkStarting(folder / "spark.log", followed, how_to_install("search")))
        pipeline = stack.enter_context(RunningPipeline(address, folder, capture.topics, followed))
        follower = stack.enter_context(ResultsFollower(address))
        stack.callback(lambda: listener(Stopping()))
        parts = Parts(
            address,
            broker,
            database,
            capture,
            delivery,
            editor,
            editing,
            pipeline,
            follower,
            followed,
        )
        _wait_for_the_first_batches(parts, listener)
        listener(_started(pipeline, time.monotonic() - starting))

        run = Following(options.speed, given, parts, listener)
        report = run.follow_to_the_end(began, folder)
        work.keep = work.keep or not report.ok
        listener(report)
        if options.keep_running:
            listener(KeptRunning(address, page))
            with contextlib.suppress(KeyboardInterrupt):  # the user ends the demo so
                run.stay()
        return report


def _load(stretch: Stretch, listener: Listener) -> Input:
    near: list[Flight] = list(flights(stretch))
    sent = reports(near, stretch)
    counts = Counter(str(report.kind) for report in sent)
    listener(FlightsLoaded(stretch, counts, lateness(sent)))
    return Input(stretch, registry(near, stretch), sent)


def _broker(
    options: DemoOptions, folder: Path, stack: ExitStack, listener: Listener, began: float
) -> tuple[Broker | None, str]:
    """Return the broker if the demo starts one, and its address."""
    broker: Broker | None = None
    address = options.bootstrap_servers
    if address is None:
        broker = stack.enter_context(Broker(folder / "broker", log_file=folder / "broker.log"))
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
    return broker, address


def _page(address: str, folder: Path, stack: ExitStack, listener: Listener) -> str:
    """Start the gateway that shows the demo, and return the address of its page."""
    settings = {"console.pages": "tidemill.demo.page"}
    gateway = Gateway(address, settings=settings, log_file=folder / "gateway.log")
    url = f"{stack.enter_context(gateway).url}/console/demo"
    listener(PageReady(url))
    return url


@contextlib.contextmanager
def _with_tables(
    database: Database, rows: Registry, listener: Listener, *, reset: bool
) -> Iterator[None]:
    """Create the tables with their first rows; drop everything in the database at the end."""
    database.prepare(reset=reset)
    try:
        tables = database.open()
        try:
            tables.create(rows)
        finally:
            tables.close()
        counts = {table: len(rows.first_rows(table)) for table in (AIRLINES, AIRCRAFT)}
        listener(DatabaseReady(database.description, counts, len(rows.edits)))
        yield
    except BaseException:
        with contextlib.suppress(TidemillError):  # the first error is the reason
            database.drop()
        raise
    database.drop()


def _prepare_topics(
    address: str, capture: RunningCapture, listener: Listener, *, reset: bool
) -> None:
    """Create all topics, those of the captured tables among them."""
    captured = list(capture.topics.values())
    deleted: list[str] = []
    if reset:
        deleted = topics.delete_topics(address, captured)
        forget_source(address)
    topics.create_topics(address, captured)
    made = [*captured, *(topic.name for topic in topics.TOPICS)]
    listener(TopicsReady(made, deleted, captured))


class _WorkFolder:
    """The folder for all files of a run. A temporary one is removed unless ``keep`` is set."""

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

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, TidemillError) and any(self.path.iterdir()):
            self.keep = True
            error.hint = f"{error.hint} Logs and data are in {self.path}.".strip()
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)


def _wait_for_the_first_batches(parts: Parts, listener: Listener) -> None:
    """Wait until the tables' rows are in their topics, and each query has run a batch.

    So the first hours can be seen live.
    """
    pipeline, editor = parts.pipeline, parts.editor
    count, deadline = 0, time.monotonic() + STALLED_S
    while not (all_have_started(statuses := pipeline.statuses) and editor.is_loaded):
        parts.check()
        if (started := sum(has_started(status) for status in statuses)) > count:
            count, deadline = started, time.monotonic() + STALLED_S
        listener(QueriesStarting(started, len(statuses)))
        if time.monotonic() > deadline:
            behind = [status for status in statuses if not has_started(status)]
            if statuses and not behind:
                raise CaptureFailedError(
                    f"the tables are not in their topics after {STALLED_S:g} s: "
                    f"{parts.capture.last_error or 'the capture reports no error'}",
                    hint=f"The log of the capture is {parts.capture.log_file}.",
                )
            raise PipelineFailedError(
                f"no query has started for {STALLED_S:g} s; {names(behind)}",
                hint=f"Spark's log is {pipeline.log_file}.",
            )
        time.sleep(REFRESH_S)  # the state of other processes can only be polled


def _started(pipeline: RunningPipeline, seconds: float) -> PipelineStarted:
    import pyspark

    from tidemill.spark.base.java import find_java

    return PipelineStarted(
        spark_version=pyspark.__version__,
        java=str(find_java().version),
        seconds=seconds,
        queries=len(pipeline.statuses),
    )
