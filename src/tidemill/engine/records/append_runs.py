"""Append a run of ordinary batches: those that a client sent together.

What many requests have in common is done once for all of them: the partition is looked up
once for a connection, the batches of a partition are written with one system call, and the run
waits once for each log. One call of the extension decides which batches can be appended as they
are, and a second one appends to all logs of a run, where that is an ordinary append. The results
are those of ``append``, which takes every batch that is not ordinary, and everything that goes
wrong. Knows logs and the flusher, and no protocol.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial

from tidemill.clock import Clock
from tidemill.engine.api import Durability, PartitionWrite, PendingWrites, WriteResult
from tidemill.engine.flusher import Awaited, Flusher
from tidemill.engine.records.append import Appender
from tidemill.engine.records.partitions import Partitions
from tidemill.engine.runs import RunWrite, Target
from tidemill.errors import TidemillError
from tidemill.log.format.batch import parse_header
from tidemill.log.format.validate import Checked
from tidemill.log.partition.append import append_run
from tidemill.log.partition.partition import PartitionLog
from tidemill.native import extension

NOT_APPENDED: WriteResult = (-1, -1, -1)
"""The result of a batch until it was appended or failed."""


class RunAppender:
    """Appends runs."""

    def __init__(
        self, partitions: Partitions, flusher: Flusher, clock: Clock, appender: Appender
    ) -> None:
        self._partitions = partitions
        self._flusher = flusher
        self._clock = clock
        self._appender = appender

    def append(
        self, run: list[RunWrite], durability: Durability, ends: Sequence[int]
    ) -> tuple[list[WriteResult], PendingWrites | None]:
        """Append the batches of the requests at the front of a run; the rest are for ``append``.

        Args:
            ends: the number of batches up to the end of each request.

        Returns:
            A result per batch that was appended or failed, in order. With ``Durability.SYNCED``
            they can have to wait for the disk.
        """
        now_ms = self._clock.now_ms()
        count, of_target, size = self._admitted(run, now_ms)
        requests = bisect_right(ends, count)
        if not requests:
            return [], None
        if count > ends[requests - 1]:  # not all batches of the next request can be appended
            count, of_target, size = self._admitted(run[: ends[requests - 1]], now_ms)
        results: list[WriteResult] = [NOT_APPENDED] * count
        pending = PendingWrites(results) if durability is Durability.SYNCED else None
        awaited: list[Awaited] = []
        try:
            counts = append_run(run, of_target, results, now_ms)
            for (target, places), appended in zip(of_target.items(), counts, strict=True):
                log = target.log
                assert log is not None
                end = log.head.end_offset if appended else 0
                if appended < len(places):
                    rest = places[appended:]
                    end = max(end, self._append_rest(target, log, run, rest, results, now_ms))
                if pending is None or log.high_watermark >= end:
                    self._appender.written(log)
                else:
                    awaited.append((log, end, partial(pending.count, places)))
        except BaseException:  # a fault: no client is answered, but what was appended is synced
            for target in of_target:
                if target.log is not None:
                    self._appender.written(target.log)
            raise
        if pending is not None and awaited:
            pending.remaining = len(awaited)
            self._flusher.call_when_each_is_durable(awaited)
        self._flusher.appended(size // requests)
        return results, pending if awaited else None

    def _admitted(
        self, run: list[RunWrite], now_ms: int
    ) -> tuple[int, dict[Target, list[int]], int]:
        """Return what of a run can be appended as it is. Look up targets that are not current.

        Returns:
            The number of batches at the front that can be appended, their places for each target,
            and their bytes. The batch behind them is not ordinary for its topic, or clients can't
            write to its partition.
        """
        partitions = self._partitions
        logs, hidden = partitions.logs, partitions.uncommitted
        if partitions.is_stopping:
            return 0, {}, 0
        while True:
            count, places, size, is_outdated = extension.admit_run(run, logs, hidden, now_ms)
            if not is_outdated or not self._look_up(run[count][0]):
                return count, places, size

    def _look_up(self, target: Target) -> bool:
        """Find the log of a target again; return whether ordinary batches can go there."""
        target.limits = None
        try:
            log = self._partitions.writable(*target.tp)
        except TidemillError:
            return False
        if target.topic_id is not None and log.topic_id != target.topic_id:
            return False
        target.find(log)
        return target.limits is not None

    def _append_rest(
        self,
        target: Target,
        log: PartitionLog,
        run: list[RunWrite],
        places: list[int],
        results: list[WriteResult],
        now_ms: int,
    ) -> int:
        """Append batches of one log, the first of which has failed, or is for the log to judge.

        Returns:
            The offset behind those that are in the log, or 0 if all failed.
        """
        end = 0
        while places:
            place, places = places[0], places[1:]
            _, data, facts = run[place]
            result = results[place]
            if result is NOT_APPENDED:
                result = results[place] = self._append(log, data, now_ms)
            if isinstance(result, tuple):
                end = max(end, result[0] + facts[0])
            elif isinstance(result, TidemillError):
                self._appender.refused(PartitionWrite(*log.tp, data), result, now_ms)
            else:
                raise result
            if places:
                (more,) = append_run(run, {target: places}, results, now_ms)
                if more:
                    end, places = log.head.end_offset, places[more:]
        return end

    @staticmethod
    def _append(log: PartitionLog, data: memoryview, now_ms: int) -> WriteResult:
        try:
            info = log.append(Checked(data, [parse_header(data)], log.config), now_ms=now_ms)
        except TidemillError as error:
            return error
        return info.first_offset, info.log_append_time_ms, log.log_start_offset
