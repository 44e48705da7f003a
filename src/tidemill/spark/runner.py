"""Runs a pipeline: checks it, starts its queries, watches them, restarts what fails, tells of them.

The order: all that can be seen without Spark is checked first; then the session comes up and all
queries are built, so that a mistake in the last one is told before the first has written anything;
then they start. A query that fails is restarted from its checkpoint after a pause that grows, while
the others go on. Must not know: the command line, how results are shown.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.errors import PipelineError, TidemillError
from tidemill.spark import jvm
from tidemill.spark.checkpoint import Checkpoint, PipelineLock, Shape
from tidemill.spark.explain import in_a_line
from tidemill.spark.inputs import Builder, Built
from tidemill.spark.pipeline import Pipeline, Query, Starting
from tidemill.spark.pipeline_check import PipelineProblemsError, Problem, check
from tidemill.spark.plans import plan_of
from tidemill.spark.progress import HEARTBEAT_S, QueryStatus, SourceStatus, now_text
from tidemill.spark.shape import shape_of
from tidemill.spark.status_topic import StatusTopic, read_statuses
from tidemill.spark.uses import all_queries, topics_of, topics_to_prepare
from tidemill.spark.watch import FAILED, STARTING, STOPPED, Terms, Watched
from tidemill.spark.window_check import check_query
from tidemill.spark.write import Start, Started, check_sink, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 0.25
_PUBLISH_S = 1.0
_LAST_BREATH_S = 5.0

RUN_SETTINGS: Mapping[str, str] = {
    # Of a batch that can't be interrupted: the process ends then, and Spark with it.
    "spark.sql.streaming.stopTimeout": "20s",
}
"""Of Spark; those of the pipeline win."""

STARTS_AT_ONCE = 2
"""Each query starts Python processes, which Spark gives ten seconds to answer, however many start
at the same time."""

RESTARTS_TO_CATCH_UP = 3
"""In a row: a run that is to end must not try for ever."""

Listener = Callable[[QueryStatus], None]
Warner = Callable[[str], None]


@dataclass(frozen=True)
class RunOptions:
    """How a pipeline is run.

    Attributes:
        bootstrap_servers: of the brokers.
        state: folder of all pipelines' checkpoints.
        master: Spark's.
        until_caught_up: end when all that is there now has been read.
        starting: where queries without a checkpoint begin; None leaves it to the streams.
        kafka: further settings of librdkafka; they win over the pipeline's.
        log_file: gets what Spark prints; that of the last run is kept, as ``<name>.1``.
        restart: whether a query that fails is started again.
        source_format: what reads the streams: ``tidemill``, or Spark's own ``kafka``, whose jar
            must be there.
    """

    bootstrap_servers: str
    state: Path
    master: str = "local[2]"
    until_caught_up: bool = False
    starting: Starting | None = None
    kafka: Mapping[str, str] = field(default_factory=dict)
    log_file: Path | None = None
    restart: bool = True
    source_format: str = "tidemill"


@dataclass(frozen=True)
class _Ready:
    """A query that passed all checks."""

    built: Built
    checkpoint: Checkpoint
    shape: Shape


class Runner:
    """One run of a pipeline.

    Args:
        listener: told of each query's status whenever it changes, in the thread that runs.
        warn: told of what may go wrong.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: RunOptions,
        listener: Listener | None = None,
        warn: Warner | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._options = options
        self._listener = listener
        self._warn = warn
        self._runner = f"{socket.gethostname()}:{options.state.absolute()}"
        self._kafka = {
            **pipeline.kafka,
            **options.kafka,
            "bootstrap.servers": options.bootstrap_servers,
        }
        self._before: dict[str, QueryStatus] = {}
        self._statuses: dict[str, QueryStatus] = {}
        self._told: dict[str, float] = {}
        self._broken: dict[str, str] = {}

    @property
    def statuses(self) -> list[QueryStatus]:
        """Of all queries, as they were last told."""
        return list(self._statuses.values())

    def run(self, stop: threading.Event | None = None) -> list[QueryStatus]:
        """Run until ``stop`` is set, all queries are done, or none can go on.

        Returns:
            What the queries came to.

        Raises:
            PipelineProblemsError: it is declared wrongly, or a query can't be started; nothing was
                started.
            PipelineRunningError: another process runs it.
            PipelineError: Spark ended while it ran.
            UnreachableError: no broker answers.
            JavaNotFoundError, JvmStartError: there is no Spark.
        """
        stop = stop or threading.Event()
        check(self._pipeline, self._kafka)
        lock = PipelineLock(self._options.state, self._pipeline.name)
        with lock, StatusTopic(self._kafka) as topic:
            read, written = topics_to_prepare(self._pipeline)
            topic.prepare(read)
            self._introduce(topic)
            watched: list[Watched] = []
            try:
                with self._spark_or_error():
                    spark = self._session()
                    ready = self._build(spark, stop)
                    if not stop.is_set():
                        # Not before: a mistake that only Spark sees leaves nothing behind.
                        topic.prepare(written)
                        watched = [self._watched(each) for each in ready]
                    self._watch(watched, stop, topic)
            except BaseException as error:
                self._give_up(watched, error, topic)
                raise
            finally:
                if self._is_up():
                    _end_all(watched)
                self._tell(topic, [each.status() for each in watched])
                if not watched:
                    self._tell(topic, [_ended(each) for each in self.statuses])
        return self.statuses

    # --- before the start ------------------------------------------------------------------------

    def _introduce(self, topic: StatusTopic) -> None:
        """Say what will run, and forget what does not run any more."""
        names = {query.name for query in all_queries(self._pipeline)}
        for old in read_statuses(self._kafka, self._pipeline.name):
            if old.query in names:
                self._before[old.query] = old
            else:
                topic.forget(old.key)
        self._warn_of_another()
        self._tell(topic, [self._first_status(q) for q in all_queries(self._pipeline)])

    def _warn_of_another(self) -> None:
        """The lock of the folder is ours: whoever else runs it has checkpoints of his own."""
        now = datetime.now(UTC)
        others = sorted(
            each.runner
            for each in self._before.values()
            if each.runner not in ("", self._runner) and each.goes_on and not each.is_lost(now)
        )
        if others and self._warn is not None:
            self._warn(
                f"pipeline {self._pipeline.name} also runs from another data folder ({others[0]}): "
                "each of the two writes all results"
            )

    def _first_status(self, query: Query) -> QueryStatus:
        """What the last run came to, as far as this one goes on from there."""
        checkpoint = Checkpoint(self._options.state, self._pipeline.name, query.name)
        before = None if checkpoint.is_fresh else self._before.get(query.name)
        known = {} if before is None else {each.topic: each for each in before.sources}
        topics = topics_of(query, self._pipeline)
        return replace(
            before or QueryStatus(self._pipeline.name, query.name, STARTING),
            state=STARTING,
            mode=query.mode,
            sink=query.sink.target,
            sources=tuple(known.get(each) or SourceStatus(each) for each in topics),
            restarts=0,
            error=None,
            runner=self._runner,
            updated=now_text(),
        )

    def _session(self) -> SparkSession:
        from tidemill.spark.session import spark_session

        log = self._options.log_file
        if log is not None and log.is_file() and not jvm.is_up():
            log.replace(log.with_name(f"{log.name}.1"))
        return spark_session(
            f"tidemill {self._pipeline.name}",
            master=self._options.master,
            extra={**RUN_SETTINGS, **self._pipeline.spark},
            log_file=log,
        )

    def _build(self, spark: SparkSession, stop: threading.Event) -> list[_Ready]:
        options = self._options
        builder = Builder(
            spark, self._pipeline, self._kafka, options.starting, options.source_format
        )
        ready: list[_Ready] = []
        problems: dict[str, Problem] = {}
        for query in all_queries(self._pipeline):
            if stop.is_set():
                return []
            built = builder.try_build(query)
            if isinstance(built, Problem):
                problems[query.name] = built
                continue
            try:
                ready.append(self._checked(built))
            except TidemillError as error:
                told = f"query {query.name}: {error}"
                problems[query.name] = Problem(query.place, told, error.hint)
        if problems:
            self._broken = {
                name: in_a_line(p.message.removeprefix(f"query {name}: "), p.hint)
                for name, p in problems.items()
            }
            raise PipelineProblemsError(self._pipeline.name, problems.values())
        return ready

    def _checked(self, built: Built) -> _Ready:
        query = built.query
        check_query(built.df, query.mode)
        checkpoint = Checkpoint(self._options.state, self._pipeline.name, query.name)
        last = plan_of(str(checkpoint.spark_folder))
        check_sink(
            built,
            is_fresh=checkpoint.is_fresh,
            planned=None if last is None else last.batch_id,
            reset=checkpoint.reset,
        )
        shape = shape_of(built.df, query.mode)
        checkpoint.check(shape)
        return _Ready(built, checkpoint, shape)

    def _watched(self, ready: _Ready) -> Watched:
        options, query = self._options, ready.built.query
        most = RESTARTS_TO_CATCH_UP if options.until_caught_up else None
        return Watched(
            self._first_status(query),
            partial(self._begin, ready),
            Terms(options.until_caught_up, most if options.restart else 0),
        )

    def _begin(self, ready: _Ready) -> Started:
        """Start a query, or start it again: who knows what became of its checkpoint meanwhile."""
        how = Start(
            pipeline=self._pipeline.name,
            identity=ready.checkpoint.begin(ready.shape),
            # Whatever Spark's default file system is: the identity goes by what is there.
            checkpoint=f"file://{ready.checkpoint.spark_folder.absolute()}",
            kafka=self._kafka,
            until_caught_up=self._options.until_caught_up,
            begun=ready.checkpoint.begun_file,
        )
        return start(ready.built, how)

    # --- while it runs ---------------------------------------------------------------------------

    def _watch(self, watched: Sequence[Watched], stop: threading.Event, topic: StatusTopic) -> None:
        published = 0.0
        while not all(each.is_over for each in watched) and not stop.wait(_LOOK_S):
            _start_some(watched)
            for each in watched:
                each.look()
            if not self._is_up():
                return
            if time.monotonic() - published >= _PUBLISH_S:
                self._tell(topic, [each.status() for each in watched])
                published = time.monotonic()

    def _tell(self, topic: StatusTopic, statuses: Sequence[QueryStatus]) -> None:
        """Publish what has changed, and now and then what has not."""
        now = time.monotonic()
        for status in statuses:
            before = self._statuses.get(status.query)
            is_news = before is None or replace(before, updated=status.updated) != status
            if is_news or now - self._told[status.query] >= HEARTBEAT_S:
                topic.publish(status)
                self._statuses[status.query] = status
                self._told[status.query] = now
                if is_news and self._listener is not None:
                    self._listener(status)

    # --- the end ---------------------------------------------------------------------------------

    @staticmethod
    def _is_up() -> bool:
        return jvm.exit_code() is None

    @contextlib.contextmanager
    def _spark_or_error(self) -> Iterator[None]:
        """Where Spark is gone, say so, instead of what Py4J says."""
        lost: BaseException | None = None
        try:
            yield
        except TidemillError:
            raise
        except Exception as error:
            # Connections are lost a moment before the process is gone.
            is_cut_off = _is_connection_error(error)
            may_be_lost = is_cut_off or type(error).__module__.startswith("py4j")
            if jvm.exit_code(_LAST_BREATH_S if may_be_lost else 0.0) is None and not is_cut_off:
                raise
            lost = error
        if lost is not None or not self._is_up():
            log = self._options.log_file
            where = f" What it said last is in {log}." if log else ""
            raise PipelineError(
                f"Spark's JVM has ended while the pipeline ran{_exit_text(jvm.exit_code())}",
                hint=f"Killed for lack of memory? See dmesg.{where} Run it again: queries go on "
                "from their checkpoints.",
            ) from lost

    def _give_up(
        self, watched: Sequence[Watched], error: BaseException, topic: StatusTopic
    ) -> None:
        text = str(error).strip() or type(error).__name__
        if not self._is_up():
            for each in watched:
                each.give_up(text)
        if not watched and isinstance(error, Exception):
            broken = self._broken
            told = [_ended(s, broken.get(s.query) if broken else text) for s in self.statuses]
            self._tell(topic, told)


def _ended(status: QueryStatus, error: str | None = None) -> QueryStatus:
    """Of a query that was never started."""
    if status.state != STARTING:
        return status
    return replace(
        status, state=STOPPED if error is None else FAILED, error=error, updated=now_text()
    )


def _start_some(watched: Sequence[Watched]) -> None:
    """Start queries that are new, a few at a time."""
    for each in watched:
        if sum(other.is_settling for other in watched) >= STARTS_AT_ONCE:
            return
        if each.is_new:
            each.start()


def _end_all(watched: Sequence[Watched]) -> None:
    """All at once: each waits for its batch."""
    if watched:
        with ThreadPoolExecutor(len(watched), thread_name_prefix="stop-query") as threads:
            list(threads.map(Watched.end, watched))


def _is_connection_error(error: BaseException) -> bool:
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    return isinstance(error, (Py4JNetworkError, ConnectionError))


def _exit_text(code: int | None) -> str:
    if code is None:
        return ""
    return f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"


def find_error(statuses: Sequence[QueryStatus]) -> PipelineError | None:
    """The failure of a run, if a query could not go on."""
    failed = [each for each in statuses if each.state == FAILED]
    if not failed:
        return None
    lines = "; ".join(f"{each.query}: {each.error}" for each in failed)
    return PipelineError(f"{len(failed)} of {len(statuses)} queries failed: {lines}")
