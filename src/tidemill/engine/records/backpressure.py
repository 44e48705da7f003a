"""Answer producers that outrun a consumer group: buffer, hold back, drop, or warn.

The configs ``lag.*`` of a topic name a group, a limit and a policy. This module measures the lag of
the group in each partition from time to time, and ``state.lag`` decides what it means. A protocol
asks ``hold_ms`` after each write. Knows logs and committed offsets, and no protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from tidemill.clock import Clock
from tidemill.engine.waiters import Waiters
from tidemill.errors import TidemillError
from tidemill.log.errors import SyncFailedError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore
from tidemill.state.lag import Lag, LagLimit, Pace, first_within

CHECK_INTERVAL_MS = 200
"""How often the lag is measured."""
REPORT_INTERVAL_MS = 60_000
"""Shortest time between two log lines about one partition."""
PARTITIONS_PER_TURN = 64
"""Partitions that are measured in one turn of the event loop."""

logger = structlog.get_logger("tidemill.backpressure")

Committed = Callable[[str, TopicPartition], int | None]
"""Returns the committed offset of a group in a partition; None if it has none."""


class _Watched:
    """One partition with a policy."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.pace = Pace()
        self.limit = LagLimit()
        self.holds = False
        """Whether the policy holds producers back."""
        self.lag = Lag(0, 0, 0)
        """As it was measured last, when the log had ``end_offset`` and ``size_bytes``."""
        self.end_offset = log.log_end_offset
        self.size_bytes = log.size_bytes
        self.is_over = False
        self.dropped = 0
        self.next_report_ms = 0

    def take_configs(self) -> None:
        """Use the topic's configs as they are now."""
        config = self.log.config
        self.limit = LagLimit(config.lag_max_records, config.lag_max_bytes, config.lag_max_ms)
        self.holds = config.lag_policy == "throttle"

    def hold_ms(self) -> int:
        """Return how long a producer must wait, with what was written since the last measurement.

        The group has perhaps moved since then; the next measurement sees it.
        """
        lag = Lag(
            self.lag.records + self.log.log_end_offset - self.end_offset,
            max(self.lag.size_bytes + self.log.size_bytes - self.size_bytes, 0),
            self.lag.age_ms,
        )
        excess = self.limit.excess(lag)
        return self.pace.hold_ms(int(lag.records * excess) + 1) if excess > 0 else 0


class Backpressure:
    """Applies the policies of all topics.

    Args:
        waiters: reads that must notice a new start of a log.
    """

    def __init__(
        self, store: LogStore, committed: Committed, waiters: Waiters, clock: Clock
    ) -> None:
        self._store = store
        self._committed = committed
        self._waiters = waiters
        self._clock = clock
        self._watched: dict[TopicPartition, _Watched] = {}
        self._holding: dict[tuple[str, int], _Watched] = {}
        """The partitions whose policy holds producers back. Usually none."""

    @property
    def is_holding(self) -> bool:
        """Whether there is a policy that holds producers back."""
        return bool(self._holding)

    def hold_ms(self, partitions: Iterable[tuple[str, int]]) -> int:
        """Return how long a producer that wrote to these partitions must wait, in milliseconds."""
        holding = self._holding
        if not holding:
            return 0
        return max((holding[tp].hold_ms() for tp in partitions if tp in holding), default=0)

    def watch(self, log: PartitionLog) -> None:
        """Notice the configs of a partition: call this when they were set or changed."""
        config = log.config
        if config.lag_policy != "buffer" and config.lag_group:
            known = self._watched.get(log.tp)
            if known is None or known.log is not log:
                known = self._watched[log.tp] = _Watched(log)
            known.take_configs()
        elif log.tp in self._watched:
            del self._watched[log.tp]
        else:
            return
        self._list_holding()

    def _list_holding(self) -> None:
        self._holding = {tp: each for tp, each in self._watched.items() if each.holds}

    async def check(self) -> None:
        """Measure the lag in all partitions with a policy, and act.

        Raises:
            SyncFailedError: the broker must stop.
        """
        if not self._watched:
            return
        has_dropped = False
        for number, watched in enumerate(list(self._watched.values())):
            try:
                has_dropped |= self._check(watched)
            except SyncFailedError:
                raise
            except TidemillError as error:
                watched.holds = False
                if self._is_due(watched):
                    logger.error(
                        "lag.not_measured",
                        partition=str(watched.log.tp),
                        error=str(error),
                        hint=error.hint,
                    )
            if number % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)
        self._list_holding()
        if has_dropped:
            # The starts of logs must be durable before the files of old segments disappear.
            write = self._store.checkpoint_writes()
            await asyncio.get_running_loop().run_in_executor(None, write)

    def _check(self, watched: _Watched) -> bool:
        """Measure one partition and act; return whether its start moved."""
        log = watched.log
        if log.failure is not None or self._store.partitions.get(log.tp) is not log:
            if self._watched.get(log.tp) is watched:
                del self._watched[log.tp]  # it is offline, or was deleted
            return False
        config = log.config
        watched.take_configs()
        limit = watched.limit
        now_ms = self._clock.now_ms()
        position = max(self._committed(config.lag_group, log.tp) or 0, log.log_start_offset)
        watched.pace.observe(now_ms, position)
        lag = watched.lag = self._lag(log, position, now_ms)
        watched.end_offset, watched.size_bytes = log.high_watermark, log.size_bytes
        was_over, watched.is_over = watched.is_over, limit.excess(lag) > 0
        if not watched.is_over:
            if was_over and config.lag_policy != "drop":
                watched.next_report_ms = 0
                logger.info("lag.within_limit", **_about(watched))
            return False
        match config.lag_policy:
            case "throttle":
                if self._is_due(watched):
                    logger.warning("lag.producers_held_back", **_about(watched))
            case "drop":
                return self._drop(watched, limit, position, now_ms)
            case "alert":
                if self._is_due(watched):
                    logger.warning("lag.over_limit", **_about(watched))
        return False

    def _drop(self, watched: _Watched, limit: LagLimit, position: int, now_ms: int) -> bool:
        """Delete the oldest records, so that the lag is within the limit."""
        log = watched.log
        start = first_within(
            limit, position, log.high_watermark, lambda offset: self._lag(log, offset, now_ms)
        )
        if start <= log.log_start_offset:
            return False
        before = max(position, log.log_start_offset)
        log.delete_records_before(start)
        self._waiters.wake(log.tp)
        watched.dropped += start - before
        if self._is_due(watched):
            logger.warning(
                "lag.records_dropped",
                partition=str(log.tp),
                group=log.config.lag_group,
                records=watched.dropped,
                start_offset=start,
            )
        return True

    @staticmethod
    def _lag(log: PartitionLog, offset: int, now_ms: int) -> Lag:
        found = log.distance(offset)
        age_ms = 0 if found.timestamp_ms is None else max(now_ms - found.timestamp_ms, 0)
        return Lag(found.records, found.size_bytes, age_ms)

    def _is_due(self, watched: _Watched) -> bool:
        """Return whether the next log line about a partition is due, and count it."""
        now_ms = self._clock.now_ms()
        if now_ms < watched.next_report_ms:
            return False
        watched.next_report_ms = now_ms + REPORT_INTERVAL_MS
        return True


def _about(watched: _Watched) -> dict[str, object]:
    """Return the fields of a log line."""
    lag = watched.lag
    return {
        "partition": str(watched.log.tp),
        "group": watched.log.config.lag_group,
        "records": lag.records,
        "bytes": lag.size_bytes,
        "ms": lag.age_ms,
    }
