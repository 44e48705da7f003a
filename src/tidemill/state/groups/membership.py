"""SyncGroup, Heartbeat and LeaveGroup: what a member of a group may ask for.

The rules for joining are in ``join``. ``rebalance`` decides when a rebalance starts and ends. This
module must not know how a group is stored.

Source: KIP-345 (static members), KIP-559 (protocol in SyncGroup).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.errors import TidemillError
from tidemill.state.errors import InconsistentGroupProtocolError, UnknownMemberIdError
from tidemill.state.groups.commits import check_generation, rebalancing
from tidemill.state.groups.events import MemberChange
from tidemill.state.groups.group import Group, GroupState, GroupTable
from tidemill.state.groups.join import check_group_id
from tidemill.state.groups.members import Member, check_ids
from tidemill.state.groups.rebalance import Rebalancer, sync_result
from tidemill.state.groups.types import LeaveMember, SyncRequest
from tidemill.state.outcome import Outcome, nothing

_S = GroupState


class Membership:
    """The requests of members that have joined."""

    def __init__(self, groups: GroupTable, rebalancer: Rebalancer) -> None:
        self._groups = groups
        self._rebalancer = rebalancer

    def sync(self, request: SyncRequest, ticket: int, now_ms: int, out: Outcome[None]) -> None:
        """Answer or park a sync; raise the errors of ``Groups.sync``."""
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
        self, group_id: str, generation: int, member_id: str, instance_id: str | None, now_ms: int
    ) -> None:
        """Extend a member's session; raise the errors of ``Groups.heartbeat``."""
        group, member = self._member(group_id, member_id, instance_id, generation)
        self._rebalancer.refresh(group, member, now_ms)
        if group.is_in(_S.PREPARING_REBALANCE):
            raise rebalancing(group)

    def leave(
        self, group_id: str, members: Sequence[LeaveMember], now_ms: int
    ) -> Outcome[list[TidemillError | None]]:
        """Remove members; see ``Groups.leave``."""
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


def _check_same(what: str, sent: str | None, actual: str | None) -> None:
    if sent is not None and actual is not None and sent != actual:
        raise InconsistentGroupProtocolError(f"the group's {what} is {actual!r}, not {sent!r}")
