"""Limits and sizes of the memory of groups: what members send stays until their session ends.

Counted are the bytes that clients choose (ids, subscriptions, assignments) and a fixed amount for
each object. ``table`` counts them. This module must not know a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidemill.state.errors import GroupMaxSizeReachedError

GROUP_BYTES = 2048
"""A group without members."""
MEMBER_BYTES = 2048
"""A member without what it sends."""
PENDING_BYTES = 512
"""A client that got a member id and has not joined with it yet."""


class Total(Protocol):
    """Counts the memory of all groups."""

    bytes: int


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits of the memory of groups, in bytes.

    Attributes:
        member: what one member sends when it joins.
        group: one group, with its members and their assignments.
        total: all groups together.
    """

    member: int = 1 << 20
    group: int = 1 << 23
    total: int = 1 << 27

    def check_growth(self, group_id: str, size: int, total: int) -> None:
        """Check the size that a group would have, and that all groups would have together."""
        if size > self.group:
            raise GroupMaxSizeReachedError(
                f"group {group_id!r} would take {size} bytes: the limit for a group is "
                f"{self.group}",
                hint="Subscribe to fewer topics or use smaller user data, or raise "
                "groups.max_group_bytes of the broker.",
            )
        if total > self.total:
            raise GroupMaxSizeReachedError(
                f"all groups together would take more than {self.total} bytes",
                hint="Find the clients that create groups and members, or raise "
                "groups.max_total_bytes of the broker.",
            )
