"""Plain data that several state machines share. The types of one machine are in its own folder.

This module must not contain behaviour, I/O or numbers of a protocol.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class ProducerIdentity(NamedTuple):
    """The id and epoch that a producer puts into each of its batches (KIP-98).

    The epoch counts the incarnations of a producer: a higher one fences the lower ones.
    """

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerIdentity(-1, -1)
"""The identity of a plain producer, without idempotence and transactions."""


class TransactionVersion(enum.IntEnum):
    """The two protocols between producers and the coordinator (KIP-890)."""

    V1 = 1
    """The producer announces each partition (AddPartitionsToTxn) before it writes there."""
    V2 = 2
    """A write announces its partition, and each transaction has its own epoch."""


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """A position to commit for one partition: the offset of the next record to read."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Offsets that a group commits.

    A consumer that assigns its partitions itself sends generation -1 and an empty member id.
    """

    group_id: str
    generation: int
    """The generation of the group; a member with the consumer protocol gives its epoch."""
    member_id: str
    instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int = -1
    """How long to keep the offsets, in milliseconds; -1: as the broker is set."""
    knows_epochs: bool = True
    """Whether the client understands errors about member epochs (OffsetCommit 9 and later)."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset as it is stored. Times are in milliseconds since the epoch."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    """The expiry time that the client sent (OffsetCommit up to version 4), or None."""


@dataclass(frozen=True, slots=True)
class TxnOffsetCommit:
    """Offsets to commit as part of a transaction (KIP-98, KIP-447)."""

    transactional_id: str
    producer: ProducerIdentity
    commit: CommitRequest
    version: TransactionVersion = TransactionVersion.V1
