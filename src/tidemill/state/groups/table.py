"""The groups by id, and the limits of the memory that they take.

This module must not know the state of a group.
"""

from __future__ import annotations

from tidemill.state.errors import GroupMaxSizeReachedError
from tidemill.state.groups.group import Group
from tidemill.state.groups.memory import GroupLimits


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
                hint="Subscribe to fewer topics or use smaller user data, or raise "
                "groups.max_member_bytes of the broker.",
            )

    def check_growth(self, group: Group, change: int) -> None:
        """Check that a group can take ``change`` more bytes."""
        if change <= 0:
            return
        new = 0 if group.table is self else group.bytes
        self.limits.check_growth(group.group_id, group.bytes + change, self.bytes + new + change)
