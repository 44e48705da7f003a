"""The partitions of a transaction: what its producer wrote is made durable, its end is marked.

Knows logs and the flusher. Which transaction ends and how was decided before, elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

from tidemill.broker.coordination import GroupCoordination
from tidemill.broker.flusher import Flusher
from tidemill.broker.topics import OFFSETS
from tidemill.clock import Clock
from tidemill.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    StorageError,
    TidemillError,
    UnknownTopicOrPartitionError,
)
from tidemill.log.names import TopicPartition
from tidemill.log.partition import PartitionLog
from tidemill.log.store import LogStore
from tidemill.log.transactions import Marker
from tidemill.state.transaction import LAST_CLIENT_EPOCH

COORDINATOR_EPOCH = 0
"""Of the one coordinator that there is."""
AT_ONCE = 32
"""Markers that are appended in one turn of the loop."""
PATIENCE = 32
"""Waits for the disk in one commit. A producer that has all answers needs one; without an end, one
that goes on writing would keep its time-out waiting, too."""


class Markers:
    """Ends transactions in partition logs, and in the group coordinator's."""

    def __init__(
        self, store: LogStore, flusher: Flusher, clock: Clock, groups: GroupCoordination
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._clock = clock
        self._groups = groups

    async def settle(
        self, producer_id: int, partitions: Callable[[], Iterable[TopicPartition]]
    ) -> None:
        """Make durable what a producer wrote; on return nothing of it is not, in this turn of the
        loop. A partition that was deleted is nobody's loss any more.

        Args:
            partitions: those of the transaction. Asked again after each wait: meanwhile the
                producer may have written to others, or to these.

        Raises:
            StorageError: the disk refuses.
            ConcurrentTransactionsError: the producer goes on writing all the time.
        """
        for _ in range(PATIENCE):
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
            f"producer {producer_id} goes on writing while it commits: let it wait until its "
            "writes are answered, and commit then"
        )

    async def write(
        self, marker: Marker, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, TidemillError]:
        """End a producer's transaction where it is open; durable on return.

        May be repeated at will. Partitions that exist no longer are skipped.

        Returns:
            Why not, for each partition where the marker could not be written:
            InvalidProducerEpochError, TransactionCoordinatorFencedError: the partition knows a
            newer producer or coordinator. StorageError: the disk refuses.
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
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
        if OFFSETS in partitions:
            in_logs, in_groups = await asyncio.gather(
                self._durable(wanted), self._write_offsets(marker)
            )
            failed |= in_logs | in_groups
        else:
            failed |= await self._durable(wanted)
        return failed

    async def write_by_hand(
        self, asked: Marker, partitions: Sequence[TopicPartition]
    ) -> list[TidemillError | None]:
        """Write a marker that an operator asks for.

        Nothing in it is believed that could harm the producer's next transactions. A producer epoch
        or a coordinator epoch that was made up would, if it is newer, make the partition refuse
        those in force for good. So the one must be that of the open transaction, and the other is
        replaced.

        Returns:
            None or an error for each partition, in order. UnknownTopicOrPartitionError,
            InvalidProducerEpochError, StorageError: nothing was written there.
        """
        marker = asked._replace(coordinator_epoch=COORDINATOR_EPOCH)
        refused = {tp: error for tp in partitions if (error := self._refusal(marker, tp))}
        failed = await self.write(marker, [tp for tp in partitions if tp not in refused])
        failed |= refused
        return [failed.get(tp) for tp in partitions]

    def _refusal(self, marker: Marker, tp: TopicPartition) -> TidemillError | None:
        log = self._store.partitions.get(tp)
        if log is None:
            return self._missing(tp)
        epochs = [
            each.epoch for each in log.open_transactions() if each.producer_id == marker.producer_id
        ]
        # Nothing open: as with a marker that is repeated, nothing will be written.
        if marker.epoch in (epochs or range(LAST_CLIENT_EPOCH + 1)):
            return None
        in_force = f"; its open transaction has {epochs[0]}" if epochs else ""
        return InvalidProducerEpochError(
            f"{tp}: no transaction of producer {marker.producer_id} has epoch "
            f"{marker.epoch}{in_force}",
            hint="DescribeProducers tells the epoch (tidemill transaction find).",
        )

    def _missing(self, tp: TopicPartition) -> TidemillError:
        damage = self._store.offline.get(tp)
        return damage or UnknownTopicOrPartitionError(f"there is no partition {tp}")

    def _append(self, marker: Marker, tp: TopicPartition) -> PartitionLog | None:
        log = self._store.partitions.get(tp)
        if log is None:
            damage = self._store.offline.get(tp)
            if damage is not None:
                raise damage
            return None
        # An earlier marker, of which nobody knows whether it is durable, counts too.
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
        """Wait until each log is on disk below its offset; why it is not."""
        failed: dict[TopicPartition, TidemillError] = {}
        if not wanted:
            return failed
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = len(wanted)

        def waiter(log: PartitionLog) -> Callable[[Exception | None], None]:
            def done(error: Exception | None) -> None:
                nonlocal left
                left -= 1
                if error is not None and self._is_here(log):
                    failed[log.tp] = _typed(error)
                if not left and not finished.done():
                    finished.set_result(None)

            return done

        for log, offset in wanted:
            self._flusher.call_when_durable(log, offset, waiter(log))
        await finished
        return failed

    def _is_here(self, log: PartitionLog) -> bool:
        return self._store.partitions.get(log.tp) is log


def _typed(error: Exception) -> TidemillError:
    return error if isinstance(error, TidemillError) else StorageError(str(error))
