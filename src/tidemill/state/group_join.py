"""JoinGroup: who may join a group, under which id, and whether that needs a rebalance.

Changes groups through ``group_rebalance``, which decides when a rebalance ends. Knows no record
but the one of a static member's new id.

Source: KIP-345 and KIP-814 (static members), KIP-389 (group.max.size), KIP-394 (member ids).
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.errors import (
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    UnknownMemberIdError,
)
from tidemill.state.consumer_protocol import subscribed_topics
from tidemill.state.group import Group, GroupState
from tidemill.state.group_members import Member
from tidemill.state.group_rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Rebalancer
from tidemill.state.outcome import Outcome
from tidemill.state.types import JoinRequest, JoinResult

_S = GroupState

MAX_STRING_BYTES = 32_000
"""Longest id or name in a request; leaves room for the suffix of member ids."""


class Joins:
    """Takes members into groups; makes groups for the first of them."""

    def __init__(
        self,
        groups: dict[str, Group],
        rebalancer: Rebalancer,
        *,
        session_bounds: tuple[int, int],
        max_size: int,
        new_id: Callable[[], str],
    ) -> None:
        self._groups = groups
        self._rebalancer = rebalancer
        self._session_bounds = session_bounds
        self._max_size = max_size
        self._new_id = new_id

    def join(self, request: JoinRequest, ticket: int, now_ms: int, out: Outcome[None]) -> None:
        """Join, or raise why not; see ``Groups.join``."""
        check_group_id(request.group_id)
        _check_strings(request)
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
            self.remove_pending(group, member_id, now_ms, out)
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
        if request.member_id in group.pending_members and request.instance_id is None:
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

    def remove_pending(self, group: Group, member_id: str, now_ms: int, out: Outcome[None]) -> None:
        """Forget an id that was given out and never used."""
        group.remove(member_id)
        self._rebalancer.forget_session(group, member_id)
        self._rebalancer.complete_if_all_joined(group, now_ms, out)


def check_group_id(group_id: str) -> None:
    """Refuse a group id that is empty, or too long for the group's records.

    Raises:
        InvalidGroupIdError: as it says.
    """
    if not group_id:
        raise InvalidGroupIdError("the group id is empty", hint="Set group.id.")
    if len(group_id.encode()) > MAX_STRING_BYTES:
        raise InvalidGroupIdError(f"the group id is longer than {MAX_STRING_BYTES} bytes")


def _check_strings(request: JoinRequest) -> None:
    """Refuse what the group's record could not hold: its strings have 16-bit lengths."""
    strings = [
        request.client_id,
        request.client_host,
        request.instance_id or "",
        request.protocol_type,
        *_names(request),
    ]
    if any(len(text.encode()) > MAX_STRING_BYTES for text in strings):
        raise InvalidRequestError(f"a string of the request exceeds {MAX_STRING_BYTES} bytes")


def _names(request: JoinRequest) -> list[str]:
    return [name for name, _ in request.protocols]
