"""Heartbeats of members with the consumer protocol: join, stay, change, leave.

Checks come first, changes after, so that a refused request changes nothing. This module must not
know the classic protocol, or how a group is found.

Source: KIP-848, section "ConsumerGroupHeartbeat API"; KIP-1082 (member ids made by the client).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tidemill.state.assignors.types import Partitions
from tidemill.state.consumer_groups.group import Changes, ConsumerGroup
from tidemill.state.consumer_groups.reconcile import reconcile
from tidemill.state.consumer_groups.subscriptions import CanSee, check_pattern
from tidemill.state.consumer_groups.targets import check_assignor, update_epoch, update_target
from tidemill.state.consumer_groups.types import (
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
    ConsumerMember,
    MemberAssignment,
    OwnedPartitions,
)
from tidemill.state.errors import (
    FencedMemberEpochError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    UnreleasedInstanceIdError,
)
from tidemill.state.groups.join import check_group_id
from tidemill.state.modern_groups.machine import check_lengths
from tidemill.state.modern_groups.types import JOIN_EPOCH, LEAVE_EPOCH, Topics

MAX_PATTERNS = 16
"""Different patterns of a group. Each is matched with every topic when one is created."""


def check_heartbeat(request: ConsumerHeartbeat) -> None:
    """Check the fields of a heartbeat against each other."""
    check_group_id(request.group_id)
    epoch = request.member_epoch
    if epoch < STATIC_LEAVE_EPOCH:
        raise InvalidRequestError(f"invalid member epoch {epoch}")
    if not request.member_id and (epoch != JOIN_EPOCH or request.chooses_member_id):
        raise InvalidRequestError("MemberId can't be empty.")
    for name, text in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if text is not None and not text.strip():
            raise InvalidRequestError(f"{name} can't be empty.")
    strings = (request.member_id, request.instance_id, request.rack_id, request.client_id)
    check_lengths(strings, request.topic_names)
    if epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise InvalidRequestError("InstanceId can't be null.")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    check_assignor(request.assignor)
    if request.topic_pattern:
        check_pattern(request.topic_pattern)


def _check_join(request: ConsumerHeartbeat) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequestError("RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise InvalidRequestError("TopicPartitions must be empty when (re-)joining.")
    if request.topic_names is None and request.topic_pattern is None:
        raise InvalidRequestError(
            "SubscribedTopicNames or SubscribedTopicRegex must be set when (re-)joining."
        )


def member_of(request: ConsumerHeartbeat, before: ConsumerMember | None) -> ConsumerMember:
    """Return the member as the heartbeat describes it. What it does not say is as before."""
    base = before or ConsumerMember()
    names = base.topic_names
    if request.topic_names is not None:
        names = tuple(sorted(set(request.topic_names)))
    pattern = base.topic_pattern if request.topic_pattern is None else request.topic_pattern or None
    return ConsumerMember(
        request.instance_id if request.instance_id is not None else base.instance_id,
        request.rack_id if request.rack_id is not None else base.rack_id,
        request.client_id,
        request.client_host,
        names,
        pattern,
        base.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        base.assignor if request.assignor is None else request.assignor,
    )


def check_epoch(group: ConsumerGroup, member_id: str, epoch: int, owned: Partitions | None) -> None:
    """Check a member's epoch.

    The epoch before is valid too, if the member has no partition that it should not have: the
    answer with its new epoch was lost.
    """
    current = group.current(member_id)
    if epoch == current.epoch:
        return
    lost_answer = epoch == current.previous_epoch and epoch < current.epoch
    if lost_answer and owned is not None and _is_part(owned, current.assigned):
        return
    raise FencedMemberEpochError(
        f"group {group.group_id!r}: member {member_id!r} has epoch {current.epoch}, not {epoch}. "
        "It must give up its partitions and join again."
    )


def check_pattern_count(group: ConsumerGroup, member_id: str, pattern: str | None) -> None:
    """Check that the group can take another pattern."""
    others = {m.topic_pattern for key, m in group.members.items() if key != member_id}
    if pattern and pattern not in others and len(others - {None}) >= MAX_PATTERNS:
        raise InvalidRegularExpressionError(
            f"group {group.group_id!r} has {MAX_PATTERNS} different regular expressions already"
        )


def replaced_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, *, classic: bool
) -> str | None:
    """Return the static member whose place a joining member takes, or None.

    It can have the same member id, if it left for a while.
    """
    old_id = group.static_members.get(instance_id or "")
    if old_id is None:
        return None
    has_left = group.current(old_id).epoch == STATIC_LEAVE_EPOCH
    if old_id == member_id:
        return old_id if has_left else None
    uses_classic = classic or group.members[old_id].classic is not None
    if not uses_classic and not has_left:
        raise UnreleasedInstanceIdError(
            f"group {group.group_id!r}: member {old_id!r} uses the instance id {instance_id!r} and "
            "has not left",
            hint="Close the consumer that uses it, or wait until its session ends.",
        )
    return old_id


def replace_static(changes: Changes, old_id: str, new_id: str) -> None:
    """Give the place and the partitions of a static member to its successor."""
    group = changes.group
    member, target = group.members[old_id], group.target(old_id)
    assigned = group.current(old_id).assigned
    changes.drop_member(old_id)
    changes.set_member(new_id, member)
    changes.set_target(new_id, target)
    changes.set_current(new_id, MemberAssignment(assigned=assigned))


def start_again(changes: Changes, member_id: str) -> None:
    """Take all partitions from a member that joins again, as it has given them up."""
    if changes.group.current(member_id) != MemberAssignment():
        changes.set_current(member_id, MemberAssignment())


def update_member(
    changes: Changes,
    member_id: str,
    member: ConsumerMember,
    owned: Partitions | None,
    topics: Topics,
    now_ms: int,
    can_see: CanSee | None = None,
) -> MemberAssignment:
    """Store what a member asks for, and take it a step towards the target assignment.

    Returns:
        Its new epoch and partitions.
    """
    group = changes.group
    before = group.members.get(member_id)
    if member != before:
        changes.set_member(member_id, member)
    bump = before is None or (before.topic_names, before.topic_pattern) != (
        member.topic_names,
        member.topic_pattern,
    )
    update_epoch(changes, topics, now_ms, bump=bump, can_see=can_see)
    update_target(changes, topics)
    current = group.current(member_id)
    step = reconcile(
        current,
        group.target_epoch,
        group.target(member_id),
        lambda topic, number: group.is_taken(member_id, topic, number),
        owned,
    )
    if step != current or member_id not in group.currents:
        changes.set_current(member_id, step)
    return step


def leave_for_a_while(changes: Changes, member_id: str) -> None:
    """Note that a static member has left and will return. It keeps its partitions."""
    current = changes.group.current(member_id)
    changes.set_current(member_id, replace(current, epoch=STATIC_LEAVE_EPOCH, revoking={}))


def is_leaving(request: ConsumerHeartbeat) -> bool:
    """Return whether the member leaves, for good or for a while."""
    return request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH)


def is_full(request: ConsumerHeartbeat) -> bool:
    """Return whether the member says everything about itself, so that it needs a full answer."""
    if request.member_epoch == JOIN_EPOCH:
        return True
    subscribed = request.topic_names is not None or request.topic_pattern is not None
    return request.rebalance_timeout_ms != -1 and subscribed and request.owned is not None


def _is_part(owned: Partitions, assigned: OwnedPartitions) -> bool:
    nothing: Mapping[int, int] = {}
    return all(numbers <= assigned.get(topic, nothing).keys() for topic, numbers in owned.items())
