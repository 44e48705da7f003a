"""Consumer groups with the consumer protocol, as one pure state machine (KIP-848).

All state but time limits survives a restart. A command applies its records immediately, so that the
next command sees them; the engine answers when they are on disk. If they can't be written, the
group is made again from those that are.

``now_ms`` is wall-clock time in milliseconds since the epoch. This module must not know a socket, a
clock or an offset. ``state.all_groups`` decides which kind of group a request is about.

Source: KIP-848; Apache Kafka's ``GroupMetadataManager``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from tidemill.state.consumer_groups import members as rules
from tidemill.state.consumer_groups.classic_members import ClassicMembers
from tidemill.state.consumer_groups.group import Changes, ConsumerGroup
from tidemill.state.consumer_groups.targets import preferred_assignor, update_epoch
from tidemill.state.consumer_groups.types import (
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
)
from tidemill.state.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from tidemill.state.groups.events import MemberChange, note_member
from tidemill.state.groups.memory import GroupLimits
from tidemill.state.modern_groups.machine import (
    GroupMachine,
    Limit,
    note_epoch,
)
from tidemill.state.modern_groups.types import JOIN_EPOCH, GroupTimes, HeartbeatResult, Topics
from tidemill.state.outcome import Outcome


class ConsumerGroups(GroupMachine[ConsumerGroup]):
    """All consumer groups.

    Args:
        new_id: makes the unique part of member ids.
    """

    GROUP_TYPE = "consumer"
    PROTOCOL_TYPE = CONSUMER_PROTOCOL_TYPE
    KIND = ConsumerGroup
    CHANGES = Changes

    def __init__(
        self,
        topics: Topics,
        *,
        times: Callable[[str], GroupTimes] = lambda _: GroupTimes(),
        max_size: int = 2**31 - 1,
        limits: GroupLimits | None = None,
        other_bytes: Callable[[], int] = lambda: 0,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        super().__init__(
            topics, times=times, max_size=max_size, limits=limits, other_bytes=other_bytes
        )
        self._new_id = new_id
        self.classic = ClassicMembers(self.table, self._sessions, topics, new_id)
        """The requests of members with the classic protocol."""

    # --- heartbeats ------------------------------------------------------------------------------

    def heartbeat(
        self, group: ConsumerGroup, request: ConsumerHeartbeat, now_ms: int, out: Outcome[None]
    ) -> HeartbeatResult:
        """Let a member join, stay or change. The group can be one that is not in the table yet."""
        member_id = request.member_id or self._new_id()
        joins = request.member_epoch == JOIN_EPOCH
        old_id = None
        if joins:
            old_id = rules.replaced_member(group, member_id, request.instance_id, classic=False)
        else:
            group.check_member(member_id, request.instance_id)
            rules.check_epoch(group, member_id, request.member_epoch, request.owned)
        before = group.members.get(old_id or member_id)
        if before is None:
            self.table.check_size(group.group_id, len(group.members))
        member = rules.member_of(request, before)
        rules.check_pattern_count(group, old_id or member_id, member.topic_pattern)
        self.table.check_growth(group, member_id, member)

        changes = Changes(group, out.records)
        epoch = group.epoch
        if old_id is not None:
            self._sessions.forget(group, old_id)
            rules.replace_static(changes, old_id, member_id)
        elif joins and before is not None:
            rules.start_again(changes, member_id)
        had = group.current(member_id).partitions
        step = rules.update_member(
            changes, member_id, member, request.owned, self._topics, now_ms, request.can_see
        )
        if before is None:
            note_member(MemberChange.JOINED, group, member_id, member, "", out)
        elif old_id is not None:
            note_member(MemberChange.REPLACED, group, member_id, member, f"was {old_id}", out)
        note_epoch(group, epoch, f"member {member_id}", out)
        self._start_session(group, member_id, now_ms)
        assigned = step.partitions
        return HeartbeatResult(
            member_id,
            step.epoch,
            self._times(group.group_id).heartbeat_interval_ms,
            assigned if rules.is_full(request) or assigned != had else None,
        )

    def leave(
        self, group: ConsumerGroup, request: ConsumerHeartbeat, now_ms: int, out: Outcome[None]
    ) -> HeartbeatResult:
        """Remove a member, or let a static member go for a while."""
        member_id = request.member_id
        group.check_member(member_id, request.instance_id)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            rules.leave_for_a_while(Changes(group, out.records), member_id)
            self._sessions.end(Limit.REVOKE, group, member_id)
        else:
            self.remove(group, member_id, now_ms, out, what=MemberChange.LEFT)
        return HeartbeatResult(member_id, request.member_epoch, 0)

    def _members_changed(self, changes: Changes, now_ms: int) -> None:
        update_epoch(changes, self._topics, now_ms, bump=True)

    # --- time ------------------------------------------------------------------------------------

    def _start_session(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Start a member's session again, and its time to give partitions back, if it has to."""
        member = group.members[member_id]
        if member.classic is not None:  # it has a limit for its next join, and none for this
            limit = member.classic.session_timeout_ms
            self._sessions.start(Limit.SESSION, group, member_id, limit, now_ms)
            return
        limit = self._times(group.group_id).session_timeout_ms
        self._sessions.start(Limit.SESSION, group, member_id, limit, now_ms)
        if group.waits_for_revocation(member_id):
            limit = member.rebalance_timeout_ms
            self._sessions.start_once(Limit.REVOKE, group, member_id, limit, now_ms)
        else:
            self._sessions.end(Limit.REVOKE, group, member_id)

    # --- views -----------------------------------------------------------------------------------

    def _assignor_of(self, group: ConsumerGroup) -> str:
        return preferred_assignor(group)
