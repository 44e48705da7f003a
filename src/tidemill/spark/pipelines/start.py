"""Check that a query can start, and start it: connect its result to the writer of its sink.

Must not know: any one sink, how queries are supervised and restarted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.spark.base import pyspark_private
from tidemill.spark.pipelines.checkpoint import Checkpoint, Fingerprint
from tidemill.spark.pipelines.declared import Query
from tidemill.spark.pipelines.fingerprint import fingerprint_of
from tidemill.spark.pipelines.inputs import Built
from tidemill.spark.sinks import CheckpointState, Run
from tidemill.spark.sinks.batch_identity import batch_identity
from tidemill.spark.windows.check import check_query

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POOL = "spark.scheduler.pool"


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
    """Check a query's output mode, its sink and its checkpoint.

    Args:
        built: The query and its result.
        checkpoint: The folder of its checkpoint.

    Raises:
        TidemillError: The query can't start.
    """
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
        query: The query of Spark.
        close: Releases what the writer of the sink holds. Called when the query has ended.
    """

    def __init__(self, query: StreamingQuery, close: Callable[[], None]) -> None:
        self._query = query
        self._close = close
        self._last = ""

    @property
    def is_active(self) -> bool:
        """Whether the query still runs."""
        active = bool(self._query.isActive)
        if not active:
            self._close()
        return active

    def updates(self) -> list[dict[str, Any]]:
        """Return the progress reports since the last call, oldest first.

        Spark keeps the last 100 reports.
        """
        recent = pyspark_private.recent_progress(self._query)
        new: list[str] = []
        for index in reversed(range(len(recent))):
            text = recent[index].json()
            if text == self._last:
                break
            new.append(text)
        if new:
            self._last = new[0]
        return [json.loads(text) for text in reversed(new)]

    def error(self) -> BaseException | None:
        """Return the error that ended the query, or None."""
        found: BaseException | None = self._query.exception()
        return found

    def stop(self) -> None:
        """Stop the query. The next start runs an unfinished batch again."""
        try:
            self._query.stop()
        finally:
            self._close()


def start(built: Built, run: Run) -> Started:
    """Start a query.

    Args:
        built: The query and its result.
        run: Names, checkpoint and settings of this run.

    Raises:
        TidemillError: The sink can't be opened.
        Exception: Spark rejects the query.
    """
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
        query = (stream.trigger(**run.trigger) if run.trigger else stream).start()
    except BaseException:
        writer.close()
        raise
    finally:
        pyspark_private.remove_local_property(spark, _POOL)
    return Started(query, writer.close)
