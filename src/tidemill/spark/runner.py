"""Runs a pipeline: checks it, starts its queries, watches them, restarts what fails, tells of it.

The order: all that can be seen without Spark is checked first; then the session comes up and all
queries are built, so that a mistake in the last one is told before the first has written anything;
then they start. A query that fails is restarted from its checkpoint after a pause that grows, while
the others go on. Must not know: the command line, how results are shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.errors import PipelineError, TidemillError
from tidemill.spark.checkpoint import Checkpoint, PipelineLock
from tidemill.spark.explain import Explanation, explain
from tidemill.spark.inputs import Builder, Built
from tidemill.spark.pipeline import Pipeline, Query, Starting
from tidemill.spark.pipeline_check import PipelineProblemsError, Problem, check
from tidemill.spark.progress import Meter, QueryStatus, now_text
from tidemill.spark.shape import shape_of
from tidemill.spark.status_topic import StatusTopic
from tidemill.spark.window_check import check_query
from tidemill.spark.write import Start, check_sink, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
HEALTHY_S = 60.0
"""A query that ran as long without a failure begins again with the shortest pause."""
_LOOK_S = 0.25
_PUBLISH_S = 1.0

Listener = Callable[[QueryStatus], None]


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
        log_file: gets what Spark prints.
        restart: whether a query that fails is started again.
    """

    bootstrap_servers: str
    state: Path
    master: str = "local[2]"
    until_caught_up: bool = False
    starting: Starting | None = None
    kafka: Mapping[str, str] = field(default_factory=dict)
    log_file: Path | None = None
    restart: bool = True


class Runner:
    """One run of a pipeline.

    Args:
        listener: told of each query's status whenever it changes, in the thread that runs.
    """

    def __init__(
        self, pipeline: Pipeline, options: RunOptions, listener: Listener | None = None
    ) -> None:
        self._pipeline = pipeline
        self._options = options
        self._listener = listener
        self._kafka = {
            **pipeline.kafka,
            **options.kafka,
            "bootstrap.servers": options.bootstrap_servers,
        }
        self._watched: list[_Watched] = []

    @property
    def statuses(self) -> list[QueryStatus]:
        """Of all queries, as they are now."""
        return [each.status() for each in self._watched]

    def run(self, stop: threading.Event | None = None) -> list[QueryStatus]:
        """Run until ``stop`` is set, all queries are done, or none can go on.

        Returns:
            What the queries came to.

        Raises:
            PipelineProblemsError: it is declared wrongly, or a query can't be started; nothing was
                started.
            PipelineRunningError: another process runs it.
            UnreachableError: no broker answers.
            JavaNotFoundError, JvmStartError: there is no Spark.
        """
        stop = stop or threading.Event()
        check(self._pipeline)
        lock = PipelineLock(self._options.state, self._pipeline.name)
        with lock, StatusTopic(self._kafka) as topic:
            topic.prepare(self._topics())
            spark = self._session()
            self._watched = self._build(spark)
            try:
                for each in self._watched:
                    each.start()
                self._watch(stop, topic)
            finally:
                for each in self._watched:
                    each.end()
                self._publish(topic)
        return self.statuses

    def _session(self) -> SparkSession:
        from tidemill.spark.session import spark_session

        return spark_session(
            f"tidemill {self._pipeline.name}",
            master=self._options.master,
            extra=self._pipeline.spark,
            log_file=self._options.log_file,
        )

    def _topics(self) -> list[tuple[str, bool]]:
        """Topics that must be there before a query starts, and whether they are changelogs."""
        from tidemill.spark.sinks import ChangelogSink, TopicSink

        wanted = [(stream.topic, False) for stream in self._pipeline.streams]
        wanted += [(table.topic, True) for table in self._pipeline.tables]
        wanted += [
            (stream.dead_letters, False)
            for stream in self._pipeline.streams
            if stream.dead_letters is not None and stream.format != "raw"
        ]
        for query in self._pipeline.queries:
            if isinstance(query.sink, (TopicSink, ChangelogSink)):
                wanted.append((query.sink.topic, isinstance(query.sink, ChangelogSink)))
        return wanted

    def _build(self, spark: SparkSession) -> list[_Watched]:
        builder = Builder(spark, self._pipeline, self._kafka, self._options.starting)
        built, problems = builder.build_all()
        for stream in self._pipeline.streams:
            letters = builder.dead_letters(stream)
            if letters is not None:
                built.append(letters)
        watched = []
        for each in built:
            try:
                watched.append(self._watch_one(each, builder))
            except TidemillError as error:
                query = each.query
                problems.append(Problem(query.place, f"query {query.name}: {error}", error.hint))
        if problems:
            raise PipelineProblemsError(self._pipeline.name, problems)
        return watched

    def _watch_one(self, built: Built, builder: Builder) -> _Watched:
        query = built.query
        check_query(built.df, query.mode)
        check_sink(built)
        checkpoint = Checkpoint(self._options.state, self._pipeline.name, query.name)
        shape = shape_of(built.df, query.mode, built.sources)
        checkpoint.check(shape)
        checkpoint.adopt(shape)
        how = Start(
            pipeline=self._pipeline.name,
            identity=checkpoint.identity(),
            checkpoint=str(checkpoint.spark_folder),
            kafka=self._kafka,
            until_caught_up=self._options.until_caught_up,
        )
        return _Watched(built, how, restart=self._options.restart)

    def _watch(self, stop: threading.Event, topic: StatusTopic) -> None:
        published = 0.0
        while not stop.wait(_LOOK_S):
            for each in self._watched:
                each.look()
            if time.monotonic() - published >= _PUBLISH_S:
                self._publish(topic)
                published = time.monotonic()
            if all(each.is_over for each in self._watched):
                return

    def _publish(self, topic: StatusTopic) -> None:
        for each in self._watched:
            status = each.status()
            if each.changed(status):
                topic.publish(status)
                if self._listener is not None:
                    self._listener(status)


class _Watched:
    """One query: running, waiting to be restarted, or over."""

    def __init__(self, built: Built, how: Start, *, restart: bool) -> None:
        self._built = built
        self._how = how
        self._restart = restart
        self._meter = Meter()
        self._query: StreamingQuery | None = None
        self._state = "waiting"
        self._error: Explanation | None = None
        self._restarts = 0
        self._pause = FIRST_PAUSE_S
        self._started = 0.0
        self._due = 0.0
        self._last: QueryStatus | None = None

    @property
    def is_over(self) -> bool:
        return self._state in ("done", "failed", "stopped")

    def start(self) -> None:
        """Start, or start again."""
        self._started = time.monotonic()
        try:
            self._query = start(self._built, self._how)
            self._state = "running"
        except Exception as error:  # of Spark, or of a sink
            self._failed(error)

    def look(self) -> None:
        """See how it is, and do what is due."""
        if self._state == "waiting" and time.monotonic() >= self._due:
            self._restarts += 1
            self.start()
        if self._state != "running" or self._query is None:
            return
        self._take_progress(self._query)
        if self._query.isActive:
            if time.monotonic() - self._started > HEALTHY_S:
                self._pause = FIRST_PAUSE_S
            return
        error = self._query.exception()
        self._take_progress(self._query)
        if error is None:
            self._state = "done" if self._how.until_caught_up else "stopped"
        else:
            self._failed(error)

    def end(self) -> None:
        """Stop it; a batch that is under way is run again by the next start."""
        if self._query is not None and self._query.isActive:
            self._query.stop()
            self._take_progress(self._query)
        if not self.is_over:
            self._state = "stopped"

    def status(self) -> QueryStatus:
        """As it is now."""
        query: Query = self._built.query
        meter, error = self._meter, self._error
        return QueryStatus(
            pipeline=self._how.pipeline,
            query=query.name,
            state=self._state,
            mode=query.mode,
            sink=query.sink.target,
            batch=meter.batch,
            rows_per_second=meter.rows_per_second,
            rows=meter.rows,
            late_rows=meter.late_rows,
            watermark=meter.watermark,
            state_rows=meter.state_rows,
            batch_ms=meter.batch_ms,
            latency_p50_ms=meter.percentile(0.5),
            latency_p99_ms=meter.percentile(0.99),
            restarts=self._restarts,
            error=None if error is None else f"{error.message} {error.hint}".strip(),
            sources=meter.sources,
            updated=now_text(),
        )

    def changed(self, status: QueryStatus) -> bool:
        """Whether it says more than the one before, but for the time; remembers it."""
        from dataclasses import replace

        bare = replace(status, updated="")
        if bare == self._last:
            return False
        self._last = bare
        return True

    def _take_progress(self, query: StreamingQuery) -> None:
        progress: Sequence[Mapping[str, object]] = _as_dicts(query)
        for each in progress:
            self._meter.take(each)

    def _failed(self, error: BaseException) -> None:
        self._error = explain(error)
        if self._error.is_final or not self._restart:
            self._state = "failed"
            return
        self._state = "waiting"
        self._due = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)


def _as_dicts(query: StreamingQuery) -> list[Mapping[str, object]]:
    import json

    return [json.loads(progress.json) for progress in query.recentProgress]


def find_error(statuses: Sequence[QueryStatus]) -> PipelineError | None:
    """The failure of a run, if a query could not go on."""
    failed = [each for each in statuses if each.state == "failed"]
    if not failed:
        return None
    lines = "; ".join(f"{each.query}: {each.error}" for each in failed)
    return PipelineError(f"{len(failed)} of {len(statuses)} queries failed: {lines}")
