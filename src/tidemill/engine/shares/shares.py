"""Requests about records of share groups. Members join and stay with ``door.groups``.

Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.engine.shares.api import (
    Breathe,
    PartitionAcks,
    SharedRecords,
    ShareOffset,
    ShareQuery,
    no_pause,
)
from tidemill.engine.shares.core import LiveShare, ShareCore
from tidemill.engine.shares.fetch import ShareFetcher
from tidemill.errors import TidemillError
from tidemill.log.errors import OffsetOutOfRangeError
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.errors import InvalidRequestError, NotAcquiredError
from tidemill.state.groups.join import check_group_id
from tidemill.state.share_partitions.format import PartitionKey
from tidemill.state.share_partitions.partition import Acknowledge, SharePartition


class ShareRequests:
    """Requests of members and admins about records of share groups.

    Errors that every method can raise: ``GroupIdNotFoundError``; ``CoordinatorNotAvailableError``,
    where the disk refuses; ``BrokerStoppingError``.
    """

    def __init__(
        self,
        core: ShareCore,
        fetcher: ShareFetcher,
        coordinator: GroupCoordinator,
        catalog: Catalog,
    ) -> None:
        self._core = core
        self._fetcher = fetcher
        self._coordinator = coordinator
        self._catalog = catalog

    def name_of(self, topic_id: UUID) -> str | None:
        """Return a topic's name; None if it does not exist."""
        return self._catalog.name_of(topic_id)

    # --- members ---------------------------------------------------------------------------------

    async def fetch(self, query: ShareQuery) -> list[SharedRecords]:
        """Acquire records for a member; wait while there are none.

        Returns:
            One result per partition, in the order of the query.
        """
        self._core.check_running()
        self._coordinator.check_share_group(query.group_id)
        return await self._fetcher.fetch(query)

    async def acknowledge(
        self,
        group_id: str,
        member_id: str,
        partitions: Sequence[PartitionAcks],
        breathe: Breathe = no_pause,
    ) -> list[TidemillError | None]:
        """Settle records that a member has acquired. They are on disk when this returns.

        Args:
            breathe: is awaited between partitions.

        Returns:
            None or an error for each partition, in order. With an error, nothing of that partition
            is settled.

        Raises:
            CoordinatorNotAvailableError: the disk refuses. The records are settled, and that is
                written as soon as the disk allows it. If the broker ends before, they are
                redelivered.
        """
        self._core.check_running()
        errors: list[TidemillError | None] = [None] * len(partitions)
        limits = self._core.limits(group_id)
        now_ms = self._core.clock.monotonic_ms()
        owner = self._core.known_owner(group_id, member_id)
        may_renew = self._core.may_renew(group_id)
        changed: list[LiveShare] = []
        for index, each in enumerate(partitions):
            await breathe()
            try:
                if not may_renew and _renews(each):
                    raise InvalidRequestError(
                        f"members of group {group_id!r} can't extend the time that they keep a "
                        "record: share.renew.acknowledge.enable is false"
                    )
                live = self._core.find(PartitionKey(group_id, each.topic_id, each.partition))
                if live is None or owner is None:
                    raise NotAcquiredError(each.batches[0].first if each.batches else 0)
                live.partition.acknowledge(owner, each.batches, limits, now_ms)
            except TidemillError as error:
                errors[index] = error.with_traceback(None)
            else:
                changed.append(live)
        if changed:
            await self._core.share_log.write(
                list(dict.fromkeys(live.partition for live in changed)),
                self._core.clock.now_ms(),
                breathe,
            )
            for live in changed:
                self._core.wake(live.log.tp)
        return errors

    # --- admin -----------------------------------------------------------------------------------

    async def offsets(
        self,
        group_id: str,
        topics: Mapping[str, Sequence[int]] | None,
        breathe: Breathe = no_pause,
    ) -> list[ShareOffset]:
        """Return where a group is in its partitions.

        Args:
            topics: partitions by topic; None for all that the group reads or has read. A group
                that does not exist has read nothing.
        """
        asked = self._known(group_id) if topics is None else topics
        found = []
        for name, numbers in asked.items():
            for number in numbers:
                await breathe()
                found.append(self._offset(group_id, name, number))
        return found

    def _known(self, group_id: str) -> dict[str, list[int]]:
        known: dict[str, list[int]] = {}
        for key in self._core.share_log.keys_of(group_id):
            name = self._catalog.name_of(key.topic_id)
            if name is not None:
                known.setdefault(name, []).append(key.partition)
        return {name: sorted(known[name]) for name in sorted(known)}

    def _offset(self, group_id: str, name: str, number: int) -> ShareOffset:
        error = self._catalog.missing_partition(name, number)
        if error is not None:
            return ShareOffset(name, UUID(int=0), number, error=error)
        topic_id = self._catalog.topic(name).topic_id
        try:
            live = self._core.find(PartitionKey(group_id, topic_id, number))
        except TidemillError as failure:
            return ShareOffset(name, topic_id, number, error=failure.with_traceback(None))
        if live is None:
            return ShareOffset(name, topic_id, number)
        live.partition.truncate(live.log.log_start_offset)
        window = live.partition.window
        waiting = max(0, live.log.high_watermark - window.start) - live.partition.complete
        return ShareOffset(
            name, topic_id, number, window.start, max(0, waiting), live.log.leader_epoch
        )

    async def alter_offsets(
        self,
        group_id: str,
        starts: Mapping[tuple[str, int], int],
        breathe: Breathe = no_pause,
    ) -> list[TidemillError | None]:
        """Move the start of share partitions. What was delivered is forgotten.

        A group that does not exist is created, if one of the partitions exists.

        Args:
            starts: offsets by topic and partition.
            breathe: is awaited between partitions.

        Returns:
            None or an error for each partition, in order.

        Raises:
            NonEmptyGroupError: the group has members.
            InvalidGroupIdError, GroupMaxSizeReachedError: the group can't be created.
        """
        errors = [self._catalog.missing_partition(*each) for each in starts]
        check_group_id(group_id)
        if None in errors:
            await self._coordinator.create_share_group(group_id)
        if None in errors or self._coordinator.is_share_group(group_id):
            self._coordinator.check_share_group(group_id, empty=True)
        moved = []
        for index, ((name, number), start) in enumerate(starts.items()):
            if errors[index] is not None:
                continue
            await breathe()
            key = PartitionKey(group_id, self._catalog.topic(name).topic_id, number)
            try:
                moved.append(self._moved(key, name, start))
            except TidemillError as error:
                errors[index] = error.with_traceback(None)
        if moved:
            self._coordinator.check_share_group(group_id, empty=True)  # it could pause
            await self._core.replace(moved, breathe)
        return errors

    def _moved(self, key: PartitionKey, name: str, start: int) -> SharePartition:
        log = self._core.partitions.readable(name, key.partition, None)
        if not 0 <= start <= log.high_watermark:
            raise OffsetOutOfRangeError(
                f"offset {start} of {log.tp} is out of range: it holds offsets "
                f"{log.log_start_offset} to {log.high_watermark}"
            )
        live = self._core.find(key)
        if live is None:
            return SharePartition(key, max(start, log.log_start_offset))
        return live.partition.moved(max(start, log.log_start_offset))

    async def delete_offsets(
        self, group_id: str, topics: Sequence[str]
    ) -> list[TidemillError | None]:
        """Forget what a group has read of topics.

        Returns:
            None or an error for each topic, in order.

        Raises:
            NonEmptyGroupError: the group has members.
        """
        self._coordinator.check_share_group(group_id, empty=True)
        errors = [self._catalog.missing_partition(name, 0) for name in topics]
        ids = {
            self._catalog.topic(name).topic_id
            for name, error in zip(topics, errors, strict=True)
            if error is None
        }
        keys = [key for key in self._core.share_log.keys_of(group_id) if key.topic_id in ids]
        await self._core.forget(keys)
        return errors


def _renews(acks: PartitionAcks) -> bool:
    return any(Acknowledge.RENEW in batch.types for batch in acks.batches)
