"""Check that a query can start, and start it: connect its result to the writer of its sink.

Must not know: any one sink, how queries are supervised and restarted.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tidemill import tracing
from tidemill.spark.base import pyspark_private
from tidemill.spark.base.session import DEFAULTS
from tidemill.spark.pipelines.checkpoint import Checkpoint, Fingerprint
from tidemill.spark.pipelines.declared import Query
from tidemill.spark.pipelines.fingerprint import fingerprint_of
from tidemill.spark.pipelines.inputs import Built
from tidemill.spark.sinks.base import CheckpointState, Run, Writer
from tidemill.spark.sinks.batch_identity import batch_identity
from tidemill.spark.windows.check import check_query
from tidemill.spark.windows.join_state import join_state_format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POOL = "spark.scheduler.pool"
_NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_POLLING_DELAY = "spark.sql.streaming.pollingDelay"
_STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
_JOIN_STATE = "spark.sql.streaming.join.stateFormatVersion"
_COUNTS_ROWS = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"
_WITH_TIMERS = ("FlatMapGroups", "FlatMapCoGroups", "TransformWithState")
"""Begins of the names of operators that can return rows although there are no new records."""


@dataclass(frozen=True)
class ReadyQuery:
    """A query that passed all checks.

    Attributes:
        built: The query and its result.
        checkpoint: The folder of its checkpoint.
        fingerprint: The fingerprint of its result.
    """

    built: Built
    checkpoint: Checkpoint
    fingerprint: Fingerprint

    @property
    def query(self) -> Query:
        """The query as it was declared."""
        return self.built.query

    def start(self, run: Run) -> Started:
        """Start the query. See ``start``."""
        return start(self.built, run)


def make_ready(built: Built, checkpoint: Checkpoint) -> ReadyQuery:
    """Check a query's output mode, its sink and its checkpoint."""
    query = built.query
    check_query(built.df, query.mode)
    last = batch_identity(str(checkpoint.spark_folder))
    state = CheckpointState(
        checkpoint.is_fresh, None if last is None else last.batch_id, checkpoint.reset
    )
    query.sink.check_result(built.df, state)
    fingerprint = fingerprint_of(built.df, query.mode)
    checkpoint.check(fingerprint)
    return ReadyQuery(built, checkpoint, fingerprint)


class Started:
    """A running query of Spark, as ``supervisor.RunningQuery``.

    Args:
        writer: The writer of the sink. It is closed when the query has ended.
        counts_rows: Whether Spark counts the rows in the query's state. If not, it reports 0.
    """

    def __init__(self, query: StreamingQuery, writer: Writer, *, counts_rows: bool = True) -> None:
        self._query = query
        self._writer = writer
        self._counts_rows = counts_rows
        self._last = ("", -1)

    @property
    def is_active(self) -> bool:
        """Whether the query still runs."""
        active = bool(self._query.isActive)
        if not active:
            self._writer.close()
        return active

    def updates(self) -> list[dict[str, Any]]:
        """Return the progress reports since the last call, oldest first.

        Spark keeps the last 100 reports.
        """
        recent = pyspark_private.recent_progress(self._query)
        new: list[dict[str, Any]] = []
        newest = self._last
        for index in reversed(range(len(recent))):
            report = recent[index]
            # Spark makes the JSON of a report whenever it is asked for it.
            which = str(report.timestamp()), int(report.batchId())
            if which == self._last:
                break
            if not new:
                newest = which
            new.append(self._read(report.json()))
            trace_batch(new[-1])
        self._last = newest
        return new[::-1]

    def _read(self, text: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(text)
        if not self._counts_rows:
            for each in report.get("stateOperators") or ():
                each.pop("numRowsTotal", None)
        return report

    def error(self) -> BaseException | None:
        """Return the error that ended the query, or None."""
        found: BaseException | None = self._query.exception()
        return None if found is None else self._writer.cause_of(found)

    def stop(self) -> None:
        """Stop the query. The next start runs an unfinished batch again."""
        try:
            self._query.stop()
        finally:
            self._writer.close()


def trace_batch(report: Mapping[str, Any]) -> None:
    """Make a span of the batch that a report is about."""
    with contextlib.suppress(KeyError, ValueError, TypeError):  # a report of another form
        began = datetime.fromisoformat(str(report["timestamp"]))
        start_ns = round(began.timestamp() * 1000) * 1_000_000
        tracing.record(
            f"batch {report['name']}",
            start_ns,
            start_ns + int(report["batchDuration"]) * 1_000_000,
            tidemill__batch_id=int(report["batchId"]),
            messaging__batch__message_count=int(report["numInputRows"]),
        )


def start(built: Built, run: Run) -> Started:
    """Start a query."""
    writer = built.query.sink.open(run)
    spark = built.df.sparkSession
    # With Spark's fair scheduler, each query gets its share of the cores.
    spark.sparkContext.setLocalProperty(_POOL, run.name)
    try:
        stream = (
            writer.stream(built.df)
            .outputMode(run.mode)
            .queryName(run.name)
            .option("checkpointLocation", run.checkpoint)
        )
        with settings(spark, tuning(built)):  # the query copies the session when it starts
            counts_rows = _counts_rows(spark)
            query = (stream.trigger(**run.trigger) if run.trigger else stream).start()
    except BaseException:
        writer.close()
        raise
    finally:
        pyspark_private.remove_local_property(spark, _POOL)
    return Started(query, writer, counts_rows=counts_rows)


def tuning(built: Built) -> dict[str, str]:
    """Return the settings of Spark that suit one query."""
    chosen: dict[str, str] = {}
    if pyspark_private.stream_formats(built.df) == {"tidemill"}:
        chosen[_POLLING_DELAY] = "10ms"  # the source decides how often it asks (planning.pacing)
    if _uses_rocksdb(built.df.sparkSession):
        # A checkpoint keeps the format of its first start.
        chosen[_JOIN_STATE] = join_state_format(built.df)
        # To count, Spark reads the old value of each key that it writes or removes.
        chosen[_COUNTS_ROWS] = "false"
    plan = pyspark_private.analyzed_plan(built.df).toString()
    # When the watermark moves, Spark runs a batch without records, which removes old state and
    # returns rows that are complete. In update mode these were returned when they changed, so the
    # next batch with records can remove the state.
    if built.query.mode == "update" and not any(name in plan for name in _WITH_TIMERS):
        chosen[_NO_DATA_BATCHES] = "false"
    return chosen


def _uses_rocksdb(spark: SparkSession) -> bool:
    provider = spark.conf.get(_STATE_STORE, "") or ""
    return provider.endswith(".RocksDBStateStoreProvider")


def _counts_rows(spark: SparkSession) -> bool:
    """Whether Spark counts the rows in the state of a query that starts now."""
    return not _uses_rocksdb(spark) or spark.conf.get(_COUNTS_ROWS, "true") == "true"


@contextlib.contextmanager
def settings(spark: SparkSession, chosen: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session for a moment. Those that the user has set stay as they are."""
    known = dict(spark.conf.getAll)
    own = {n: v for n, v in chosen.items() if n not in known or known[n] == DEFAULTS.get(n)}
    try:
        for name, value in own.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in own:
            if name in known:
                spark.conf.set(name, known[name])
            else:
                spark.conf.unset(name)
