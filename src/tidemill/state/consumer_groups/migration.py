"""Converts groups between the two protocols while members stay in them.

A classic group becomes a consumer group when the first member with the consumer protocol joins. A
consumer group becomes a classic one when its last member with the consumer protocol is gone and
others are left. Committed offsets are not touched: they belong to the group id.

Pure functions of one group. This module must not know a timer or a request.

Source: KIP-848, section "Online upgrade and downgrade"; Apache Kafka's
``group.consumer.migration.policy``.
"""

from __future__ import annotations

from uuid import UUID

from tidemill.log.errors import InvalidRecordError
from tidemill.state.consumer_groups.group import Changes, ConsumerGroup
from tidemill.state.consumer_groups.types import ClassicProtocols, ConsumerMember, MemberAssignment
from tidemill.state.errors import GroupIdNotFoundError
from tidemill.state.groups.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from tidemill.state.groups.group import Group, GroupState
from tidemill.state.groups.members import Member
from tidemill.state.groups.types import JoinRequest
from tidemill.state.modern_groups.types import Topics


def consumer_group_of(group: Group, topics: Topics, changes: Changes) -> None:
    """Add the members of a classic group to a new consumer group, with what they have."""
    for member_id, member in group.members.items():
        try:
            _add(member_id, member, group, topics, changes)
        except InvalidRecordError as error:
            raise GroupIdNotFoundError(
                f"group {group.group_id!r} can't become a consumer group: member {member_id!r} "
                f"has metadata that can't be read: {error}"
            ) from error
    changes.set_epoch(group.generation, 0)
    changes.set_target_epoch(group.generation)


def _add(member_id: str, member: Member, group: Group, topics: Topics, changes: Changes) -> None:
    metadata = member.metadata(group.protocol) or (
        member.protocols[0][1] if member.protocols else b""
    )
    subscription = read_subscription(metadata)
    assigned: dict[UUID, dict[int, int]] = {}
    for name, numbers in read_assignment(member.assignment).items():
        topic, count = topics.find(name) or (UUID(int=0), 0)  # none of it, if the topic is gone
        for number in numbers:
            if 0 <= number < count and not changes.group.is_taken(member_id, topic, number):
                assigned.setdefault(topic, {})[number] = group.generation
    changes.set_member(member_id, member_of(member, subscription))
    current = MemberAssignment(group.generation, group.generation, assigned=assigned)
    changes.set_target(member_id, current.partitions)
    changes.set_current(member_id, current)


def member_of(member: Member | JoinRequest, subscription: Subscription) -> ConsumerMember:
    """Return a member with the classic protocol as a consumer group stores it."""
    return ConsumerMember(
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicProtocols(member.session_timeout_ms, member.protocols),
    )


def assignment_of(current: MemberAssignment, metadata: bytes, topics: Topics) -> bytes:
    """Return a member's partitions for a client with the classic protocol.

    Args:
        metadata: the subscription of the member, whose version the client reads.
    """
    names = {
        name: numbers
        for topic, numbers in current.assigned.items()
        if (name := topics.name_of(topic)) is not None
    }
    return write_assignment(names, read_subscription(metadata).version)


def classic_group_of(group: ConsumerGroup, topics: Topics, now_ms: int) -> Group:
    """Return a classic group with the classic members of a consumer group and what they have."""
    classic = Group(group.group_id, now_ms)
    classic.generation = group.epoch
    for member_id in group.classic_members():
        member, current = group.members[member_id], group.current(member_id)
        assert member.classic is not None
        classic.add(
            Member(
                member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                member.classic.protocols,
                assignment_of(current, member.classic.protocols[0][1], topics),
            ),
            CONSUMER_PROTOCOL_TYPE,
        )
    classic.protocol = classic.select_protocol()
    classic.state = GroupState.STABLE
    return classic
