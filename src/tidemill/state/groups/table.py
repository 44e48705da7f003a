"""The groups by id, and the limits of the memory that they take.

This module must not know the state of a group.
"""

from __future__ import annotations

from tidemill.state.errors import GroupMaxSizeReachedError
from tidemill.state.groups.group import Group
from tidemill.state.groups.memory import GroupLimits

_HINT = "Subscribe to fewer topics or use smaller user data, or raise groups.{} of the broker."


class GroupTable(dict[str, Group]):
    """The groups by id, and the bytes that they take together. Set and delete single ids only."""

    def __init__(self, limits: GroupLimits) -> None:
        super().__init__()
        self.limits = limits
        self.bytes = 0

    def __setitem__(self, group_id: str, group: Group) -> None:
        if group_id in self:
            del self[group_id]
        super().__setitem__(group_id, group)
        group.table = self
        self.bytes += group.bytes

    def __delitem__(self, group_id: str) -> None:
        group = self[group_id]
        super().__delitem__(group_id)
        group.table = None
        self.bytes -= group.bytes

    def check_member(self, group_id: str, size: int) -> None:
        """Check what a member sends when it joins."""
        if size > self.limits.member:
            raise GroupMaxSizeReachedError(
                f"a member of group {group_id!r} sends {size} bytes: the limit for a member is "
                f"{self.limits.member}",
                hint=_HINT.format("max_member_bytes"),
            )

    def check_growth(self, group: Group, change: int) -> None:
        """Check that a group can take ``change`` more bytes."""
        if change <= 0:
            return
        if group.bytes + change > self.limits.group:
            raise GroupMaxSizeReachedError(
                f"group {group.group_id!r} would take {group.bytes + change} bytes: the limit for "
                f"a group is {self.limits.group}",
                hint=_HINT.format("max_group_bytes"),
            )
        new = 0 if group.table is self else group.bytes
        if self.bytes + new + change > self.limits.total:
            raise GroupMaxSizeReachedError(
                f"all groups together would take more than {self.limits.total} bytes",
                hint="Find the clients that create groups and members, or raise "
                "groups.max_total_bytes of the broker.",
            )
