"""Make a transaction's writes durable, and write its markers to the partitions.

Knows logs and the flusher. Which transaction ends, and whether it commits, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from tidemill.clock import Clock
from tidemill.engine.flusher import Flusher, settle
from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.engine.internal_topics import OFFSETS
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.log.errors import InvalidProducerEpochError, StorageError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore
from tidemill.state.errors import ConcurrentTransactionsError
from tidemill.state.transactions.transaction import LAST_CLIENT_EPOCH

COORDINATOR_EPOCH = 0
"""The epoch in all markers: there is one coordinator, and it never changes."""
MARKERS_PER_TURN = 32
"""Markers that are appended in one turn of the event loop."""
MAX_SYNC_WAITS = 32
"""Waits for the disk in one commit. A producer that has all its answers needs one. Without a limit,
a producer that keeps writing would delay its own timeout without end."""


class Markers:
    """Ends transactions in partition logs, and in the group coordinator's log.

    Args:
        groups: ends the transaction in its own log.
    """

    def __init__(
        self, store: LogStore, flusher: Flusher, clock: Clock, groups: GroupCoordinator
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._clock = clock
        self._groups = groups

    async def sync_writes(
        self, producer_id: int, partitions: Callable[[], Iterable[TopicPartition]]
    ) -> None:
        """Make durable everything that a producer wrote.

        On return nothing of it is unsynced, in this turn of the event loop. Deleted partitions are
        skipped.

        Args:
            partitions: returns the partitions of the transaction. It is called again after each
                wait, since the producer might have written meanwhile.
        """
        for _ in range(MAX_SYNC_WAITS):
            wanted = [
                (log, last + 1)
                for tp in partitions()
                if (log := self._store.partitions.get(tp)) is not None
                and (last := log.last_offset_of(producer_id)) >= log.high_watermark
            ]
            if not wanted:
                return
            for error in (await self._durable(wanted)).values():
                raise error
        raise ConcurrentTransactionsError(
            f"producer {producer_id} keeps writing while it commits",
            hint="Wait for the answers to all writes before you commit.",
        )

    async def write(
        self, marker: Marker, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, TidemillError]:
        """End a producer's transaction where it is open. The markers are durable on return.

        The call can be repeated. Partitions that no longer exist are skipped.

        Returns:
            The error of each partition where the marker could not be written:
            InvalidProducerEpochError or TransactionCoordinatorFencedError where the partition knows
            a newer producer or coordinator; StorageError where the disk refuses.
        """
        failed: dict[TopicPartition, TidemillError] = {}
        wanted: list[tuple[PartitionLog, int]] = []
        for count, tp in enumerate(partitions, 1):
            if tp == OFFSETS:
                continue
            try:
                log = self._append(marker, tp)
            except TidemillError as error:
                failed[tp] = error
            else:
                if log is not None and log.high_watermark < log.log_end_offset:
                    wanted.append((log, log.log_end_offset))
            if count % MARKERS_PER_TURN == 0:
                await asyncio.sleep(0)
        if OFFSETS in partitions:
            in_logs, in_groups = await asyncio.gather(
                self._durable(wanted), self._write_offsets(marker)
            )
            failed |= in_logs | in_groups
        else:
            failed |= await self._durable(wanted)
        return failed

    async def write_by_operator(
        self, requested: Marker, partitions: Sequence[TopicPartition]
    ) -> list[TidemillError | None]:
        """Write a marker that an operator requests.

        A made-up producer epoch or coordinator epoch could be newer than the real one, and the
        partition would then refuse the real one for good. So the producer epoch must be that of the
        open transaction, and the coordinator epoch is replaced.

        Returns:
            None or an error for each partition, in order: UnknownTopicOrPartitionError,
            InvalidProducerEpochError or StorageError, where nothing was written.
        """
        marker = requested._replace(coordinator_epoch=COORDINATOR_EPOCH)
        refused = {tp: error for tp in partitions if (error := self._refusal(marker, tp))}
        failed = await self.write(marker, [tp for tp in partitions if tp not in refused])
        failed |= refused
        return [failed.get(tp) for tp in partitions]

    def _refusal(self, marker: Marker, tp: TopicPartition) -> TidemillError | None:
        log = self._store.partitions.get(tp)
        if log is None:
            missing = UnknownTopicOrPartitionError(f"there is no partition {tp}")
            return self._store.offline.get(tp) or missing
        epochs = [
            each.epoch for each in log.open_transactions() if each.producer_id == marker.producer_id
        ]
        # Where no transaction is open nothing will be written, as with a repeated marker.
        if marker.epoch in (epochs or range(LAST_CLIENT_EPOCH + 1)):
            return None
        current = f"; its open transaction has epoch {epochs[0]}" if epochs else ""
        return InvalidProducerEpochError(
            f"{tp}: no transaction of producer {marker.producer_id} has epoch "
            f"{marker.epoch}{current}",
            hint="DescribeProducers shows the epoch (tidemill transaction find).",
        )

    def _append(self, marker: Marker, tp: TopicPartition) -> PartitionLog | None:
        log = self._store.partitions.get(tp)
        if log is None:
            damage = self._store.offline.get(tp)
            if damage is not None:
                raise damage.with_traceback(None)
            return None
        # The log is returned even if an earlier call wrote the marker: it might not be durable yet.
        if log.append_marker(marker, now_ms=self._clock.now_ms()) is not None:
            self._flusher.written(log)
        return log

    async def _write_offsets(self, marker: Marker) -> dict[TopicPartition, TidemillError]:
        try:
            await self._groups.write_marker(marker)
        except TidemillError as error:
            return {OFFSETS: error}
        return {}

    async def _durable(
        self, wanted: Collection[tuple[PartitionLog, int]]
    ) -> dict[TopicPartition, TidemillError]:
        """Wait until each log is on disk below its offset; return the errors of those that fail."""
        failed: dict[TopicPartition, TidemillError] = {}
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = len(wanted)

        def done(log: PartitionLog, error: Exception | None) -> None:
            nonlocal left
            left -= 1
            if error is not None and self._store.partitions.get(log.tp) is log:
                if not isinstance(error, TidemillError):
                    error = StorageError(str(error))
                failed[log.tp] = error
            if not left:
                settle(finished, None)

        for log, offset in wanted:
            self._flusher.call_when_durable(log, offset, partial(done, log))
        if wanted:
            await finished
        return failed
