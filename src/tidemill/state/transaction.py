"""One transactional id's stored value, and each step from one value to the next.

Pure functions: a step takes the value in force and gives the one to be written. Who may take a step
is decided in ``transactions``; which may follow which stands in ``transactions_table``.

Identities. A producer is its id and an epoch. The epoch goes up where a producer must be told apart
from an earlier one: at InitProducerId, where the coordinator aborts by itself (a newer producer,
the timeout), and with V2 at each EndTxn. Markers carry the higher epoch, so a partition refuses
late writes of the lower one. 32767 is never a client's: it is kept for the marker that ends the
last transaction of 32766, after which a fresh producer id follows, from epoch 0.

Source: Apache Kafka 4.3, TransactionMetadata; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tidemill.log.names import TopicPartition
from tidemill.state.transactions_format import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    TransactionValue,
)
from tidemill.state.transactions_table import IDLE, TRANSITIONS
from tidemill.state.types import (
    NO_PRODUCER,
    InitProducer,
    ProducerIdentity,
    TransactionState,
    TransactionVersion,
)

_S = TransactionState

MAX_EPOCH = 2**15 - 1
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


def is_exhausted(epoch: int) -> bool:
    """Whether the next bump needs a fresh producer id."""
    return epoch >= LAST_CLIENT_EPOCH


def answered_identity(value: TransactionValue) -> ProducerIdentity:
    """The identity that the producer goes on with: while a transaction is being ended, the one
    that comes into force with its end."""
    if value.next_producer_id != NO_PRODUCER_ID:
        return ProducerIdentity(value.next_producer_id, 0)
    return value.producer


def deadline_ms(value: TransactionValue) -> int:
    """When an open transaction is aborted."""
    return value.start_ms + value.timeout_ms


# --- InitProducerId ------------------------------------------------------------------------------


def created(producer_id: int, timeout_ms: int, now_ms: int) -> TransactionValue:
    """A transactional id that was not known."""
    return TransactionValue(
        ProducerIdentity(producer_id, 0),
        timeout_ms,
        _S.EMPTY,
        NO_PARTITIONS,
        now_ms,
        previous_producer_id=producer_id,
    )


def is_of(value: TransactionValue, current: ProducerIdentity) -> bool:
    """KIP-360: whether ``current`` is the identity in force, or the one before it of the same
    producer, whose answer may have been lost."""
    if current == value.producer:
        return True
    if current.epoch != value.last_epoch or current.epoch == NO_EPOCH:
        return False
    if current.producer_id == value.producer.producer_id:
        return True
    return current.producer_id == value.previous_producer_id and is_exhausted(current.epoch)


def needs_fresh_id(value: TransactionValue, current: ProducerIdentity) -> bool:
    """Whether InitProducerId has to rotate the producer id."""
    epoch = value.producer.epoch
    if not is_exhausted(epoch):
        return False
    # 32767 was never given to anybody, so the retry of 32766 can't be answered with it
    return current in (NO_PRODUCER, value.producer) or epoch == MAX_EPOCH


def initialised(
    value: TransactionValue, request: InitProducer, now_ms: int, fresh_producer_id: int | None
) -> TransactionValue:
    """A producer starts, or recovers (``is_of`` holds), nothing being open: Empty, under the
    identity to answer."""
    current = request.current
    last_epoch = current.epoch  # -1 where another producer starts: nobody's retry
    if needs_fresh_id(value, current):
        producer = ProducerIdentity(_given(fresh_producer_id), 0)
    elif current in (NO_PRODUCER, value.producer):
        producer = ProducerIdentity(value.producer.producer_id, value.producer.epoch + 1)
    else:  # a retry
        producer = value.producer
    return replace(
        _step(value, _S.EMPTY, now_ms),
        producer=producer,
        last_epoch=last_epoch,
        timeout_ms=request.timeout_ms,
        start_ms=NO_TIME,
    )


# --- a transaction -------------------------------------------------------------------------------


def with_partitions(
    value: TransactionValue,
    partitions: Iterable[TopicPartition],
    now_ms: int,
    version: TransactionVersion,
) -> TransactionValue:
    """A transaction begins, or grows."""
    start = now_ms if value.state in IDLE else value.start_ms
    grown = value.partitions.union(partitions)
    return replace(
        _step(value, _S.ONGOING, now_ms), partitions=grown, start_ms=start, version=version
    )


def prepared(
    value: TransactionValue,
    now_ms: int,
    version: TransactionVersion,
    *,
    commit: bool,
    fresh_producer_id: int | None,
) -> TransactionValue:
    """The client's decision. With V2 the epoch goes up, or a fresh producer id is to follow."""
    state = _S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT
    if version is not TransactionVersion.V2:
        return replace(_step(value, state, now_ms), version=version)
    next_id = NO_PRODUCER_ID
    if is_exhausted(value.producer.epoch):
        next_id = _given(fresh_producer_id)
    return replace(_bumped(value, state, now_ms), next_producer_id=next_id)


def aborted(value: TransactionValue, now_ms: int) -> TransactionValue:
    """The coordinator's decision: a newer producer or the timeout ends an open transaction. The
    epoch goes up with either protocol, so that the producer is fenced."""
    return _bumped(value, _S.PREPARE_ABORT, now_ms)


def _bumped(value: TransactionValue, state: TransactionState, now_ms: int) -> TransactionValue:
    producer_id, epoch = value.producer
    return replace(
        _step(value, state, now_ms),
        producer=ProducerIdentity(producer_id, min(epoch + 1, MAX_EPOCH)),
        last_epoch=min(epoch, LAST_CLIENT_EPOCH),
        # a V2 abort where nothing is open has no start of its own
        start_ms=now_ms if value.state in IDLE else value.start_ms,
        version=TransactionVersion.V2,
    )


def completed(value: TransactionValue, now_ms: int) -> TransactionValue:
    """All markers are durable."""
    commit = value.state is _S.PREPARE_COMMIT
    return replace(
        _step(value, _S.COMPLETE_COMMIT if commit else _S.COMPLETE_ABORT, now_ms),
        producer=answered_identity(value),
        next_producer_id=NO_PRODUCER_ID,
        partitions=NO_PARTITIONS,
    )


def without_partitions(
    value: TransactionValue, gone: Iterable[TopicPartition], now_ms: int
) -> TransactionValue:
    """Some partitions exist no longer: nothing is to be written there."""
    left = value.partitions.difference(gone)
    return replace(_step(value, value.state, now_ms), partitions=left)


def _step(value: TransactionValue, state: TransactionState, now_ms: int) -> TransactionValue:
    assert state in TRANSITIONS[value.state], f"{value.state} -> {state}"
    before = value.producer.producer_id
    return replace(value, state=state, updated_ms=now_ms, previous_producer_id=before)


def _given(fresh_producer_id: int | None) -> int:
    if fresh_producer_id is None:
        raise ValueError("a fresh producer id is needed: ask needs_producer_id first")
    return fresh_producer_id
