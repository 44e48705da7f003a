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

from tidemill.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    TidemillError,
    UnknownMemberIdError,
)
from tidemill.state.consumer_protocol import subscribed_topics
from tidemill.state.group import Group, GroupState
from tidemill.state.group_members import Member
from tidemill.state.group_rebalance import (
    JOIN,
    NEW_MEMBER_JOIN_TIMEOUT_MS,
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
    JoinResult,
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
        self._session_bounds = (min_session_timeout_ms, max_session_timeout_ms)
        self._max_size = max_size
        self._new_id = new_id
        self._groups: dict[str, Group] = {}
        self._stored: dict[str, bytes] = {}
        self._rebalancer = Rebalancer(initial_rebalance_delay_ms)

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

    def write_failed(self, outcome: Outcome[object], now_ms: int) -> list[Reply]:
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
            self._join(request, ticket, now_ms, out)
        except TidemillError as error:
            self._rebalancer.answer(ticket, error, out)
        return out

    def _join(self, request: JoinRequest, ticket: int, now_ms: int, out: Outcome[None]) -> None:
        _check_group_id(request.group_id)
        low, high = self._session_bounds
        if not low <= request.session_timeout_ms <= high:
            raise InvalidSessionTimeoutError(
                f"session timeout {request.session_timeout_ms} ms is not within {low} to {high} ms",
                hint="Set session.timeout.ms of the client within the broker's bounds.",
            )
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise UnknownMemberIdError(
                    f"there is no group {request.group_id!r} with member {request.member_id!r}"
                )
            group = Group(request.group_id, now_ms)
        self._check_room(group, request, now_ms, out)
        if not group.supports(request.protocol_type, request.protocols):
            raise InconsistentGroupProtocolError(
                f"group {group.group_id!r}: no protocol of {_names(request)} (type "
                f"{request.protocol_type!r}) is supported by all members",
                hint="All members must share a protocol type and an assignor.",
            )
        if request.member_id:
            self._join_known(group, request, ticket, now_ms, out)
        else:
            self._join_unknown(group, request, ticket, now_ms, out)
        self._groups.setdefault(group.group_id, group)

    def _check_room(
        self, group: Group, request: JoinRequest, now_ms: int, out: Outcome[None]
    ) -> None:
        """Hold the limit of members; while a rebalance is prepared those count that have joined,
        so that a group over a lowered limit loses whoever joins last."""
        member_id = request.member_id or group.static_members.get(request.instance_id or "", "")
        member = group.members.get(member_id)
        if group.is_in(_S.EMPTY):
            return
        if group.is_in(_S.PREPARING_REBALANCE):
            if (member and member.awaits_join) or group.awaiting_join < self._max_size:
                return
        elif member or len(group.members) < self._max_size:
            return
        if member is not None:
            self._rebalancer.drop(group, member, out)
            self._rebalancer.after_removal(group, now_ms, out)
        elif member_id in group.pending_members:
            self._remove_pending(group, member_id, now_ms, out)
        raise GroupMaxSizeReachedError(
            f"group {group.group_id!r} has {self._max_size} members, the most it may have"
        )

    def _join_unknown(
        self, group: Group, request: JoinRequest, ticket: int, now_ms: int, out: Outcome[None]
    ) -> None:
        instance_id = request.instance_id
        prefix = request.client_id if instance_id is None else instance_id
        member_id = f"{prefix}-{self._new_id()}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static(group, request, member_id, ticket, now_ms, out)
        elif instance_id is None and request.require_known_member_id:
            if len(group.pending_members) >= self._max_size:
                raise GroupMaxSizeReachedError(
                    f"group {group.group_id!r} has {self._max_size} members about to join"
                )
            group.pending_members.add(member_id)
            self._groups[group.group_id] = group
            self._rebalancer.expect_heartbeat(group, member_id, request.session_timeout_ms, now_ms)
            raise MemberIdRequiredError("join again with this member id", member_id=member_id)
        else:
            self._add(group, request, member_id, ticket, now_ms, out)

    def _join_known(
        self, group: Group, request: JoinRequest, ticket: int, now_ms: int, out: Outcome[None]
    ) -> None:
        if request.member_id in group.pending_members:
            self._add(group, request, request.member_id, ticket, now_ms, out)
            return
        group.check_member(request.member_id, request.instance_id)
        member = group.members[request.member_id]
        unchanged = member.protocols == request.protocols
        if group.is_in(_S.COMPLETING_REBALANCE) and unchanged:
            # it missed the answer to its join: the current generation once more
            self._answer_with_generation(group, member, ticket, now_ms, out)
        elif group.is_in(_S.STABLE) and unchanged and group.leader != member.member_id:
            self._answer_with_generation(group, member, ticket, now_ms, out)
        else:
            # new metadata, or the leader, who asks for a rebalance by joining again
            group.update(member, request)
            self._rebalancer.park_join(group, member, ticket, out)
            self._rebalancer.prepare_or_complete(group, now_ms, out)

    def _answer_with_generation(
        self, group: Group, member: Member, ticket: int, now_ms: int, out: Outcome[None]
    ) -> None:
        self._rebalancer.refresh(group, member, now_ms)
        self._rebalancer.answer(ticket, self._rebalancer.join_result(group, member), out)

    def _add(
        self,
        group: Group,
        request: JoinRequest,
        member_id: str,
        ticket: int,
        now_ms: int,
        out: Outcome[None],
    ) -> None:
        member = Member.of_request(request, member_id)
        member.is_new = True
        group.new_member_added = True
        group.add(member, request.protocol_type)
        self._rebalancer.park_join(group, member, ticket, out)
        self._rebalancer.expect_heartbeat(group, member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, now_ms)
        self._rebalancer.prepare_or_complete(group, now_ms, out)

    def _replace_static(
        self,
        group: Group,
        request: JoinRequest,
        new_id: str,
        ticket: int,
        now_ms: int,
        out: Outcome[None],
    ) -> None:
        """A static member has restarted (KIP-345): it takes its old place under a new id, and
        while the group is Stable and its subscription the same, without a rebalance."""
        assert request.instance_id is not None
        old_leader = group.leader
        old_id = group.static_members[request.instance_id]
        member = group.replace_static(request.instance_id, new_id)
        self._rebalancer.forget_session(group, old_id)
        self._rebalancer.fence_old(group, member, out)
        old_topics = subscribed_topics(member.metadata(group.protocol))
        group.update(member, request)
        self._rebalancer.refresh(group, member, now_ms)
        same_topics = old_topics == subscribed_topics(member.metadata(group.protocol))
        if group.is_in(_S.STABLE) and group.select_protocol() == group.protocol and same_topics:
            out.records.append(self._rebalancer.record(group))
            result = self._rebalancer.join_result(group, member, skip_assignment=True)
            if not request.supports_skipping_assignment:
                # told the old leader's id, an old client does not take itself for the leader,
                # whose assignment a Stable group would not take
                result = JoinResult(
                    group.generation,
                    group.protocol_type or "",
                    group.protocol or "",
                    old_leader or "",
                    new_id,
                )
            self._rebalancer.answer(ticket, result, out)
            return
        self._rebalancer.park_join(group, member, ticket, out)
        self._rebalancer.prepare_or_complete(group, now_ms, out)

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
            raise _rebalancing(group)
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
            raise _rebalancing(group)
        return nothing()

    def leave(
        self, group_id: str, members: Sequence[LeaveMember], now_ms: int
    ) -> Outcome[list[TidemillError | None]]:
        """Members leave; the result has an error or None for each.

        Raises:
            InvalidGroupIdError: the group id is empty.
            UnknownMemberIdError: there is no such group.
        """
        _check_group_id(group_id)
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
            self._remove_pending(group, member_id, now_ms, out)
        elif member is not None and not member.is_kept_alive:
            self._rebalancer.drop(group, member, out)
            self._rebalancer.after_removal(group, now_ms, out)

    def _remove_pending(
        self, group: Group, member_id: str, now_ms: int, out: Outcome[None]
    ) -> None:
        group.remove(member_id)
        self._rebalancer.forget_session(group, member_id)
        self._rebalancer.complete_if_all_joined(group, now_ms, out)

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
            UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError: as they say.
            RebalanceInProgressError: the member has joined a new generation, but not synced.
        """
        group = self._groups.get(request.group_id)
        if group is None:
            if request.generation >= 0:
                raise IllegalGenerationError(
                    f"there is no group {request.group_id!r} in generation {request.generation}"
                )
            return
        if request.generation < 0 and group.is_in(_S.EMPTY):
            return
        if request.generation < 0 and not request.member_id and request.instance_id is None:
            raise UnknownMemberIdError(
                f"group {group.group_id!r} has members, only they may commit",
                hint="Use another group.id for a consumer that assigns its partitions itself.",
            )
        group.check_member(request.member_id, request.instance_id)
        _check_generation(group, request.generation)
        if group.is_in(_S.COMPLETING_REBALANCE):
            raise _rebalancing(group)
        self._rebalancer.refresh(group, group.members[request.member_id], now_ms)

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

    def is_stored(self, group_id: str) -> bool:
        """Whether a record of the group is in the log."""
        return group_id in self._stored

    def forget(self, group_id: str) -> None:
        """Drop an empty group of which nothing is stored."""
        group = self._groups.get(group_id)
        if group is not None and group.is_removable and group_id not in self._stored:
            del self._groups[group_id]

    def stored(self) -> dict[str, bytes]:
        """What survives a restart: group id -> GroupMetadataValue."""
        return dict(self._stored)

    def _member(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[Group, Member]:
        _check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownMemberIdError(f"there is no group {group_id!r}")
        group.check_member(member_id, instance_id)
        _check_generation(group, generation)
        return group, group.members[member_id]


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupIdError("the group id is empty", hint="Set group.id.")


def _check_generation(group: Group, generation: int) -> None:
    if generation != group.generation:
        raise IllegalGenerationError(
            f"group {group.group_id!r} is in generation {group.generation}, not {generation}"
        )


def _check_same(what: str, given: str | None, actual: str | None) -> None:
    if given is not None and actual is not None and given != actual:
        raise InconsistentGroupProtocolError(f"the group's {what} is {actual!r}, not {given!r}")


def _rebalancing(group: Group) -> RebalanceInProgressError:
    return RebalanceInProgressError(f"group {group.group_id!r} is rebalancing: join again")


def _names(request: JoinRequest) -> list[str]:
    return [name for name, _ in request.protocols]
