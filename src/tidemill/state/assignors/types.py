"""Plain data of assignors: members and topics in, an assignment out.

This module must not know a group, its epochs or its records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

Partitions: TypeAlias = Mapping[UUID, frozenset[int]]
"""Topic id -> partitions. A topic without partitions is left out."""

NO_PARTITIONS: Partitions = {}


@dataclass(frozen=True, slots=True)
class AssignedMember:
    """A member as an assignor sees it."""

    topics: frozenset[UUID]
    """The topics that it subscribes to. Those that don't exist are ignored."""
    target: Partitions = field(default_factory=dict)
    """Its partitions in the previous assignment. An assignor that is sticky keeps what it can."""
    instance_id: str | None = None


Members: TypeAlias = Mapping[str, AssignedMember]
"""Member id -> member."""
Topics: TypeAlias = Mapping[UUID, int]
"""Topic id -> number of partitions, for all topics that exist and that a member subscribes to."""
Assignor: TypeAlias = Callable[[Members, Topics], dict[str, Partitions]]
"""Return the partitions of each member. Each partition of a topic with a subscriber is assigned to
exactly one member, and that member subscribes to the topic. The result depends on the arguments
only."""


def frozen(assigned: Mapping[UUID, set[int]]) -> Partitions:
    """Return the partitions as they are stored, without empty topics."""
    return {topic: frozenset(numbers) for topic, numbers in assigned.items() if numbers}
