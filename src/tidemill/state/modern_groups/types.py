"""Plain data of modern groups: time limits, answers to heartbeats, the topics that exist, views.

This module must not contain behaviour, I/O or a kind of group.

Source: KIP-848; KIP-932.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

from tidemill.state.assignors.types import Partitions

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
"""Member epochs with a meaning: join, and leave for good."""

NamedPartitions: TypeAlias = tuple[tuple[UUID, str, tuple[int, ...]], ...]
"""(topic id, topic name, partitions), sorted by name."""


M = TypeVar("M")
"""A member as it is stored: what it asked for."""


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


@dataclass(frozen=True, slots=True)
class MemberInfo(Generic[M]):
    """A member as ``describe`` shows it. Partitions are by topic name and id."""

    member_id: str
    member: M
    epoch: int
    assigned: NamedPartitions
    target: NamedPartitions


@dataclass(frozen=True, slots=True)
class GroupInfo(Generic[M]):
    """A group as ``describe`` shows it."""

    group_id: str
    state: str
    """Empty or Stable; consumer groups also Assigning or Reconciling."""
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[MemberInfo[M], ...]
