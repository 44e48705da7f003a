"""Lists the temporary error codes; other errors are worded by the users of the client.

Must not know: sockets, Spark, connectors.
"""

from __future__ import annotations

from typing import Protocol

from tidemill.errors import TidemillError

UNKNOWN_TOPIC = 3
TOO_LARGE = 10
OUT_OF_ORDER, DUPLICATE = 45, 46
FENCED = frozenset({47, 90})
"""INVALID_PRODUCER_EPOCH, PRODUCER_FENCED: another producer has the transactional id."""
COORDINATOR_CODES = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: look it up again."""
RETRIABLE = COORDINATOR_CODES | {UNKNOWN_TOPIC, 5, 6, 7, 8, 9, 13, 19, 20, 51, 56, 74, 75, 88, 89}
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT,
BROKER_NOT_AVAILABLE, REPLICA_NOT_AVAILABLE, NETWORK_EXCEPTION, NOT_ENOUGH_REPLICAS (also after an
append), CONCURRENT_TRANSACTIONS, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
UNSTABLE_OFFSET_COMMIT, THROTTLING_QUOTA_EXCEEDED."""


class ErrorFactory(Protocol):
    """Makes the errors of a producer in its users' words. Each method returns one to raise."""

    def not_accepted(self, records: int, topic: str, cause: str, code: int = 0) -> TidemillError:
        """Return the error if records were rejected, or not acknowledged in time.

        Args:
            records: At least so many.
            topic: The topic of the first of them.
            code: The error code of the broker; 0 if there was no answer in time.
        """
        ...

    def unsendable(self, topic: str, cause: str) -> TidemillError:
        """Return the error if rows can't become records of their topic."""
        ...

    def too_large(self, topic: str, size: int, cause: str) -> TidemillError:
        """Return the error of a record of so many bytes, which the producer does not send."""
        ...

    def rejected(self, servers: str, cause: str) -> TidemillError:
        """Return the error if waiting can't help: wrong credentials, or TLS does not match."""
        ...

    def refused(self, what: str, cause: str, code: int) -> TidemillError:
        """Return the error if a broker answers with a permanent error."""
        ...

    def not_answered(self, what: str, cause: str) -> TidemillError:
        """Return the error if the brokers did not answer in time."""
        ...
