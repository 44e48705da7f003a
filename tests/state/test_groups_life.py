"""SyncGroup, Heartbeat, LeaveGroup, time limits, listing, restarts and failed writes."""

from __future__ import annotations

import pytest

from tests.state.harness import Desk
from tidemill.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidemill.state.group import TRANSITIONS, Group, GroupState
from tidemill.state.offsets_format import decode_group_value
from tidemill.state.types import LeaveMember, SyncRequest

_S = GroupState


# --- transitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("before", list(GroupState))
@pytest.mark.parametrize("after", list(GroupState))
def test_only_transitions_of_the_table_are_possible(before: GroupState, after: GroupState) -> None:
    group = Group("g", 0)
    group.state = before
    if after in TRANSITIONS[before]:
        group.transition(after, 5)
        assert (group.state, group.previous_state, group.state_since_ms) == (after, before, 5)
    else:
        with pytest.raises(RuntimeError):
            group.transition(after, 5)


# --- sync ----------------------------------------------------------------------------------------


def test_followers_wait_for_the_leader_and_get_their_assignment() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    desk.join(leader)
    desk.join(follower)
    waiting = desk.sync(follower, desk.generation)
    assert waiting not in desk.replies
    own = desk.sync(leader, desk.generation, {follower: b"F"})
    assert desk.synced(waiting).assignment == b"F"
    assert desk.synced(own).assignment == b""  # not named: nothing assigned
    late = desk.sync(follower, desk.generation)
    assert desk.synced(late).assignment == b"F"


def test_sync_is_refused_as_the_state_says() -> None:
    desk = Desk()
    assert isinstance(desk.error(desk.sync("x", 1)), UnknownMemberIdError)
    assert isinstance(desk.error(desk.sync("x", 1, group_id="")), InvalidGroupIdError)
    leader, follower = desk.stable(2)
    generation = desk.generation
    assert isinstance(desk.error(desk.sync("x", generation)), UnknownMemberIdError)
    assert isinstance(desk.error(desk.sync(leader, generation - 1)), IllegalGenerationError)
    error = desk.error(desk.sync(leader, generation, protocol="other"))
    assert isinstance(error, InconsistentGroupProtocolError)
    error = desk.error(desk.sync(leader, generation, protocol_type="connect"))
    assert isinstance(error, InconsistentGroupProtocolError)
    assert desk.synced(desk.sync(leader, generation, protocol=None, protocol_type=None))
    desk.join(leader)
    assert isinstance(desk.error(desk.sync(follower, generation)), RebalanceInProgressError)


def test_members_that_do_not_sync_are_dropped_after_the_rebalance_timeout() -> None:
    desk = Desk()
    leader, follower = desk.stable(2, session_timeout_ms=500_000)
    desk.join(leader, session_timeout_ms=500_000)
    desk.join(follower, session_timeout_ms=500_000)
    waiting = desk.sync(follower, desk.generation)
    desk.advance(59_999)
    assert waiting not in desk.replies
    desk.advance(1)
    assert isinstance(desk.error(waiting), RebalanceInProgressError)
    assert [m.member_id for m in desk.groups.describe("g").members] == [follower]


def test_second_sync_of_a_member_replaces_the_first() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    desk.join(leader)
    desk.join(follower)
    first = desk.sync(follower, desk.generation)
    second = desk.sync(follower, desk.generation)
    assert isinstance(desk.error(first), RebalanceInProgressError)
    desk.sync(leader, desk.generation, {follower: b"F"})
    assert desk.synced(second).assignment == b"F"


# --- heartbeat and sessions ----------------------------------------------------------------------


def test_heartbeat_answers_as_the_state_says() -> None:
    desk = Desk()
    with pytest.raises(UnknownMemberIdError):
        desk.heartbeat("x", 1)
    leader, follower = desk.stable(2)
    desk.heartbeat(leader, desk.generation)
    with pytest.raises(IllegalGenerationError):
        desk.heartbeat(leader, desk.generation + 1)
    with pytest.raises(UnknownMemberIdError):
        desk.heartbeat("x", desk.generation)
    desk.join(leader)
    with pytest.raises(RebalanceInProgressError):
        desk.heartbeat(follower, desk.generation)
    desk.join(follower)
    desk.heartbeat(follower, desk.generation)  # CompletingRebalance: fine
    with pytest.raises(UnknownMemberIdError):
        desk.heartbeat(desk.new_id(), desk.generation)


def test_silent_member_is_dropped_and_the_others_told_to_rejoin() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    desk.advance(6000)
    desk.heartbeat(follower, desk.generation)
    desk.advance(4000)
    with pytest.raises(RebalanceInProgressError):
        desk.heartbeat(follower, desk.generation)
    with pytest.raises(UnknownMemberIdError):
        desk.heartbeat(leader, desk.generation)
    result = desk.joined(desk.join(follower))
    assert (result.leader, len(result.members)) == (follower, 1)


@pytest.mark.parametrize("sign", ["heartbeat", "commit", "sync", "join"])
def test_every_sign_of_life_extends_the_session(sign: str) -> None:
    desk = Desk()
    _, follower = desk.stable(2, session_timeout_ms=10_000)
    leader = desk.groups.describe("g").members[0].member_id
    for _ in range(4):
        desk.advance(6000)
        desk.heartbeat(leader, desk.generation)
        if sign == "heartbeat":
            desk.heartbeat(follower, desk.generation)
        elif sign == "commit":
            assert desk.commit(follower, desk.generation) == []
        elif sign == "sync":
            desk.synced(desk.sync(follower, desk.generation))
        else:
            desk.joined(desk.join(follower))
    assert desk.state == "Stable"


def test_parked_requests_stand_for_heartbeats() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    waiting = desk.join(follower, topics=("t", "u"))
    for _ in range(5):
        desk.advance(9000)
        with pytest.raises(RebalanceInProgressError):
            desk.heartbeat(leader, desk.generation)
    desk.join(leader)
    assert desk.joined(waiting).member_id == follower


def test_last_session_leaves_an_empty_group_and_time_stops() -> None:
    desk = Desk()
    desk.stable(2)
    desk.advance(100_000)
    assert desk.state == "Empty"
    assert desk.groups.next_deadline() is None
    assert decode_group_value(desk.groups.stored()["g"]).members == ()


# --- leave ---------------------------------------------------------------------------------------


def test_leave_answers_for_each_member() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    pending = desk.new_id()
    result = desk.leave(LeaveMember("x"), LeaveMember(follower), LeaveMember(pending))
    assert [type(error) for error in result] == [UnknownMemberIdError, type(None), type(None)]
    assert desk.state == "PreparingRebalance"
    assert [m.member_id for m in desk.joined(desk.join(leader)).members] == [leader]


def test_leave_of_the_last_member_empties_the_group() -> None:
    desk = Desk()
    (leader,) = desk.stable()
    generation = desk.generation
    assert desk.leave(LeaveMember(leader)) == [None]
    assert (desk.state, desk.generation) == ("Empty", generation + 1)


def test_leave_of_an_unknown_group_is_refused() -> None:
    desk = Desk()
    with pytest.raises(UnknownMemberIdError):
        desk.leave(LeaveMember("x"))


def test_failed_leave_does_not_rebalance() -> None:
    desk = Desk()
    desk.stable()
    desk.leave(LeaveMember("x"))
    assert desk.state == "Stable"


def test_leaving_member_that_waits_is_told() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    desk.join(leader)
    desk.join(follower)
    waiting = desk.sync(follower, desk.generation)
    desk.leave(LeaveMember(follower))
    assert isinstance(desk.error(waiting), UnknownMemberIdError)


def test_leave_completes_a_rebalance_that_waits_for_nobody_else() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    ticket = desk.join(leader)
    desk.leave(LeaveMember(follower))
    assert len(desk.joined(ticket).members) == 1


# --- list, describe, delete ----------------------------------------------------------------------


def test_groups_are_listed_by_state_and_type() -> None:
    desk = Desk()
    desk.stable()
    desk.join(group_id="other")
    assert {(g.group_id, g.state) for g in desk.groups.list_groups()} == {
        ("g", "Stable"),
        ("other", "CompletingRebalance"),
    }
    assert [g.group_id for g in desk.groups.list_groups(states=["stable"])] == ["g"]
    assert desk.groups.list_groups(types=["consumer"]) == []
    assert len(desk.groups.list_groups(types=["Classic"])) == 2


def test_described_group_shows_protocol_and_assignments_only_while_stable() -> None:
    desk = Desk()
    (leader,) = desk.stable(client_id="app")
    described = desk.groups.describe("g")
    assert (described.protocol_type, described.protocol) == ("consumer", "range")
    (member,) = described.members
    assert (member.member_id, member.client_id, member.assignment) == (
        leader,
        "app",
        leader.encode(),
    )
    assert member.metadata
    desk.join(leader)
    described = desk.groups.describe("g")
    assert described.protocol == ""
    assert (described.members[0].metadata, described.members[0].assignment) == (b"", b"")
    assert desk.groups.describe("nobody").state == "Dead"


def test_only_empty_groups_can_be_deleted() -> None:
    desk = Desk()
    with pytest.raises(GroupIdNotFoundError):
        desk.offsets.delete_group("g")
    (leader,) = desk.stable()
    with pytest.raises(NonEmptyGroupError):
        desk.offsets.delete_group("g")
    desk.leave(LeaveMember(leader))
    desk.run(desk.offsets.delete_group("g"))
    assert desk.state == "Dead"
    assert desk.groups.stored() == {}
    assert desk.restart().groups.list_groups() == []


# --- restarts and failed writes ------------------------------------------------------------------


def test_generation_survives_a_restart_with_fresh_sessions() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    before = desk.groups.describe("g")
    desk = desk.restart()
    assert desk.groups.describe("g") == before
    desk.advance(9000)
    desk.heartbeat(leader, desk.generation)
    desk.advance(9000)
    with pytest.raises(UnknownMemberIdError):
        desk.heartbeat(follower, desk.generation)
    result = desk.joined(desk.join(leader))
    assert result.generation == decode_group_value(desk.groups.stored()["g"]).generation + 1


def test_restart_during_a_rebalance_lets_members_join_again() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    generation = desk.generation
    desk.join(leader)
    desk.join(follower)
    desk = desk.restart()
    with pytest.raises(IllegalGenerationError):
        desk.heartbeat(leader, generation + 1)
    desk.join(leader)
    assert desk.joined(desk.join(follower)).generation == generation + 1


def test_generation_that_could_not_be_written_is_given_up() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    desk.join(leader)
    desk.join(follower)
    generation = desk.generation
    waiting = desk.sync(follower, generation)
    request = SyncRequest("g", generation, leader, None, None, None, ((leader, b"x"),))
    outcome = desk.groups.sync(request, 999, desk.now)
    assert {ticket for ticket, _ in outcome.replies} == {waiting, 999}
    instead = dict(desk.groups.write_failed(outcome, desk.now))
    assert {type(answer) for answer in instead.values()} == {CoordinatorNotAvailableError}
    assert set(instead) == {waiting, 999}
    assert desk.state == "PreparingRebalance"
    assert desk.groups.describe("g").members[0].assignment == b""
    desk.join(leader)
    assert desk.joined(desk.join(follower)).generation == generation + 1


def test_removal_that_is_written_after_a_member_came_does_not_remove_it() -> None:
    desk = Desk()
    (leader,) = desk.stable()
    desk.leave(LeaveMember(leader))
    removal = desk.offsets.delete_group("g")
    member_id = desk.new_id()
    desk.run(removal)
    assert desk.joined(desk.join(member_id)).member_id == member_id
