"""One classic consumer group: its state, its members and their votes.

``TRANSITIONS`` is the documentation of a group's life. ``rebalance`` decides when a group goes from
one state to the next. This module must not know a timer or the bytes of a record.

Source: KIP-62, KIP-345 (static members), KIP-394 (pending members); Apache Kafka's documentation
of the group coordinator.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable

from tidemill.state.errors import GroupMaxSizeReachedError
from tidemill.state.groups.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    MAX_TOPICS,
    subscribed_topics,
)
from tidemill.state.groups.format import GroupValue
from tidemill.state.groups.members import Member, Protocols
from tidemill.state.groups.memory import GROUP_BYTES, PENDING_BYTES, GroupLimits, Total
from tidemill.state.groups.types import GroupDescription, JoinMember, JoinRequest

MAX_GROUP_TOPICS = 2 * MAX_TOPICS
"""Topics of all different subscriptions of a group together. Those of more count as unknown."""


class GroupState(enum.Enum):
    """The state of a group. The values are the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = GroupState
TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    # The first member joins; or the group is removed.
    _S.EMPTY: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
    # All members have joined, or the time is up; or no members are left.
    _S.PREPARING_REBALANCE: frozenset({_S.COMPLETING_REBALANCE, _S.EMPTY, _S.DEAD}),
    # The leader has sent the assignment; or a member joins, leaves or fails.
    _S.COMPLETING_REBALANCE: frozenset({_S.STABLE, _S.PREPARING_REBALANCE, _S.DEAD}),
    # A member joins, leaves, fails or changes its subscription.
    _S.STABLE: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
    # The group is removed.
    _S.DEAD: frozenset(),
}
"""State -> the valid next states."""


class Group:
    """A group and its members, in the order in which they joined."""

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_since_ms = now_ms
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        """Instance id -> member id."""
        self.pending_members: set[str] = set()
        """Member ids that clients got (KIP-394) and have not joined with yet."""
        self.pending_sync: set[str] = set()
        """Members that have not asked for this generation's assignment yet."""
        self._subscribed: tuple[int, frozenset[str] | None] | None = None
        """The generation, and the topics of all its members; None if they are unknown."""
        self.bytes = GROUP_BYTES + 2 * len(group_id)
        """The memory that it takes, roughly."""
        self.table: Total | None = None
        """Counts the memory of all groups. None until the group is in it."""
        self.new_member_added = False
        """Whether a member joined since the initial rebalance delay was last extended."""
        self.delay_left_ms: int | None = None
        """How long the initial rebalance can still be delayed; None in other rebalances."""
        self.awaiting_join = 0
        """The number of members whose join is parked."""
        self._support: dict[str, int] = {}
        """Protocol -> the number of members that support it."""

    @classmethod
    def of_stored(cls, group_id: str, value: GroupValue) -> Group:
        """Return the group as it was stored: Stable with its members, or Empty."""
        group = cls(group_id, value.state_timestamp_ms)
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.generation = value.generation
        for stored in value.members:
            group.add(Member.of_stored(stored, value.protocol), value.protocol_type)
        group.leader = value.leader if value.leader in group.members else group.leader
        if value.members:
            group.state = GroupState.STABLE
        return group

    def stored(self) -> GroupValue:
        """Return the group as it is stored."""
        return GroupValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            self.state_since_ms,
            tuple(member.stored(self.protocol) for member in self.members.values()),
        )

    # --- state -----------------------------------------------------------------------------------

    def is_in(self, *states: GroupState) -> bool:
        """Return whether the group is in one of the states."""
        return self.state in states

    def transition(self, to: GroupState, now_ms: int) -> None:
        """Change the state.

        Raises:
            RuntimeError: ``TRANSITIONS`` does not allow it, which is a bug in the caller.
        """
        if to not in TRANSITIONS[self.state]:
            raise RuntimeError(
                f"group {self.group_id}: invalid transition {self.state.value} -> {to.value}"
            )
        self.state = to
        self.state_since_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance can start now."""
        return GroupState.PREPARING_REBALANCE in TRANSITIONS[self.state]

    @property
    def is_empty(self) -> bool:
        """Whether its state is Empty: it has no members, and none is joining."""
        return self.state is GroupState.EMPTY

    def retained_since_ms(self, commit_timestamp_ms: int) -> int | None:
        """Return when the retention of a committed offset starts; None: it does not expire now.

        - A group without a protocol type: at the commit.
        - An Empty group: when it became Empty. Old records don't have that time: at the commit.
        - A Stable group of consumers: at the commit, for topics that no member reads any longer.
        """
        if self.protocol_type is None or (self.is_empty and self.state_since_ms < 0):
            return commit_timestamp_ms
        if self.is_empty:
            return self.state_since_ms
        stable = self.is_in(GroupState.STABLE) and self.uses_consumer_protocol
        return commit_timestamp_ms if stable else None

    @property
    def is_removable(self) -> bool:
        """Whether it has no members, and no client is about to join."""
        return self.state is GroupState.EMPTY and not self.pending_members

    def next_generation(self, now_ms: int) -> None:
        """Start a new generation with the present members, or become Empty without members."""
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.transition(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.transition(GroupState.EMPTY, now_ms)

    # --- members ---------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member. The first one sets the group's protocol type and becomes the leader."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._grow(member.size)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._forget_pending(member.member_id)
        self._count(member.protocols, 1)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending one. The oldest member becomes the leader."""
        self._forget_pending(member_id)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self.take_join(member)
        self._grow(-member.size)
        self._count(member.protocols, -1)
        if member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace_static(self, instance_id: str, new_member_id: str) -> Member:
        """Replace the id of a static member, which keeps its place. The old id is fenced."""
        old_id = self.static_members[instance_id]
        member = self.members[old_id]
        self.members = {
            new_member_id if key == old_id else key: value for key, value in self.members.items()
        }
        self._grow(2 * (len(new_member_id) - len(old_id)))
        member.member_id = new_member_id
        self.static_members[instance_id] = new_member_id
        if self.leader == old_id:
            self.leader = new_member_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_member_id)
        return member

    def update(self, member: Member, request: JoinRequest) -> None:
        """Update a member that joins again."""
        before = member.size
        self._count(member.protocols, -1)
        member.protocols = request.protocols
        self._count(member.protocols, 1)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.client_id = request.client_id
        member.client_host = request.client_host
        self._grow(member.size - before)

    def set_assignment(self, member: Member, assignment: bytes) -> None:
        """Give a member its assignment in this generation."""
        self._grow(len(assignment) - len(member.assignment))
        member.assignment = assignment

    def expect(self, member_id: str) -> None:
        """Note that a client got this member id and is about to join with it."""
        self.pending_members.add(member_id)
        self._grow(pending_size(member_id))

    def _forget_pending(self, member_id: str) -> None:
        if member_id in self.pending_members:
            self.pending_members.remove(member_id)
            self._grow(-pending_size(member_id))

    def _grow(self, change: int) -> None:
        self.bytes += change
        if self.table is not None:
            self.table.bytes += change

    def park_join(self, member: Member, ticket: int) -> int | None:
        """Park a member's join, and return the ticket of the join that it replaces, or None."""
        replaced = self.take_join(member)
        member.join_ticket = ticket
        self.awaiting_join += 1
        return replaced

    def take_join(self, member: Member) -> int | None:
        """Remove a member's parked join, and return its ticket or None."""
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is not None:
            self.awaiting_join -= 1
        return ticket

    @property
    def all_joined(self) -> bool:
        """Whether the joins of all members are parked, and no new client is about to join."""
        return not self.pending_members and self.awaiting_join == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of its members."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, or choose the first member that has.

        Returns:
            False if no member has joined.
        """
        if self.leader is not None and self.members[self.leader].awaits_join:
            return True
        joined = next((m.member_id for m in self.members.values() if m.awaits_join), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    # --- protocols -------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member with these protocols shares one with all other members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self._support.get(name, 0) == len(self.members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members support.

        If two have equally many, the one that the oldest member prefers wins.
        """
        common = {name for name, count in self._support.items() if count == len(self.members)}
        choices = (member.vote(common) for member in self.members.values())
        votes = Counter(choice for choice in choices if choice is not None)
        return max(votes, key=lambda name: votes[name])

    def _count(self, protocols: Protocols, change: int) -> None:
        for name in {name for name, _ in protocols}:
            self._support[name] = self._support.get(name, 0) + change
            if not self._support[name]:
                del self._support[name]

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether its members are ordinary consumers."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed(self, topic: str) -> bool:
        """Return whether members read the topic, or possibly do: the subscription is unknown."""
        if self.subscribed is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed

    @property
    def subscribed(self) -> frozenset[str] | None:
        """The topics of all members in this generation; None if they are unknown."""
        if self._subscribed is None or self._subscribed[0] != self.generation:
            self._subscribed = self.generation, self._subscribed_now()
        return self._subscribed[1]

    def _subscribed_now(self) -> frozenset[str] | None:
        if self.protocol_type is None:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None or not self.uses_consumer_protocol:
            return None
        # Members often have the same subscription, and to read a large one takes milliseconds.
        distinct = {member.metadata(self.protocol) for member in self.members.values()}
        return _union(map(subscribed_topics, distinct))

    # --- views -----------------------------------------------------------------------------------

    def join_members(self) -> tuple[JoinMember, ...]:
        """Return all members, as the leader gets them."""
        return tuple(
            JoinMember(m.member_id, m.instance_id, m.metadata(self.protocol))
            for m in self.members.values()
        )

    def describe(self) -> GroupDescription:
        """Return the group as admins see it; protocol and assignments only if it is Stable."""
        protocol = self.protocol if self.state is GroupState.STABLE else None
        return GroupDescription(
            self.group_id,
            self.state.value,
            self.protocol_type or "",
            protocol or "",
            tuple(member.info(protocol) for member in self.members.values()),
        )


def _union(sets: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    result: set[str] = set()
    count = 0
    for topics in sets:
        count += 0 if topics is None else len(topics)
        if topics is None or count > MAX_GROUP_TOPICS:
            return None
        result |= topics
    return frozenset(result)


def pending_size(member_id: str) -> int:
    """Return the bytes of memory that a member id takes whose client has not joined yet."""
    return PENDING_BYTES + len(member_id)


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
