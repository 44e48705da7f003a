"""One consumer group: its members, their partitions, and the target that they move to.

``Changes`` turns each change of a group into a record, too. This module must not know a request or
a timer. ``state.modern_groups.group`` has what share groups have, too.

Source: KIP-848; Apache Kafka's ``ConsumerGroup``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from uuid import UUID

from tidemill.state.consumer_groups.format import FORMAT, decode_pattern, encode_pattern
from tidemill.state.consumer_groups.reconcile import is_reconciled
from tidemill.state.consumer_groups.types import (
    ConsumerMember,
    MemberAssignment,
    MemberState,
    ResolvedPattern,
)
from tidemill.state.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from tidemill.state.groups.members import check_ids
from tidemill.state.groups.memory import MEMBER_BYTES
from tidemill.state.modern_groups.format import RecordKey, RecordKind
from tidemill.state.modern_groups.group import ModernGroup
from tidemill.state.modern_groups.records import GroupChanges
from tidemill.state.modern_groups.table import GroupTable


class ConsumerGroup(ModernGroup[ConsumerMember, MemberAssignment]):
    """A group and its members, in the order in which they joined.

    Attributes:
        patterns: the topics that match the patterns of members.
        static_members: instance id -> member id.
    """

    FORMAT = FORMAT
    PARTITION_BYTES = 256
    """With its owner."""
    uses_consumer_protocol = True

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.patterns: dict[str, ResolvedPattern] = {}
        self.static_members: dict[str, str] = {}
        self._owners: dict[tuple[UUID, int], str] = {}

    # --- changes ---------------------------------------------------------------------------------

    def apply(self, key: RecordKey, value: bytes | None) -> None:
        """Apply one record of the group."""
        if key.kind is not RecordKind.PATTERN:
            super().apply(key, value)
        elif value is None:
            self.drop_pattern(key.name)
        else:
            self.set_pattern(key.name, decode_pattern(value))

    def set_member(self, member_id: str, member: ConsumerMember) -> None:
        """Add a member, or change what it asks for."""
        self._forget_instance(member_id)
        super().set_member(member_id, member)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id

    def drop_member(self, member_id: str) -> None:
        """Remove what a member asks for."""
        self._forget_instance(member_id)
        super().drop_member(member_id)

    def set_current(self, member_id: str, current: MemberAssignment) -> None:
        """Set a member's epoch and partitions."""
        super().set_current(member_id, current)
        for at in _each(current):
            self._owners[at] = member_id

    def drop_current(self, member_id: str) -> None:
        """Release a member's partitions."""
        for at in _each(self.current(member_id)):
            if self._owners.get(at) == member_id:
                del self._owners[at]
        super().drop_current(member_id)

    def set_pattern(self, pattern: str, resolved: ResolvedPattern) -> None:
        """Set the topics that a pattern matches."""
        self.drop_pattern(pattern)
        self.patterns[pattern] = resolved
        self._grow(_size_of_pattern(pattern, resolved))
        self._subscribed = None

    def drop_pattern(self, pattern: str) -> None:
        """Remove a pattern that no member uses."""
        resolved = self.patterns.pop(pattern, None)
        if resolved is not None:
            self._grow(-_size_of_pattern(pattern, resolved))
        self._subscribed = None

    def _forget_instance(self, member_id: str) -> None:
        member = self.members.get(member_id)
        instance_id = None if member is None else member.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]

    # --- members ---------------------------------------------------------------------------------

    def current(self, member_id: str) -> MemberAssignment:
        """Return a member's epoch and partitions; those of a new member if it has none."""
        return self.currents.get(member_id) or MemberAssignment()

    def check_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Return the member with these ids."""
        check_ids(self, member_id, instance_id)
        return self.members[member_id]

    def is_taken(self, member_id: str, topic: UUID, number: int) -> bool:
        """Return whether a member other than this one has the partition."""
        return self._owners.get((topic, number), member_id) != member_id

    def waits_for_release(self, member_id: str) -> bool:
        """Return whether other members still have partitions that the target gives to this one."""
        assigned = self.current(member_id).assigned
        return any(
            number not in assigned.get(topic, ()) and self.is_taken(member_id, topic, number)
            for topic, numbers in self.target(member_id).items()
            for number in numbers
        )

    # --- classic members -------------------------------------------------------------------------

    def classic_members(self) -> Iterator[str]:
        """Return the ids of the members with the classic protocol."""
        return (key for key, member in self.members.items() if member.classic is not None)

    def all_classic_except(self, member_id: str) -> bool:
        """Return whether this member is the only one that does not use the classic protocol."""
        return all((m.classic is None) == (key == member_id) for key, m in self.members.items())

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Return whether a classic member with these protocols shares one with the others."""
        if protocol_type != CONSUMER_PROTOCOL_TYPE or not protocols:
            return False
        support: Counter[str] = Counter()
        count = 0
        for member in self.members.values():
            if member.classic is not None:
                count += 1
                support.update({name for name, _ in member.classic.protocols})
        return not count or any(support[name] == count for name, _ in protocols)

    # --- state -----------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """The name of the state that clients see.

        In Assigning the target assignment is older than the group's epoch, and in Reconciling
        members are on the way to it.
        """
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        currents = map(self.current, self.members)
        is_stable = all(is_reconciled(each, self.target_epoch) for each in currents)
        return "Stable" if is_stable else "Reconciling"

    @property
    def is_removable(self) -> bool:
        """Whether it has no members. No client can be about to join one without being in it."""
        return not self.members

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the names of the topics that a member reads, by name or by pattern."""
        resolved = self.patterns.get(member.topic_pattern or "")
        names = super().topics_of(member)
        return names if resolved is None else names | resolved.topics

    def used_patterns(self) -> set[str]:
        """Return the patterns that members subscribe with."""
        return {m.topic_pattern for m in self.members.values() if m.topic_pattern}

    def waits_for_revocation(self, member_id: str) -> bool:
        """Return whether the member has to give partitions back."""
        return self.current(member_id).state is MemberState.UNREVOKED

    def size_of(self, member_id: str, member: ConsumerMember | None) -> int:
        """Return the bytes that a member takes without its partitions; 0 for None."""
        if member is None:
            return 0
        strings = (member.instance_id, member.rack_id, member.topic_pattern, member.assignor)
        size = MEMBER_BYTES + 4 * len(member_id) + sum(len(text) for text in strings if text)
        size += len(member.client_id) + len(member.client_host)
        size += sum(64 + len(name) for name in member.topic_names)
        if member.classic is not None:
            size += sum(len(name) + len(data) for name, data in member.classic.protocols)
        return size


def _size_of_pattern(pattern: str, resolved: ResolvedPattern) -> int:
    return len(pattern) + sum(64 + len(name) for name in resolved.topics)


def _each(current: MemberAssignment) -> Iterator[tuple[UUID, int]]:
    for owned in (current.assigned, current.revoking):
        for topic, numbers in owned.items():
            for number in numbers:
                yield topic, number


ConsumerTable = GroupTable[ConsumerGroup]


class Changes(GroupChanges[ConsumerGroup, ConsumerMember, MemberAssignment]):
    """Changes a group, and collects the records of the changes."""

    def set_pattern(self, pattern: str, resolved: ResolvedPattern) -> None:
        """Set the topics that a pattern matches."""
        self._add(RecordKind.PATTERN, pattern, encode_pattern(resolved))
        self.group.set_pattern(pattern, resolved)

    def drop_pattern(self, pattern: str) -> None:
        """Remove a pattern."""
        self._drop(RecordKind.PATTERN, pattern)

    def drop_group(self) -> None:
        """Remove the group with its members and patterns."""
        for pattern in list(self.group.patterns):
            self.drop_pattern(pattern)
        super().drop_group()
