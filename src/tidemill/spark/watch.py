"""One query of a running pipeline: looked at, restarted after failures, summed up as a status.

Must not know: Spark's classes (``write`` wraps them), topics, other queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tidemill.spark.explain import Explanation, explain, in_a_line
from tidemill.spark.progress import Meter, QueryStatus, SourceStatus, now_text

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
HEALTHY_S = 60.0
"""A query that ran as long without a failure begins again with the shortest pause."""
SETTLING_S = 15.0
"""How long a start takes at most, as far as others wait for it."""

STARTING, RUNNING, WAITING = "starting", "running", "waiting"
OVER = DONE, FAILED, STOPPED = "done", "failed", "stopped"


class Running(Protocol):
    """A query that was started."""

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""

    def updates(self) -> Sequence[Mapping[str, Any]]:
        """Progress since the last call, oldest first."""

    def error(self) -> BaseException | None:
        """Why it ended, if it failed."""

    def stop(self) -> None:
        """End it; a batch that is under way is run again by the next start."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a query may go on.

    Attributes:
        until_caught_up: it ends by itself, when all is read.
        most_restarts: in a row; None for no limit.
    """

    until_caught_up: bool = False
    most_restarts: int | None = None


class Watched:
    """A query with its restarts.

    Args:
        status: as it is before the start: its names, its sink, its topics.
        begin: starts it.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        status: QueryStatus,
        begin: Callable[[], Running],
        terms: Terms,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = status
        self._begin = begin
        self._terms = terms
        self._clock = clock
        self._meter = Meter()
        self._running: Running | None = None
        self._state = STARTING
        self._is_untried = True
        self._error: Explanation | None = None
        self._restarts = 0
        self._in_a_row = 0
        self._pause = FIRST_PAUSE_S
        self._started = 0.0
        self._due = 0.0

    @property
    def is_over(self) -> bool:
        """Whether it will not go on."""
        return self._state in OVER

    @property
    def is_new(self) -> bool:
        """Whether it is still to be started for the first time."""
        return self._state == STARTING

    @property
    def is_settling(self) -> bool:
        """Whether it was started a moment ago and has not told of its first look yet."""
        since = self._clock() - self._started
        return self._state == RUNNING and not self._meter.updates and since < SETTLING_S

    @property
    def due_in_s(self) -> float | None:
        """Seconds until it is started again; None while it need not be."""
        return max(0.0, self._due - self._clock()) if self._state == WAITING else None

    def start(self) -> None:
        """Start, or start again."""
        self._started = self._clock()
        try:
            self._running = self._begin()
            self._state, self._is_untried = RUNNING, False
        except Exception as error:  # of Spark, or of a sink
            self._failed(error)

    def look(self) -> None:
        """See how it is, and do what is due."""
        if self.due_in_s == 0.0:
            self._restarts += 1
            self.start()
        running = self._running
        if self._state != RUNNING or running is None:
            return
        is_active = running.is_active  # asked first: no progress follows an end
        self._meter.take_all(running.updates())
        if is_active:
            if self._clock() - self._started > HEALTHY_S:
                self._pause, self._in_a_row = FIRST_PAUSE_S, 0
            return
        error = running.error()
        if error is not None:
            self._failed(error)
        else:
            self._state = DONE if self._terms.until_caught_up else STOPPED

    def end(self) -> None:
        """Stop it, if it runs."""
        if self._running is not None and self._state == RUNNING:
            try:
                self._running.stop()
                self._meter.take_all(self._running.updates())
            except Exception as error:  # it did not end in time, or failed while it ended
                self._error = explain(error, self._reset)
        if not self.is_over:
            self._state = STOPPED

    def give_up(self, why: str) -> None:
        """It can't go on, and not be asked either: Spark is gone."""
        if not self.is_over:
            self._state, self._error = FAILED, Explanation(why)

    def status(self) -> QueryStatus:
        """As it is now; what this run has not come to yet, as the last one left it."""
        meter, error, first = self._meter, self._error, self._first
        has_run = meter.batch >= 0
        told = replace(
            first,
            state=self._state,
            restarts=self._restarts,
            error=None if error is None else in_a_line(error.message, error.hint),
            sources=_with_offsets(first.sources, meter),
            updated=now_text(),
        )
        if self._is_untried:
            return told
        return replace(
            told,
            batch=meter.batch if has_run else first.batch,
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

    def _failed(self, error: BaseException) -> None:
        self._error = explain(error, self._reset)
        most = self._terms.most_restarts
        if self._error.is_final or (most is not None and self._in_a_row >= most):
            self._state = FAILED
            return
        self._state = WAITING
        self._in_a_row += 1
        self._due = self._clock() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)


def _with_offsets(sources: Sequence[SourceStatus], meter: Meter) -> tuple[SourceStatus, ...]:
    """Topics as declared, tables among them, with what Spark reports of them."""
    before = {each.topic: each for each in sources}
    topics = dict.fromkeys([*before, *sorted(meter.lags)])
    told = []
    for topic in topics:
        old = before.get(topic, SourceStatus(topic))
        lag, read = meter.lags.get(topic, old.lag), meter.read.get(topic, old.read)
        told.append(SourceStatus(topic, lag, read))
    return tuple(told)
