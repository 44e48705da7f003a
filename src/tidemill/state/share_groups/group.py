"""One share group: its members, and the partitions that each of them reads.

A group changes through its ``set_…`` and ``drop_…`` methods only. ``records.Changes`` calls them
with each record that a command makes, and recovery with each record of the log, so both lead to the
same group. This module must not know a request, a timer or the bytes of a record.

Source: KIP-932.
"""

from __future__ import annotations

from tidemill.state.assignors.types import NO_PARTITIONS, Partitions
from tidemill.state.groups.memory import GROUP_BYTES, MEMBER_BYTES, Total
from tidemill.state.share_groups.types import ShareAssignment, ShareMember

PARTITION_BYTES = 128
"""A partition in the target assignment of a member, and in its present one."""


class ShareGroup:
    """A group and its members, in the order in which they joined.

    Attributes:
        epoch: grows with each change of members, subscriptions or topics.
        target_epoch: the group epoch that the target assignment was made for.
        topics_hash: of the subscribed topics that exist, with their partitions.
        topics_version: the version of the topics that the hash is from; -1 after a restart.
        bytes: the memory that it takes, roughly.
        table: counts the memory of all groups. None until the group is in it.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        self.topics_hash = 0
        self.topics_version = -1
        self.members: dict[str, ShareMember] = {}
        self.currents: dict[str, ShareAssignment] = {}
        self.targets: dict[str, Partitions] = {}
        self.bytes = GROUP_BYTES + 2 * len(group_id)
        self.table: Total | None = None
        self._subscribed: frozenset[str] | None = None

    # --- changes ---------------------------------------------------------------------------------

    def set_epoch(self, epoch: int, topics_hash: int) -> None:
        """Set the group's epoch, and the hash of its topics."""
        self.epoch, self.topics_hash = epoch, topics_hash

    def set_target_epoch(self, epoch: int) -> None:
        """Set the epoch of the target assignment."""
        self.target_epoch = epoch

    def set_member(self, member_id: str, member: ShareMember) -> None:
        """Add a member, or change what it asks for."""
        self._grow(size_of(member_id, member) - size_of(member_id, self.members.get(member_id)))
        self.members[member_id] = member
        self._subscribed = None

    def drop_member(self, member_id: str) -> None:
        """Remove what a member asks for."""
        self._grow(-size_of(member_id, self.members.pop(member_id, None)))
        self._subscribed = None

    def set_current(self, member_id: str, current: ShareAssignment) -> None:
        """Set a member's epoch and partitions."""
        self.currents[member_id] = current

    def drop_current(self, member_id: str) -> None:
        """Remove a member's epoch and partitions."""
        self.currents.pop(member_id, None)

    def set_target(self, member_id: str, target: Partitions) -> None:
        """Set a member's part of the target assignment."""
        self.drop_target(member_id)
        self.targets[member_id] = target
        self._grow(PARTITION_BYTES * _count(target))

    def drop_target(self, member_id: str) -> None:
        """Remove a member's part of the target assignment."""
        self._grow(-PARTITION_BYTES * _count(self.targets.pop(member_id, NO_PARTITIONS)))

    def _grow(self, change: int) -> None:
        self.bytes += change
        if self.table is not None:
            self.table.bytes += change

    # --- views -----------------------------------------------------------------------------------

    def current(self, member_id: str) -> ShareAssignment:
        """Return a member's epoch and partitions; those of a new member if it has none."""
        return self.currents.get(member_id) or ShareAssignment()

    def target(self, member_id: str) -> Partitions:
        """Return a member's part of the target assignment."""
        return self.targets.get(member_id, NO_PARTITIONS)

    @property
    def state(self) -> str:
        """The name of the state that clients see."""
        return "Stable" if self.members else "Empty"

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    is_removable = False
    """It is never removed because it is old: a client deletes it."""

    uses_consumer_protocol = False
    """Its members commit no offsets."""

    @property
    def subscribed(self) -> frozenset[str]:
        """The names of all topics that members read, also of those that don't exist."""
        if self._subscribed is None:
            names = {name for member in self.members.values() for name in member.topic_names}
            self._subscribed = frozenset(names)
        return self._subscribed

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member reads the topic."""
        return topic in self.subscribed

    def retained_since_ms(self, commit_timestamp_ms: int) -> int | None:
        """Return when the retention of a committed offset starts: at the commit."""
        return commit_timestamp_ms


def size_of(member_id: str, member: ShareMember | None) -> int:
    """Return the bytes of memory that a member takes without its partitions; 0 for None."""
    if member is None:
        return 0
    size = MEMBER_BYTES + 4 * len(member_id) + len(member.rack_id or "")
    size += len(member.client_id) + len(member.client_host)
    return size + sum(64 + len(name) for name in member.topic_names)


def _count(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))
