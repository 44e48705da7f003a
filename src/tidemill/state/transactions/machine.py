"""The transaction coordinator as one pure state machine: transactional ids and their transactions.

Other machines replay a record when it is durable. This one replays a record when it is *appended*
to ``__transaction_state``, because writes must be checked against it immediately. Still, nothing is
answered before the records are durable. Each decision (Prepare*) is durable before its markers are
written, and the markers before Complete*. A command never changes the state.

Commands of one id must not overlap: the records of one command are replayed before the next one is
called. ``now_ms`` is wall-clock time in ms since the epoch. This module must not know a socket, a
clock or a log. The package's docstring lists the differences from Apache Kafka's coordinator.

Source: KIP-98, KIP-360, KIP-447, KIP-664, KIP-890.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidTxnStateError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.state.errors import InvalidProducerIdMappingError
from tidemill.state.outcome import Outcome, StateRecord, nothing
from tidemill.state.patterns import id_matcher
from tidemill.state.transactions.checks import (
    check_first_write,
    check_id,
    check_init,
    check_producer,
    check_size,
    ending,
    epoch_of,
    fenced,
    not_added,
    not_found,
)
from tidemill.state.transactions.format import (
    NO_TIME,
    TransactionValue,
    encode_key,
    encode_record,
    encode_value,
)
from tidemill.state.transactions.stored import StoredTransactions
from tidemill.state.transactions.table import ENDING, IDLE, Answer, end_answer
from tidemill.state.transactions.transaction import (
    LAST_CLIENT_EPOCH,
    aborted,
    answered_identity,
    completed,
    created,
    initialised,
    is_exhausted,
    prepared,
    with_partitions,
)
from tidemill.state.transactions.types import (
    InitProducer,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from tidemill.state.transactions.upkeep import Upkeep
from tidemill.state.types import NO_PRODUCER, ProducerIdentity, TransactionVersion

_S = TransactionState


class Transactions:
    """All transactional ids.

    Args:
        max_timeout_ms: the longest transaction timeout that a producer can use.
        id_expiration_ms: how long an id without an open transaction is kept after its last use.

    Attributes:
        upkeep: the commands that no client asks for: timeouts, deleted topics, repair at start.
    """

    def __init__(
        self, *, max_timeout_ms: int = 900_000, id_expiration_ms: int = 604_800_000
    ) -> None:
        self._max_timeout_ms = max_timeout_ms
        self._stored = StoredTransactions()
        self._values = self._stored.values
        self.upkeep = Upkeep(self._stored, id_expiration_ms)

    # --- state that survives a restart -----------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of ``__transaction_state``: each that was appended, and all at start.

        Returns:
            False if the kind of the record is not supported. Then nothing changes.
        """
        return self._stored.replay(key, value)

    def loaded(self, now_ms: int) -> None:
        """Start the timeouts after all records were replayed at start."""
        self._stored.loaded(now_ms)

    # --- InitProducerId --------------------------------------------------------------------------

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Return whether the next ``init`` or ``end`` possibly needs a new producer id.

        It does if the id is new, or if the epochs of its producer id are used up. Ask after the
        records of ``fence`` were replayed.
        """
        value = self._values.get(transactional_id)
        return value is None or is_exhausted(value.producer.epoch)

    def fence(self, request: InitProducer, now_ms: int) -> Outcome[None]:
        """Check an InitProducerId, and abort the open transaction, if any. This is step 1.

        If there is a record, the markers follow (see ``unfinished``), then ``complete``, then
        ``init``.

        Raises:
            InvalidRequestError: the transactional id is empty, or ``current`` is half an identity.
            InvalidTransactionTimeoutError: the timeout is out of bounds.
            ProducerFencedError: ``current`` is not the current identity. If no transaction is open,
                it may also be the one before it.
            ConcurrentTransactionsError: the markers of a decision are still being written.
        """
        value = self._values.get(request.transactional_id)
        check_init(request, value, self._max_timeout_ms)
        if value is None or value.state in IDLE:
            return nothing()
        if value.state in ENDING:
            raise ending(request.transactional_id)
        if request.current not in (NO_PRODUCER, value.producer):
            raise fenced(request.transactional_id, request.current, value)
        return Outcome(None, [encode_record(request.transactional_id, aborted(value, now_ms))])

    def init(
        self, request: InitProducer, now_ms: int, fresh_producer_id: int | None = None
    ) -> Outcome[ProducerIdentity]:
        """Return the identity that the producer uses next. This is step 2 of InitProducerId.

        With ``current`` (KIP-360), a retry returns the same identity again.

        Args:
            fresh_producer_id: an unused producer id, if ``needs_producer_id`` returned True.

        Raises:
            ConcurrentTransactionsError: a transaction is open or being ended.
            ValueError: ``fresh_producer_id`` is needed and None.
            InvalidRequestError, InvalidTransactionTimeoutError, ProducerFencedError: as ``fence``.
        """
        value = self._values.get(request.transactional_id)
        check_init(request, value, self._max_timeout_ms)
        if value is None:
            if fresh_producer_id is None:
                raise ValueError(f"{request.transactional_id!r} is new: it needs a producer id")
            new = created(fresh_producer_id, request.timeout_ms, now_ms)
        elif value.state not in IDLE:
            raise ending(request.transactional_id)
        else:
            new = initialised(value, request, now_ms, fresh_producer_id)
        return Outcome(new.producer, [encode_record(request.transactional_id, new)])

    # --- partitions ------------------------------------------------------------------------------

    def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        now_ms: int,
        version: TransactionVersion,
    ) -> Outcome[None]:
        """Add partitions to the transaction (AddPartitionsToTxn, AddOffsetsToTxn), or begin one.

        There is no record if all partitions are in the transaction already.

        Raises:
            InvalidRequestError: the transactional id is empty.
            InvalidProducerIdMappingError: the id is unknown, or has another producer id.
            ProducerFencedError: the epoch is not the current one.
            ConcurrentTransactionsError: the previous transaction is still being ended.
            TransactionAbortableError: the transaction would have too many partitions.
        """
        value = self._value(transactional_id)
        if value.state in ENDING:  # first: the sender possibly has its next producer id already
            raise ending(transactional_id)
        check_producer(transactional_id, value, producer)
        if value.state is _S.ONGOING and value.partitions.issuperset(partitions):
            return nothing()
        return _grown(transactional_id, with_partitions(value, partitions, now_ms, version))

    def verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
    ) -> list[TidemillError | None]:
        """Return an error or None for each partition (AddPartitionsToTxn in verify mode, KIP-890).

        A partition that is not in the transaction gets a TransactionAbortableError.

        Raises: as ``add``.
        """
        value = self._value(transactional_id)
        check_producer(transactional_id, value, producer)
        if value.state in ENDING:
            raise ending(transactional_id)
        return [
            None if tp in value.partitions else not_added(transactional_id, tp) for tp in partitions
        ]

    def check_write(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        tp: TopicPartition,
        now_ms: int,
        version: TransactionVersion,
        also: Iterable[TopicPartition] = (),
    ) -> Outcome[None] | None:
        """Check that the producer may write to the partition now (Produce, TxnOffsetCommit).

        Args:
            also: the other partitions of the request. The record adds them too.

        Returns:
            None if the partition is in the transaction. Otherwise (V2) an outcome whose record adds
            it and must be appended before the write.

        Raises:
            InvalidProducerIdMappingError: the id is unknown, or has another producer id.
            InvalidProducerEpochError: the epoch is not the current one.
            ConcurrentTransactionsError: the previous transaction is still being ended.
            TransactionAbortableError: V1: the partition was not added to the transaction. V2: the
                transaction would have too many partitions.
        """
        value = self._values.get(transactional_id)
        if (
            value is not None
            and value.state is _S.ONGOING
            and tp in value.partitions
            and value.producer == producer
        ):
            return None
        value = self._value(transactional_id)
        check_first_write(transactional_id, value, producer, tp, version)
        return _grown(transactional_id, with_partitions(value, (tp, *also), now_ms, version))

    # --- the end of a transaction ----------------------------------------------------------------

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        commit: bool,
        now_ms: int,
        version: TransactionVersion,
        fresh_producer_id: int | None = None,
    ) -> Outcome[ProducerIdentity]:
        """Decide to commit or to abort the transaction (EndTxn).

        The result is the identity to answer: with V1 the same, with V2 the next one (with a new
        producer id if the epochs are used up). There is no record if the transaction has already
        ended this way. ``table`` lists the answers.

        Args:
            fresh_producer_id: an unused producer id, if ``needs_producer_id`` returned True (V2).

        Raises:
            InvalidRequestError: the transactional id is empty.
            InvalidProducerIdMappingError: the id is unknown, or has another producer id.
            ProducerFencedError: the epoch is not the current one, and this is not a retry.
            ConcurrentTransactionsError: the transaction (V2: or the one before) is being ended.
            InvalidTxnStateError: the transaction ended the other way, or none is open.
            ValueError: ``fresh_producer_id`` is needed and None.
        """
        value = self._value(transactional_id)
        epoch = epoch_of(transactional_id, value, producer, version)
        answer = end_answer(version, value.state, epoch, commit=commit)
        if answer is Answer.DONE and value.producer.epoch > LAST_CLIENT_EPOCH:
            answer = Answer.END  # no client may get this epoch: abort again with a new producer id
        if answer is Answer.DONE:
            return Outcome(value.producer)
        if answer is Answer.WAIT:
            raise ending(transactional_id)
        if answer is Answer.FENCED:
            raise fenced(transactional_id, producer, value)
        if answer is Answer.REFUSE:
            raise InvalidTxnStateError(
                f"transactional id {transactional_id!r} has no transaction to "
                f"{'commit' if commit else 'abort'}: its state is {value.state}"
            )
        new = prepared(value, now_ms, version, commit=commit, fresh_producer_id=fresh_producer_id)
        return Outcome(answered_identity(new), [encode_record(transactional_id, new)])

    def unfinished(self, transactional_id: str) -> tuple[Marker, tuple[TopicPartition, ...]] | None:
        """Return the marker to write before ``complete`` and its partitions.

        Returns:
            None if there is no decision, or it is complete.
        """
        value = self._values.get(transactional_id)
        if value is None or value.state not in ENDING:
            return None
        marker = Marker(*value.producer, commit=value.state is _S.PREPARE_COMMIT)
        return marker, tuple(sorted(value.partitions))

    def all_unfinished(self) -> list[str]:
        """Return the ids whose decision is not complete, in the order of their decisions."""
        return list(self._stored.unfinished)

    def complete(self, transactional_id: str, now_ms: int) -> Outcome[None]:
        """Complete a decision after all its markers are durable.

        Raises:
            InvalidTxnStateError: there is no decision, or it is complete.
        """
        value = self._values.get(transactional_id)
        if value is None or value.state not in ENDING:
            raise InvalidTxnStateError(
                f"transactional id {transactional_id!r} has no decision to complete"
            )
        return Outcome(None, [encode_record(transactional_id, completed(value, now_ms))])

    # --- views -----------------------------------------------------------------------------------

    def find(self, producer_id: int) -> str | None:
        """Return the transactional id that has this producer id, now or after its decision."""
        return self._stored.ids.get(producer_id)

    def open_since(self) -> tuple[int, int, int | None]:
        """Return the number of ids and of open transactions, and the start of the oldest one.

        The start is in ms since the epoch; None without an open transaction.
        """
        starts = [self._values[each].start_ms for each in self._stored.timers.active()]
        return len(self._values), len(starts), min(starts, default=None)

    def listings(
        self,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        duration_ms: int = -1,
        id_pattern: str | None = None,
        now_ms: int = 0,
    ) -> list[TransactionListing]:
        """Return the transactional ids that pass all filters.

        Args:
            states: only ids in one of these states; empty: all.
            producer_ids: only ids with one of these producer ids; empty: all.
            duration_ms: only transactions that have been open for longer; -1: all.
            id_pattern: only ids that this regular expression matches as a whole; None: all.
        """
        producer_ids = frozenset(producer_ids)
        matches = None if id_pattern is None else id_matcher(id_pattern)
        since_ms = now_ms - duration_ms
        return [
            TransactionListing(transactional_id, value.producer.producer_id, value.state)
            for transactional_id, value in self._values.items()
            if (not states or value.state in states)
            and (not producer_ids or value.producer.producer_id in producer_ids)
            and (duration_ms < 0 or (value.state not in IDLE and value.start_ms < since_ms))
            and (matches is None or matches(transactional_id))
        ]

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Return the id and its transaction. Only an open or ending one has a start time."""
        check_id(transactional_id)
        value = self._values.get(transactional_id)
        if value is None:
            raise not_found(transactional_id)
        return TransactionDescription(
            transactional_id,
            value.state,
            value.producer,
            value.timeout_ms,
            NO_TIME if value.state in IDLE else value.start_ms,
            tuple(sorted(value.partitions)),
        )

    def stored(self) -> dict[str, TransactionValue]:
        """Return the state that survives a restart."""
        return dict(self._values)

    def _value(self, transactional_id: str) -> TransactionValue:
        check_id(transactional_id)
        value = self._values.get(transactional_id)
        if value is None:
            raise InvalidProducerIdMappingError(
                f"transactional id {transactional_id!r} is unknown",
                hint="It has expired, or InitProducerId was never sent: restart the producer.",
            )
        return value


def _grown(transactional_id: str, value: TransactionValue) -> Outcome[None]:
    encoded = encode_value(value)
    check_size(transactional_id, encoded)
    return Outcome(None, [StateRecord(encode_key(transactional_id), encoded)])
