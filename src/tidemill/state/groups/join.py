"""JoinGroup: which clients may join a group, with which id, and whether that needs a rebalance.

It changes groups through ``rebalance``, which decides when a rebalance ends. This module must not
know any record but the one for a static member's new id.

Source: KIP-345 and KIP-814 (static members), KIP-389 (group.max.size), KIP-394 (member ids).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tidemill.state.errors import (
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    UnknownMemberIdError,
)
from tidemill.state.groups.consumer_protocol import subscribed_topics
from tidemill.state.groups.events import MemberChange, note_member
from tidemill.state.groups.group import Group, GroupState, GroupTable
from tidemill.state.groups.members import Member, check_ids, size_of_request
from tidemill.state.groups.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Rebalancer
from tidemill.state.groups.types import JoinRequest
from tidemill.state.outcome import Outcome

_S = GroupState

MAX_STRING_BYTES = 32_000
"""The longest id or name in a request. It leaves space for the suffix of member ids."""
MAX_PROTOCOLS = 32
"""Protocols (assignors) of a member. Clients have one or two."""


class Joins:
    """Adds members to groups, and creates a group for its first member."""

    def __init__(
        self,
        groups: GroupTable,
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
        """Join, or raise the errors of ``Groups.join``."""
        self.check_request(request)
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise UnknownMemberIdError(
                    f"group {request.group_id!r} does not exist: it has no member "
                    f"{request.member_id!r}"
                )
            group = Group(request.group_id, now_ms)
        known = request.member_id or group.static_members.get(request.instance_id or "", "")
        self._check_limits(group, known, now_ms, out)
        self._check_memory(group, group.members.get(known), request)
        if not group.supports(request.protocol_type, request.protocols):
            raise InconsistentGroupProtocolError(
                f"group {group.group_id!r}: not all members support one of {_names(request)} "
                f"(protocol type {request.protocol_type!r})",
                hint="All members must share a protocol type and an assignor.",
            )
        if request.member_id:
            self._join_known(group, request, ticket, now_ms, out)
        else:
            self._join_unknown(group, request, ticket, now_ms, out)
        if group.table is None:
            self._groups[group.group_id] = group

    def check_request(self, request: JoinRequest) -> None:
        """Check what does not depend on the group."""
        check_group_id(request.group_id)
        if len(request.protocols) > MAX_PROTOCOLS:
            raise InconsistentGroupProtocolError(
                f"a member of group {request.group_id!r} supports {len(request.protocols)} "
                f"protocols: at most {MAX_PROTOCOLS} are allowed"
            )
        strings = (request.client_id, request.client_host, request.instance_id)
        check_strings((*strings, request.protocol_type, *_names(request)))
        low, high = self._session_bounds
        if not low <= request.session_timeout_ms <= high:
            raise InvalidSessionTimeoutError(
                f"invalid session timeout {request.session_timeout_ms} ms: it must be from {low} "
                f"to {high} ms",
                hint="Set session.timeout.ms of the client within these limits.",
            )

    def _check_memory(self, group: Group, member: Member | None, request: JoinRequest) -> None:
        """Check that the group, and the broker, have space for what the member sends."""
        size = size_of_request(
            request.protocols, request.instance_id, request.client_id, request.client_host
        )
        self._groups.check_member(group.group_id, size)
        before = 0 if member is None else member.size - len(member.assignment)
        self._groups.check_growth(group, size - before)

    def _check_limits(self, group: Group, member_id: str, now_ms: int, out: Outcome[None]) -> None:
        """Check the largest number of members.

        During the join phase only members that have joined count. So a group that is larger than a
        lowered limit loses the members that join last.
        """
        member = group.members.get(member_id)
        if group.is_in(_S.EMPTY):
            return
        if group.is_in(_S.PREPARING_REBALANCE):
            if (member and member.awaits_join) or group.awaiting_join < self._max_size:
                return
        elif member or len(group.members) < self._max_size:
            return
        if member is not None:
            reason = f"the group has {self._max_size} members already (groups.max_size)"
            self._rebalancer.drop(group, member, out, reason)
            self._rebalancer.after_removal(group, now_ms, out, f"member {member_id}: {reason}")
        elif member_id in group.pending_members:
            self.remove_pending(group, member_id, now_ms, out)
        raise GroupMaxSizeReachedError(
            f"group {group.group_id!r} is full: it has {self._max_size} members"
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
                    f"group {group.group_id!r} is full: {self._max_size} clients are about to join"
                )
            group.expect(member_id)
            if group.table is None:
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
        check_ids(group, request.member_id, request.instance_id)
        member = group.members[request.member_id]
        unchanged = member.protocols == request.protocols
        follows = group.is_in(_S.STABLE) and group.leader != member.member_id
        if unchanged and (follows or group.is_in(_S.COMPLETING_REBALANCE)):
            # The member missed the answer to its join: answer with the current generation again.
            self._rebalancer.refresh(group, member, now_ms)
            self._rebalancer.answer(ticket, self._rebalancer.join_result(group, member), out)
        else:
            # New metadata, or the leader, which asks for a rebalance by joining again.
            what = "leader" if unchanged else "member with a new subscription"
            reason = _because(f"{what} {member.member_id} joined again", request.reason)
            group.update(member, request)
            self._rebalancer.park_join(group, member, ticket, out)
            self._rebalancer.prepare_or_complete(group, now_ms, out, reason)

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
        note_member(MemberChange.JOINED, group, member_id, member, request.reason, out)
        reason = _because(f"member {member_id} joined", request.reason)
        self._rebalancer.prepare_or_complete(group, now_ms, out, reason)

    def _replace_static(
        self,
        group: Group,
        request: JoinRequest,
        new_id: str,
        ticket: int,
        now_ms: int,
        out: Outcome[None],
    ) -> None:
        """Give a restarted static member its old place with a new id (KIP-345).

        There is no rebalance if the group is Stable and the member's subscription is the same.
        """
        assert request.instance_id is not None
        old_leader = group.leader
        old_id = group.static_members[request.instance_id]
        member = group.replace_static(request.instance_id, new_id)
        self._rebalancer.forget_session(group, old_id)
        self._rebalancer.fence_old(group, member, out)
        old_metadata = member.metadata(group.protocol)
        group.update(member, request)
        self._rebalancer.refresh(group, member, now_ms)
        note_member(MemberChange.REPLACED, group, new_id, member, f"its id was {old_id}", out)
        same_topics = _same_topics(old_metadata, member.metadata(group.protocol))
        if group.is_in(_S.STABLE) and group.select_protocol() == group.protocol and same_topics:
            out.records.append(self._rebalancer.record(group))
            result = self._rebalancer.join_result(group, member, skip_assignment=True)
            if not request.supports_skipping_assignment:
                # An old client must not become the leader: a Stable group would not accept its
                # assignment. So it gets the old leader's id.
                result = replace(result, leader=old_leader or "", members=(), skip_assignment=False)
            self._rebalancer.answer(ticket, result, out)
            return
        self._rebalancer.park_join(group, member, ticket, out)
        reason = _because(f"static member {new_id} joined again", request.reason)
        self._rebalancer.prepare_or_complete(group, now_ms, out, reason)

    def remove_pending(self, group: Group, member_id: str, now_ms: int, out: Outcome[None]) -> None:
        """Remove an id that a client got and never joined with."""
        group.remove(member_id)
        self._rebalancer.forget_session(group, member_id)
        self._rebalancer.complete_if_all_joined(group, now_ms, out)


def _same_topics(one: bytes, other: bytes) -> bool:
    if one == other:
        return True
    topics = subscribed_topics(one)
    return topics is not None and topics == subscribed_topics(other)


def check_group_id(group_id: str) -> None:
    """Check a group id."""
    if not group_id:
        raise InvalidGroupIdError("the group id is empty", hint="Set group.id.")
    if len(group_id.encode()) > MAX_STRING_BYTES:
        raise InvalidGroupIdError(f"the group id is longer than {MAX_STRING_BYTES} bytes")


def check_strings(strings: Iterable[str | None]) -> None:
    """Check that what a member sends fits into the group's records, which have 16-bit lengths."""
    if any(len(text.encode()) > MAX_STRING_BYTES for text in strings if text):
        raise InvalidRequestError(
            f"a string in the request is longer than {MAX_STRING_BYTES} bytes"
        )


def _because(what: str, reason: str | None) -> str:
    """Return what happened, with the reason that the client gives (KIP-800)."""
    return f"{what}: {reason}" if reason else what


def _names(request: JoinRequest) -> list[str]:
    return [name for name, _ in request.protocols]
