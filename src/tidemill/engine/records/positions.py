"""Find positions in a log, and delete a prefix.

Knows logs and the flusher. The numbers by which a protocol names special positions are the
protocol's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

from tidemill.engine.api import Isolation, OffsetAt, Position, ProducerInfo
from tidemill.engine.flusher import Flusher
from tidemill.engine.records.partitions import Partitions, check_leader_epoch
from tidemill.engine.records.slices import Slices
from tidemill.engine.waiters import Waiters
from tidemill.log.errors import OffsetOutOfRangeError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.errors import PolicyViolationError

_EARLIEST, _LATEST = Position.EARLIEST, Position.LATEST
"""Python takes 0.2 us to look a member of an enumeration up."""


class Positions:
    """Finds offsets in partitions, and moves their start."""

    def __init__(
        self, partitions: Partitions, flusher: Flusher, waiters: Waiters, slices: Slices
    ) -> None:
        self._partitions = partitions
        self._waiters = waiters
        self._flusher = flusher
        self._slices = slices

    async def find(
        self,
        topic: str,
        partition: int,
        at: Position | int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        leader_epoch: int | None = None,
    ) -> OffsetAt | None:
        """Return a special position, or the first record at or after a time; None if none exists.

        Args:
            at: a position, or a time in milliseconds since the epoch.
            isolation: which records count.
            leader_epoch: the epoch that the client knows; None skips the comparison.

        Raises:
            TidemillError: as ``Partitions.log`` and ``check_leader_epoch``.
        """
        (known,) = self.find_now(topic, [(partition, at, leader_epoch)], isolation)
        if known is not None:
            return OffsetAt(known[0], None, known[1])
        log = self._partitions.log(topic, partition)
        check_leader_epoch(log, leader_epoch)
        # A client must see what it wrote without waiting for the disk: sync that first.
        await self._synced(log)
        limit = _limit(log, isolation is Isolation.READ_COMMITTED)
        if at is _LATEST:
            return OffsetAt(limit, None, log.leader_epoch)
        # The search decodes a batch, and clients ask for thousands of partitions.
        found = await self._slices.run(
            log.find_max_timestamp() if isinstance(at, Position) else log.find_timestamp(at)
        )
        if found is None or found[0] >= limit:
            return None
        return OffsetAt(found[0], found[1], log.leader_epoch)

    def find_now(
        self,
        topic: str,
        wanted: Sequence[tuple[int, Position | int, int | None]],
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> list[tuple[int, int] | None]:
        """Return the positions in partitions of a topic that are known without any wait.

        Args:
            wanted: partition, position and leader epoch, as those of ``find``.
            isolation: which records count.

        Returns:
            Offset and leader epoch for each; None where ``find`` has to search or to wait, or
            raises an error.
        """
        # A tuple finds what a TopicPartition does, and takes a twentieth of the time to make.
        logs = cast("Mapping[tuple[str, int], PartitionLog]", self._partitions.logs)
        uncommitted = self._partitions.uncommitted
        committed = isolation is Isolation.READ_COMMITTED
        found: list[tuple[int, int] | None] = []
        for partition, at, leader_epoch in wanted:
            log = logs.get((topic, partition))
            if log is None or (topic, partition) in uncommitted:
                found.append(None)
                continue
            head = log.head
            epoch = head.leader_epoch
            if leader_epoch is not None and leader_epoch != epoch:
                found.append(None)
            elif at is _EARLIEST:
                found.append((head.start_offset, epoch))
            elif at is _LATEST and head.high_watermark == head.end_offset:
                found.append((_limit(log, committed), epoch))
            else:
                found.append(None)
        return found

    def is_awaited(self, topic: str, partition: int) -> bool:
        """Return whether a read waits for more records of a partition now."""
        return self._waiters.has(TopicPartition(topic, partition))

    async def _synced(self, log: PartitionLog) -> None:
        if log.high_watermark < log.log_end_offset:
            await self._flusher.when_durable(log, log.log_end_offset)

    async def delete_before(self, topic: str, partition: int, offset: int | None) -> int:
        """Delete the records below ``offset``, or all if it is None; return the new start.

        Raises:
            PolicyViolationError: the topic is only compacted, so a key keeps its last record.
            OffsetOutOfRangeError: the offset is above the high watermark.
            TidemillError: as ``Partitions.writable``.
        """
        log = self._partitions.writable(topic, partition)
        if not log.config.delete:
            raise PolicyViolationError(
                f"records of {log.tp} can't be deleted: its cleanup.policy does not have delete",
                hint="Write a tombstone for a key, or add delete to cleanup.policy.",
            )
        await self._synced(log)
        target = log.high_watermark if offset is None else offset
        if not 0 <= target <= log.high_watermark:
            raise OffsetOutOfRangeError(
                f"{log.tp}: can't delete before offset {target}: "
                f"the high watermark is {log.high_watermark}"
            )
        start = log.delete_records_before(target)
        self._waiters.wake(log.tp)
        write = self._partitions.store.checkpoint_writes()
        await asyncio.get_running_loop().run_in_executor(None, write)
        return start

    def end_of_epoch(
        self, topic: str, partition: int, epoch: int, leader_epoch: int | None = None
    ) -> tuple[int, int] | None:
        """Return (epoch, end offset) of the largest leader epoch at or below ``epoch``.

        Clients find truncated logs with it (KIP-101, KIP-320). None where no such epoch is known.

        Raises:
            TidemillError: as ``Partitions.log`` and ``check_leader_epoch``.
        """
        log = self._partitions.log(topic, partition)
        check_leader_epoch(log, leader_epoch)
        if epoch < 0 or epoch > log.leader_epoch:
            return None
        return (log.leader_epoch, log.high_watermark)

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]:
        """Return the idempotent producers that a partition remembers (KIP-664).

        Raises:
            TidemillError: as ``Partitions.log``.
        """
        return [
            ProducerInfo(
                each.producer_id,
                each.epoch,
                each.last_sequence,
                each.last_timestamp_ms,
                each.coordinator_epoch if each.coordinator_epoch >= 0 else None,
                each.txn_first_offset if each.txn_first_offset >= 0 else None,
            )
            for each in self._partitions.log(topic, partition).producers
        ]


def _limit(log: PartitionLog, committed: bool) -> int:
    """Return the offset below which records count."""
    return log.last_stable_offset if committed else log.high_watermark
