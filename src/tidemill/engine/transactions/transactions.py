"""Requests of producers that need more than the coordinator: topics that exist, groups, new ids.

Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from tidemill.engine.api import OffsetToCommit, ProducerIdentity, TxnOffsetCommit
from tidemill.engine.errors import OperationNotAttemptedError
from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.engine.internal_topics import OFFSETS
from tidemill.engine.transactions.coordinator import TransactionCoordinator
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidTopicError
from tidemill.log.names import TopicPartition
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.errors import InvalidGroupIdError
from tidemill.state.internal_topics import is_internal


class TransactionRequests:
    """Producers, and what is part of their transactions."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        groups: GroupCoordinator,
        catalog: Catalog,
        new_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        self._coordinator = coordinator
        self._groups = groups
        self._catalog = catalog
        self._new_producer_id = new_producer_id

    async def new_producer(self) -> ProducerIdentity:
        """Return an unused identity for an idempotent producer without transactions (KIP-98).

        Raises:
            StorageError: the disk refuses.
        """
        return ProducerIdentity(await self._new_producer_id(), 0)

    # --- partitions ------------------------------------------------------------------------------

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[tuple[str, int]],
        refused: Sequence[TidemillError | None] = (),
    ) -> list[TidemillError | None]:
        """Make partitions part of the transaction, all or none. They are durable on return.

        Args:
            refused: the errors of partitions to which the producer has no access.

        Returns:
            None or an error for each partition. Where one partition can't be added, the others have
            an OperationNotAttemptedError.

        Raises:
            InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError
        """
        errors = [
            error or self._not_addable(*each)
            for error, each in zip(refused or [None] * len(partitions), partitions, strict=True)
        ]
        if not any(errors):
            added = [TopicPartition(*each) for each in partitions]
            await self._coordinator.add(transactional_id, producer, added)
            return errors
        return [
            error
            or OperationNotAttemptedError(f"{topic}-{partition}: another partition can't be added")
            for error, (topic, partition) in zip(errors, partitions, strict=True)
        ]

    async def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[tuple[str, int]],
    ) -> list[TidemillError | None]:
        """Check that partitions are part of the transaction (KIP-890).

        Returns:
            None or an error for each partition, in order.

        Raises:
            TidemillError: as ``add_partitions``.
        """
        errors = [self._not_addable(*each) for each in partitions]
        asked = [TopicPartition(*each) for each in partitions]
        verified = await self._coordinator.verify(transactional_id, producer, asked)
        return [error or other for error, other in zip(errors, verified, strict=True)]

    def _not_addable(self, topic: str, partition: int) -> TidemillError | None:
        if is_internal(topic):
            return InvalidTopicError(f"topic {topic!r} is internal: clients can't write to it")
        return self._catalog.missing_partition(topic, partition)

    # --- offsets ---------------------------------------------------------------------------------

    async def add_group(
        self, transactional_id: str, producer: ProducerIdentity, group_id: str
    ) -> None:
        """Make the group's committed offsets part of the transaction. Durable on return.

        Raises:
            InvalidGroupIdError: the group id is empty.
            TidemillError: as ``add_partitions``.
        """
        if not group_id:
            raise InvalidGroupIdError("the group id is empty")
        await self._coordinator.add(transactional_id, producer, [OFFSETS])

    async def commit_offsets(self, request: TxnOffsetCommit) -> list[TidemillError | None]:
        """Commit offsets as part of the transaction.

        They are durable on return, and visible when the transaction is committed.

        Returns:
            None or an error for each offset.

        Raises:
            InvalidProducerIdMappingError, InvalidProducerEpochError, TransactionAbortableError,
            ConcurrentTransactionsError: the producer can't write in this transaction.
            UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError: the consumer is not
            a member of the group (KIP-447).
        """
        offsets = request.commit.offsets
        errors = [self._catalog.missing_partition(each.topic, each.partition) for each in offsets]
        usable = tuple(each for each, error in zip(offsets, errors, strict=True) if error is None)
        outcomes = iter(await self._commit_usable(request, usable))
        return [error or next(outcomes) for error in errors]

    async def _commit_usable(
        self, request: TxnOffsetCommit, usable: tuple[OffsetToCommit, ...]
    ) -> list[TidemillError | None]:
        admission = self._coordinator.admit(
            request.transactional_id, request.producer, OFFSETS, request.version
        )
        commit = replace(request, commit=replace(request.commit, offsets=usable))
        # Appended in this turn of the event loop: nothing can end the transaction in between.
        outcomes = await self._groups.commit_in_transaction(commit)
        await self._coordinator.admitted(admission)
        return outcomes
