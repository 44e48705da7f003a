"""The contract of a client with transactions, as ``exactly_once`` uses it.

Must not know: Spark, shares.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa


class Marker(NamedTuple):
    """A committed offset with its metadata. The offset is below 0 if there is none."""

    offset: int
    metadata: str


class TransactionalClient(Protocol):
    """A producer with a transactional id, whose consumer group has the same name.

    All methods raise a DeliveryError if it was fenced or can't continue, and an UnreachableError if
    the brokers do not answer in time.
    """

    def connect(self, marker_topic: str, what: str) -> Marker:
        """Fence earlier producers, end their transactions, and return the marker.

        Args:
            marker_topic: The topic of the marker. A broker that creates topics by itself does so.
            what: Names the marker, for messages.
        """

    def begin(self, marker_topic: str, marker: Marker, what: str) -> None:
        """Begin a transaction, and add the marker to it.

        Args:
            marker_topic: The topic of the marker.
            marker: The marker.
            what: Names the transaction, for messages.
        """

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Send rows, or keep them for a moment."""

    def commit(self, what: str) -> None:
        """Wait until all rows are acknowledged, and commit."""

    def rest(self) -> None:
        """Prepare for a time without transactions."""

    def close(self) -> None:
        """Abort an open transaction if the broker can be reached. Raises nothing."""
