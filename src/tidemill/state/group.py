"""One classic consumer group: its state, members and votes.

What changes a group's state stands in ``TRANSITIONS``; who decides stands in ``group_rebalance``.
Knows no timer, no record's bytes and no broker.

Source: KIP-62, KIP-345 (static members), KIP-394 (pending members); Apache Kafka's documentation
of the group coordinator.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from tidemill.errors import FencedInstanceIdError, UnknownMemberIdError
from tidemill.state.consumer_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from tidemill.state.group_members import Member, Protocols
from tidemill.state.offsets_format import GroupValue
from tidemill.state.types import GroupDescription, JoinMember, JoinRequest


class GroupState(enum.Enum):
    """State of a group, under the names that clients are shown."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = GroupState
TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    # a first member joins; the group is removed
    _S.EMPTY: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
    # all have joined, or time is up; nobody is left
    _S.PREPARING_REBALANCE: frozenset({_S.COMPLETING_REBALANCE, _S.EMPTY, _S.DEAD}),
    # the leader brought the assignment; a member joins, leaves or fails
    _S.COMPLETING_REBALANCE: frozenset({_S.STABLE, _S.PREPARING_REBALANCE, _S.DEAD}),
    # a member joins, leaves, fails or changes its subscription
    _S.STABLE: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
    _S.DEAD: frozenset(),
}
"""state -> states that may follow."""


class Group:
    """A group and its members, in the order in which they joined."""

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.state_since_ms = now_ms
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        """instance id -> member id"""
        self.pending_members: set[str] = set()
        """Ids given out (KIP-394) that have not joined yet."""
        self.pending_sync: set[str] = set()
        """Members that have not asked for this generation's assignment yet."""
        self.subscribed: frozenset[str] | None = None
        """Topics of all members in this generation; None where they can't be known."""
        self.new_member_added = False
        """A member joined since the initial rebalance delay was last extended."""
        self.delay_left_ms: int | None = None
        """How long the initial rebalance may still be delayed; None outside of it."""
        self.awaiting_join = 0
        """How many members' joins are parked."""
        self._support: dict[str, int] = {}
        """protocol -> how many members support it"""

    @classmethod
    def of_stored(cls, group_id: str, value: GroupValue) -> Group:
        """The group as it was persisted: Stable with its members, or Empty."""
        group = cls(group_id, value.state_timestamp_ms)
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.generation = value.generation
        for stored in value.members:
            group.add(Member.of_stored(stored, value.protocol), value.protocol_type)
        group.leader = value.leader if value.leader in group.members else group.leader
        if value.members:
            group.state = group.previous_state = GroupState.STABLE
        group.subscribed = group._subscribed_now()
        return group

    def stored(self) -> GroupValue:
        """The group as it is persisted."""
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
        return self.state in states

    def transition(self, to: GroupState, now_ms: int) -> None:
        """Change the state.

        Raises:
            RuntimeError: the table does not allow it; a defect of the caller.
        """
        if to not in TRANSITIONS[self.state]:
            raise RuntimeError(f"group {self.group_id}: {self.state.value} -> {to.value}")
        self.previous_state = self.state
        self.state = to
        self.state_since_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return GroupState.PREPARING_REBALANCE in TRANSITIONS[self.state]

    @property
    def is_removable(self) -> bool:
        """Nobody is in it, and nobody is about to be."""
        return self.state is GroupState.EMPTY and not self.pending_members

    def next_generation(self, now_ms: int) -> None:
        """End the preparation: a new generation of those who are members now, or Empty."""
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.transition(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.transition(GroupState.EMPTY, now_ms)
        self.subscribed = self._subscribed_now()

    # --- members ---------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str) -> None:
        """Take a member in; the first one sets the group's protocol type and leads."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.pending_members.discard(member.member_id)
        self._count(member.protocols, 1)

    def remove(self, member_id: str) -> None:
        """Forget a member or a pending one; the lead passes to the one that joined first."""
        self.pending_members.discard(member_id)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self.take_join(member)
        self._count(member.protocols, -1)
        if member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace_static(self, instance_id: str, new_member_id: str) -> Member:
        """Give a static member, its place and its lead a new id; the old id is fenced by that."""
        old_id = self.static_members[instance_id]
        member = self.members[old_id]
        self.members = {
            new_member_id if key == old_id else key: value for key, value in self.members.items()
        }
        member.member_id = new_member_id
        self.static_members[instance_id] = new_member_id
        if self.leader == old_id:
            self.leader = new_member_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_member_id)
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Prove that the ids are those of a member.

        Raises:
            UnknownMemberIdError: there is no such member.
            FencedInstanceIdError: the instance id is another member's now.
        """
        if instance_id is not None:
            owner = self.static_members.get(instance_id)
            if owner is None:
                raise UnknownMemberIdError(
                    f"group {self.group_id!r} has no static member {instance_id!r}"
                )
            if owner != member_id:
                raise FencedInstanceIdError(
                    f"group {self.group_id!r}: {instance_id!r} is used by a newer member"
                )
        if member_id not in self.members:
            raise UnknownMemberIdError(f"group {self.group_id!r} has no member {member_id!r}")

    def update(self, member: Member, request: JoinRequest) -> None:
        """Take over what a member asks for when it joins again."""
        self._count(member.protocols, -1)
        member.protocols = request.protocols
        self._count(member.protocols, 1)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.client_id = request.client_id
        member.client_host = request.client_host

    def park_join(self, member: Member, ticket: int) -> int | None:
        """Park a member's join; gives back the ticket that it replaces, if any."""
        replaced = self.take_join(member)
        member.join_ticket = ticket
        self.awaiting_join += 1
        return replaced

    def take_join(self, member: Member) -> int | None:
        """The ticket of a member's parked join, which waits no longer."""
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is not None:
            self.awaiting_join -= 1
        return ticket

    @property
    def all_joined(self) -> bool:
        return not self.pending_members and self.awaiting_join == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of the members'."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else the first that has; False where none has."""
        if self.leader is not None and self.members[self.leader].awaits_join:
            return True
        joined = next((m.member_id for m in self.members.values() if m.awaits_join), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    # --- protocols -------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols shares one with all others."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self._support.get(name, 0) == len(self.members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol with most votes among those that all support; ties go to the one that the
        earliest member prefers."""
        common = {name for name, count in self._support.items() if count == len(self.members)}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(common)
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _count(self, protocols: Protocols, change: int) -> None:
        for name in {name for name, _ in protocols}:
            self._support[name] = self._support.get(name, 0) + change
            if not self._support[name]:
                del self._support[name]

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed(self, topic: str) -> bool:
        """Whether members read the topic; a consumer group of unknown subscription may."""
        if self.subscribed is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed

    def _subscribed_now(self) -> frozenset[str] | None:
        if self.protocol_type is None:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None or not self.uses_consumer_protocol:
            return None
        return _union(subscribed_topics(m.metadata(self.protocol)) for m in self.members.values())

    # --- views -----------------------------------------------------------------------------------

    def join_members(self) -> tuple[JoinMember, ...]:
        """What the leader is told."""
        return tuple(
            JoinMember(m.member_id, m.instance_id, m.metadata(self.protocol))
            for m in self.members.values()
        )

    def describe(self) -> GroupDescription:
        """The group as admins see it; protocol and assignments only while it is Stable."""
        protocol = self.protocol if self.state is GroupState.STABLE else None
        return GroupDescription(
            self.group_id,
            self.state.value,
            self.protocol_type or "",
            protocol or "",
            tuple(member.info(protocol) for member in self.members.values()),
        )


def _union(sets: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    result: frozenset[str] = frozenset()
    for topics in sets:
        if topics is None:
            return None
        result |= topics
    return result
