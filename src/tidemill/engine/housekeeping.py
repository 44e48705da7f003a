"""Background work of the broker: retention, compaction, checkpoints, expiry.

Long work runs in short slices on the event loop, so that no lock is needed and no client waits
longer than a slice. This module decides when work runs. The log and the state machines do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing

import structlog

from tidemill.clock import Clock
from tidemill.engine.errors import BrokerStoppingError
from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.engine.records.backpressure import CHECK_INTERVAL_MS
from tidemill.engine.records.slices import SLICE_MS, Slices
from tidemill.engine.transactions.coordinator import TransactionCoordinator
from tidemill.engine.waiters import Waiters
from tidemill.errors import TidemillError
from tidemill.log.compaction.run import cleanable, compact
from tidemill.log.errors import (
    DataDirLostError,
    DiskFullError,
    InvalidRecordError,
    StorageError,
    SyncFailedError,
)
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore
from tidemill.settings import Settings

EXPIRY_INTERVAL_MS = 600_000
RELEASE_INTERVAL_MS = 2_000
FOLDER_CHECK_MS = 1_000
PURGED_PER_TURN = 4
"""Files and folders that are removed in one turn of the loop."""

logger = structlog.get_logger("tidemill.housekeeping")


class Housekeeping:
    """Background tasks of one broker.

    Args:
        write_notes: writes the notes about topics in the partitions' folders that are due.
        on_failure: called with an error after which the broker must stop.
        on_checkpoint: called before each checkpoint.
        check_lag: applies the policies for groups that are behind.
    """

    def __init__(
        self,
        store: LogStore,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        waiters: Waiters,
        slices: Slices,
        write_notes: Callable[[], Awaitable[None]],
        settings: Settings,
        clock: Clock,
        on_failure: Callable[[StorageError], None],
        on_checkpoint: Callable[[], None],
        check_lag: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._groups = groups
        self._transactions = transactions
        self._waiters = waiters
        self._slices = slices
        self._write_notes = write_notes
        self._settings = settings
        self._clock = clock
        self._on_failure = on_failure
        self._on_checkpoint = on_checkpoint
        self._check_lag = check_lag
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start all periodic tasks."""
        log = self._settings.log
        for interval_ms, work in (
            (log.retention_check_ms, self.retain),
            (log.cleaner_backoff_ms, self.clean),
            (log.checkpoint_interval_ms, self.checkpoint),
            (log.checkpoint_interval_ms, self._write_notes),
            (EXPIRY_INTERVAL_MS, self.expire),
            (RELEASE_INTERVAL_MS, self.release_preallocated),
            (FOLDER_CHECK_MS, self.check_folder),
            (CHECK_INTERVAL_MS, self._check_lag),
        ):
            self._tasks.append(asyncio.create_task(self._every(interval_ms, work)))

    async def stop(self) -> None:
        """Cancel all tasks. An unfinished compaction is dropped without a trace."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- the work --------------------------------------------------------------------------------

    async def retain(self) -> None:
        """Delete segments that are past retention, and remove deleted files."""
        async for log in self._logs():
            before = log.log_start_offset
            try:
                log.delete_old_segments(self._clock.now_ms())
            except SyncFailedError:
                raise
            except StorageError as error:  # other partitions might still free space
                logger.error(
                    "retention.postponed", partition=str(log.tp), error=str(error), hint=error.hint
                )
            if log.log_start_offset != before:
                self._waiters.wake(log.tp)
        if self._store.must_store_starts():
            # The starts of the logs are stored before the files of old segments disappear.
            try:
                await asyncio.get_running_loop().run_in_executor(
                    None, self._store.checkpoint_writes()
                )
            except DiskFullError as error:
                logger.error("retention.postponed", partition="", error=str(error), hint=error.hint)
        removed = PURGED_PER_TURN
        while removed == PURGED_PER_TURN:
            removed = self._store.purge_deleted(PURGED_PER_TURN)
            await asyncio.sleep(0)

    async def clean(self) -> None:
        """Compact every log that is due. The log with the highest dirty ratio comes first."""
        now_ms = self._clock.now_ms()
        due: list[tuple[float, PartitionLog]] = []
        async for log in self._logs():
            if not log.config.compact:
                continue
            try:
                found = cleanable(log, now_ms)
            except StorageError as error:
                logger.error("compaction.refused", partition=str(log.tp), error=str(error))
                continue
            if found.is_due:
                due.append((found.dirty_ratio, log))
        for _, log in sorted(due, key=lambda each: each[0], reverse=True):
            if self._is_live(log):
                await self._compact(log, now_ms)

    async def _compact(self, log: PartitionLog, now_ms: int) -> None:
        try:
            with closing(compact(log, now_ms)) as steps:
                await self._slices.run(steps, in_background=True)
        except SyncFailedError:
            raise
        except BrokerStoppingError:
            return  # an unfinished compaction leaves no trace
        except DiskFullError as error:
            logger.warning("compaction.postponed", partition=str(log.tp), error=str(error))
        except (StorageError, InvalidRecordError) as error:
            logger.error("compaction.refused", partition=str(log.tp), error=str(error))

    async def checkpoint(self) -> None:
        """Write recovery points and log start offsets.

        Raises:
            StorageError: the disk refuses.
        """
        self._on_checkpoint()
        failure: StorageError | None = None
        async for log in self._logs():
            try:
                log.advance_recovery_point()
            except StorageError as error:
                failure = failure or error
        await asyncio.get_running_loop().run_in_executor(None, self._store.checkpoint_writes())
        if failure is not None:
            raise failure

    async def check_folder(self) -> None:
        """Check that the data folder was not deleted: open files would still take writes.

        Raises:
            DataDirLostError: it was deleted or renamed.
        """
        self._store.check_in_place()

    async def expire(self) -> None:
        """Drop committed offsets, producer ids and transactional ids that were unused for long."""
        expiry_ms = self._settings.log.producer_id_expiration_ms
        async for log in self._logs():
            log.expire_producers(self._clock.now_ms(), expiry_ms)
        try:
            self._transactions.expire_ids()
        finally:
            await self._groups.expire_offsets()

    async def release_preallocated(self) -> None:
        """Free the blocks that were allocated behind segments which do not grow any more."""
        loop = asyncio.get_running_loop()
        for segment in self._store.environment.preallocation.idle():
            # The file system can report free blocks to the disk (discard), which can take long. The
            # work must not be dropped when this task stops: an append to the segment waits for it.
            work = segment.begin_release()
            if work is None:
                continue
            try:
                done = loop.run_in_executor(None, work)
            except RuntimeError:  # no thread can be started
                work()
                raise
            await asyncio.shield(done)

    # --- slices ----------------------------------------------------------------------------------

    async def _logs(self) -> AsyncIterator[PartitionLog]:
        """Yield each usable log, in slices. The work with one log must be short."""
        slice_ends = self._clock.monotonic_ms() + SLICE_MS
        for log in list(self._store.partitions.values()):
            if self._is_live(log):
                yield log
            if self._clock.monotonic_ms() >= slice_ends:
                await asyncio.sleep(0)
                slice_ends = self._clock.monotonic_ms() + SLICE_MS

    def _is_live(self, log: PartitionLog) -> bool:
        """Return whether the log is online and was not deleted meanwhile."""
        return log.failure is None and self._store.partitions.get(log.tp) is log

    async def _every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except (SyncFailedError, DataDirLostError) as error:
                self._on_failure(error)
                return
            except TidemillError as error:
                logger.error("housekeeping.postponed", error=str(error), hint=error.hint)
            except Exception as error:
                name = getattr(work, "__name__", "?")
                logger.error("housekeeping.failed", work=name, exc_info=error)
