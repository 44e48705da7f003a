"""The errors of the native producer, worded as with librdkafka, and which codes are temporary.

Must not know: sockets, Spark.
"""

from __future__ import annotations

from tidemill.errors import UnreachableError
from tidemill.spark.errors import DeliveryError, with_note
from tidemill.spark.wire.errors import text_of

UNKNOWN_TOPIC = 3
_TOO_LARGE = 10
OUT_OF_ORDER, DUPLICATE = 45, 46
COORDINATOR_CODES = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: look it up again."""
RETRIABLE = COORDINATOR_CODES | {UNKNOWN_TOPIC, 5, 6, 7, 8, 9, 13, 19, 20, 51, 56, 74, 75, 88, 89}
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT,
BROKER_NOT_AVAILABLE, REPLICA_NOT_AVAILABLE, NETWORK_EXCEPTION, NOT_ENOUGH_REPLICAS (also after an
append), CONCURRENT_TRANSACTIONS, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
UNSTABLE_OFFSET_COMMIT, THROTTLING_QUOTA_EXCEEDED."""


def not_accepted(records: int, topic: str, cause: str) -> DeliveryError:
    """Return the error if records were rejected, or not acknowledged in time."""
    return with_note(
        DeliveryError(
            f"at least {records} records were not accepted, the first for topic {topic}: {cause}",
            hint="The batch is incomplete in the topic. A restart writes it again.",
        )
    )


def cause(code: int, records: int) -> str:
    """Return an error code in words, with what to do about a batch of many records.

    Args:
        code: The error code.
        records: The number of records of the batch.
    """
    text = text_of(code)
    if code == _TOO_LARGE and records > 1:
        text += f" (a batch of {records} records: lower kafka.batch.size)"
    return text


def unsendable(topic: str, cause: str) -> DeliveryError:
    """Return the error if a row can't become a record of its topic."""
    return DeliveryError(f"can't send a record to topic {topic}: {cause}")


def rejected(servers: str, cause: str) -> UnreachableError:
    """Return the error if waiting can't help: wrong credentials, or TLS does not match.

    Args:
        servers: Addresses of the brokers.
        cause: Why.
    """
    return with_note(
        UnreachableError(
            f"the brokers at {servers} rejected the connection: {cause}",
            hint="Check the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.*.",
        )
    )
