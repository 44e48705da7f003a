"""What a broker does by itself: retention, compaction, checkpoints, expiry.

Long work runs in short slices on the event loop, so that no lock is needed and no client waits
longer than a slice. Knows when to do things; how is the log's and the state machines' business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing

import structlog

from tidemill.broker.coordination import GroupCoordination
from tidemill.broker.transactions import TransactionCoordination
from tidemill.broker.waiters import Waiters
from tidemill.clock import Clock
from tidemill.errors import (
    DiskFullError,
    InvalidRecordError,
    StorageError,
    SyncFailedError,
    TidemillError,
)
from tidemill.log.compaction import Steps, cleanable, compact
from tidemill.log.partition import PartitionLog
from tidemill.log.retention import delete_old_segments
from tidemill.log.store import LogStore
from tidemill.settings import Settings

SLICE_MS = 2
EXPIRY_INTERVAL_MS = 600_000
PURGED_AT_ONCE = 4
"""Files and folders that are removed in one turn of the loop."""

log_line = structlog.get_logger("tidemill.housekeeping")


class Housekeeping:
    """Background tasks of one broker.

    Args:
        on_failure: told of an error that background work can't live with.
    """

    def __init__(
        self,
        store: LogStore,
        coordination: GroupCoordination,
        transactions: TransactionCoordination,
        waiters: Waiters,
        settings: Settings,
        clock: Clock,
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self._store = store
        self._coordination = coordination
        self._transactions = transactions
        self._waiters = waiters
        self._settings = settings
        self._clock = clock
        self._on_failure = on_failure
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start all periodic tasks."""
        log = self._settings.log
        for interval_ms, work in (
            (log.retention_check_ms, self.retain),
            (log.cleaner_backoff_ms, self.clean),
            (log.checkpoint_interval_ms, self.checkpoint),
            (EXPIRY_INTERVAL_MS, self.expire),
        ):
            self._tasks.append(asyncio.create_task(self._every(interval_ms, work)))

    async def stop(self) -> None:
        """Cancel all tasks; a compaction that is under way leaves no trace."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- the work --------------------------------------------------------------------------------

    async def retain(self) -> None:
        """Delete segments that are past retention; remove deleted files."""
        async for log in self._logs():
            before = log.log_start_offset
            try:
                delete_old_segments(log, self._clock.now_ms())
            except SyncFailedError:
                raise
            except StorageError as error:  # the others may still make room
                log_line.error(
                    "retention.postponed", partition=str(log.tp), error=str(error), hint=error.hint
                )
            if log.log_start_offset != before:
                self._waiters.wake(log.tp)
        removed = PURGED_AT_ONCE
        while removed == PURGED_AT_ONCE:
            removed = self._store.purge_deleted(PURGED_AT_ONCE)
            await asyncio.sleep(0)

    async def clean(self) -> None:
        """Compact every log that is due, the dirtiest first."""
        now_ms = self._clock.now_ms()
        due: list[tuple[float, PartitionLog]] = []
        async for log in self._logs():
            if not log.config.compact:
                continue
            try:
                found = cleanable(log, now_ms)
            except StorageError as error:
                log_line.error("compaction.refused", partition=str(log.tp), error=str(error))
                continue
            if found.is_due:
                due.append((found.dirty_ratio, log))
        for _, log in sorted(due, key=lambda each: each[0], reverse=True):
            if self._is_live(log):
                await self._compact(log, now_ms)

    async def _compact(self, log: PartitionLog, now_ms: int) -> None:
        try:
            with closing(compact(log, now_ms)) as steps:
                await self._in_slices(steps)
        except SyncFailedError:
            raise
        except DiskFullError as error:
            log_line.warning("compaction.postponed", partition=str(log.tp), error=str(error))
        except (StorageError, InvalidRecordError) as error:
            log_line.error("compaction.refused", partition=str(log.tp), error=str(error))

    async def checkpoint(self) -> None:
        """Write recovery points and log starts."""
        failure: StorageError | None = None
        async for log in self._logs():
            try:
                log.advance_recovery_point()
            except StorageError as error:
                failure = failure or error
        await asyncio.get_running_loop().run_in_executor(None, self._store.checkpoint_writes())
        if failure is not None:
            raise failure

    async def expire(self) -> None:
        """Drop committed offsets, producer ids and transactional ids that nobody has used for
        long."""
        expiry_ms = self._settings.log.producer_id_expiration_ms
        async for log in self._logs():
            log.expire_producers(self._clock.now_ms(), expiry_ms)
        try:
            self._transactions.expire_ids()
        finally:
            await self._coordination.expire_offsets()

    # --- how -------------------------------------------------------------------------------------

    async def _logs(self) -> AsyncIterator[PartitionLog]:
        """Each usable log, in slices: what is done with one must be short."""
        slice_ends = self._clock.monotonic_ms() + SLICE_MS
        for log in list(self._store.partitions.values()):
            if self._is_live(log):
                yield log
            if self._clock.monotonic_ms() >= slice_ends:
                await asyncio.sleep(0)
                slice_ends = self._clock.monotonic_ms() + SLICE_MS

    def _is_live(self, log: PartitionLog) -> bool:
        """Not deleted meanwhile, and not offline."""
        return log.failure is None and self._store.partitions.get(log.tp) is log

    async def _every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except SyncFailedError as error:
                self._on_failure(error)
                return
            except TidemillError as error:
                log_line.error("housekeeping.postponed", error=str(error), hint=error.hint)
            except Exception:
                log_line.exception("housekeeping.failed", work=getattr(work, "__name__", "?"))

    async def _in_slices(self, steps: Steps) -> None:
        clock = self._clock
        loop = asyncio.get_running_loop()
        slice_ends = clock.monotonic_ms() + SLICE_MS
        for work in steps:
            if work is not None:
                try:
                    await loop.run_in_executor(None, work.run)
                except TidemillError as error:
                    steps.throw(error)
            elif clock.monotonic_ms() >= slice_ends:
                # As long as it worked, so that cleaning takes half of the loop at most.
                await asyncio.sleep(SLICE_MS / 1000)
                slice_ends = clock.monotonic_ms() + SLICE_MS
