"""Run a pipeline: check it, start its queries, supervise them, and publish how they are doing.

First, everything that is visible without Spark is checked. Then the session starts and all queries
are built, so that a mistake in the last query is reported before the first one has written
anything. Then the queries start. A query that fails is restarted from its checkpoint after a pause,
which grows with each failure, while the other queries continue. Must not know: the command line,
how results are shown.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.duration import as_interval
from tidemill.errors import TidemillError
from tidemill.spark.base import jvm
from tidemill.spark.base.explain import with_hint
from tidemill.spark.errors import PipelineError
from tidemill.spark.pipelines.check import check
from tidemill.spark.pipelines.checkpoint import Checkpoint, PipelineLock
from tidemill.spark.pipelines.declared import Pipeline, Query, Starting, Table
from tidemill.spark.pipelines.inputs import Builder
from tidemill.spark.pipelines.problems import PipelineProblemsError, Problem
from tidemill.spark.pipelines.progress import (
    QueryStatus,
    SourceStatus,
    errors_of,
    now_text,
    runner_text,
    warnings_of,
)
from tidemill.spark.pipelines.reading.letters import (
    ReadyLetters,
    make_letters_ready,
    runs_here,
)
from tidemill.spark.pipelines.resolve import all_queries, topics_of, topics_to_create
from tidemill.spark.pipelines.start import ReadyQuery, make_ready
from tidemill.spark.pipelines.status_topic import (
    Listener,
    StatusPublisher,
    StatusTopic,
    read_statuses,
)
from tidemill.spark.pipelines.supervisor import (
    FAILED,
    STARTING,
    STOP_TIMEOUT,
    STOP_TIMEOUT_KEY,
    RestartPolicy,
    RunningQuery,
    StopGuard,
    SupervisedQuery,
    limit_of,
    never_started,
    start_some,
    stop_all,
)
from tidemill.spark.sinks.base import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.spark.pipelines.reading.stream_source import StreamSource

_POLL_S = 0.25
_END_POLL_S = 0.05
_PUBLISH_S = 1.0
_JVM_EXIT_TIMEOUT_S = 5.0
"""How long to wait for the JVM's exit after a connection to it was lost."""

RUN_SETTINGS: Mapping[str, str] = {
    # A batch that can't be interrupted ends together with this process and the JVM.
    STOP_TIMEOUT_KEY: STOP_TIMEOUT,
}
"""Settings of Spark for all runs; those of the pipeline override them."""

MAX_RESTARTS_TO_CATCH_UP = 3
"""Restarts one after the other, in a run that ends when all records are read."""

Warner = Callable[[str], None]


@dataclass(frozen=True)
class RunOptions:
    """The settings of a run.

    Attributes:
        bootstrap_servers: addresses of the brokers, ``host:port`` with commas between.
        state: the folder of all pipelines' checkpoints.
        master: Spark's master URL.
        until_caught_up: end the run when all records that exist now have been read.
        starting: where queries without a checkpoint begin; None leaves it to each stream.
        kafka: further settings of librdkafka; they override the pipeline's.
        log_file: the file for Spark's output; that of the run before is kept as ``<name>.1``.
        restart: whether a query that fails is started again.
        source_format: the data source of streams: ``tidemill``, or Spark's own ``kafka``, whose
            jar must then be installed.
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


class Runner:
    """One run of a pipeline.

    Args:
        pipeline: the declared pipeline.
        options: how to run it.
        listener: called with each status that has changed, in the thread that runs.
        warn: called with a warning's text.
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
        self._runner = runner_text(socket.gethostname(), options.state)
        self._kafka = {
            **pipeline.kafka,
            **options.kafka,
            "bootstrap.servers": options.bootstrap_servers,
        }
        self._before: dict[str, QueryStatus] = {}
        self._publisher: StatusPublisher | None = None
        self._build_errors: dict[str, str] = {}
        self._ui: str | None = None
        self._source: StreamSource | None = None  # its files must outlive the queries

    @property
    def statuses(self) -> list[QueryStatus]:
        """The latest published status of each query."""
        return [] if self._publisher is None else list(self._publisher.latest.values())

    def run(self, stop: threading.Event | None = None) -> list[QueryStatus]:
        """Run until ``stop`` is set, or all queries are over.

        Args:
            stop: ends the run when it is set by another thread.

        Returns:
            The last status of each query.

        Raises:
            PipelineProblemsError: the pipeline has mistakes, or a query can't be started; no query
                was started.
            PipelineRunningError: another process runs the pipeline.
            PipelineError: Spark's JVM ended during the run.
            UnreachableError: no broker answers.
            JavaNotFoundError: no Java was found.
            JvmStartError: Spark's JVM did not start.
        """
        stop = stop or threading.Event()
        check(self._pipeline, self._kafka)
        lock = PipelineLock(self._options.state, self._pipeline.name)
        stop_timeout = {**RUN_SETTINGS, **self._pipeline.spark}[STOP_TIMEOUT_KEY]
        guard = StopGuard(stop, jvm.kill, limit_of(stop_timeout))
        with lock, StatusTopic(self._kafka, self._pipeline.name) as topic, guard:
            publisher = self._publisher = StatusPublisher(topic, self._listener)
            read, written = topics_to_create(self._pipeline)
            topic.create(read)
            self._publish_first(topic, publisher)
            queries: list[SupervisedQuery] = []
            try:
                with self._spark_or_error():
                    spark = self._session()
                    self._ui = spark.sparkContext.uiWebUrl
                    ready = self._build(spark, stop)
                    if not stop.is_set():
                        # Not earlier: a mistake that only Spark sees must create no topics.
                        topic.create(written)
                        queries = [self._supervised(each) for each in ready]
                    self._supervise(queries, stop, publisher)
            except BaseException as error:
                if not (guard.has_fired and isinstance(error, Exception)):
                    self._publish_failure(queries, error, publisher)
                    raise
            finally:
                guard.begin()
                if self._is_up():
                    stop_all(queries)
                if guard.has_fired:
                    self._report_forced_end(queries, guard.reason)
                publisher.publish([each.status() for each in queries])
                if not queries:
                    publisher.publish([never_started(each) for each in self.statuses])
        return self.statuses

    # --- before the start ------------------------------------------------------------------------

    def _publish_first(self, topic: StatusTopic, publisher: StatusPublisher) -> None:
        """Publish which queries will run, and delete the statuses of removed queries."""
        names = {query.name for query in all_queries(self._pipeline)}
        for old in read_statuses(self._kafka, self._pipeline.name):
            if old.query in names:
                self._before[old.query] = old
            else:
                topic.delete(old.key)
        fresh = {name for name in names if self._checkpoint_of(name).is_fresh}
        for text in warnings_of(self._before.values(), self._runner, fresh):
            if self._warn is not None:
                self._warn(text)
        publisher.publish([self._first_status(q) for q in all_queries(self._pipeline)])

    def _first_status(self, query: Query) -> QueryStatus:
        """Return the status before the start, with the last run's values if this one continues."""
        checkpoint = self._checkpoint(query)
        before = None if checkpoint.is_fresh else self._before.get(query.name)
        known = {} if before is None else {each.topic: each for each in before.sources}
        return replace(
            before or QueryStatus(self._pipeline.name, query.name, STARTING),
            state=STARTING,
            mode=query.mode,
            sink=query.sink.target,
            sources=tuple(
                replace(
                    known.get(topic) or SourceStatus(topic),
                    name=each.name,
                    kind="table" if isinstance(each, Table) else "stream",
                )
                for topic, each in topics_of(query, self._pipeline).items()
            ),
            writes=tuple(topic.name for topic in query.sink.topics()),
            ui=self._ui,
            restarts=0,
            error=None,
            runner=self._runner,
            updated=now_text(),
        )

    def _checkpoint(self, query: Query) -> Checkpoint:
        return self._checkpoint_of(query.name)

    def _checkpoint_of(self, query: str) -> Checkpoint:
        return Checkpoint(self._options.state, self._pipeline.name, query)

    def _session(self) -> SparkSession:
        from tidemill.spark.datasource.session import spark_session

        log = self._options.log_file
        if log is not None and log.is_file() and not jvm.is_up():
            log.replace(log.with_name(f"{log.name}.1"))
        return spark_session(
            f"tidemill {self._pipeline.name}",
            master=self._options.master,
            extra={**RUN_SETTINGS, **self._pipeline.spark},
            log_file=log,
        )

    def _build(self, spark: SparkSession, stop: threading.Event) -> list[ReadyQuery | ReadyLetters]:
        """Build and check all queries."""
        options = self._options
        builder = Builder(
            *(spark, self._pipeline, self._kafka, options.starting, options.source_format),
            is_local=options.master.startswith("local"),
        )
        self._source = builder.source
        ready: list[ReadyQuery | ReadyLetters] = []
        results: list[DataFrame] = []
        problems: dict[str, Problem] = {}
        for query in all_queries(self._pipeline):
            if stop.is_set():
                return []
            checkpoint = self._checkpoint(query)
            try:
                if runs_here(query, options.master, options.source_format):
                    source, version = builder.source, spark.version
                    ready.append(
                        make_letters_ready(query, self._pipeline, source, checkpoint, version)
                    )
                    continue
                built = builder.try_build(query)
                if isinstance(built, Problem):
                    problems[query.name] = built
                else:
                    ready.append(make_ready(built, checkpoint))
                    results.append(built.df)
            except TidemillError as error:
                message = f"query {query.name}: {error}"
                problems[query.name] = Problem(query.place, message, error.hint)
        if problems:
            self._build_errors = {
                name: with_hint(p.message.removeprefix(f"query {name}: "), p.hint)
                for name, p in problems.items()
            }
            raise PipelineProblemsError(self._pipeline.name, problems.values())
        builder.source.limit_columns(results)
        return ready

    def _supervised(self, ready: ReadyQuery | ReadyLetters) -> SupervisedQuery:
        options, query = self._options, ready.query
        limit = MAX_RESTARTS_TO_CATCH_UP if options.until_caught_up else None
        return SupervisedQuery(
            self._first_status(query),
            partial(self._start, ready),
            RestartPolicy(options.until_caught_up, limit if options.restart else 0),
        )

    def _start(self, ready: ReadyQuery | ReadyLetters) -> RunningQuery:
        """Start a query. Each restart reads the identity again: the checkpoint may be new."""
        query, identity = ready.query, ready.checkpoint.begin(ready.fingerprint)
        run = Run(
            pipeline=self._pipeline.name,
            query=query.name,
            mode=query.mode,
            # Not Spark's default file system: the identity is in a local folder, too.
            checkpoint=f"file://{ready.checkpoint.spark_folder.absolute()}",
            checkpoint_id=identity.id,
            created_ms=identity.created_ms,
            kafka=self._kafka,
            trigger={"availableNow": True}
            if self._options.until_caught_up
            else {"processingTime": as_interval(query.trigger)},
            note=ready.checkpoint.begun_file,
        )
        return ready.start(run)

    # --- while it runs ---------------------------------------------------------------------------

    def _supervise(
        self,
        queries: Sequence[SupervisedQuery],
        stop: threading.Event,
        publisher: StatusPublisher,
    ) -> None:
        published = 0.0
        while not stop.is_set():
            start_some(queries)
            for each in queries:
                each.poll()
            if not self._is_up():
                return
            if time.monotonic() - published >= _PUBLISH_S:
                publisher.publish([each.status() for each in queries])
                published = time.monotonic()
            if all(each.is_over for each in queries):
                return
            self._pause(queries, stop)

    def _pause(self, queries: Sequence[SupervisedQuery], stop: threading.Event) -> None:
        """Wait for the next round, or until a query has ended that reads only what there is."""
        if not self._options.until_caught_up:
            stop.wait(_POLL_S)
            return
        until = time.monotonic() + _POLL_S
        while not stop.wait(_END_POLL_S) and time.monotonic() < until:
            if any(each.has_ended for each in queries):
                return

    # --- the end ---------------------------------------------------------------------------------

    @staticmethod
    def _is_up() -> bool:
        return jvm.exit_code() is None

    @contextlib.contextmanager
    def _spark_or_error(self) -> Iterator[None]:
        """Replace Py4J's errors by an error that says that the JVM has ended, if it has."""
        lost: BaseException | None = None
        try:
            yield
        except TidemillError:
            raise
        except Exception as error:
            # Connections are lost a moment before the process has ended.
            is_cut_off = _is_connection_error(error)
            may_be_lost = is_cut_off or type(error).__module__.startswith("py4j")
            timeout = _JVM_EXIT_TIMEOUT_S if may_be_lost else 0.0
            if jvm.exit_code(timeout) is None and not is_cut_off:
                raise
            lost = error
        if lost is not None or not self._is_up():
            log = self._options.log_file
            where = f" Spark's last output is in {log}." if log else ""
            raise PipelineError(
                f"Spark's JVM ended while the pipeline ran{_exit_text(jvm.exit_code())}",
                hint="The system may have killed it for lack of memory: see dmesg."
                f"{where} Run the pipeline again: queries continue from their checkpoints.",
            ) from lost

    def _publish_failure(
        self,
        queries: Sequence[SupervisedQuery],
        error: BaseException,
        publisher: StatusPublisher,
    ) -> None:
        """Publish the error that ends the run as the error of each query that it concerns."""
        text = str(error).strip() or type(error).__name__
        if not self._is_up():
            for each in queries:
                each.mark_failed(text)
        if not queries and isinstance(error, Exception):
            errors = self._build_errors
            publisher.publish(
                [never_started(s, errors.get(s.query) if errors else text) for s in self.statuses]
            )

    def _report_forced_end(self, queries: Sequence[SupervisedQuery], reason: str) -> None:
        for each in queries:
            each.mark_unstopped(reason)
        if self._warn is not None:
            self._warn(reason)


def _is_connection_error(error: BaseException) -> bool:
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    return isinstance(error, (Py4JNetworkError, ConnectionError))


def _exit_text(code: int | None) -> str:
    if code is None:
        return ""
    return f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"


def find_error(statuses: Sequence[QueryStatus]) -> PipelineError | None:
    """Return an error with the failures of a run's queries; None if none has failed."""
    failed = [each for each in statuses if each.state == FAILED]
    if not failed:
        return None
    lines = "; ".join(errors_of(failed))
    return PipelineError(f"{len(failed)} of {len(statuses)} queries failed: {lines}")
