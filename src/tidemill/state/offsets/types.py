"""Plain data of committed offsets.

This module must not contain behaviour, I/O or numbers of a protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.state.types import CommitRequest, ProducerIdentity, TransactionVersion


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset as it is stored."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TxnOffsetCommit:
    """Offsets to commit as part of a transaction (KIP-98, KIP-447)."""

    transactional_id: str
    producer: ProducerIdentity
    commit: CommitRequest
    version: TransactionVersion = TransactionVersion.V1
