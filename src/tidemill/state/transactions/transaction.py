"""The steps from one stored value of a transactional id to the next.

Pure functions: a step takes the current value and returns the one to write. ``machine`` decides
which producer may take a step, and ``table`` says which state can follow which.

Identities: a producer has an id and an epoch. The epoch increases to distinguish a producer from
an earlier one: at InitProducerId, when the coordinator aborts a transaction (a newer producer, the
timeout), and with V2 at each EndTxn. Markers have the higher epoch, so that a partition rejects
late writes with the lower one. No client gets epoch 32767: it is for the marker that ends the last
transaction of 32766. After that a new producer id follows, with epoch 0.

This module must not know other transactional ids or the clock.

Source: Apache Kafka 4.3, TransactionMetadata; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tidemill.log.names import TopicPartition
from tidemill.state.transactions.format import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    TransactionValue,
)
from tidemill.state.transactions.table import IDLE, TRANSITIONS
from tidemill.state.transactions.types import InitProducer, TransactionState
from tidemill.state.types import NO_PRODUCER, ProducerIdentity, TransactionVersion

_S = TransactionState

MAX_EPOCH = 2**15 - 1
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


def is_exhausted(epoch: int) -> bool:
    """Return whether the next increase of the epoch needs a new producer id."""
    return epoch >= LAST_CLIENT_EPOCH


def answered_identity(value: TransactionValue) -> ProducerIdentity:
    """Return the identity that the producer uses next.

    While a transaction is being ended, this is the identity that becomes current with its end.
    """
    if value.next_producer_id != NO_PRODUCER_ID:
        return ProducerIdentity(value.next_producer_id, 0)
    return value.producer


def deadline_ms(value: TransactionValue) -> int:
    """Return when an open transaction is aborted, in ms since the epoch."""
    return value.start_ms + value.timeout_ms


# --- InitProducerId ------------------------------------------------------------------------------


def created(producer_id: int, timeout_ms: int, now_ms: int) -> TransactionValue:
    """Return the value of a new transactional id."""
    return TransactionValue(
        ProducerIdentity(producer_id, 0),
        timeout_ms,
        _S.EMPTY,
        NO_PARTITIONS,
        now_ms,
        previous_producer_id=producer_id,
    )


def is_of(value: TransactionValue, current: ProducerIdentity) -> bool:
    """Return whether ``current`` is the current identity or the one before it (KIP-360).

    The one before it belongs to the same producer, which possibly lost the answer.
    """
    if current == value.producer:
        return True
    if current.epoch != value.last_epoch or current.epoch == NO_EPOCH:
        return False
    if current.producer_id == value.producer.producer_id:
        return True
    return current.producer_id == value.previous_producer_id and is_exhausted(current.epoch)


def needs_fresh_id(value: TransactionValue, current: ProducerIdentity) -> bool:
    """Return whether InitProducerId has to change the producer id."""
    epoch = value.producer.epoch
    if not is_exhausted(epoch):
        return False
    # No client ever gets 32767, so it can't be the answer to a retry from 32766.
    return current in (NO_PRODUCER, value.producer) or epoch == MAX_EPOCH


def initialised(
    value: TransactionValue, request: InitProducer, now_ms: int, fresh_producer_id: int | None
) -> TransactionValue:
    """Return the value after InitProducerId: Empty, with the identity to answer.

    No transaction is open. A producer that recovers has been checked with ``is_of``.
    """
    current = request.current
    last_epoch = current.epoch  # -1 if another producer starts, which can't be a retry
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
    """Return the value after a transaction began or got more partitions."""
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
    """Return the value after the client's decision.

    With V2 the epoch increases. If it can't, the new producer id follows when the end is complete.
    """
    state = _S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT
    if version is not TransactionVersion.V2:
        return replace(_step(value, state, now_ms), version=version)
    next_id = NO_PRODUCER_ID
    if is_exhausted(value.producer.epoch):
        next_id = _given(fresh_producer_id)
    return replace(_bumped(value, state, now_ms), next_producer_id=next_id)


def aborted(value: TransactionValue, now_ms: int) -> TransactionValue:
    """Return the value after the coordinator's decision to abort an open transaction.

    The reason is a newer producer or the timeout. The epoch increases with both versions, so that
    the producer is fenced.
    """
    return _bumped(value, _S.PREPARE_ABORT, now_ms)


def _bumped(value: TransactionValue, state: TransactionState, now_ms: int) -> TransactionValue:
    producer_id, epoch = value.producer
    return replace(
        _step(value, state, now_ms),
        producer=ProducerIdentity(producer_id, min(epoch + 1, MAX_EPOCH)),
        last_epoch=min(epoch, LAST_CLIENT_EPOCH),
        # A V2 abort without a transaction starts and ends now.
        start_ms=now_ms if value.state in IDLE else value.start_ms,
        version=TransactionVersion.V2,
    )


def completed(value: TransactionValue, now_ms: int) -> TransactionValue:
    """Return the value after all markers are durable."""
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
    """Return the value without partitions that were deleted."""
    left = value.partitions.difference(gone)
    return replace(_step(value, value.state, now_ms), partitions=left)


def _step(value: TransactionValue, state: TransactionState, now_ms: int) -> TransactionValue:
    assert state in TRANSITIONS[value.state], f"{value.state} -> {state}"
    before = value.producer.producer_id
    return replace(value, state=state, updated_ms=now_ms, previous_producer_id=before)


def _given(fresh_producer_id: int | None) -> int:
    if fresh_producer_id is None:
        raise ValueError("a new producer id is needed: ask needs_producer_id first")
    return fresh_producer_id
