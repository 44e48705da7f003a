"""Supervise one query of a running pipeline: take its progress, restart it, report its status.

Spark stops a query within its stop timeout, or reports that it could not. Other calls have no
limit: a query that is starting, or a job of a sink, waits for workers for ever. So ``StopGuard``
watches the end of a run, and ends Spark's JVM if it takes too long. Must not know: Spark's classes
(``start`` wraps them), topics, other queries.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from tidemill.spark.base.explain import Explanation, explain, with_hint
from tidemill.spark.pipelines.progress import Meter, QueryStatus, SourceStatus, now_text

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
HEALTHY_S = 60.0
"""After so long without a failure, the next restart waits for the shortest pause again."""
STARTUP_TIMEOUT_S = 15.0
"""How long other queries wait at most for the first progress of a query that was started."""

CONCURRENT_STARTS = max(2, 2 * (os.cpu_count() or 1))
"""Each query starts Python processes that must answer Spark within ten seconds, so only a few
queries start at the same time: more than cores, because each of them often waits."""

BUSY_PAUSE_S = 2.0
"""Pause after a start that failed because the machine is busy. It does not grow."""
BUSY_PATIENCE_S = 600.0
"""After so long without any progress, such starts count as failures of the query, too."""

STOP_TIMEOUT_KEY = "spark.sql.streaming.stopTimeout"
STOP_TIMEOUT = "20s"
"""How long a query may take to stop, if the pipeline's settings do not say it."""
GRACE_S = 5.0
"""How much longer the whole run may take."""

_TIME = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

log = logging.getLogger("tidemill.spark")

STARTING, RUNNING, WAITING = "starting", "running", "waiting"
OVER = DONE, FAILED, STOPPED = "done", "failed", "stopped"


class RunningQuery(Protocol):
    """A query that was started."""

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""

    def updates(self) -> Sequence[Mapping[str, Any]]:
        """Return its progress since the last call, oldest first."""

    def error(self) -> BaseException | None:
        """Return the error that ended it, or None."""

    def stop(self) -> None:
        """Stop it. The next start runs an unfinished batch again."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The rules for restarts and for the end of a query.

    Attributes:
        until_caught_up: the query ends by itself when it has read all records.
        max_restarts: most restarts one after the other without a healthy run between; None: no
            limit.
    """

    until_caught_up: bool = False
    max_restarts: int | None = None


class SupervisedQuery:
    """A query that is restarted after failures.

    Args:
        status: the status before the start, with names, sink and topics.
        policy: when the query is over.
    """

    def __init__(
        self,
        status: QueryStatus,
        start: Callable[[], RunningQuery],
        policy: RestartPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = status
        self._start_query = start
        self._policy = policy
        self._clock = clock
        self._meter = Meter()
        self._running: RunningQuery | None = None
        self._state = STARTING
        self._never_ran = True
        self._error: Explanation | None = None
        self._restarts = 0
        self._restarts_in_a_row = 0
        self._pause = FIRST_PAUSE_S
        self._started_at = 0.0
        self._restart_at = 0.0
        self._updates_at_start = 0
        self._has_failed = False
        self._busy_since: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the query has ended and will not be restarted."""
        return self._state in OVER

    @property
    def has_ended(self) -> bool:
        """Whether the query has ended, and ``poll`` has not noticed it yet."""
        running = self._running
        return self._state == RUNNING and running is not None and not running.is_active

    @property
    def is_due(self) -> bool:
        """Whether it is time to start the query, for the first time or again."""
        return self._state == STARTING or self.restart_in_s == 0.0

    @property
    def due_since(self) -> float:
        """The time when the query became due, on its clock; 0 before its first start."""
        return self._restart_at

    @property
    def is_starting_up(self) -> bool:
        """Whether the query was started a moment ago and has not reported progress yet."""
        since = self._clock() - self._started_at
        return self._state == RUNNING and not self._has_progress and since < STARTUP_TIMEOUT_S

    @property
    def is_held_up(self) -> bool:
        """Whether the machine was too busy for the last start, and nothing was processed since."""
        return self._busy_since is not None

    @property
    def restart_in_s(self) -> float | None:
        """Seconds until the next restart; None if no restart is planned."""
        return max(0.0, self._restart_at - self._clock()) if self._state == WAITING else None

    def start(self) -> None:
        """Start the query, or restart it. An error is a failure of the query."""
        self._started_at = self._clock()
        self._updates_at_start = self._meter.updates
        if self._state == WAITING and self._has_failed:
            self._restarts += 1
        try:
            self._running = self._start_query()
            self._state, self._never_ran = RUNNING, False
        except Exception as error:  # raised by Spark or by a sink
            self._handle_failure(error)

    def poll(self) -> None:
        """Take in new progress, and notice the end of the query."""
        running = self._running
        if self._state != RUNNING or running is None:
            return
        is_active = running.is_active  # read first: an ended query makes no more progress
        self._meter.take_all(running.updates())
        if self._has_progress:
            self._busy_since = None
        if is_active:
            if self._clock() - self._started_at > HEALTHY_S:
                self._pause, self._restarts_in_a_row = FIRST_PAUSE_S, 0
            return
        error = running.error()
        if error is not None:
            self._handle_failure(error)
        else:
            self._state = DONE if self._policy.until_caught_up else STOPPED

    @property
    def _has_progress(self) -> bool:
        """Whether the query has reported progress since its last start."""
        return self._meter.updates > self._updates_at_start

    def stop(self) -> None:
        """Stop the query if it runs. It is not restarted."""
        if self._running is not None and self._state == RUNNING:
            try:
                self._running.stop()
                self._meter.take_all(self._running.updates())
            except Exception as error:  # it did not stop in time, or failed while it stopped
                self._error = explain(error, self._reset)
        if not self.is_over:
            self._state = STOPPED

    def mark_failed(self, reason: str) -> None:
        """Mark the query as failed without asking Spark, because the JVM has ended."""
        if not self.is_over:
            self._state, self._error = FAILED, Explanation(reason)

    def mark_unstopped(self, reason: str) -> None:
        """Replace the error of a query whose JVM was killed because it did not stop in time."""
        if self._state not in (DONE, FAILED):
            self._state, self._error = STOPPED, Explanation(reason)

    def status(self) -> QueryStatus:
        """Return the status now; until the first batch of this run, with values of the last run."""
        meter, error, first = self._meter, self._error, self._first
        has_run = meter.batch >= 0
        status = replace(
            first,
            state=self._state,
            restarts=self._restarts,
            error=None if error is None else with_hint(error.message, error.hint),
            sources=_with_offsets(first.sources, meter),
            updated=now_text(),
        )
        if self._never_ran:
            return status
        return replace(
            status,
            batch=meter.batch if has_run else first.batch,
            history=meter.history if has_run else first.history,
            rows_per_second=meter.rows_per_second,
            rows=meter.rows,
            late_rows=meter.late_rows,
            watermark=meter.watermark or first.watermark,
            has_watermark=meter.has_watermark or first.has_watermark,
            state_rows=meter.state_rows if has_run else first.state_rows,
            batch_ms=meter.batch_ms,
            latency_p50_ms=meter.percentile(0.5),
            latency_p99_ms=meter.percentile(0.99),
        )

    @property
    def _reset(self) -> str:
        return f"tidemill pipeline reset {self._first.pipeline} --query {self._first.query}"

    def _handle_failure(self, error: BaseException) -> None:
        found = self._error = explain(error, self._reset)
        log.info("%s: %s", self._first.key, with_hint(found.message, found.hint))
        if not found.is_busy:
            self._busy_since = None
        self._has_failed = not (found.is_busy and self._is_patient())
        if not self._has_failed:
            self._state = WAITING
            self._restart_at = self._clock() + BUSY_PAUSE_S
            return
        limit = self._policy.max_restarts
        if found.is_final or (limit is not None and self._restarts_in_a_row >= limit):
            self._state = FAILED
            return
        self._state = WAITING
        self._restarts_in_a_row += 1
        self._restart_at = self._clock() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)

    def _is_patient(self) -> bool:
        """Whether a start that failed because the machine is busy is not a failure yet."""
        now = self._clock()
        if self._busy_since is None:
            self._busy_since = now
        return now - self._busy_since < BUSY_PATIENCE_S


def start_some(queries: Sequence[SupervisedQuery]) -> None:
    """Start the queries that are due, as many as may start at the same time.

    While the machine is too busy for one of them, they start one after the other.
    """
    limit = 1 if any(each.is_held_up for each in queries) else CONCURRENT_STARTS
    # A query that just failed comes after those that wait for longer.
    for each in sorted(queries, key=lambda each: each.due_since):
        if not each.is_due:
            continue
        if sum(other.is_starting_up for other in queries) >= limit:
            return
        each.start()


def stop_all(queries: Sequence[SupervisedQuery]) -> None:
    """Stop all queries in parallel: each of them waits for its batch."""
    if queries:
        with ThreadPoolExecutor(len(queries), thread_name_prefix="stop-query") as threads:
            list(threads.map(SupervisedQuery.stop, queries))


def never_started(status: QueryStatus, error: str | None = None) -> QueryStatus:
    """Return the last status of a query that was never started.

    Args:
        error: why the query was not started; None if the run was stopped.
    """
    if status.state != STARTING:
        return status
    return replace(
        status, state=STOPPED if error is None else FAILED, error=error, updated=now_text()
    )


def _with_offsets(sources: Sequence[SourceStatus], meter: Meter) -> tuple[SourceStatus, ...]:
    """Return the declared topics (tables' topics, too) with the offsets that Spark reports."""
    before = {each.topic: each for each in sources}
    topics = dict.fromkeys([*before, *sorted(meter.lags)])
    found = []
    for topic in topics:
        old = before.get(topic, SourceStatus(topic))
        lag, read = meter.lags.get(topic, old.lag), meter.read.get(topic, old.read)
        found.append(replace(old, lag=lag, read=read))
    return tuple(found)


# --- the end of a run ---


def limit_of(stop_timeout: str) -> float | None:
    """Return how many seconds a run may take to stop; None for no limit.

    Args:
        stop_timeout: Spark's setting: a time like ``20s``, by default in milliseconds. 0 waits
            without a limit. Spark rejects a text that is not a time.
    """
    found = _TIME.fullmatch(stop_timeout.strip().lower())
    if found is None:
        return limit_of(STOP_TIMEOUT)
    seconds = int(found[1]) * _SECONDS[found[2] or "ms"]
    return seconds + GRACE_S if seconds else None


class StopGuard:
    """Ends the JVM if a run still has not ended some time after it was asked to stop.

    Use it around the run.

    Args:
        stop: Set when the run is asked to stop.
        limit_s: Seconds that a stop may take; None for no limit.
    """

    def __init__(
        self, stop: threading.Event, end_jvm: Callable[[], object], limit_s: float | None
    ) -> None:
        self._stop = stop
        self._end_jvm = end_jvm
        self._limit_s = limit_s
        self._changed = threading.Condition()
        self._is_stopping = False
        self._is_over = False
        self.has_fired = False
        """Whether the guard has ended the JVM."""

    @property
    def reason(self) -> str:
        """The reason why the JVM was killed."""
        return (
            f"the run did not stop within {self._limit_s:g} s, so Spark's JVM was killed: a batch "
            "may wait for workers that are gone. The next start runs that batch again"
        )

    def begin(self) -> None:
        """Report that the run is stopping for another reason than ``stop``."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        if self._limit_s is not None:
            threading.Thread(target=self._watch, name="stop-guard", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _watch(self) -> None:
        with self._changed:
            while not (self._is_over or self._is_stopping or self._stop.is_set()):
                # The event can't wake this thread, which also waits for other things.
                self._changed.wait(0.25)
            if self._changed.wait_for(lambda: self._is_over, self._limit_s):
                return
            self.has_fired = True
        self._end_jvm()
