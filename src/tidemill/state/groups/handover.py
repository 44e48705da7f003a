"""Takes classic groups out of the machine and puts them in, when a group changes its protocol.

This module must not know the other protocol. ``consumer_groups.migration`` converts the members.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.state.errors import RebalanceInProgressError
from tidemill.state.groups.format import decode_group_value
from tidemill.state.groups.group import Group, GroupState, GroupTable
from tidemill.state.groups.rebalance import JOIN, SYNC, Rebalancer
from tidemill.state.outcome import Outcome, nothing


class Handover:
    """Moves groups between this machine and others.

    Args:
        rebalancer: has their timers and parked requests.
        stored: their records that are on disk.
    """

    def __init__(
        self, groups: GroupTable, rebalancer: Rebalancer, stored: Mapping[str, bytes]
    ) -> None:
        self._groups = groups
        self._rebalancer = rebalancer
        self._stored = stored

    def take(self, group_id: str, out: Outcome[None]) -> None:
        """Remove a group from this machine. Members with a parked request have to join again."""
        group = self._groups.get(group_id)
        if group is None:
            return
        error = RebalanceInProgressError(f"group {group_id!r} has a new protocol: join again")
        for member in group.members.values():
            self._rebalancer.answer(group.take_join(member), error, out)
            ticket, member.sync_ticket = member.sync_ticket, None
            self._rebalancer.answer(ticket, error, out)
            self._rebalancer.forget_session(group, member.member_id)
        for member_id in group.pending_members:
            self._rebalancer.forget_session(group, member_id)
        for kind in (JOIN, SYNC):
            self._rebalancer.timers.cancel((kind, group_id, ""))
        del self._groups[group_id]

    def put(self, group: Group, now_ms: int, out: Outcome[None], reason: str) -> None:
        """Add a group whose members have to join again, and start their sessions."""
        self._groups[group.group_id] = group
        for member in group.members.values():
            self._rebalancer.refresh(group, member, now_ms)
        out.records.append(self._rebalancer.record(group))
        if group.members:
            self._rebalancer.prepare(group, now_ms, out, reason)

    def restore(self, group_id: str, now_ms: int) -> None:
        """Make a group again from its record on disk, if there is one and no group."""
        value = self._stored.get(group_id)
        if value is None or group_id in self._groups:
            return
        group = Group.of_stored(group_id, decode_group_value(value))
        self._groups[group_id] = group
        for member in group.members.values():
            self._rebalancer.refresh(group, member, now_ms)
        if group.is_in(GroupState.STABLE):
            self._rebalancer.prepare(group, now_ms, nothing(), "its state could not be written")
