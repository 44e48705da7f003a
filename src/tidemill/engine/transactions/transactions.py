"""The part of the engine for producers and transactions, with its access checks.

Every public method checks access, looks up the partitions, and delegates to the coordinators. It
decides nothing else. Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace

from tidemill.engine.api import (
    InitProducer,
    OffsetToCommit,
    ProducerIdentity,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
    TxnOffsetCommit,
)
from tidemill.engine.authorize import (
    CLUSTER,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Access,
    Operation,
)
from tidemill.engine.errors import OperationNotAttemptedError
from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.engine.internal_topics import OFFSETS
from tidemill.engine.topics.lookup import missing_partition
from tidemill.engine.transactions.coordinator import TransactionCoordinator
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidTopicError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.errors import InvalidGroupIdError
from tidemill.state.internal_topics import is_internal


@dataclass(frozen=True, slots=True)
class TransactionServices:
    """The objects behind ``Transactions``, shared by all principals."""

    coordinator: TransactionCoordinator
    groups: GroupCoordinator
    catalog: Catalog
    new_producer_id: Callable[[], Awaitable[int]]


class Transactions:
    """Producers and transactions for one principal.

    Errors that every method with a transactional id can raise:
    ``TransactionalIdAuthorizationError``; ``InvalidRequestError``, where the id is empty;
    ``CoordinatorNotAvailableError``, where the disk refuses; ``BrokerStoppingError``.
    """

    def __init__(self, services: TransactionServices, access: Access) -> None:
        self._access = access
        self._coordinator = services.coordinator
        self._groups = services.groups
        self._catalog = services.catalog
        self._new_producer_id = services.new_producer_id

    # --- producers -------------------------------------------------------------------------------

    async def new_producer(self) -> ProducerIdentity:
        """Return an unused identity for an idempotent producer without transactions (KIP-98).

        Raises:
            ClusterAuthorizationError: the principal can't write to the cluster.
            StorageError: the disk refuses.
        """
        self._access.check(Operation.WRITE, CLUSTER)
        return ProducerIdentity(await self._new_producer_id(), 0)

    async def init(self, request: InitProducer) -> ProducerIdentity:
        """Return the identity for a transactional producer that starts or recovers.

        The open transaction of its predecessor is aborted first (KIP-98, KIP-360).

        Raises:
            InvalidTransactionTimeoutError, ProducerFencedError
            ConcurrentTransactionsError: a partition takes no marker at present. Ask again.
        """
        self._access.check(Operation.WRITE, TRANSACTIONAL_ID, request.transactional_id)
        return await self._coordinator.init(request)

    # --- partitions ------------------------------------------------------------------------------

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[tuple[str, int]],
    ) -> list[TidemillError | None]:
        """Make partitions part of the transaction, all or none. They are durable on return.

        Returns:
            None or an error for each partition. Where one partition can't be added, the others have
            an OperationNotAttemptedError.

        Raises:
            InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError
        """
        self._access.check(Operation.WRITE, TRANSACTIONAL_ID, transactional_id)
        errors = self._not_addable(partitions)
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
        self._access.check(Operation.WRITE, TRANSACTIONAL_ID, transactional_id)
        errors = self._not_addable(partitions)
        asked = [TopicPartition(*each) for each in partitions]
        verified = await self._coordinator.verify(transactional_id, producer, asked)
        return [error or other for error, other in zip(errors, verified, strict=True)]

    def _not_addable(self, partitions: Sequence[tuple[str, int]]) -> list[TidemillError | None]:
        refused = self._access.refusals(Operation.WRITE, TOPIC, (topic for topic, _ in partitions))
        return [
            error or self._internal(topic) or missing_partition(self._catalog, topic, partition)
            for error, (topic, partition) in zip(refused, partitions, strict=True)
        ]

    @staticmethod
    def _internal(topic: str) -> TidemillError | None:
        if is_internal(topic):
            return InvalidTopicError(f"topic {topic!r} is internal: clients can't write to it")
        return None

    # --- offsets ---------------------------------------------------------------------------------

    async def add_group(
        self, transactional_id: str, producer: ProducerIdentity, group_id: str
    ) -> None:
        """Make the group's committed offsets part of the transaction. Durable on return.

        Raises:
            GroupAuthorizationError: the principal can't read the group.
            InvalidGroupIdError: the group id is empty.
            TidemillError: as ``add_partitions``.
        """
        self._access.check(Operation.WRITE, TRANSACTIONAL_ID, transactional_id)
        self._access.check(Operation.READ, GROUP, group_id)
        if not group_id:
            raise InvalidGroupIdError("the group id is empty")
        await self._coordinator.add(transactional_id, producer, [OFFSETS])

    async def commit_offsets(self, request: TxnOffsetCommit) -> list[TidemillError | None]:
        """Commit offsets as part of the transaction.

        They are durable on return, and visible when the transaction is committed.

        Returns:
            None or an error for each offset.

        Raises:
            GroupAuthorizationError: the principal can't read the group.
            InvalidProducerIdMappingError, InvalidProducerEpochError, TransactionAbortableError,
            ConcurrentTransactionsError: the producer can't write in this transaction.
            UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError: the consumer is not
            a member of the group (KIP-447).
        """
        commit = request.commit
        self._access.check(Operation.WRITE, TRANSACTIONAL_ID, request.transactional_id)
        self._access.check(Operation.READ, GROUP, commit.group_id)
        refused = self._access.refusals(Operation.READ, TOPIC, (o.topic for o in commit.offsets))
        errors = [
            error or missing_partition(self._catalog, each.topic, each.partition)
            for error, each in zip(refused, commit.offsets, strict=True)
        ]
        usable = tuple(
            each for each, error in zip(commit.offsets, errors, strict=True) if error is None
        )
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

    # --- the end ---------------------------------------------------------------------------------

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        commit: bool,
        version: TransactionVersion,
    ) -> ProducerIdentity:
        """Commit or abort a transaction.

        On return the decision is durable, and so is everything that readers need to see it. Where a
        partition takes no marker at present, they see it later.

        Returns:
            The identity of the next transaction: with V2 another one.

        Raises:
            InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError,
            InvalidTxnStateError
        """
        self._access.check(Operation.WRITE, TRANSACTIONAL_ID, transactional_id)
        return await self._coordinator.end(transactional_id, producer, commit, version)

    # --- admin -----------------------------------------------------------------------------------

    def listings(
        self,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        min_duration_ms: int | None = None,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids that the principal can describe and that match all filters.

        Args:
            states: empty for all.
            producer_ids: empty for all.
            min_duration_ms: only transactions that are open for longer; None for all (KIP-994).
            id_pattern: a regular expression; None for all (KIP-1152).

        Raises:
            InvalidRegularExpressionError: the pattern is invalid.
        """
        found = self._coordinator.listings(states, producer_ids, min_duration_ms, id_pattern)
        return [
            each
            for each in found
            if self._access.allows(Operation.DESCRIBE, TRANSACTIONAL_ID, each.transactional_id)
        ]

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Return a transactional id with its transaction.

        Topics that the principal can't describe are left out.

        Raises:
            TransactionalIdNotFoundError
        """
        self._access.check(Operation.DESCRIBE, TRANSACTIONAL_ID, transactional_id)
        found = self._coordinator.describe(transactional_id)
        if self._access.is_unrestricted:
            return found
        visible = tuple(
            tp
            for tp in found.partitions
            if self._access.allows(Operation.DESCRIBE, TOPIC, tp.topic)
        )
        return replace(found, partitions=visible)

    async def write_markers(
        self, markers: Sequence[tuple[Marker, Sequence[TopicPartition]]]
    ) -> list[list[TidemillError | None]]:
        """End transactions on request of an operator, without the coordinator (KIP-664).

        The markers are durable on return.

        Returns:
            None or an error per marker and partition.

        Raises:
            ClusterAuthorizationError: the principal can't act for the cluster.
        """
        self._access.check(Operation.CLUSTER_ACTION, CLUSTER)
        return await self._coordinator.write_markers(markers)
