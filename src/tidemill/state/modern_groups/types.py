"""Plain data of modern groups: their time limits, answers to heartbeats, the topics that exist.

This module must not contain behaviour, I/O or a kind of group.

Source: KIP-848; KIP-932.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias
from uuid import UUID

from tidemill.state.assignors.types import Partitions

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
"""Member epochs with a meaning: join, and leave for good."""

NamedPartitions: TypeAlias = tuple[tuple[UUID, str, tuple[int, ...]], ...]
"""(topic id, topic name, partitions), sorted by name."""


class Topics(Protocol):
    """The topics that exist."""

    @property
    def version(self) -> int:
        """Grows with each change of a topic."""

    def find(self, name: str) -> tuple[UUID, int] | None:
        """Return a topic's id and number of partitions; None if it does not exist."""

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the topic's name; None if it does not exist."""

    def names(self) -> list[str]:
        """Return the names of all topics that a pattern can match: those that are not internal."""


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """The time limits of a group's members, in milliseconds."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The answer to a heartbeat."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None = None
    """The partitions that the member can use; None: as before."""
