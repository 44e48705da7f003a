"""Share groups as one pure state machine (KIP-932).

All state but session timeouts survives a restart. A command applies its records immediately, so
that the next command sees them; the engine answers when they are on disk. If they can't be written,
the group is made again from those that are.

``now_ms`` is wall-clock time in milliseconds since the epoch. This module must not know a socket, a
clock or a record of a topic. ``state.all_groups`` decides which kind of group a request is about.

Source: KIP-932, section "Share group membership"; the limits and errors of Apache Kafka 4.3.
"""

from __future__ import annotations

from tidemill.state.assignors.simple import assign_shared
from tidemill.state.errors import (
    FencedMemberEpochError,
    InvalidRequestError,
    UnknownMemberIdError,
)
from tidemill.state.groups.events import MemberChange, note_member
from tidemill.state.groups.join import check_group_id
from tidemill.state.groups.memory import MEMBER_BYTES
from tidemill.state.modern_groups.group import ModernGroup
from tidemill.state.modern_groups.machine import (
    GroupMachine,
    Limit,
    assign,
    check_lengths,
    note_epoch,
    start_epoch,
)
from tidemill.state.modern_groups.records import GroupChanges
from tidemill.state.modern_groups.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    HeartbeatResult,
)
from tidemill.state.outcome import Outcome, nothing
from tidemill.state.share_groups.format import FORMAT
from tidemill.state.share_groups.types import (
    ShareAssignment,
    ShareHeartbeat,
    ShareMember,
)


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


Changes = GroupChanges[ShareGroup, ShareMember, ShareAssignment]


class ShareGroups(GroupMachine[ShareGroup]):
    """All share groups."""

    GROUP_TYPE = "share"
    PROTOCOL_TYPE = "share"
    KIND = ShareGroup
    CHANGES = Changes

    # --- heartbeats ------------------------------------------------------------------------------

    def heartbeat(
        self, request: ShareHeartbeat, now_ms: int, *, is_taken: bool
    ) -> Outcome[HeartbeatResult]:
        """Let a member join, stay, change or leave.

        Args:
            is_taken: whether a group of another kind has this id.

        Raises:
            InvalidGroupIdError, InvalidRequestError, GroupMaxSizeReachedError: the request is
                refused.
            UnknownMemberIdError, FencedMemberEpochError: the member has to join again.
            GroupIdNotFoundError: the group is of another kind.
        """
        check_heartbeat(request)
        if is_taken:
            raise self.of_another_kind(request.group_id)
        out = nothing()
        group = self.table.get(request.group_id)
        if group is None:
            if request.member_epoch != JOIN_EPOCH:
                raise _unknown(request)
            group = ShareGroup(request.group_id)
        if request.member_epoch == LEAVE_EPOCH:
            if request.member_id not in group.members:
                raise _unknown(request)
            self.remove(group, request.member_id, now_ms, out, what=MemberChange.LEFT)
            result = HeartbeatResult(request.member_id, LEAVE_EPOCH, 0)
        else:
            result = self._stay(group, request, now_ms, out)
            if group.table is None:
                self.table.add(group)
        self.table.expect(out.records)
        return Outcome(result, out.records, out.replies, out.events)

    def _stay(
        self, group: ShareGroup, request: ShareHeartbeat, now_ms: int, out: Outcome[None]
    ) -> HeartbeatResult:
        member_id = request.member_id
        before = group.members.get(member_id)
        current = group.current(member_id)
        if request.member_epoch != JOIN_EPOCH:
            if before is None:
                raise _unknown(request)
            if request.member_epoch not in (current.epoch, current.previous_epoch):
                raise FencedMemberEpochError(
                    f"group {group.group_id!r}: member {member_id!r} has epoch {current.epoch}, "
                    f"not {request.member_epoch}. It must join again."
                )
        if before is None:
            self.table.check_size(group.group_id, len(group.members))
        member = _member_of(request, before)
        self.table.check_growth(group, member_id, member)
        changes = Changes(group, out.records)
        if member != before:
            changes.set_member(member_id, member)
        if before is None:
            note_member(MemberChange.JOINED, group, member_id, member, "", out)
        changed = before is None or before.topic_names != member.topic_names
        epoch = group.epoch
        self._update(changes, members_changed=changed)
        note_epoch(group, epoch, f"member {member_id}", out)
        step = ShareAssignment(group.target_epoch, current.epoch, group.target(member_id))
        if step.epoch != current.epoch or member_id not in group.currents:
            changes.set_current(member_id, step)
        self._start_session(group, member_id, now_ms)
        full = request.member_epoch == JOIN_EPOCH or request.topic_names is not None
        return HeartbeatResult(
            member_id,
            step.epoch,
            self._times(group.group_id).heartbeat_interval_ms,
            step.partitions if full or step.partitions != current.partitions else None,
        )

    def _members_changed(self, changes: Changes, now_ms: int) -> None:
        self._update(changes, members_changed=True)

    def _update(self, changes: Changes, *, members_changed: bool) -> None:
        """Start a new epoch with a new assignment, if members or topics have changed."""
        group, topics = changes.group, self._topics
        if not members_changed and group.topics_version == topics.version:
            return
        before = group.epoch
        start_epoch(changes, topics, members_changed=members_changed)
        if group.epoch != before:
            assign(changes, topics, assign_shared)

    def create(self, group_id: str, *, is_taken: bool) -> Outcome[None]:
        """Create an empty group, unless it exists. So its start can be set before members join.

        Args:
            is_taken: whether a group of another kind has this id.

        Raises:
            InvalidGroupIdError: the id is empty or too long.
            GroupMaxSizeReachedError: there is no memory for another group.
            GroupIdNotFoundError: the group is of another kind.
        """
        check_group_id(group_id)
        if is_taken:
            raise self.of_another_kind(group_id)
        out = nothing()
        if self.table.get(group_id) is None:
            group = ShareGroup(group_id)
            self.table.check_new(group)
            changes = Changes(group, out.records)
            changes.set_epoch(1, 0)
            changes.set_target_epoch(1)
            self.table.add(group)
            self.table.expect(out.records)
        return out

    def _start_session(self, group: ShareGroup, member_id: str, now_ms: int) -> None:
        limit = self._times(group.group_id).session_timeout_ms
        self._sessions.start(Limit.SESSION, group, member_id, limit, now_ms)

    # --- views -----------------------------------------------------------------------------------

    def _assignor_of(self, group: ShareGroup) -> str:
        return "simple"


def check_heartbeat(request: ShareHeartbeat) -> None:
    """Check the fields of a heartbeat against each other."""
    check_group_id(request.group_id)
    if not request.member_id.strip():
        raise InvalidRequestError("MemberId can't be empty.")
    if request.member_epoch < LEAVE_EPOCH:
        raise InvalidRequestError(f"invalid member epoch {request.member_epoch}")
    if request.rack_id is not None and not request.rack_id.strip():
        raise InvalidRequestError("RackId can't be empty.")
    strings = (request.member_id, request.rack_id, request.client_id)
    check_lengths(strings, request.topic_names)
    if request.member_epoch == JOIN_EPOCH and not request.topic_names:
        raise InvalidRequestError("SubscribedTopicNames must be set in first request.")


def _member_of(request: ShareHeartbeat, before: ShareMember | None) -> ShareMember:
    base = before or ShareMember()
    names = base.topic_names
    if request.topic_names is not None:
        names = tuple(sorted(set(request.topic_names)))
    rack_id = base.rack_id if request.rack_id is None else request.rack_id
    return ShareMember(rack_id, request.client_id, request.client_host, names)


def _unknown(request: ShareHeartbeat) -> UnknownMemberIdError:
    return UnknownMemberIdError(f"group {request.group_id!r} has no member {request.member_id!r}")
