"""Plain data of the transaction coordinator: states, requests, and views for admins.

This module must not contain behaviour, I/O or numbers of a protocol.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidemill.log.names import TopicPartition
from tidemill.state.types import NO_PRODUCER, ProducerIdentity


class TransactionState(enum.StrEnum):
    """The state of a transactional id. The values are Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class InitProducer:
    """InitProducerId: a transactional producer starts.

    A producer that recovers from an error sends its identity in ``current`` (KIP-360).
    """

    transactional_id: str
    timeout_ms: int
    current: ProducerIdentity = NO_PRODUCER


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id as ``list_transactions`` shows it."""

    transactional_id: str
    producer_id: int
    state: TransactionState


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as ``describe_transactions`` shows it."""

    transactional_id: str
    state: TransactionState
    producer: ProducerIdentity
    timeout_ms: int
    start_time_ms: int
    """When the open or ending transaction began, in ms since the epoch; -1 if there is none."""
    partitions: tuple[TopicPartition, ...]
