"""Takes a classic group from one generation to the next, within the time limits of its members.

A rebalance has two phases. In the join phase the group waits until all members have joined. In the
sync phase it waits until the leader has sent the assignment and each member has asked for its own.

Each method takes the group, the time and the outcome that it adds replies and records to. This
module must not know how requests are checked: that is in ``join`` and ``machine``.

Source: KIP-62, KIP-134 (initial rebalance delay), KIP-345, KIP-394; Apache Kafka's documentation
of the group coordinator.
"""

from __future__ import annotations

from tidemill.errors import TidemillError
from tidemill.state.errors import (
    FencedInstanceIdError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidemill.state.groups.events import GroupChange, MemberChange, note_group, note_member
from tidemill.state.groups.format import GroupKey, encode_group_key, encode_group_value
from tidemill.state.groups.group import Group, GroupState
from tidemill.state.groups.members import Member
from tidemill.state.groups.types import JoinResult, SyncResult
from tidemill.state.outcome import Outcome, StateRecord
from tidemill.state.timers import Timers

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
"""How long the join of a member that has not seen a generation stays parked at most. Such a member
sends no heartbeats, so a client that is gone would otherwise stay in the group for ever."""

_S = GroupState

SESSION = "session"
JOIN = "join"
SYNC = "sync"
TimerKey = tuple[str, str, str]
"""(SESSION, group, member), (JOIN, group, "") or (SYNC, group, "")."""


class Rebalancer:
    """Joins, syncs and their time limits, for all groups."""

    def __init__(self, initial_rebalance_delay_ms: int) -> None:
        self._initial_delay_ms = initial_rebalance_delay_ms
        self.timers: Timers[TimerKey] = Timers()
        self._parked: set[int] = set()

    # --- tickets ---------------------------------------------------------------------------------

    def park(self, ticket: int) -> None:
        """Accept a ticket. It is answered once, unless it is cancelled."""
        self._parked.add(ticket)

    def cancel(self, ticket: int) -> None:
        """Never answer the ticket: its client is gone."""
        self._parked.discard(ticket)

    def answer(self, ticket: int | None, answer: object, out: Outcome[None]) -> None:
        """Answer a ticket, unless it is None or was cancelled."""
        if ticket is not None and ticket in self._parked:
            self._parked.remove(ticket)
            out.replies.append((ticket, answer))

    # --- members ---------------------------------------------------------------------------------

    def expect_heartbeat(self, group: Group, member_id: str, within_ms: int, now_ms: int) -> None:
        """Start or restart a member's session."""
        self.timers.set((SESSION, group.group_id, member_id), now_ms + within_ms)

    def refresh(self, group: Group, member: Member, now_ms: int) -> None:
        """Restart the session of a member that sent a request."""
        self.expect_heartbeat(group, member.member_id, member.session_timeout_ms, now_ms)

    def forget_session(self, group: Group, member_id: str) -> None:
        """End the session of a member id without any effect on the group."""
        self.timers.cancel((SESSION, group.group_id, member_id))

    def park_join(self, group: Group, member: Member, ticket: int, out: Outcome[None]) -> None:
        """Park a member's join. An older join, from a connection that it gave up, gets an error."""
        replaced = group.park_join(member, ticket)
        self.answer(replaced, _superseded(group, member), out)

    def park_sync(self, group: Group, member: Member, ticket: int, out: Outcome[None]) -> None:
        """Park a member's sync. An older sync, from a connection that it gave up, gets an error."""
        replaced, member.sync_ticket = member.sync_ticket, ticket
        self.answer(replaced, _superseded(group, member), out)

    def refuse(
        self, group: Group, member: Member, error: TidemillError, out: Outcome[None]
    ) -> None:
        """Answer the parked requests of a member with an error."""
        self.answer(group.take_join(member), error, out)
        self._end_sync(member, error, out)

    def drop(
        self,
        group: Group,
        member: Member,
        out: Outcome[None],
        reason: str | None,
        what: MemberChange = MemberChange.REMOVED,
    ) -> None:
        """Remove a member and answer its parked requests. Call ``after_removal`` next."""
        note_member(what, group, member.member_id, member, reason, out)
        error = UnknownMemberIdError(
            f"member {member.member_id!r} was removed from group {group.group_id!r}"
        )
        self.refuse(group, member, error, out)
        group.remove(member.member_id)
        self.forget_session(group, member.member_id)
        self._stop_sync_timer_if_done(group)

    def fence_old(self, group: Group, member: Member, out: Outcome[None]) -> None:
        """Fence the old id of a static member that has a new one: its parked requests fail."""
        error = FencedInstanceIdError(
            f"group {group.group_id!r}: a newer member uses the instance id {member.instance_id!r}"
        )
        self.refuse(group, member, error, out)
        member.is_new = False

    def after_removal(self, group: Group, now_ms: int, out: Outcome[None], reason: str) -> None:
        """Start or complete a rebalance after members or pending members were removed."""
        if group.is_in(_S.STABLE, _S.COMPLETING_REBALANCE):
            self.prepare(group, now_ms, out, reason)
        elif group.is_in(_S.PREPARING_REBALANCE):
            self.complete_if_all_joined(group, now_ms, out)

    # --- join phase ------------------------------------------------------------------------------

    def prepare_or_complete(
        self, group: Group, now_ms: int, out: Outcome[None], reason: str
    ) -> None:
        """Start a rebalance after a member joined, or complete the one that waited for it."""
        if group.can_rebalance:
            self.prepare(group, now_ms, out, reason)
        else:
            self.complete_if_all_joined(group, now_ms, out)

    def prepare(self, group: Group, now_ms: int, out: Outcome[None], reason: str) -> None:
        """Start a rebalance, in which all members have to join again."""
        note_group(GroupChange.REBALANCING, group, reason, out)
        if group.is_in(_S.COMPLETING_REBALANCE):
            self.reset_assignments(group, now_ms, out)
        self.timers.cancel((SYNC, group.group_id, ""))
        initial = group.is_in(_S.EMPTY)
        group.transition(_S.PREPARING_REBALANCE, now_ms)
        if initial:
            group.delay_left_ms = group.rebalance_timeout_ms
            group.new_member_added = True
            self._delay_initial(group, now_ms, out)
        elif group.all_joined:
            self.complete_join(group, now_ms, out)
        else:
            self._wait(JOIN, group, now_ms)

    def complete_if_all_joined(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """End the join phase if all members have joined and there is no initial delay."""
        if group.is_in(_S.PREPARING_REBALANCE) and group.delay_left_ms is None and group.all_joined:
            self.complete_join(group, now_ms, out)

    def end_join_time(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """End the join phase after the initial delay or the rebalance timeout."""
        if not group.is_in(_S.PREPARING_REBALANCE):
            return
        if group.delay_left_ms is not None:
            self._delay_initial(group, now_ms, out)
        else:
            self.complete_join(group, now_ms, out)

    def _delay_initial(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """Wait for more members, if some joined lately and the rebalance timeout allows it."""
        left = group.delay_left_ms or 0
        delay = min(self._initial_delay_ms, left)
        if group.new_member_added and delay > 0:
            group.new_member_added = False
            group.delay_left_ms = left - delay
            self.timers.set((JOIN, group.group_id, ""), now_ms + delay)
        else:
            self.complete_join(group, now_ms, out)

    def _wait(self, kind: str, group: Group, now_ms: int) -> None:
        """Wait for the joins or syncs of members, as long as the rebalance timeout allows."""
        self.timers.set((kind, group.group_id, ""), now_ms + max(group.rebalance_timeout_ms, 1))

    def complete_join(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """End the join phase, and answer the members that joined with the new generation.

        Dynamic members that did not join are removed. Static members stay until their session ends.
        """
        self.timers.cancel((JOIN, group.group_id, ""))
        group.delay_left_ms = None
        late = f"it did not join again within {group.rebalance_timeout_ms} ms (rebalance timeout)"
        for member in list(group.members.values()):
            if not member.awaits_join and not member.is_static:
                self.drop(group, member, out, late)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none has joined. They stay until a session ends.
            self._wait(JOIN, group, now_ms)
            return
        group.next_generation(now_ms)
        if group.is_in(_S.EMPTY):
            note_group(GroupChange.EMPTY, group, "", out)
            out.records.append(self.record(group))
            return
        for member in group.members.values():
            ticket = group.take_join(member)
            self.answer(ticket, self.join_result(group, member), out)
            self.refresh(group, member, now_ms)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        self._wait(SYNC, group, now_ms)

    def join_result(
        self, group: Group, member: Member, *, skip_assignment: bool = False
    ) -> JoinResult:
        """Return the current generation, as the answer to the member's join."""
        leads = group.leader == member.member_id
        return JoinResult(
            group.generation,
            group.protocol_type or "",
            group.protocol or "",
            group.leader or "",
            member.member_id,
            group.join_members() if leads else (),
            skip_assignment and leads,
        )

    # --- sync phase ------------------------------------------------------------------------------

    def assign(
        self, group: Group, assignments: dict[str, bytes], now_ms: int, out: Outcome[None]
    ) -> None:
        """Complete the generation with the assignments that the leader sent.

        A member without an assignment gets an empty one.
        """
        for member in group.members.values():
            group.set_assignment(member, assignments.get(member.member_id, b""))
        group.transition(_S.STABLE, now_ms)
        note_group(GroupChange.STABLE, group, "", out)
        out.records.append(self.record(group))
        for member in group.members.values():
            if member.awaits_sync:
                self._end_sync(member, sync_result(group, member), out)
                self.refresh(group, member, now_ms)

    def has_synced(self, group: Group, member_id: str) -> None:
        """Note that the member has asked for its assignment."""
        group.pending_sync.discard(member_id)
        self._stop_sync_timer_if_done(group)

    def end_sync_time(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """Remove the members that never asked for their assignment, static ones too."""
        if not group.is_in(_S.COMPLETING_REBALANCE, _S.STABLE) or not group.pending_sync:
            return
        late = [
            member for member in group.members.values() if member.member_id in group.pending_sync
        ]
        limit = group.rebalance_timeout_ms
        for member in late:
            reason = f"it did not ask for its assignment within {limit} ms (rebalance timeout)"
            self.drop(group, member, out, reason)
        self.prepare(group, now_ms, out, "members did not ask for their assignment in time")

    def reset_assignments(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """Drop the assignments of a generation that failed. Members with a parked sync rejoin."""
        error = RebalanceInProgressError(f"group {group.group_id!r} is rebalancing")
        for member in group.members.values():
            group.set_assignment(member, b"")
            if member.awaits_sync:
                self._end_sync(member, error, out)
                self.refresh(group, member, now_ms)

    def _end_sync(self, member: Member, answer: object, out: Outcome[None]) -> None:
        ticket, member.sync_ticket = member.sync_ticket, None
        self.answer(ticket, answer, out)

    def _stop_sync_timer_if_done(self, group: Group) -> None:
        if not group.pending_sync:
            self.timers.cancel((SYNC, group.group_id, ""))

    # --- records ---------------------------------------------------------------------------------

    def record(self, group: Group) -> StateRecord:
        """Return the record of the group as it is now."""
        return StateRecord(
            encode_group_key(GroupKey(group.group_id)), encode_group_value(group.stored())
        )


def sync_result(group: Group, member: Member) -> SyncResult:
    """Return the member's assignment in the current generation."""
    return SyncResult(group.protocol_type or "", group.protocol or "", member.assignment)


def _superseded(group: Group, member: Member) -> TidemillError:
    return RebalanceInProgressError(
        f"member {member.member_id!r} of group {group.group_id!r} has sent a newer request"
    )
