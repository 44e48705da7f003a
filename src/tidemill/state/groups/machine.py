"""Consumer groups with the classic protocol, as one pure state machine.

The last completed generation of each group survives a restart; only ``replay`` changes it. The
commands change the rest (sessions, parked requests, a rebalance in progress), as in Apache Kafka's
coordinator: after a restart in the middle of a rebalance, the members join again.

``now_ms`` is wall-clock time in milliseconds since the epoch. This module must not know a socket,
a clock or an offset. ``offsets`` asks it which clients may commit.

The rules for joining are in ``join``. ``rebalance`` decides when a rebalance starts and ends.

Source: KIP-62, KIP-134, KIP-345, KIP-389 (group.max.size), KIP-394, KIP-559, KIP-814.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from tidemill.errors import TidemillError
from tidemill.state.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidemill.state.groups.commits import (
    check_commit,
    check_generation,
    check_transactional_commit,
    rebalancing,
)
from tidemill.state.groups.events import MemberChange
from tidemill.state.groups.format import (
    GroupKey,
    decode_group_value,
    decode_key,
    encode_group_key,
)
from tidemill.state.groups.group import Group, GroupState, GroupTable
from tidemill.state.groups.join import Joins, check_group_id
from tidemill.state.groups.members import Member, check_ids
from tidemill.state.groups.memory import GroupLimits
from tidemill.state.groups.rebalance import (
    JOIN,
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    SESSION,
    SYNC,
    Rebalancer,
    sync_result,
)
from tidemill.state.groups.types import (
    GroupDescription,
    GroupListing,
    JoinRequest,
    LeaveMember,
    SyncRequest,
)
from tidemill.state.outcome import Outcome, Reply, StateRecord, nothing
from tidemill.state.types import CommitRequest

_S = GroupState


class Groups:
    """All classic groups.

    Args:
        min_session_timeout_ms, max_session_timeout_ms: limits of the members' session timeouts.
        initial_rebalance_delay_ms: how long the first rebalance of an empty group waits for more
            members. Each new member extends it, up to the rebalance timeout.
        new_id: makes the unique part of member ids.
    """

    def __init__(
        self,
        *,
        min_session_timeout_ms: int = 6000,
        max_session_timeout_ms: int = 1_800_000,
        initial_rebalance_delay_ms: int = 3000,
        max_size: int = 2**31 - 1,
        limits: GroupLimits | None = None,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._max_size = max_size
        self._groups = GroupTable(limits or GroupLimits())
        self._stored: dict[str, bytes] = {}
        self._rebalancer = Rebalancer(initial_rebalance_delay_ms)
        self._joins = Joins(
            self._groups,
            self._rebalancer,
            session_bounds=(min_session_timeout_ms, max_session_timeout_ms),
            max_size=max_size,
            new_id=new_id,
        )

    # --- state that survives a restart -----------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of ``__consumer_offsets``: each that was written, and all at start.

        Returns:
            False if the record is not about a group. Then nothing changes.
        """
        group_key = decode_key(key)
        if not isinstance(group_key, GroupKey):
            return False
        group_id = group_key.group_id
        if value is not None:
            self._stored[group_id] = value
            return True
        self._stored.pop(group_id, None)
        group = self._groups.get(group_id)
        if group is not None and group.is_removable:
            del self._groups[group_id]
        return True

    def loaded(self, now_ms: int) -> Outcome[None]:
        """Create the groups after all records were replayed at start. Sessions start now."""
        out = nothing()
        for group_id, value in self._stored.items():
            group = self._restored(group_id, value, now_ms)
            if len(group.members) > self._max_size:  # the limit is lower than before the restart
                reason = f"it has more than {self._max_size} members (groups.max_size)"
                self._rebalancer.prepare(group, now_ms, out, reason)
        return out

    def _restored(self, group_id: str, value: bytes, now_ms: int) -> Group:
        group = Group.of_stored(group_id, decode_group_value(value))
        self._start(group, now_ms)
        return group

    def _start(self, group: Group, now_ms: int) -> None:
        """Add a group with members, and start their sessions."""
        self._groups[group.group_id] = group
        for member in group.members.values():
            self._rebalancer.refresh(group, member, now_ms)

    def write_failed(self, outcome: Outcome[Any], now_ms: int) -> list[Reply]:
        """Return the replies for an outcome whose records could not be written.

        A generation that could not be stored is dropped, and its members join again. The events of
        that replace those of the outcome.
        """
        out = nothing()
        for ticket, answer in outcome.replies:
            if not isinstance(answer, TidemillError):
                answer = CoordinatorNotAvailableError("the group's state could not be written")
            out.replies.append((ticket, answer))
        for record in outcome.records:
            key = decode_key(record.key)
            if not isinstance(key, GroupKey) or record.value is None:
                continue
            group = self._groups.get(key.group_id)
            generation = decode_group_value(record.value).generation
            if group and group.is_in(_S.STABLE) and group.generation == generation:
                self._rebalancer.reset_assignments(group, now_ms, out)
                self._rebalancer.prepare(group, now_ms, out, "its state could not be written")
        outcome.events = out.events
        return out.replies

    # --- requests of members ---------------------------------------------------------------------

    def join(self, request: JoinRequest, ticket: int, now_ms: int) -> Outcome[None]:
        """Add a member to a group (JoinGroup).

        The answer, a JoinResult or an error, is a reply to ``ticket``: immediately, or when the
        rebalance ends.

        Errors in the reply: InvalidGroupIdError, InvalidSessionTimeoutError,
        InconsistentGroupProtocolError, GroupMaxSizeReachedError, MemberIdRequiredError (the client
        joins again with its ``member_id``), UnknownMemberIdError, FencedInstanceIdError. A parked
        join gets RebalanceInProgressError if the member joins again on another connection, and
        UnknownMemberIdError if it is removed.
        """
        out = nothing()
        self._rebalancer.park(ticket)
        try:
            self._joins.join(request, ticket, now_ms, out)
        except TidemillError as error:
            self._rebalancer.answer(ticket, error, out)
        return out

    def check_join(self, request: JoinRequest) -> None:
        """Check what does not depend on the group."""
        self._joins.check_request(request)

    def sync(self, request: SyncRequest, ticket: int, now_ms: int) -> Outcome[None]:
        """Answer a member with its assignment (SyncGroup). The leader sends those of all members.

        The answer, a SyncResult or an error, is a reply to ``ticket``.

        Errors in the reply: InvalidGroupIdError, UnknownMemberIdError, FencedInstanceIdError,
        IllegalGenerationError, InconsistentGroupProtocolError, RebalanceInProgressError.
        """
        out = nothing()
        self._rebalancer.park(ticket)
        try:
            self._sync(request, ticket, now_ms, out)
        except TidemillError as error:
            self._rebalancer.answer(ticket, error, out)
        return out

    def _sync(self, request: SyncRequest, ticket: int, now_ms: int, out: Outcome[None]) -> None:
        group, member = self._member(
            request.group_id, request.member_id, request.instance_id, request.generation
        )
        _check_same("protocol type", request.protocol_type, group.protocol_type)
        _check_same("protocol", request.protocol, group.protocol)
        if group.is_in(_S.PREPARING_REBALANCE):
            raise rebalancing(group)
        assignments = dict(request.assignments)
        if group.leader == member.member_id and not group.is_in(_S.STABLE):
            self._check_memory(group, assignments)
        self._rebalancer.has_synced(group, member.member_id)
        if group.is_in(_S.STABLE):
            self._rebalancer.refresh(group, member, now_ms)
            self._rebalancer.answer(ticket, sync_result(group, member), out)
            return
        self._rebalancer.park_sync(group, member, ticket, out)
        if group.leader == member.member_id:
            self._rebalancer.assign(group, assignments, now_ms, out)

    def _check_memory(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        change = sum(
            len(assignments.get(member_id, b"")) - len(member.assignment)
            for member_id, member in group.members.items()
        )
        self._groups.check_growth(group, change)

    def heartbeat(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        now_ms: int,
    ) -> Outcome[None]:
        """Restart the session of a member that is alive (Heartbeat).

        Raises:
            InvalidGroupIdError: the group id is empty or too long.
            UnknownMemberIdError, FencedInstanceIdError: the sender is not a member.
            IllegalGenerationError: the generation is not the current one.
            RebalanceInProgressError: the member has to join again. Its session is extended.
        """
        group, member = self._member(group_id, member_id, instance_id, generation)
        self._rebalancer.refresh(group, member, now_ms)
        if group.is_in(_S.PREPARING_REBALANCE):
            raise rebalancing(group)
        return nothing()

    def leave(
        self, group_id: str, members: Sequence[LeaveMember], now_ms: int
    ) -> Outcome[list[TidemillError | None]]:
        """Remove members (LeaveGroup). The result has an error or None for each, in order.

        Raises:
            InvalidGroupIdError: the group id is empty or too long.
            UnknownMemberIdError: the group does not exist.
        """
        group = self._group(group_id)
        out = nothing()
        result: list[TidemillError | None] = []
        for leaving in members:
            try:
                self._leave(group, leaving, out)
                result.append(None)
            except TidemillError as error:
                result.append(error)
        if None in result:
            self._rebalancer.after_removal(group, now_ms, out, "members left")
        return Outcome(result, out.records, out.replies, out.events)

    def _leave(self, group: Group, leaving: LeaveMember, out: Outcome[None]) -> None:
        member_id = leaving.member_id
        if not member_id and leaving.instance_id is not None:
            member_id = group.static_members.get(leaving.instance_id, "")
        if member_id in group.pending_members:
            group.remove(member_id)
            self._rebalancer.forget_session(group, member_id)
            return
        check_ids(group, member_id, leaving.instance_id)
        member = group.members[member_id]
        self._rebalancer.drop(group, member, out, leaving.reason, MemberChange.LEFT)

    def cancel(self, ticket: int) -> None:
        """Never answer this ticket: the connection of the parked request is closed.

        The member stays in the group and can ask again on another connection.
        """
        self._rebalancer.cancel(ticket)

    def _group(self, group_id: str) -> Group:
        check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownMemberIdError(f"group {group_id!r} does not exist")
        return group

    def _member(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[Group, Member]:
        group = self._group(group_id)
        check_ids(group, member_id, instance_id)
        check_generation(group, generation)
        return group, group.members[member_id]

    # --- time ------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when ``tick`` is needed next, in ms since the epoch, or None if nothing waits."""
        return self._rebalancer.timers.next_deadline()

    def tick(self, now_ms: int) -> Outcome[None]:
        """Apply all time limits that have passed."""
        out = nothing()
        while (due := self._rebalancer.timers.pop_due(now_ms)) is not None:
            kind, group_id, member_id = due
            group = self._groups.get(group_id)
            if group is None:
                continue
            if kind == SESSION:
                self._end_session(group, member_id, now_ms, out)
            elif kind == JOIN:
                self._rebalancer.end_join_time(group, now_ms, out)
            else:
                self._rebalancer.end_sync_time(group, now_ms, out)
        return out

    def _end_session(self, group: Group, member_id: str, now_ms: int, out: Outcome[None]) -> None:
        member = group.members.get(member_id)
        if member_id in group.pending_members:
            self._joins.remove_pending(group, member_id, now_ms, out)
        elif member is not None and not member.is_kept_alive:
            limit = member.session_timeout_ms
            reason = f"no heartbeat for {limit} ms (session timeout)"
            if member.is_new:
                reason = f"its first join was not answered within {NEW_MEMBER_JOIN_TIMEOUT_MS} ms"
            self._rebalancer.drop(group, member, out, reason)
            self._rebalancer.after_removal(group, now_ms, out, f"member {member_id}: {reason}")

    # --- groups that change their protocol -------------------------------------------------------

    def take(self, group_id: str, out: Outcome[None]) -> None:
        """Remove a group, if it exists. Members with a parked request have to join again."""
        group = self._groups.get(group_id)
        if group is None:
            return
        error = RebalanceInProgressError(f"group {group_id!r} has a new protocol: join again")
        for member in group.members.values():
            self._rebalancer.refuse(group, member, error, out)
        for member_id in (*group.members, *group.pending_members):
            self._rebalancer.forget_session(group, member_id)
        for kind in (JOIN, SYNC):
            self._rebalancer.timers.cancel((kind, group_id, ""))
        del self._groups[group_id]

    def put(self, group: Group, now_ms: int, out: Outcome[None], reason: str) -> None:
        """Add a group whose members have to join again."""
        self._start(group, now_ms)
        out.records.append(self._rebalancer.record(group))
        self._rebalancer.prepare(group, now_ms, out, reason)

    def restore(self, group_id: str, now_ms: int) -> None:
        """Make a group again from its record on disk, if there is one and no group."""
        value = self._stored.get(group_id)
        if value is not None and group_id not in self._groups:
            group = self._restored(group_id, value, now_ms)
            if group.is_in(_S.STABLE):
                self._rebalancer.prepare(group, now_ms, nothing(), "its state could not be written")

    # --- views -----------------------------------------------------------------------------------

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Iterator[GroupListing]:
        """Yield all groups, or those with one of ``states`` and of ``types`` (in any case).

        The groups are those of the first call; each is listed as it is when it is yielded.
        """
        wanted = {state.lower() for state in states}
        if types and "classic" not in {kind.lower() for kind in types}:
            return
        for group in list(self._groups.values()):
            if not wanted or group.state.value.lower() in wanted:
                yield GroupListing(group.group_id, group.protocol_type or "", group.state.value)

    def describe(self, group_id: str) -> GroupDescription:
        """Return the group's description. A group that does not exist is described as Dead."""
        group = self._groups.get(group_id)
        if group is None:
            return GroupDescription(group_id, _S.DEAD.value, "", "", ())
        return group.describe()

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def get(self, group_id: str) -> Group | None:
        """Return the group, or None. The caller must not change it."""
        return self._groups.get(group_id)

    @property
    def memory_bytes(self) -> int:
        """The memory that all groups take, roughly."""
        return self._groups.bytes

    def stored(self) -> dict[str, bytes]:
        """Return the state that survives a restart: group id -> GroupMetadataValue."""
        return dict(self._stored)

    # --- used by committed offsets ---------------------------------------------------------------

    def check_commit(self, request: CommitRequest, now_ms: int) -> None:
        """Check that the sender may commit offsets now. A member's session starts again."""
        group = self._groups.get(request.group_id)
        check_commit(group, request)
        if group is None and request.offsets:
            self._groups.check_growth(Group(request.group_id, now_ms), 1)
        member = group.members.get(request.member_id) if group is not None else None
        if group is not None and member is not None:
            self._rebalancer.refresh(group, member, now_ms)

    def check_transactional_commit(self, request: CommitRequest) -> None:
        """Check that the sender may commit offsets in a transaction. No session changes."""
        check_group_id(request.group_id)
        group = self._groups.get(request.group_id)
        check_transactional_commit(group, request)
        if group is None and request.offsets:
            self._groups.check_growth(Group(request.group_id, 0), 1)

    def ensure(self, group_id: str, now_ms: int) -> Group:
        """Return the group, and create it if it does not exist.

        A consumer that assigns its partitions itself commits to a group that no member joined.
        Such a group is Empty and has no protocol type.
        """
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, now_ms)
        return group

    def check_removable(self, group_id: str) -> None:
        """Check that a client may delete the group.

        Raises:
            GroupIdNotFoundError: the group does not exist.
            NonEmptyGroupError: it has members.
        """
        group = self._groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"group {group_id!r} does not exist")
        if not group.is_in(_S.EMPTY):
            raise NonEmptyGroupError(
                f"group {group_id!r} is not empty: its state is {group.state.value}",
                hint="Stop its consumers, or wait until their sessions end.",
            )

    def tombstones(self, group_id: str) -> list[StateRecord]:
        """Return the records that remove the group, if it is Empty when they are replayed."""
        return [StateRecord(encode_group_key(GroupKey(group_id)), None)]

    def needs_tombstone(self, group_id: str) -> bool:
        """Return whether a record of the group is in the log, or is being written."""
        group = self._groups.get(group_id)
        return group_id in self._stored or (group is not None and group.generation > 0)

    def forget(self, group_id: str) -> None:
        """Remove an empty group that was never written to the log."""
        group = self._groups.get(group_id)
        if group is not None and group.is_removable and not self.needs_tombstone(group_id):
            del self._groups[group_id]


def _check_same(what: str, sent: str | None, actual: str | None) -> None:
    if sent is not None and actual is not None and sent != actual:
        raise InconsistentGroupProtocolError(f"the group's {what} is {actual!r}, not {sent!r}")
