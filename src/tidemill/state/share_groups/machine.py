"""Share groups as one pure state machine (KIP-932).

All state but session timeouts survives a restart. A command applies its records immediately, so
that the next command sees them; the engine answers when they are on disk. If they can't be written,
the group is made again from those that are.

``now_ms`` is wall-clock time in milliseconds since the epoch. This module must not know a socket, a
clock or a record of a topic. ``state.all_groups`` decides which kind of group a request is about.

Source: KIP-932, section "Share group membership"; the limits and errors of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidemill.state.assignors.simple import assign_shared
from tidemill.state.assignors.types import AssignedMember
from tidemill.state.errors import (
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    UnknownMemberIdError,
)
from tidemill.state.groups.consumer_protocol import MAX_TOPICS
from tidemill.state.groups.events import MemberChange
from tidemill.state.groups.join import MAX_STRING_BYTES, check_group_id
from tidemill.state.groups.memory import MEMBER_BYTES, GroupLimits
from tidemill.state.modern_groups.format import RecordKey
from tidemill.state.modern_groups.group import ModernGroup
from tidemill.state.modern_groups.machine import (
    REASONS,
    GroupMachine,
    Limit,
    named_partitions,
    note_epoch,
    note_member,
    partition_counts,
    topics_hash,
)
from tidemill.state.modern_groups.records import GroupChanges, restored
from tidemill.state.modern_groups.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    GroupTimes,
    HeartbeatResult,
    Topics,
)
from tidemill.state.outcome import Outcome, StateRecord, nothing
from tidemill.state.share_groups.format import FORMAT
from tidemill.state.share_groups.types import (
    ShareAssignment,
    ShareGroupInfo,
    ShareHeartbeat,
    ShareMember,
    ShareMemberInfo,
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


ASSIGNOR = "simple"

Changes = GroupChanges[ShareGroup, ShareMember, ShareAssignment]


class ShareGroups(GroupMachine[ShareGroup]):
    """All share groups."""

    GROUP_TYPE = "share"
    PROTOCOL_TYPE = "share"

    def __init__(
        self,
        topics: Topics,
        *,
        times: Callable[[str], GroupTimes] = lambda _: GroupTimes(),
        max_size: int = 200,
        limits: GroupLimits | None = None,
        other_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(
            topics, FORMAT, _restored, times=times, limits=limits, other_bytes=other_bytes
        )
        self._max_size = max_size

    def start_sessions(self, group: ShareGroup, now_ms: int) -> None:
        """Start the sessions of all members of a group."""
        for member_id in group.members:
            self._start_session(group, member_id, now_ms)

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
            raise _not_shared(request.group_id)
        out = nothing()
        group = self.table.get(request.group_id)
        if group is None:
            if request.member_epoch != JOIN_EPOCH:
                raise _unknown(request)
            group = ShareGroup(request.group_id)
        if request.member_epoch == LEAVE_EPOCH:
            result = self._leave(group, request, now_ms, out)
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
        if before is None and len(group.members) >= self._max_size:
            raise GroupMaxSizeReachedError(
                f"group {group.group_id!r} is full: it has {len(group.members)} members"
            )
        member = _member_of(request, before)
        self.table.check_growth(group, member_id, member)
        changes = Changes(group, out.records)
        if member != before:
            changes.set_member(member_id, member)
        if before is None:
            note_member(MemberChange.JOINED, group, member_id, member, "", out)
        changed = before is None or before.topic_names != member.topic_names
        self._update(changes, changed, f"member {member_id}", out)
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

    def _leave(
        self, group: ShareGroup, request: ShareHeartbeat, now_ms: int, out: Outcome[None]
    ) -> HeartbeatResult:
        if request.member_id not in group.members:
            raise _unknown(request)
        self._remove(group, request.member_id, "", MemberChange.LEFT, out)
        return HeartbeatResult(request.member_id, LEAVE_EPOCH, 0)

    def _remove(
        self,
        group: ShareGroup,
        member_id: str,
        reason: str,
        what: MemberChange,
        out: Outcome[None],
    ) -> None:
        note_member(what, group, member_id, group.members[member_id], reason, out)
        self._sessions.forget(group.group_id, member_id)
        changes = Changes(group, out.records)
        changes.drop_member(member_id)
        self._update(changes, True, f"member {member_id} is gone", out)

    def _update(
        self, changes: Changes, members_changed: bool, reason: str, out: Outcome[None]
    ) -> None:
        """Start a new epoch with a new assignment, if members or topics have changed."""
        group, topics = changes.group, self._topics
        if not members_changed and group.topics_version == topics.version:
            return
        group.topics_version = topics.version
        before = group.epoch
        present = topics_hash(group.subscribed, topics)
        if not members_changed and present == group.topics_hash:
            return
        changes.set_epoch(group.epoch + 1, present)
        note_epoch(group, before, reason, out)
        ids = {n: found[0] for n in group.subscribed if (found := topics.find(n)) is not None}
        members = {
            member_id: AssignedMember(
                frozenset(ids[name] for name in member.topic_names if name in ids),
                group.target(member_id),
            )
            for member_id, member in group.members.items()
        }
        targets = assign_shared(members, partition_counts(group.subscribed, topics))
        for member_id, target in targets.items():
            if target != group.target(member_id) or member_id not in group.targets:
                changes.set_target(member_id, target)
        changes.set_target_epoch(group.epoch)

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
            raise _not_shared(group_id)
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

    def drop_group(self, group: ShareGroup) -> list[StateRecord]:
        """Remove a group; return the records that do it."""
        records: list[StateRecord] = []
        for member_id in group.members:
            self._sessions.forget(group.group_id, member_id)
        Changes(group, records).drop_group()
        self.table.remove(group.group_id)
        self.table.expect(records)
        return records

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Outcome[None]:
        """Remove the members whose sessions have ended."""
        out = nothing()
        while (due := self._sessions.timers.pop_due(now_ms)) is not None:
            kind, group_id, member_id = due
            group = self.table.find(group_id)
            if group is not None and member_id in group.members:
                self._remove(group, member_id, REASONS[kind], MemberChange.REMOVED, out)
        self.table.expect(out.records)
        return out

    def _start_session(self, group: ShareGroup, member_id: str, now_ms: int) -> None:
        limit = self._times(group.group_id).session_timeout_ms
        self._sessions.start(Limit.SESSION, group.group_id, member_id, limit, now_ms)

    # --- views -----------------------------------------------------------------------------------

    def describe(self, group_id: str) -> ShareGroupInfo:
        """Return a group with its members.

        Raises:
            GroupIdNotFoundError: there is no such group, or it is not a share group.
        """
        group = self.table.get(group_id)
        if group is None:
            raise _not_shared(group_id)
        return ShareGroupInfo(
            group_id,
            group.state_name,
            group.epoch,
            group.target_epoch,
            ASSIGNOR,
            tuple(
                ShareMemberInfo(
                    member_id,
                    member,
                    group.current(member_id).epoch,
                    named_partitions(group.current(member_id).partitions, self._topics),
                )
                for member_id, member in group.members.items()
            ),
        )


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
    if any(len(text.encode()) > MAX_STRING_BYTES for text in strings if text):
        raise InvalidRequestError(
            f"a string in the request is longer than {MAX_STRING_BYTES} bytes"
        )
    if len(request.topic_names or ()) > MAX_TOPICS:
        raise InvalidRequestError(
            f"the member subscribes to {len(request.topic_names or ())} topics: at most "
            f"{MAX_TOPICS} are allowed"
        )
    if request.member_epoch == JOIN_EPOCH and not request.topic_names:
        raise InvalidRequestError("SubscribedTopicNames must be set in first request.")


def _member_of(request: ShareHeartbeat, before: ShareMember | None) -> ShareMember:
    base = before or ShareMember()
    names = base.topic_names
    if request.topic_names is not None:
        names = tuple(sorted(set(request.topic_names)))
    rack_id = base.rack_id if request.rack_id is None else request.rack_id
    return ShareMember(rack_id, request.client_id, request.client_host, names)


def _not_shared(group_id: str) -> GroupIdNotFoundError:
    return GroupIdNotFoundError(f"Group {group_id} is not a share group.")


def _unknown(request: ShareHeartbeat) -> UnknownMemberIdError:
    return UnknownMemberIdError(f"group {request.group_id!r} has no member {request.member_id!r}")


def _restored(group_id: str, records: Mapping[RecordKey, bytes]) -> ShareGroup | None:
    return restored(ShareGroup(group_id), records)
