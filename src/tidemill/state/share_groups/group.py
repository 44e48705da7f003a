"""One share group: its members, and the partitions that each of them reads.

This module must not know a request, a timer or the bytes of a record. ``state.modern_groups.group``
has what consumer groups have, too.

Source: KIP-932.
"""

from __future__ import annotations

from tidemill.state.groups.memory import MEMBER_BYTES
from tidemill.state.modern_groups.group import ModernGroup
from tidemill.state.share_groups.format import FORMAT
from tidemill.state.share_groups.types import ShareAssignment, ShareMember


class ShareGroup(ModernGroup[ShareMember, ShareAssignment]):
    """A group and its members, in the order in which they joined."""

    FORMAT = FORMAT
    PARTITION_BYTES = 128
    """With its place in the member's present assignment."""
    uses_consumer_protocol = False
    is_removable = False
    """It is never removed because it is old: a client deletes it."""

    def current(self, member_id: str) -> ShareAssignment:
        """Return a member's epoch and partitions; those of a new member if it has none."""
        return self.currents.get(member_id) or ShareAssignment()

    @property
    def state_name(self) -> str:
        """The name of the state that clients see."""
        return "Stable" if self.members else "Empty"

    def size_of(self, member_id: str, member: ShareMember | None) -> int:
        """Return the bytes that a member takes without its partitions; 0 for None."""
        if member is None:
            return 0
        size = MEMBER_BYTES + 4 * len(member_id) + len(member.rack_id or "")
        size += len(member.client_id) + len(member.client_host)
        return size + sum(64 + len(name) for name in member.topic_names)
