"""How a classic group gets from one generation to the next: who is waited for, and until when.

Each function takes the group, the time and the outcome that it adds replies and records to.
Requests come in through ``groups``; nothing is known here of how they are validated.

Source: KIP-62, KIP-134 (initial rebalance delay), KIP-345, KIP-394; Apache Kafka's documentation
of the group coordinator.
"""

from __future__ import annotations

from tidemill.errors import (
    FencedInstanceIdError,
    RebalanceInProgressError,
    TidemillError,
    UnknownMemberIdError,
)
from tidemill.state.group import Group, GroupState
from tidemill.state.group_members import Member
from tidemill.state.offsets_format import GroupKey, encode_group_key, encode_group_value
from tidemill.state.outcome import Outcome, StateRecord
from tidemill.state.timers import Timers
from tidemill.state.types import JoinResult, SyncResult

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
"""How long the join of a member that has not seen a generation stays parked at most; it can't be
heard of otherwise, and a client that gave up must not count for ever."""

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
        """Take a ticket on: it is answered once, unless it is cancelled."""
        self._parked.add(ticket)

    def cancel(self, ticket: int) -> None:
        """Nobody waits for the ticket's answer any longer."""
        self._parked.discard(ticket)

    def answer(self, ticket: int | None, answer: object, out: Outcome[None]) -> None:
        """Answer a ticket; nothing happens where there is none, or it was cancelled."""
        if ticket is not None and ticket in self._parked:
            self._parked.remove(ticket)
            out.replies.append((ticket, answer))

    # --- members ---------------------------------------------------------------------------------

    def expect_heartbeat(self, group: Group, member_id: str, within_ms: int, now_ms: int) -> None:
        """(Re)start a member's session."""
        self.timers.set((SESSION, group.group_id, member_id), now_ms + within_ms)

    def refresh(self, group: Group, member: Member, now_ms: int) -> None:
        """The member has been heard of."""
        self.expect_heartbeat(group, member.member_id, member.session_timeout_ms, now_ms)

    def forget_session(self, group: Group, member_id: str) -> None:
        """Expect nothing of this member id any longer."""
        self.timers.cancel((SESSION, group.group_id, member_id))

    def park_join(self, group: Group, member: Member, ticket: int, out: Outcome[None]) -> None:
        """The member has joined and waits. An older join of it, on a connection that it has
        given up, is sent away."""
        replaced = group.park_join(member, ticket)
        self.answer(replaced, _superseded(group, member), out)

    def park_sync(self, group: Group, member: Member, ticket: int, out: Outcome[None]) -> None:
        """The member waits for its assignment; an older sync of it is sent away."""
        replaced, member.sync_ticket = member.sync_ticket, ticket
        self.answer(replaced, _superseded(group, member), out)

    def drop(self, group: Group, member: Member, out: Outcome[None]) -> None:
        """Remove a member and tell it, where it waits; ``after_removal`` decides what follows."""
        error = UnknownMemberIdError(
            f"member {member.member_id!r} was removed from group {group.group_id!r}"
        )
        self.answer(group.take_join(member), error, out)
        self._end_sync(member, error, out)
        group.remove(member.member_id)
        self.forget_session(group, member.member_id)
        self._stop_sync_timer_if_done(group)

    def fence_old(self, group: Group, member: Member, out: Outcome[None]) -> None:
        """A static member got a new id: whoever waits under the old one is sent away for good."""
        error = FencedInstanceIdError(
            f"group {group.group_id!r}: {member.instance_id!r} is used by a newer member"
        )
        self.answer(group.take_join(member), error, out)
        self._end_sync(member, error, out)
        member.is_new = False

    def after_removal(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """Members or pending members have gone."""
        if group.is_in(_S.STABLE, _S.COMPLETING_REBALANCE):
            self.prepare(group, now_ms, out)
        elif group.is_in(_S.PREPARING_REBALANCE):
            self.complete_if_all_joined(group, now_ms, out)

    # --- join phase ------------------------------------------------------------------------------

    def prepare_or_complete(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """A member has joined: start a rebalance, or end the one that waited for it."""
        if group.can_rebalance:
            self.prepare(group, now_ms, out)
        else:
            self.complete_if_all_joined(group, now_ms, out)

    def prepare(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """Start a rebalance: all members have to join again."""
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
            self._wait_for_joins(group, now_ms)

    def complete_if_all_joined(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """End the join phase as soon as nobody is missing; an initial one takes its time."""
        if group.is_in(_S.PREPARING_REBALANCE) and group.delay_left_ms is None and group.all_joined:
            self.complete_join(group, now_ms, out)

    def join_time_is_up(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """The initial delay or the rebalance timeout has passed."""
        if not group.is_in(_S.PREPARING_REBALANCE):
            return
        if group.delay_left_ms is not None:
            self._delay_initial(group, now_ms, out)
        else:
            self.complete_join(group, now_ms, out)

    def _delay_initial(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """Wait once more for further members, while some came and the rebalance timeout allows."""
        left = group.delay_left_ms or 0
        delay = min(self._initial_delay_ms, left)
        if group.new_member_added and delay > 0:
            group.new_member_added = False
            group.delay_left_ms = left - delay
            self.timers.set((JOIN, group.group_id, ""), now_ms + delay)
        else:
            self.complete_join(group, now_ms, out)

    def _wait_for_joins(self, group: Group, now_ms: int) -> None:
        limit = max(group.rebalance_timeout_ms, 1)
        self.timers.set((JOIN, group.group_id, ""), now_ms + limit)

    def complete_join(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """End the join phase: drop dynamic members that did not join (static ones keep their
        place until their session ends), and answer all that did with the new generation."""
        self.timers.cancel((JOIN, group.group_id, ""))
        group.delay_left_ms = None
        for member in list(group.members.values()):
            if not member.awaits_join and not member.is_static:
                self.drop(group, member, out)
        if group.members and not group.elect_joined_leader():
            # only static members are left and none has joined: their sessions decide
            self._wait_for_joins(group, now_ms)
            return
        group.next_generation(now_ms)
        if group.is_in(_S.EMPTY):
            out.records.append(self.record(group))
            return
        self._announce(group, now_ms, out)

    def _announce(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        for member in group.members.values():
            ticket = group.take_join(member)
            self.answer(ticket, self.join_result(group, member), out)
            self.refresh(group, member, now_ms)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        limit = max(group.rebalance_timeout_ms, 1)
        self.timers.set((SYNC, group.group_id, ""), now_ms + limit)

    def join_result(
        self, group: Group, member: Member, *, skip_assignment: bool = False
    ) -> JoinResult:
        """The current generation as the member is told of it."""
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
        """The leader has brought the assignment: the generation is complete.

        Members that it does not name are assigned nothing.
        """
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.transition(_S.STABLE, now_ms)
        out.records.append(self.record(group))
        for member in group.members.values():
            if member.awaits_sync:
                self._end_sync(member, sync_result(group, member), out)
                self.refresh(group, member, now_ms)

    def has_synced(self, group: Group, member_id: str) -> None:
        """The member has asked for its assignment."""
        group.pending_sync.discard(member_id)
        self._stop_sync_timer_if_done(group)

    def sync_time_is_up(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """Drop the members that never asked for their assignment, static ones too."""
        if not group.is_in(_S.COMPLETING_REBALANCE, _S.STABLE) or not group.pending_sync:
            return
        late = [
            member for member in group.members.values() if member.member_id in group.pending_sync
        ]
        for member in late:
            self.drop(group, member, out)
        self.prepare(group, now_ms, out)

    def reset_assignments(self, group: Group, now_ms: int, out: Outcome[None]) -> None:
        """The generation has failed before all had their assignment: who waits joins again."""
        error = RebalanceInProgressError(f"group {group.group_id!r} is rebalancing")
        for member in group.members.values():
            member.assignment = b""
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
        """The group as it is now, for the log."""
        return StateRecord(
            encode_group_key(GroupKey(group.group_id)), encode_group_value(group.stored())
        )


def sync_result(group: Group, member: Member) -> SyncResult:
    """The member's assignment in the current generation."""
    return SyncResult(group.protocol_type or "", group.protocol or "", member.assignment)


def _superseded(group: Group, member: Member) -> TidemillError:
    return RebalanceInProgressError(
        f"member {member.member_id!r} of group {group.group_id!r} has asked again meanwhile"
    )
