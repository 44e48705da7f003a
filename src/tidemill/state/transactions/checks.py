"""Checks whether a producer may use a transactional id, with the errors of Apache Kafka 4.3.

Pure functions of one stored value. This module must not know other transactional ids.

Source: Apache Kafka 4.3, TransactionCoordinator.
"""

from __future__ import annotations

from tidemill.log.errors import InvalidProducerEpochError
from tidemill.log.names import TopicPartition
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
)
from tidemill.state.transactions.format import TransactionValue
from tidemill.state.transactions.table import COMPLETE, ENDING, Epoch
from tidemill.state.transactions.transaction import LAST_CLIENT_EPOCH, answered_identity, is_of
from tidemill.state.transactions.types import InitProducer
from tidemill.state.types import NO_PRODUCER, ProducerIdentity, TransactionVersion

LARGEST_VALUE = 1 << 23
"""The largest stored value of a growing transaction, in bytes. 20,000 partitions with names of 249
characters take 5.2 MB. The log accepts records twice as large, so a full transaction can end."""


# --- errors --------------------------------------------------------------------------------------


def fenced(
    transactional_id: str, producer: ProducerIdentity, value: TransactionValue
) -> ProducerFencedError:
    """Return the error for a producer that is not the current one."""
    return ProducerFencedError(
        f"transactional id {transactional_id!r}: producer {producer.producer_id} with epoch "
        f"{producer.epoch} is fenced; the current one is {value.producer.producer_id} with epoch "
        f"{value.producer.epoch}"
    )


def ending(transactional_id: str) -> ConcurrentTransactionsError:
    """Return the error for a request that must wait until a decision is complete."""
    return ConcurrentTransactionsError(
        f"transactional id {transactional_id!r}: the previous transaction is still being ended"
    )


def not_added(transactional_id: str, tp: TopicPartition) -> TransactionAbortableError:
    """Return the error for a partition that is not in the transaction."""
    return TransactionAbortableError(f"{tp} is not in the open transaction of {transactional_id!r}")


def not_found(transactional_id: str) -> TransactionalIdNotFoundError:
    """Return the error for a transactional id that does not exist."""
    return TransactionalIdNotFoundError(f"transactional id {transactional_id!r} does not exist")


# --- checks --------------------------------------------------------------------------------------


def check_id(transactional_id: str) -> None:
    """Check that the transactional id is not empty."""
    if not transactional_id:
        raise InvalidRequestError("the transactional id is empty")


def check_init(request: InitProducer, value: TransactionValue | None, max_timeout_ms: int) -> None:
    """Check an InitProducerId.

    Args:
        value: the stored value; None if the transactional id is new.
    """
    check_id(request.transactional_id)
    if not 0 < request.timeout_ms <= max_timeout_ms:
        raise InvalidTransactionTimeoutError(
            f"transactional id {request.transactional_id!r}: invalid transaction timeout "
            f"{request.timeout_ms} ms: it must be from 1 to {max_timeout_ms}"
        )
    current = request.current
    if (current.producer_id < 0) != (current.epoch < 0):
        raise InvalidRequestError(
            f"invalid producer identity: id {current.producer_id}, epoch {current.epoch}"
        )
    if value is not None and current != NO_PRODUCER and not is_of(value, current):
        raise fenced(request.transactional_id, current, value)


def check_producer(
    transactional_id: str, value: TransactionValue, producer: ProducerIdentity
) -> None:
    """Check that the producer is the current one."""
    check_producer_id(transactional_id, value, producer)
    if producer != value.producer:
        raise fenced(transactional_id, producer, value)


def check_producer_id(
    transactional_id: str, value: TransactionValue, producer: ProducerIdentity
) -> None:
    """Check that the producer has the current producer id."""
    if producer.producer_id != value.producer.producer_id:
        raise InvalidProducerIdMappingError(
            f"transactional id {transactional_id!r} has producer id "
            f"{value.producer.producer_id}, not {producer.producer_id}"
        )


def check_first_write(
    transactional_id: str,
    value: TransactionValue,
    producer: ProducerIdentity,
    tp: TopicPartition,
    version: TransactionVersion,
) -> None:
    """Check a write to a partition that is not in the transaction yet.

    Raises: the errors of ``Transactions.check_write``.
    """
    if value.state in ENDING and producer == answered_identity(value):
        raise ending(transactional_id)
    check_producer_id(transactional_id, value, producer)
    if producer != value.producer:
        raise InvalidProducerEpochError(str(fenced(transactional_id, producer, value)))
    if value.state in ENDING:
        raise ending(transactional_id)
    if version is not TransactionVersion.V2:
        raise not_added(transactional_id, tp)


def check_size(transactional_id: str, value: bytes) -> None:
    """Check that a transaction may grow to this stored value."""
    if len(value) > LARGEST_VALUE:
        raise TransactionAbortableError(
            f"transactional id {transactional_id!r}: too many partitions in one transaction "
            f"({len(value)} bytes, at most {LARGEST_VALUE} are allowed)",
            hint="Abort it, and write to fewer partitions in one transaction.",
        )


# --- EndTxn --------------------------------------------------------------------------------------


def epoch_of(
    transactional_id: str,
    value: TransactionValue,
    producer: ProducerIdentity,
    version: TransactionVersion,
) -> Epoch:
    """Return whether an EndTxn has the current epoch or the one before it."""
    if version is TransactionVersion.V2:
        if _is_rotated_retry(value, producer):
            return Epoch.RETRY
        if value.state in ENDING and producer == answered_identity(value):
            return Epoch.CURRENT
    check_producer_id(transactional_id, value, producer)
    if version is TransactionVersion.V2 and producer.epoch + 1 == value.producer.epoch:
        return Epoch.RETRY
    if producer != value.producer:
        raise fenced(transactional_id, producer, value)
    return Epoch.CURRENT


def _is_rotated_retry(value: TransactionValue, producer: ProducerIdentity) -> bool:
    """Return whether this is a retry from the last epoch of the old producer id.

    The answer to the first EndTxn had the new producer id, which is the current one.
    """
    return (
        value.state in COMPLETE
        and value.previous_producer_id != value.producer.producer_id
        and value.producer.epoch == 0
        and producer == (value.previous_producer_id, LAST_CLIENT_EPOCH)
    )
