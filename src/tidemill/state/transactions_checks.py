"""Who may do what to a transactional id, and the refusals, each with Apache Kafka 4.3's error.

Looks at one stored value; changes nothing and knows no other id.

Source: Apache Kafka 4.3, TransactionCoordinator.
"""

from __future__ import annotations

from tidemill.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
)
from tidemill.log.names import TopicPartition
from tidemill.state.transaction import LAST_CLIENT_EPOCH, answered_identity
from tidemill.state.transactions_format import TransactionValue
from tidemill.state.transactions_table import COMPLETE, ENDING, Epoch
from tidemill.state.types import ProducerIdentity, TransactionVersion

LARGEST_VALUE = 1 << 23
"""A transaction grows no further when its stored value, in bytes, would be larger: 20,000
partitions with names of 249 characters take 5.2 MB. The log takes records twice as large, so that
one which may not grow can be ended."""


def fenced(
    transactional_id: str, producer: ProducerIdentity, value: TransactionValue
) -> ProducerFencedError:
    """``producer`` is not the one in force."""
    return ProducerFencedError(
        f"transactional id {transactional_id!r}: producer {producer.producer_id} in epoch "
        f"{producer.epoch} is fenced; in force is epoch {value.producer.epoch} of "
        f"{value.producer.producer_id}"
    )


def epoch_of(
    transactional_id: str,
    value: TransactionValue,
    producer: ProducerIdentity,
    version: TransactionVersion,
) -> Epoch:
    """Which epoch an EndTxn carries, or the refusal of its sender."""
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
    """Whether it is the EndTxn of the old producer id's last epoch, which was answered with the
    fresh id that is now in force."""
    return (
        value.state in COMPLETE
        and value.previous_producer_id != value.producer.producer_id
        and value.producer.epoch == 0
        and producer == (value.previous_producer_id, LAST_CLIENT_EPOCH)
    )


def check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequestError("the transactional id is empty")


def check_producer(
    transactional_id: str, value: TransactionValue, producer: ProducerIdentity
) -> None:
    check_producer_id(transactional_id, value, producer)
    if producer != value.producer:
        raise fenced(transactional_id, producer, value)


def check_producer_id(
    transactional_id: str, value: TransactionValue, producer: ProducerIdentity
) -> None:
    if producer.producer_id != value.producer.producer_id:
        raise InvalidProducerIdMappingError(
            f"transactional id {transactional_id!r} has producer id "
            f"{value.producer.producer_id}, not {producer.producer_id}"
        )


def ending(transactional_id: str) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"transactional id {transactional_id!r}: the previous transaction is still being ended"
    )


def check_size(transactional_id: str, value: bytes) -> None:
    """Whether a transaction may grow to this stored value."""
    if len(value) > LARGEST_VALUE:
        raise TransactionAbortableError(
            f"transactional id {transactional_id!r}: with so many partitions the transaction would "
            f"take {len(value)} bytes; {LARGEST_VALUE} are allowed",
            hint="Abort it, and write to fewer partitions in one transaction.",
        )


def not_added(transactional_id: str, tp: TopicPartition) -> TransactionAbortableError:
    return TransactionAbortableError(f"{tp} is not in the open transaction of {transactional_id!r}")


def not_found(transactional_id: str) -> TransactionalIdNotFoundError:
    return TransactionalIdNotFoundError(f"there is no transactional id {transactional_id!r}")
