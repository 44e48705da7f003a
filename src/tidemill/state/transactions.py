"""The transaction coordinator as one pure state machine: transactional ids and their transactions.

Unlike the other machines' records, these are given to ``replay`` when they have been *appended* to
``__transaction_state``: the order there is the truth, and writes are checked against it at once.
Still nothing is answered before the records are durable, and each decision (Prepare*) is durable
before its markers are written, the markers before Complete*. A command never changes the state.

Commands of one id must not overlap: each one's records are replayed before the next is called.
Knows no socket, no clock and no log; ``now_ms`` is wall-clock time in ms since the epoch.

The errors are those of Apache Kafka 4.3's coordinator. Where we differ:

- InitProducerId is answered in one go; Kafka aborts what is open, answers CONCURRENT_TRANSACTIONS
  and lets the client ask again.
- InitProducerId with a stale identity never aborts the transaction of the producer in force. Kafka
  looks at the epoch only after the abort.
- A retried InitProducerId is recognised after a restart too (``LAST_EPOCH_TAG``).
- Every write is checked, not only a transaction's first to a partition. A fenced writer is told
  INVALID_PRODUCER_EPOCH, as Kafka's brokers translate it; a V1 write to a partition that is not in
  the transaction TRANSACTION_ABORTABLE (the protocol layer: INVALID_TXN_STATE for old versions).
- A transaction with too many partitions is told TRANSACTION_ABORTABLE (``LARGEST_VALUE``).
- The coordinator's own abort in epoch 32766 takes no fresh producer id: the next InitProducerId or
  EndTxn does.

Source: KIP-98, KIP-360, KIP-447, KIP-664, KIP-890.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidemill.errors import (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    TidemillError,
)
from tidemill.log.names import TopicPartition
from tidemill.log.transactions import Marker, OpenTransaction
from tidemill.state.outcome import Outcome, StateRecord, nothing
from tidemill.state.transaction import (
    LAST_CLIENT_EPOCH,
    aborted,
    answered_identity,
    completed,
    created,
    initialised,
    is_exhausted,
    is_of,
    prepared,
    with_partitions,
    without_partitions,
)
from tidemill.state.transactions_checks import (
    check_id,
    check_producer,
    check_producer_id,
    check_size,
    ending,
    epoch_of,
    fenced,
    not_added,
    not_found,
)
from tidemill.state.transactions_format import (
    TransactionValue,
    encode_key,
    encode_value,
)
from tidemill.state.transactions_heal import Heal as Heal
from tidemill.state.transactions_heal import verdict
from tidemill.state.transactions_stored import StoredTransactions
from tidemill.state.transactions_table import ENDING, IDLE, Answer, end_answer
from tidemill.state.transactions_views import description, listing
from tidemill.state.types import (
    NO_PRODUCER,
    InitProducer,
    ProducerIdentity,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
)

_S = TransactionState
Errors = list[TidemillError | None]
Names = list[str]
Listings = list[TransactionListing]


class Transactions:
    """All transactional ids.

    Args:
        max_timeout_ms: longest transaction timeout that a producer may ask for.
        id_expiration_ms: an id without an open transaction is forgotten after it.
    """

    def __init__(
        self, *, max_timeout_ms: int = 900_000, id_expiration_ms: int = 604_800_000
    ) -> None:
        self._max_timeout_ms = max_timeout_ms
        self._id_expiration_ms = id_expiration_ms
        self._stored = StoredTransactions()
        self._values = self._stored.values

    # --- what survives a restart -----------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of ``__transaction_state``; False (and no effect) if it is of a kind
        that is not known. Used for each record that was appended, and for all of them at start.

        Raises:
            InvalidRecordError, FormatVersionError: the record can't be read.
        """
        return self._stored.replay(key, value)

    def loaded(self, now_ms: int) -> None:
        """All records have been replayed at start: the timeouts run."""
        self._stored.loaded(now_ms)

    # --- InitProducerId --------------------------------------------------------------------------

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Whether ``init`` or ``end``, called next, may need a fresh producer id: the id is new, or
        the epochs of its producer id are used up. Ask after ``fence`` has been replayed."""
        value = self._values.get(transactional_id)
        return value is None or is_exhausted(value.producer.epoch)

    def fence(self, request: InitProducer, now_ms: int) -> Outcome[None]:
        """Step 1 of InitProducerId: check it, and abort what is open. Where there is a record, the
        markers follow (see ``unfinished``), then ``complete``, then ``init``.

        Raises:
            InvalidRequestError: the transactional id is empty, or ``current`` is half an identity.
            InvalidTransactionTimeoutError: the timeout is out of bounds.
            ProducerFencedError: ``current`` is neither the identity in force nor (nothing being
                open) the one before it.
            ConcurrentTransactionsError: markers of a decision are still being written.
        """
        self._check_init(request)
        value = self._values.get(request.transactional_id)
        if value is None or value.state in IDLE:
            return nothing()
        if value.state in ENDING:
            raise ending(request.transactional_id)
        if request.current not in (NO_PRODUCER, value.producer):
            raise fenced(request.transactional_id, request.current, value)
        return Outcome(None, [_record(request.transactional_id, aborted(value, now_ms))])

    def init(
        self, request: InitProducer, now_ms: int, fresh_producer_id: int | None = None
    ) -> Outcome[ProducerIdentity]:
        """Step 2 of InitProducerId: the identity under which the producer goes on. With
        ``current`` (KIP-360) a retry gets the same identity again.

        Args:
            fresh_producer_id: never used before; needed where ``needs_producer_id`` says so.

        Raises:
            as ``fence``; ConcurrentTransactionsError where a transaction is open, too.
            ValueError: a fresh producer id is needed and not given.
        """
        self._check_init(request)
        value = self._values.get(request.transactional_id)
        if value is None:
            if fresh_producer_id is None:
                raise ValueError(f"{request.transactional_id!r} is new: it needs a producer id")
            new = created(fresh_producer_id, request.timeout_ms, now_ms)
        elif value.state not in IDLE:
            raise ending(request.transactional_id)
        else:
            new = initialised(value, request, now_ms, fresh_producer_id)
        return Outcome(new.producer, [_record(request.transactional_id, new)])

    def _check_init(self, request: InitProducer) -> None:
        check_id(request.transactional_id)
        if not 0 < request.timeout_ms <= self._max_timeout_ms:
            raise InvalidTransactionTimeoutError(
                f"transactional id {request.transactional_id!r}: a transaction timeout of "
                f"{request.timeout_ms} ms is not within 1 to {self._max_timeout_ms}"
            )
        current = request.current
        if (current.producer_id < 0) != (current.epoch < 0):
            raise InvalidRequestError(
                f"producer id {current.producer_id} and epoch {current.epoch} are no identity"
            )
        value = self._values.get(request.transactional_id)
        if value is not None and current != NO_PRODUCER and not is_of(value, current):
            raise fenced(request.transactional_id, current, value)

    # --- partitions ------------------------------------------------------------------------------

    def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        now_ms: int,
        version: TransactionVersion,
    ) -> Outcome[None]:
        """AddPartitionsToTxn, AddOffsetsToTxn: the first partitions begin a transaction. No record
        where nothing is new.

        Raises:
            InvalidRequestError: the transactional id is empty.
            InvalidProducerIdMappingError: the id is not known, or has another producer id.
            ProducerFencedError: the epoch is not the one in force.
            ConcurrentTransactionsError: the previous transaction is still being ended.
            TransactionAbortableError: it would have too many partitions.
        """
        value = self._value(transactional_id)
        if value.state in ENDING:  # first: the sender may know its next producer id already
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
    ) -> Errors:
        """AddPartitionsToTxn that only asks (KIP-890): None for each partition that is in the
        transaction, TransactionAbortableError for each that is not.

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
        """Whether the producer may write to the partition now (Produce, TxnOffsetCommit). None: it
        may. An outcome (V2, the first write there): it may, behind the outcome's record, which
        makes those of ``also`` part of the transaction, too: what is next in the same request.

        Raises:
            InvalidProducerIdMappingError: the id is not known, or has another producer id.
            InvalidProducerEpochError: the epoch is not the one in force.
            ConcurrentTransactionsError: the previous transaction is still being ended.
            TransactionAbortableError: V1, and the partition was not added to the transaction; V2,
                and the transaction would have too many.
        """
        value = self._values.get(transactional_id)
        if (
            value is not None
            and value.state is _S.ONGOING
            and tp in value.partitions
            and value.producer == producer
        ):
            return None
        return self._check_write(transactional_id, producer, tp, now_ms, version, also)

    def _check_write(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        tp: TopicPartition,
        now_ms: int,
        version: TransactionVersion,
        also: Iterable[TopicPartition],
    ) -> Outcome[None]:
        value = self._value(transactional_id)
        if value.state in ENDING and producer == answered_identity(value):
            raise ending(transactional_id)
        check_producer_id(transactional_id, value, producer)
        if producer != value.producer:
            raise InvalidProducerEpochError(str(fenced(transactional_id, producer, value)))
        if value.state in ENDING:
            raise ending(transactional_id)
        if version is not TransactionVersion.V2:
            raise not_added(transactional_id, tp)
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
        """EndTxn: the decision. The result is the identity to answer: V2 the next one (with a
        fresh producer id where epochs are used up), V1 the same. No record where the transaction
        has been ended that way already.

        Args:
            fresh_producer_id: never used before; needed with V2 where ``needs_producer_id``.

        Raises:
            InvalidRequestError: the transactional id is empty.
            InvalidProducerIdMappingError: the id is not known, or has another producer id.
            ProducerFencedError: the epoch is not the one in force, and no retry.
            ConcurrentTransactionsError: it is being ended that way (or, V2, the one before is).
            InvalidTxnStateError: it has ended the other way; nothing is open (V1, V2 commit).
            ValueError: a fresh producer id is needed and not given.
        """
        value = self._value(transactional_id)
        epoch = epoch_of(transactional_id, value, producer, version)
        answer = end_answer(version, value.state, epoch, commit=commit)
        if answer is Answer.DONE and value.producer.epoch > LAST_CLIENT_EPOCH:
            answer = Answer.END  # what was to be answered is no client's: abort once more, rotate
        if answer is Answer.DONE:
            return Outcome(value.producer)
        if answer is Answer.WAIT:
            raise ending(transactional_id)
        if answer is Answer.FENCED:
            raise fenced(transactional_id, producer, value)
        if answer is Answer.REFUSE:
            raise InvalidTxnStateError(
                f"transactional id {transactional_id!r} is in state {value.state}: there is "
                f"nothing to {'commit' if commit else 'abort'}"
            )
        new = prepared(value, now_ms, version, commit=commit, fresh_producer_id=fresh_producer_id)
        return Outcome(answered_identity(new), [_record(transactional_id, new)])

    def unfinished(self, transactional_id: str) -> tuple[Marker, tuple[TopicPartition, ...]] | None:
        """What has to be written for a decision before ``complete``; None: nothing is decided."""
        value = self._values.get(transactional_id)
        if value is None or value.state not in ENDING:
            return None
        marker = Marker(*value.producer, commit=value.state is _S.PREPARE_COMMIT)
        return marker, tuple(sorted(value.partitions))

    def all_unfinished(self) -> Names:
        """The ids of which ``unfinished`` has something, in the order of their decisions."""
        return self._stored.all_unfinished()

    def complete(self, transactional_id: str, now_ms: int) -> Outcome[None]:
        """All markers of the decision are durable.

        Raises:
            InvalidTxnStateError: nothing is decided.
        """
        value = self._values.get(transactional_id)
        if value is None or value.state not in ENDING:
            raise InvalidTxnStateError(f"transactional id {transactional_id!r}: nothing is decided")
        return Outcome(None, [_record(transactional_id, completed(value, now_ms))])

    # --- time ------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When ``due`` has something next, in ms since the epoch; None: no transaction is open."""
        return self._stored.next_deadline()

    def due(self, now_ms: int) -> Names:
        """Ids whose transaction has been open for longer than its timeout: ``expire`` them. They
        stay due until the record of that has been replayed."""
        return self._stored.due(now_ms)

    def expire(self, transactional_id: str, now_ms: int) -> Outcome[None]:
        """Abort the transaction if its time is up: the epoch goes up, so that the producer is
        fenced until it asks for the new one (V2: with an abort; V1: InitProducerId). The markers
        and ``complete`` follow. No record where the transaction has ended meanwhile."""
        if not self._stored.is_due(transactional_id, now_ms):
            return nothing()
        value = self._values[transactional_id]
        return Outcome(None, [_record(transactional_id, aborted(value, now_ms))])

    def expire_ids(self, now_ms: int) -> Outcome[None]:
        """Forget ids without an open transaction that nobody has used for the expiration time."""
        before = now_ms - self._id_expiration_ms
        return Outcome(
            None,
            [
                StateRecord(encode_key(transactional_id), None)
                for transactional_id, value in self._values.items()
                if value.state in IDLE and value.updated_ms <= before
            ],
        )

    # --- partitions that vanish, and those found at start ----------------------------------------

    def drop_partitions(self, topics: Collection[str], now_ms: int) -> Outcome[None]:
        """Topics are gone: open and ending transactions have nothing to do there any more."""
        gone = set(topics)
        out = nothing()
        for transactional_id, value in self._values.items():
            lost = [tp for tp in value.partitions if tp.topic in gone]
            if lost:
                new = without_partitions(value, lost, now_ms)
                out.records.append(_record(transactional_id, new))
        return out

    def heal(self, tp: TopicPartition, found: OpenTransaction) -> Heal:
        """What to do with an open transaction that ``tp`` holds, at start, before any marker of
        ``all_unfinished`` is written (see ``transactions_heal``)."""
        transactional_id = self.find(found.producer_id)
        value = None if transactional_id is None else self._values[transactional_id]
        return verdict(value, tp, found)

    def adopt(self, transactional_id: str, tp: TopicPartition, now_ms: int) -> Outcome[None]:
        """Take a partition into the transaction in force, which begins here where none is open: see
        ``heal``. A decision before it is completed: its markers are durable, or there would be no
        data of the next transaction.

        Raises:
            TransactionalIdNotFoundError: the id is not known.
        """
        value = self._values.get(transactional_id)
        if value is None:
            raise not_found(transactional_id)
        out = nothing()
        if value.state in ENDING:
            value = completed(value, now_ms)
            out.records.append(_record(transactional_id, value))
        if value.state is not _S.ONGOING or tp not in value.partitions:
            value = with_partitions(value, (tp,), now_ms, TransactionVersion.V2)
            out.records.append(_record(transactional_id, value))
        return out

    # --- views -----------------------------------------------------------------------------------

    def find(self, producer_id: int) -> str | None:
        """The transactional id that has this producer id, or gets it when its decision is done."""
        return self._stored.find(producer_id)

    def list(
        self,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        duration_ms: int = -1,
        id_pattern: str | None = None,
        now_ms: int = 0,
    ) -> Listings:
        """All ids, or those in one of ``states``, of one of ``producer_ids``, with a transaction
        that has been open for longer than ``duration_ms`` (-1: any), and whose whole name matches
        the regular expression ``id_pattern``.

        Raises:
            InvalidRegularExpressionError: the pattern is none.
        """
        return listing(self._values, states, producer_ids, duration_ms, id_pattern, now_ms)

    def describe(self, transactional_id: str) -> TransactionDescription:
        """The id and its transaction.

        Raises:
            InvalidRequestError: the transactional id is empty.
            TransactionalIdNotFoundError: the id is not known.
        """
        check_id(transactional_id)
        value = self._values.get(transactional_id)
        if value is None:
            raise not_found(transactional_id)
        return description(transactional_id, value)

    def stored(self) -> dict[str, TransactionValue]:
        """What survives a restart."""
        return dict(self._values)

    def _value(self, transactional_id: str) -> TransactionValue:
        check_id(transactional_id)
        value = self._values.get(transactional_id)
        if value is None:
            raise InvalidProducerIdMappingError(
                f"transactional id {transactional_id!r} is not known",
                hint="It has expired, or InitProducerId was never sent: start the producer anew.",
            )
        return value


def _grown(transactional_id: str, value: TransactionValue) -> Outcome[None]:
    encoded = encode_value(value)
    check_size(transactional_id, encoded)
    return Outcome(None, [StateRecord(encode_key(transactional_id), encoded)])


def _record(transactional_id: str, value: TransactionValue) -> StateRecord:
    return StateRecord(encode_key(transactional_id), encode_value(value))
