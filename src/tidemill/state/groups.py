"""Classic consumer groups: the commands of the group protocol, as one pure state machine.

What survives a restart changes in ``replay`` only: the last completed generation of each group.
What does not (sessions, parked requests, a rebalance under way) changes in the commands, as in
Apache Kafka's coordinator: a broker that restarts in the middle of a rebalance lets the members
join again. Knows no socket, no clock and no offset; ``offsets`` asks here who may commit.

``now_ms`` is always wall-clock time in milliseconds since the epoch.

Source: KIP-62, KIP-134, KIP-345, KIP-389 (group.max.size), KIP-394, KIP-559, KIP-814.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from tidemill.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    NonEmptyGroupError,
    TidemillError,
    UnknownMemberIdError,
)
from tidemill.state.group import Group, GroupState
from tidemill.state.group_commits import (
    check_commit,
    check_generation,
    check_transactional_commit,
    rebalancing,
)
from tidemill.state.group_join import Joins, check_group_id
from tidemill.state.group_members import Member
from tidemill.state.group_rebalance import (
    JOIN,
    SESSION,
    Rebalancer,
    sync_result,
)
from tidemill.state.offsets_format import (
    GroupKey,
    decode_group_value,
    decode_key,
    encode_group_key,
)
from tidemill.state.outcome import Outcome, Reply, StateRecord, nothing
from tidemill.state.types import (
    CommitRequest,
    GroupDescription,
    GroupListing,
    JoinRequest,
    LeaveMember,
    SyncRequest,
)

_S = GroupState


class Groups:
    """All classic groups.

    Args:
        min_session_timeout_ms, max_session_timeout_ms: bounds of members' session timeouts.
        initial_rebalance_delay_ms: how long an empty group's first rebalance waits for more
            members, extended while they come, up to the rebalance timeout.
        max_size: members per group.
        new_id: makes the unique part of member ids.
    """

    def __init__(
        self,
        *,
        min_session_timeout_ms: int = 6000,
        max_session_timeout_ms: int = 1_800_000,
        initial_rebalance_delay_ms: int = 3000,
        max_size: int = 2**31 - 1,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._max_size = max_size
        self._groups: dict[str, Group] = {}
        self._stored: dict[str, bytes] = {}
        self._rebalancer = Rebalancer(initial_rebalance_delay_ms)
        self._joins = Joins(
            self._groups,
            self._rebalancer,
            session_bounds=(min_session_timeout_ms, max_session_timeout_ms),
            max_size=max_size,
            new_id=new_id,
        )

    # --- what survives a restart -----------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of ``__consumer_offsets``; False (and no effect) if it is not a
        group's. Used for each record that was written, and for all of them at start.

        Raises:
            InvalidRecordError, FormatVersionError: the record can't be read.
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
        """All records have been replayed at start: the groups live, sessions start ``now``."""
        out = nothing()
        for group_id, value in self._stored.items():
            group = Group.of_stored(group_id, decode_group_value(value))
            self._groups[group_id] = group
            for member in group.members.values():
                self._rebalancer.refresh(group, member, now_ms)
            if len(group.members) > self._max_size:  # the limit was lowered
                self._rebalancer.prepare(group, now_ms, out)
        return out

    def write_failed(self, outcome: Outcome[Any], now_ms: int) -> list[Reply]:
        """The outcome's records could not be written: what to answer instead of its replies.

        A generation that could not be persisted is given up; its members join again.
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
                self._rebalancer.prepare(group, now_ms, out)
        return out.replies

    # --- JoinGroup -------------------------------------------------------------------------------

    def join(self, request: JoinRequest, ticket: int, now_ms: int) -> Outcome[None]:
        """A member joins. The answer, a JoinResult or an error, comes as a reply to ``ticket``:
        at once, or when the rebalance ends.

        Errors: InvalidGroupIdError, InvalidSessionTimeoutError, InconsistentGroupProtocolError,
        GroupMaxSizeReachedError, MemberIdRequiredError (join again with its ``member_id``),
        UnknownMemberIdError, FencedInstanceIdError; while parked RebalanceInProgressError (the
        member has joined again on another connection) and UnknownMemberIdError (it was removed).
        """
        out = nothing()
        self._rebalancer.park(ticket)
        try:
            self._joins.join(request, ticket, now_ms, out)
        except TidemillError as error:
            self._rebalancer.answer(ticket, error, out)
        return out

    # --- SyncGroup -------------------------------------------------------------------------------

    def sync(self, request: SyncRequest, ticket: int, now_ms: int) -> Outcome[None]:
        """A member asks for its assignment; the leader brings all. The answer, a SyncResult or an
        error, comes as a reply to ``ticket``.

        Errors: InvalidGroupIdError, UnknownMemberIdError, FencedInstanceIdError,
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
        self._rebalancer.has_synced(group, member.member_id)
        if group.is_in(_S.STABLE):
            self._rebalancer.refresh(group, member, now_ms)
            self._rebalancer.answer(ticket, sync_result(group, member), out)
            return
        self._rebalancer.park_sync(group, member, ticket, out)
        if group.leader == member.member_id:
            self._rebalancer.assign(group, dict(request.assignments), now_ms, out)

    # --- Heartbeat, LeaveGroup -------------------------------------------------------------------

    def heartbeat(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        now_ms: int,
    ) -> Outcome[None]:
        """A member is alive.

        Raises:
            InvalidGroupIdError, UnknownMemberIdError, FencedInstanceIdError,
            IllegalGenerationError: as their names say.
            RebalanceInProgressError: it has to join again (it is alive nevertheless).
        """
        group, member = self._member(group_id, member_id, instance_id, generation)
        self._rebalancer.refresh(group, member, now_ms)
        if group.is_in(_S.PREPARING_REBALANCE):
            raise rebalancing(group)
        return nothing()

    def leave(
        self, group_id: str, members: Sequence[LeaveMember], now_ms: int
    ) -> Outcome[list[TidemillError | None]]:
        """Members leave; the result has an error or None for each.

        Raises:
            InvalidGroupIdError: the group id is empty.
            UnknownMemberIdError: there is no such group.
        """
        check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownMemberIdError(f"there is no group {group_id!r}")
        out = nothing()
        result: list[TidemillError | None] = []
        for leaving in members:
            try:
                self._leave(group, leaving, out)
                result.append(None)
            except TidemillError as error:
                result.append(error)
        if None in result:
            self._rebalancer.after_removal(group, now_ms, out)
        return Outcome(result, out.records, out.replies)

    def _leave(self, group: Group, leaving: LeaveMember, out: Outcome[None]) -> None:
        member_id = leaving.member_id
        if not member_id and leaving.instance_id is not None:
            member_id = group.static_members.get(leaving.instance_id, "")
        if member_id in group.pending_members:
            group.remove(member_id)
            self._rebalancer.forget_session(group, member_id)
            return
        group.check_member(member_id, leaving.instance_id)
        self._rebalancer.drop(group, group.members[member_id], out)

    # --- time ------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When ``tick`` has something to do next, in ms since the epoch; None: nothing waits."""
        return self._rebalancer.timers.next_deadline()

    def tick(self, now_ms: int) -> Outcome[None]:
        """Apply every time limit that has passed."""
        out = nothing()
        while (due := self._rebalancer.timers.pop_due(now_ms)) is not None:
            kind, group_id, member_id = due
            group = self._groups.get(group_id)
            if group is None:
                continue
            if kind == SESSION:
                self._session_is_over(group, member_id, now_ms, out)
            elif kind == JOIN:
                self._rebalancer.join_time_is_up(group, now_ms, out)
            else:
                self._rebalancer.sync_time_is_up(group, now_ms, out)
        return out

    def _session_is_over(
        self, group: Group, member_id: str, now_ms: int, out: Outcome[None]
    ) -> None:
        member = group.members.get(member_id)
        if member_id in group.pending_members:
            self._joins.remove_pending(group, member_id, now_ms, out)
        elif member is not None and not member.is_kept_alive:
            self._rebalancer.drop(group, member, out)
            self._rebalancer.after_removal(group, now_ms, out)

    def cancel(self, ticket: int) -> None:
        """The connection of a parked request has gone; its ticket is never answered. The member
        counts as before: it may ask again on another connection."""
        self._rebalancer.cancel(ticket)

    # --- views and checks ------------------------------------------------------------------------

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> list[GroupListing]:
        """All groups, or those in one of ``states`` and of one of ``types`` (any case)."""
        wanted = {state.lower() for state in states}
        if types and "classic" not in {kind.lower() for kind in types}:
            return []
        return [
            GroupListing(group.group_id, group.protocol_type or "", group.state.value)
            for group in self._groups.values()
            if not wanted or group.state.value.lower() in wanted
        ]

    def describe(self, group_id: str) -> GroupDescription:
        """The group; one that does not exist is described as Dead."""
        group = self._groups.get(group_id)
        if group is None:
            return GroupDescription(group_id, _S.DEAD.value, "", "", ())
        return group.describe()

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def get(self, group_id: str) -> Group | None:
        """The group, to look at, or None."""
        return self._groups.get(group_id)

    def ensure(self, group_id: str, now_ms: int) -> Group:
        """The group; made Empty, without a protocol type, where offsets are committed to one that
        no member has joined (a "simple" consumer's)."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, now_ms)
        return group

    def check_commit(self, request: CommitRequest, now_ms: int) -> None:
        """Whether the sender may commit offsets now; a member's session is refreshed.

        Raises:
            UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError,
            RebalanceInProgressError: see ``group_commits.check_commit``.
        """
        group = self._groups.get(request.group_id)
        check_commit(group, request)
        member = group.members.get(request.member_id) if group is not None else None
        if group is not None and member is not None:
            self._rebalancer.refresh(group, member, now_ms)

    def check_transactional_commit(self, request: CommitRequest) -> None:
        """Whether the sender may commit offsets inside a transaction; nobody's session changes.

        Raises:
            InvalidGroupIdError, UnknownMemberIdError, FencedInstanceIdError,
            IllegalGenerationError: see ``group_commits.check_transactional_commit``.
        """
        check_group_id(request.group_id)
        check_transactional_commit(self._groups.get(request.group_id), request)

    def check_removable(self, group_id: str) -> None:
        """Whether a client may delete the group.

        Raises:
            GroupIdNotFoundError, NonEmptyGroupError: as their names say.
        """
        group = self._groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"there is no group {group_id!r}")
        if not group.is_in(_S.EMPTY):
            raise NonEmptyGroupError(
                f"group {group_id!r} is {group.state.value}",
                hint="Stop its consumers, or wait for their sessions to end.",
            )

    def tombstone(self, group_id: str) -> StateRecord:
        """The record that removes the group, if it is Empty by then."""
        return StateRecord(encode_group_key(GroupKey(group_id)), None)

    def needs_tombstone(self, group_id: str) -> bool:
        """Whether a record of the group is in the log, or may be on its way there."""
        group = self._groups.get(group_id)
        return group_id in self._stored or (group is not None and group.generation > 0)

    def forget(self, group_id: str) -> None:
        """Drop an empty group of which nothing was ever written."""
        group = self._groups.get(group_id)
        if group is not None and group.is_removable and not self.needs_tombstone(group_id):
            del self._groups[group_id]

    def stored(self) -> dict[str, bytes]:
        """What survives a restart: group id -> GroupMetadataValue."""
        return dict(self._stored)

    def _member(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[Group, Member]:
        check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownMemberIdError(f"there is no group {group_id!r}")
        group.check_member(member_id, instance_id)
        check_generation(group, generation)
        return group, group.members[member_id]


def _check_same(what: str, given: str | None, actual: str | None) -> None:
    if given is not None and actual is not None and given != actual:
        raise InconsistentGroupProtocolError(f"the group's {what} is {actual!r}, not {given!r}")
