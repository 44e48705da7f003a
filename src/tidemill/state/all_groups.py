"""All groups, whatever their kind: finds the machine that a request is about.

A group id belongs to one group. It is a classic group, a consumer group or a share group. The first
two become each other when their members do. This module must not know how a kind works.

Source: KIP-848, sections "Online upgrade" and "Online downgrade"; Apache Kafka's
``group.consumer.migration.policy``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any

from tidemill.errors import TidemillError
from tidemill.state.consumer_groups.commits import check_commit, check_fetch
from tidemill.state.consumer_groups.format import FORMAT
from tidemill.state.consumer_groups.group import Changes, ConsumerGroup
from tidemill.state.consumer_groups.machine import ConsumerGroups
from tidemill.state.consumer_groups.members import check_heartbeat, is_leaving
from tidemill.state.consumer_groups.migration import classic_group_of, consumer_group_of
from tidemill.state.consumer_groups.types import (
    ConsumerGroupInfo,
    ConsumerHeartbeat,
    MigrationPolicy,
)
from tidemill.state.errors import (
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    NonEmptyGroupError,
    UnknownMemberIdError,
)
from tidemill.state.groups.format import GroupKey
from tidemill.state.groups.format import decode_key as decode_classic_key
from tidemill.state.groups.group import Group
from tidemill.state.groups.join import check_group_id
from tidemill.state.groups.machine import Groups
from tidemill.state.groups.types import (
    GroupDescription,
    GroupListing,
    JoinRequest,
    LeaveMember,
    SyncRequest,
)
from tidemill.state.modern_groups.machine import GroupMachine
from tidemill.state.modern_groups.types import JOIN_EPOCH, HeartbeatResult, Topics
from tidemill.state.outcome import Outcome, Reply, StateRecord, nothing
from tidemill.state.share_groups.machine import ShareGroup, ShareGroups
from tidemill.state.share_groups.types import ShareHeartbeat
from tidemill.state.types import CommitRequest


class AllGroups:
    """Classic groups, consumer groups and share groups as one set of groups."""

    def __init__(
        self,
        classic: Groups,
        consumers: ConsumerGroups,
        shares: ShareGroups,
        topics: Topics,
        *,
        policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL,
        classic_max_size: int = 2**31 - 1,
    ) -> None:
        self._classic = classic
        self._consumers = consumers
        self.shares = shares
        self._modern: tuple[GroupMachine[Any], ...] = (consumers, shares)
        self._topics = topics
        self._policy = policy
        self._classic_max_size = classic_max_size
        consumers.downgrade = self._downgrade

    # --- state that survives a restart -----------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record; return False if it is not about a group."""
        return (
            self._consumers.replay(key, value)
            or self.shares.replay(key, value)
            or self._classic.replay(key, value)
        )

    def loaded(self, now_ms: int) -> Outcome[None]:
        """Create the groups after all records were replayed at start. Sessions start now."""
        out = self._classic.loaded(now_ms)
        for machine in self._modern:
            machine.loaded(now_ms)
            for group in machine.table.all():
                self._classic.take(group.group_id, out)
        return out

    def write_failed(self, outcome: Outcome[Any], now_ms: int) -> list[Reply]:
        """Return the replies for an outcome whose records could not be written."""
        replies = self._classic.write_failed(outcome, now_ms)
        for machine in self._modern:
            machine.write_failed(outcome, now_ms)
        out = nothing()
        for group_id in _groups_of(outcome.records):
            if self._consumers.table.find(group_id) is not None:
                self._classic.take(group_id, out)
            else:
                self._classic.restore(group_id, now_ms)
        return [*replies, *out.replies]

    # --- the consumer protocol -------------------------------------------------------------------

    def consumer_heartbeat(
        self, request: ConsumerHeartbeat, now_ms: int
    ) -> Outcome[HeartbeatResult]:
        """Let a member join, stay, change or leave (ConsumerGroupHeartbeat).

        Raises:
            InvalidGroupIdError, InvalidRequestError, UnsupportedAssignorError,
            InvalidRegularExpressionError, GroupMaxSizeReachedError: the request is refused.
            UnknownMemberIdError, FencedMemberEpochError: the member has to join again.
            FencedInstanceIdError, UnreleasedInstanceIdError: another one uses the instance id.
            GroupIdNotFoundError: the group is a classic one and can't change.
        """
        check_heartbeat(request)
        if self.shares.table.get(request.group_id) is not None:
            raise self._consumers.of_another_kind(request.group_id)
        out = nothing()
        group = self._consumers.table.get(request.group_id)
        if group is not None:
            answer = self._consumers.leave if is_leaving(request) else self._consumers.heartbeat
            result = answer(group, request, now_ms, out)
        elif request.member_epoch != JOIN_EPOCH:
            raise UnknownMemberIdError(
                f"group {request.group_id!r} has no member {request.member_id!r}"
            )
        else:
            group = self._new_consumer_group(request.group_id, out.records)
            result = self._consumers.heartbeat(group, request, now_ms, out)
            self._classic.take(group.group_id, out)
            self._consumers.table.add(group)
            self._consumers.start_sessions(group, now_ms)
        self._consumers.table.expect(out.records)
        return Outcome(result, out.records, out.replies, out.events)

    def _new_consumer_group(self, group_id: str, records: list[StateRecord]) -> ConsumerGroup:
        """Return a consumer group that is not in the table yet: a new one, or a converted one."""
        classic = self._classic.get(group_id)
        group = ConsumerGroup(group_id)
        if classic is None:
            return group
        if self._classic.needs_tombstone(group_id):
            records += self._classic.tombstones(group_id)
        if not classic.members:
            return group
        if not self._policy.upgrades or not classic.uses_consumer_protocol:
            raise GroupIdNotFoundError(
                f"Group {group_id} is not a consumer group.",
                hint="Stop the members with the classic protocol, or allow upgrades with "
                "groups.consumer_migration_policy.",
            )
        self._consumers.table.check_size(group_id, len(classic.members))
        consumer_group_of(classic, self._topics, Changes(group, records))
        return group

    def _downgrade(
        self, group: ConsumerGroup, leaving: str, now_ms: int, out: Outcome[None]
    ) -> bool:
        """Make the group classic, if only classic members are left without the leaving one."""
        left = len(group.members) - 1
        if not left or left > self._classic_max_size or not self._policy.downgrades:
            return False
        if not group.all_classic_except(leaving):
            return False
        classic = classic_group_of(group, self._topics, now_ms)
        out.records += self._consumers.drop_group(group)
        self._classic.put(classic, now_ms, out, f"member {leaving} is gone")
        return True

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupInfo:
        """Return a consumer group with its members.

        Raises:
            GroupIdNotFoundError: there is no such group, or it is a classic one.
        """
        return self._consumers.describe(group_id)

    # --- share groups ----------------------------------------------------------------------------

    def share_heartbeat(self, request: ShareHeartbeat, now_ms: int) -> Outcome[HeartbeatResult]:
        """Let a member of a share group join, stay, change or leave; see ``ShareGroups``."""
        taken = self._has_other(request.group_id)
        return self.shares.heartbeat(request, now_ms, is_taken=taken)

    def create_share_group(self, group_id: str) -> Outcome[None]:
        """Create an empty share group, unless it exists; see ``ShareGroups.create``."""
        return self.shares.create(group_id, is_taken=self._has_other(group_id))

    def _has_other(self, group_id: str) -> bool:
        """Return whether a group that is not a share group has this id."""
        return (self._consumers.table.get(group_id) or self._classic.get(group_id)) is not None

    # --- the classic protocol --------------------------------------------------------------------

    def join(self, request: JoinRequest, ticket: int, now_ms: int) -> Outcome[None]:
        """Add a member with the classic protocol (JoinGroup); see ``Groups.join``."""
        out = nothing()
        try:
            if self.shares.table.get(request.group_id) is not None:
                raise InconsistentGroupProtocolError(
                    f"group {request.group_id!r} is a share group",
                    hint="Use another group.id, or a share consumer.",
                )
            group = self._consumers.table.get(request.group_id)
            if group is None:
                return self._classic.join(request, ticket, now_ms)
            self._classic.check_join(request)
            if self._becomes_classic(group, request, now_ms, out):
                self._consumers.table.expect(out.records)
                out.absorb(self._classic.join(request, ticket, now_ms))
                return out
            result = self._consumers.classic.join(group, request, now_ms, out)
        except TidemillError as error:
            out.replies.append((ticket, error))
            return out
        self._consumers.table.expect(out.records)
        out.replies.append((ticket, result))
        return out

    def _becomes_classic(
        self, group: ConsumerGroup, request: JoinRequest, now_ms: int, out: Outcome[None]
    ) -> bool:
        """Make the group classic before a classic member joins, if it should be.

        It should if it is empty, or if the member takes the place of the only static member with
        the consumer protocol. Then the others learn from their next heartbeat to join again.
        """
        if not group.is_empty:
            old_id = group.static_members.get(request.instance_id or "")
            if old_id is None or request.member_id or not group.all_classic_except(old_id):
                return False
            if len(group.members) > 1:
                return self._downgrade(group, old_id, now_ms, out)
            if not self._policy.downgrades:
                return False
        out.records += self._consumers.drop_group(group)
        self._classic.ensure(group.group_id, now_ms)
        return True

    def sync(self, request: SyncRequest, ticket: int, now_ms: int) -> Outcome[None]:
        """Answer a member with its assignment (SyncGroup); see ``Groups.sync``."""
        try:
            group = self._consumers.table.get(request.group_id)
            if group is None:
                return self._classic.sync(request, ticket, now_ms)
            answer: object = self._consumers.classic.sync(group, request, now_ms)
        except TidemillError as error:
            answer = error
        out = nothing()
        out.replies.append((ticket, answer))
        return out

    def heartbeat(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        now_ms: int,
    ) -> Outcome[None]:
        """Restart the session of a member that is alive (Heartbeat); see ``Groups.heartbeat``."""
        group = self._consumers.table.get(group_id)
        if group is None:
            return self._classic.heartbeat(group_id, generation, member_id, instance_id, now_ms)
        self._consumers.classic.heartbeat(group, generation, member_id, instance_id, now_ms)
        return nothing()

    def leave(
        self, group_id: str, members: Sequence[LeaveMember], now_ms: int
    ) -> Outcome[list[TidemillError | None]]:
        """Remove members (LeaveGroup); see ``Groups.leave``."""
        group = self._consumers.table.get(group_id)
        if group is None:
            return self._classic.leave(group_id, members, now_ms)
        out = self._consumers.classic.leave(group, members, now_ms)
        self._consumers.table.expect(out.records)
        return out

    def cancel(self, ticket: int) -> None:
        """Never answer this ticket: the connection of the parked request is closed."""
        self._classic.cancel(ticket)

    # --- time ------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when ``tick`` is needed next, in ms since the epoch, or None if nothing waits."""
        machines = (self._classic, self._consumers, self.shares)
        deadlines = (machine.next_deadline() for machine in machines)
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now_ms: int) -> Outcome[None]:
        """Apply all time limits that have passed."""
        out = self._consumers.tick(now_ms)
        out.absorb(self.shares.tick(now_ms))
        out.absorb(self._classic.tick(now_ms))
        return out

    # --- views -----------------------------------------------------------------------------------

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Iterator[GroupListing]:
        """Yield all groups, or those with one of ``states`` and of ``types`` (in any case)."""
        return chain(
            self._classic.list_groups(states, types),
            self._consumers.list_groups(states, types),
            self.shares.list_groups(states, types),
        )

    def describe(self, group_id: str) -> GroupDescription:
        """Return a classic group. One that does not exist, or is not classic, is Dead."""
        return self._classic.describe(group_id)

    # --- used by committed offsets ---------------------------------------------------------------

    def __iter__(self) -> Iterator[Group | ConsumerGroup | ShareGroup]:
        return chain(self._classic, self._consumers.table.all(), self.shares.table.all())

    def get(self, group_id: str) -> Group | ConsumerGroup | ShareGroup | None:
        """Return the group, or None. The caller must not change it."""
        return (
            self._consumers.table.get(group_id)
            or self.shares.table.get(group_id)
            or self._classic.get(group_id)
        )

    def check_commit(self, request: CommitRequest, now_ms: int) -> None:
        """Check that the sender may commit offsets now."""
        self._check_commits_offsets(request.group_id)
        group = self._consumers.table.get(request.group_id)
        if group is None:
            self._classic.check_commit(request, now_ms)
        else:
            check_commit(group, request, self._topics, in_transaction=False)

    def check_transactional_commit(self, request: CommitRequest) -> None:
        """Check that the sender may commit offsets in a transaction."""
        check_group_id(request.group_id)
        self._check_commits_offsets(request.group_id)
        group = self._consumers.table.get(request.group_id)
        if group is None:
            self._classic.check_transactional_commit(request)
        else:
            check_commit(group, request, self._topics, in_transaction=True)

    def _check_commits_offsets(self, group_id: str) -> None:
        if self.shares.table.get(group_id) is not None:
            raise GroupIdNotFoundError(
                f"Group {group_id} is a share group: it has no committed offsets.",
                hint="Use AlterShareGroupOffsets to move it.",
            )

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Check that a member may fetch offsets (OffsetFetch 9). A classic group checks nothing.

        Raises:
            UnknownMemberIdError, StaleMemberEpochError, IllegalGenerationError: the member
                is not the one that the group knows.
        """
        group = self._consumers.table.get(group_id)
        if group is not None:
            check_fetch(group, member_id, epoch)

    def ensure(self, group_id: str, now_ms: int) -> object:
        """Create the group, as a classic one, if it does not exist."""
        return (
            self._consumers.table.find(group_id)
            or self.shares.table.find(group_id)
            or self._classic.ensure(group_id, now_ms)
        )

    def check_removable(self, group_id: str) -> None:
        """Check that a client may delete the group; see ``Groups.check_removable``."""
        group = self._consumers.table.get(group_id) or self.shares.table.get(group_id)
        if group is None:
            self._classic.check_removable(group_id)
        elif not group.is_empty:
            raise NonEmptyGroupError(
                f"group {group_id!r} is not empty: it has {len(group.members)} members",
                hint="Stop its consumers, or wait until their sessions end.",
            )

    def tombstones(self, group_id: str) -> list[StateRecord]:
        """Return the records that remove the group."""
        for machine in self._modern:
            group = machine.table.find(group_id)
            if group is not None:
                records = machine.drop_group(group)
                machine.table.expect(records)
                return records
        return self._classic.tombstones(group_id)

    def needs_tombstone(self, group_id: str) -> bool:
        """Return whether a record of the group is in the log, or is being written."""
        for machine in self._modern:
            if machine.table.find(group_id) is not None:
                return machine.table.needs_tombstone(group_id)
        return self._classic.needs_tombstone(group_id)

    def forget(self, group_id: str) -> None:
        """Remove an empty group that was never written to the log."""
        self._classic.forget(group_id)


def _groups_of(records: Sequence[StateRecord]) -> set[str]:
    groups = set()
    for record in records:
        consumer, classic = FORMAT.decode_key(record.key), decode_classic_key(record.key)
        if consumer is not None:
            groups.add(consumer.group_id)
        elif isinstance(classic, GroupKey):
            groups.add(classic.group_id)
    return groups
