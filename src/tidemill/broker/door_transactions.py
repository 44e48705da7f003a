"""The part of the door that is about transactions: what a protocol may ask of them.

Looks up which partitions exist, and hands on; decides nothing else. Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tidemill.broker import replicas
from tidemill.broker.api import (
    InitProducer,
    OffsetToCommit,
    ProducerIdentity,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
    TxnOffsetCommit,
)
from tidemill.broker.coordination import GroupCoordination
from tidemill.broker.topics import OFFSETS, TopicAdmin
from tidemill.broker.transactions import TransactionCoordination
from tidemill.errors import (
    InvalidGroupIdError,
    InvalidTopicError,
    OperationNotAttemptedError,
    TidemillError,
)
from tidemill.log.names import TopicPartition
from tidemill.log.transactions import Marker
from tidemill.state.catalog import is_internal


class TransactionsDoor:
    """Transactions, as protocols see them."""

    _topics: TopicAdmin
    _coordination: GroupCoordination
    _transactions: TransactionCoordination

    # --- producers -------------------------------------------------------------------------------

    async def init_transactional_producer(self, request: InitProducer) -> ProducerIdentity:
        """A transactional producer starts or recovers; what its predecessor left open is aborted
        before the answer (KIP-98, KIP-360).

        Raises:
            InvalidRequestError, InvalidTransactionTimeoutError, ProducerFencedError
            ConcurrentTransactionsError: a partition takes no marker at present; ask again.
            CoordinatorNotAvailableError: the disk refuses.
        """
        return await self._transactions.init(request)

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[tuple[str, int]],
    ) -> list[TidemillError | None]:
        """Make partitions part of the transaction, all or none; durable when answered.

        Returns:
            An error or None for each partition. Where one can't be added, the others' is an
            OperationNotAttemptedError.

        Raises:
            InvalidRequestError, InvalidProducerIdMappingError, ProducerFencedError,
            ConcurrentTransactionsError, CoordinatorNotAvailableError
        """
        errors = [self._not_addable(*each) for each in partitions]
        if not any(errors):
            added = [TopicPartition(*each) for each in partitions]
            await self._transactions.add(transactional_id, producer, added)
            return errors
        return [
            error or OperationNotAttemptedError(f"{topic}-{partition}: another can't be added")
            for error, (topic, partition) in zip(errors, partitions, strict=True)
        ]

    async def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[tuple[str, int]],
    ) -> list[TidemillError | None]:
        """Which partitions are part of the transaction (KIP-890); an error for each that is not.

        Raises:
            as ``add_partitions``.
        """
        asked = [TopicPartition(*each) for each in partitions]
        verified = await self._transactions.verify(transactional_id, producer, asked)
        return [self._not_addable(*tp) or error for tp, error in zip(asked, verified, strict=True)]

    async def end_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        commit: bool,
        version: TransactionVersion,
    ) -> ProducerIdentity:
        """Commit or abort. When answered, the decision is durable, and so is all that readers need
        to see it; where a partition takes no marker at present, they see it later.

        Returns:
            The identity to go on with: with V2 another one.

        Raises:
            InvalidRequestError, InvalidProducerIdMappingError, ProducerFencedError,
            ConcurrentTransactionsError, InvalidTxnStateError, CoordinatorNotAvailableError
        """
        return await self._transactions.end(transactional_id, producer, commit, version)

    # --- offsets ---------------------------------------------------------------------------------

    async def add_offsets(
        self, transactional_id: str, producer: ProducerIdentity, group_id: str
    ) -> None:
        """Make committed offsets part of the transaction; durable when answered.

        Raises:
            as ``add_partitions``; InvalidGroupIdError: the group id is empty.
        """
        if not group_id:
            raise InvalidGroupIdError("the group id is empty")
        await self._transactions.add(transactional_id, producer, [OFFSETS])

    async def commit_transaction_offsets(
        self, request: TxnOffsetCommit
    ) -> list[TidemillError | None]:
        """Commit offsets as part of the transaction; durable when answered, seen when it is
        committed.

        Returns:
            An error or None for each offset.

        Raises:
            InvalidProducerIdMappingError, InvalidProducerEpochError, TransactionAbortableError,
            ConcurrentTransactionsError, CoordinatorNotAvailableError: see ``check_write``.
            UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError: see KIP-447.
        """
        commit = request.commit
        missing = [self._missing(each.topic, each.partition) for each in commit.offsets]
        known = tuple(
            each for each, error in zip(commit.offsets, missing, strict=True) if error is None
        )
        outcomes = iter(await self._commit_known(request, known))
        return [error or next(outcomes) for error in missing]

    async def _commit_known(
        self, request: TxnOffsetCommit, known: tuple[OffsetToCommit, ...]
    ) -> list[TidemillError | None]:
        admission = self._transactions.admit(
            request.transactional_id, request.producer, OFFSETS, request.version
        )
        commit = replace(request, commit=replace(request.commit, offsets=known))
        # Appended in this turn of the loop: nothing can end the transaction in between.
        outcomes = await self._coordination.commit_in_transaction(commit)
        await self._transactions.admitted(admission)
        return outcomes

    # --- admin -----------------------------------------------------------------------------------

    def list_transactions(
        self,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        duration_ms: int = -1,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Transactional ids, filtered where something is given (KIP-664, KIP-994, KIP-1152).

        Raises:
            InvalidRequestError: the pattern is no regular expression.
        """
        return self._transactions.list(states, producer_ids, duration_ms, id_pattern)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """A transactional id and its transaction.

        Raises:
            InvalidRequestError, TransactionalIdNotFoundError
        """
        return self._transactions.describe(transactional_id)

    async def write_markers(
        self, markers: Sequence[tuple[Marker, Sequence[TopicPartition]]]
    ) -> list[list[TidemillError | None]]:
        """End transactions by hand, past the coordinator (WriteTxnMarkers, KIP-664); durable when
        answered; an error or None per marker and partition."""
        return await self._transactions.write_markers(markers)

    # --- inside ----------------------------------------------------------------------------------

    def _missing(self, topic: str, partition: int) -> TidemillError | None:
        return replicas.missing(self._topics.catalog, topic, partition)

    def _not_addable(self, topic: str, partition: int) -> TidemillError | None:
        if is_internal(topic):
            return InvalidTopicError(f"topic {topic!r} is internal: clients can't write to it")
        return self._missing(topic, partition)
