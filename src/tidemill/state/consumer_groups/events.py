"""Describe what happened in consumer groups, for the log of the broker. It changes nothing."""

from __future__ import annotations

from tidemill.state.consumer_groups.group import ConsumerGroup
from tidemill.state.consumer_groups.types import ConsumerMember
from tidemill.state.groups.events import GroupChange, GroupEvent, MemberChange, MemberEvent
from tidemill.state.outcome import Outcome


def note_member(
    what: MemberChange,
    group: ConsumerGroup,
    member_id: str,
    member: ConsumerMember,
    reason: str,
    out: Outcome[None],
) -> None:
    """Add the change of a member to an outcome."""
    out.events.append(
        MemberEvent(
            what,
            group.group_id,
            member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            reason,
        )
    )


def note_epoch(group: ConsumerGroup, before: int, reason: str, out: Outcome[None]) -> None:
    """Add a new epoch of the group to an outcome, if there is one."""
    if group.epoch != before:
        what = GroupChange.REBALANCING if group.members else GroupChange.EMPTY
        out.events.append(GroupEvent(what, group.group_id, group.epoch, len(group.members), reason))
