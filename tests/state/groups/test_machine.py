"""SyncGroup, Heartbeat, LeaveGroup, time limits, listing, restarts and failed writes."""

from __future__ import annotations

import pytest

from tests.state.driver import GroupsDriver
from tidemill.state.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidemill.state.groups.format import decode_group_value
from tidemill.state.groups.group import TRANSITIONS, Group, GroupState
from tidemill.state.groups.types import LeaveMember, SyncRequest

_S = GroupState


# --- transitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("before", list(GroupState))
@pytest.mark.parametrize("after", list(GroupState))
def test_only_transitions_of_the_table_are_possible(before: GroupState, after: GroupState) -> None:
    group = Group("g", 0)
    group.state = before
    if after in TRANSITIONS[before]:
        group.transition(after, 5)
        assert (group.state, group.state_since_ms) == (after, 5)
    else:
        with pytest.raises(RuntimeError):
            group.transition(after, 5)


# --- sync ----------------------------------------------------------------------------------------


def test_followers_wait_for_the_leader_and_get_their_assignment(driver: GroupsDriver) -> None:
    leader, follower = driver.completing()
    waiting = driver.sync(follower, driver.generation)
    assert waiting not in driver.replies
    own = driver.sync(leader, driver.generation, {follower: b"F"})
    assert driver.synced(waiting).assignment == b"F"
    assert driver.synced(own).assignment == b""  # not named: nothing assigned
    late = driver.sync(follower, driver.generation)
    assert driver.synced(late).assignment == b"F"


def test_sync_is_refused_as_the_state_says(driver: GroupsDriver) -> None:
    assert isinstance(driver.error(driver.sync("x", 1)), UnknownMemberIdError)
    assert isinstance(driver.error(driver.sync("x", 1, group_id="")), InvalidGroupIdError)
    leader, follower = driver.stable(2)
    generation = driver.generation
    assert isinstance(driver.error(driver.sync("x", generation)), UnknownMemberIdError)
    assert isinstance(driver.error(driver.sync(leader, generation - 1)), IllegalGenerationError)
    error = driver.error(driver.sync(leader, generation, protocol="other"))
    assert isinstance(error, InconsistentGroupProtocolError)
    error = driver.error(driver.sync(leader, generation, protocol_type="connect"))
    assert isinstance(error, InconsistentGroupProtocolError)
    assert driver.synced(driver.sync(leader, generation, protocol=None, protocol_type=None))
    driver.join(leader)
    assert isinstance(driver.error(driver.sync(follower, generation)), RebalanceInProgressError)


def test_members_that_do_not_sync_are_dropped_after_the_rebalance_timeout() -> None:
    driver = GroupsDriver()
    _, follower = driver.completing(session_timeout_ms=500_000)
    waiting = driver.sync(follower, driver.generation)
    driver.advance(59_999)
    assert waiting not in driver.replies
    driver.advance(1)
    assert isinstance(driver.error(waiting), RebalanceInProgressError)
    assert [m.member_id for m in driver.groups.describe("g").members] == [follower]


def test_second_sync_of_a_member_replaces_the_first(driver: GroupsDriver) -> None:
    leader, follower = driver.completing()
    first = driver.sync(follower, driver.generation)
    second = driver.sync(follower, driver.generation)
    assert isinstance(driver.error(first), RebalanceInProgressError)
    driver.sync(leader, driver.generation, {follower: b"F"})
    assert driver.synced(second).assignment == b"F"


# --- heartbeat and sessions ----------------------------------------------------------------------


def test_heartbeat_answers_as_the_state_says(driver: GroupsDriver) -> None:
    with pytest.raises(UnknownMemberIdError):
        driver.heartbeat("x", 1)
    leader, follower = driver.stable(2)
    driver.heartbeat(leader, driver.generation)
    with pytest.raises(IllegalGenerationError):
        driver.heartbeat(leader, driver.generation + 1)
    with pytest.raises(UnknownMemberIdError):
        driver.heartbeat("x", driver.generation)
    driver.join(leader)
    with pytest.raises(RebalanceInProgressError):
        driver.heartbeat(follower, driver.generation)
    driver.join(follower)
    driver.heartbeat(follower, driver.generation)  # CompletingRebalance: fine
    with pytest.raises(UnknownMemberIdError):
        driver.heartbeat(driver.new_id(), driver.generation)


def test_silent_member_is_dropped_and_the_others_rejoin(driver: GroupsDriver) -> None:
    leader, follower = driver.stable(2)
    driver.advance(6000)
    driver.heartbeat(follower, driver.generation)
    driver.advance(4000)
    with pytest.raises(RebalanceInProgressError):
        driver.heartbeat(follower, driver.generation)
    with pytest.raises(UnknownMemberIdError):
        driver.heartbeat(leader, driver.generation)
    result = driver.joined(driver.join(follower))
    assert (result.leader, len(result.members)) == (follower, 1)


@pytest.mark.parametrize("sign", ["heartbeat", "commit", "sync", "join"])
def test_every_request_of_a_member_extends_its_session(driver: GroupsDriver, sign: str) -> None:
    _, follower = driver.stable(2, session_timeout_ms=10_000)
    leader = driver.groups.describe("g").members[0].member_id
    for _ in range(4):
        driver.advance(6000)
        driver.heartbeat(leader, driver.generation)
        if sign == "heartbeat":
            driver.heartbeat(follower, driver.generation)
        elif sign == "commit":
            assert driver.commit(follower, driver.generation) == []
        elif sign == "sync":
            driver.synced(driver.sync(follower, driver.generation))
        else:
            driver.joined(driver.join(follower))
    assert driver.state == "Stable"


def test_parked_requests_replace_heartbeats(driver: GroupsDriver) -> None:
    leader, follower = driver.stable(2)
    waiting = driver.join(follower, topics=("t", "u"))
    for _ in range(5):
        driver.advance(9000)
        with pytest.raises(RebalanceInProgressError):
            driver.heartbeat(leader, driver.generation)
    driver.join(leader)
    assert driver.joined(waiting).member_id == follower


def test_last_session_leaves_an_empty_group_and_time_stops(driver: GroupsDriver) -> None:
    driver.stable(2)
    driver.advance(100_000)
    assert driver.state == "Empty"
    assert driver.groups.next_deadline() is None
    assert decode_group_value(driver.groups.stored()["g"]).members == ()


# --- leave ---------------------------------------------------------------------------------------


def test_leave_answers_for_each_member(driver: GroupsDriver) -> None:
    leader, follower = driver.stable(2)
    pending = driver.new_id()
    result = driver.leave(LeaveMember("x"), LeaveMember(follower), LeaveMember(pending))
    assert [type(error) for error in result] == [UnknownMemberIdError, type(None), type(None)]
    assert driver.state == "PreparingRebalance"
    assert [m.member_id for m in driver.joined(driver.join(leader)).members] == [leader]


def test_leave_of_the_last_member_empties_the_group(driver: GroupsDriver) -> None:
    (leader,) = driver.stable()
    generation = driver.generation
    assert driver.leave(LeaveMember(leader)) == [None]
    assert (driver.state, driver.generation) == ("Empty", generation + 1)


def test_leave_of_an_unknown_group_is_refused(driver: GroupsDriver) -> None:
    with pytest.raises(UnknownMemberIdError):
        driver.leave(LeaveMember("x"))


def test_failed_leave_does_not_rebalance(driver: GroupsDriver) -> None:
    driver.stable()
    driver.leave(LeaveMember("x"))
    assert driver.state == "Stable"


def test_leaving_member_gets_an_answer_to_its_parked_request(driver: GroupsDriver) -> None:
    _, follower = driver.completing()
    waiting = driver.sync(follower, driver.generation)
    driver.leave(LeaveMember(follower))
    assert isinstance(driver.error(waiting), UnknownMemberIdError)


def test_leave_completes_a_rebalance_that_waits_for_no_other_member(driver: GroupsDriver) -> None:
    leader, follower = driver.stable(2)
    ticket = driver.join(leader)
    driver.leave(LeaveMember(follower))
    assert len(driver.joined(ticket).members) == 1


# --- list, describe, delete ----------------------------------------------------------------------


def test_groups_are_listed_by_state_and_type(driver: GroupsDriver) -> None:
    driver.stable()
    driver.join(group_id="other")
    assert {(g.group_id, g.state) for g in driver.groups.list_groups()} == {
        ("g", "Stable"),
        ("other", "CompletingRebalance"),
    }
    assert [g.group_id for g in driver.groups.list_groups(states=["stable"])] == ["g"]
    assert list(driver.groups.list_groups(types=["consumer"])) == []
    assert len(list(driver.groups.list_groups(types=["Classic"]))) == 2


def test_described_group_shows_protocol_and_assignments_only_while_stable() -> None:
    driver = GroupsDriver()
    (leader,) = driver.stable(client_id="app")
    described = driver.groups.describe("g")
    assert (described.protocol_type, described.protocol) == ("consumer", "range")
    (member,) = described.members
    assert (member.member_id, member.client_id, member.assignment) == (
        leader,
        "app",
        leader.encode(),
    )
    assert member.metadata
    driver.join(leader)
    described = driver.groups.describe("g")
    assert described.protocol == ""
    assert (described.members[0].metadata, described.members[0].assignment) == (b"", b"")
    assert driver.groups.describe("unknown").state == "Dead"


def test_only_empty_groups_can_be_deleted(driver: GroupsDriver) -> None:
    with pytest.raises(GroupIdNotFoundError):
        driver.offsets.delete_group("g")
    (leader,) = driver.stable()
    with pytest.raises(NonEmptyGroupError):
        driver.offsets.delete_group("g")
    driver.leave(LeaveMember(leader))
    driver.run(driver.offsets.delete_group("g"))
    assert driver.state == "Dead"
    assert driver.groups.stored() == {}
    assert list(driver.restart().groups.list_groups()) == []


# --- restarts and failed writes ------------------------------------------------------------------


def test_generation_survives_a_restart_with_fresh_sessions(driver: GroupsDriver) -> None:
    leader, follower = driver.stable(2)
    before = driver.groups.describe("g")
    driver = driver.restart()
    assert driver.groups.describe("g") == before
    driver.advance(9000)
    driver.heartbeat(leader, driver.generation)
    driver.advance(9000)
    with pytest.raises(UnknownMemberIdError):
        driver.heartbeat(follower, driver.generation)
    result = driver.joined(driver.join(leader))
    assert result.generation == decode_group_value(driver.groups.stored()["g"]).generation + 1


def test_restart_during_a_rebalance_lets_members_join_again(driver: GroupsDriver) -> None:
    leader, follower = driver.completing()
    generation = driver.generation
    driver = driver.restart()
    with pytest.raises(IllegalGenerationError):
        driver.heartbeat(leader, generation)
    driver.join(leader)
    assert driver.joined(driver.join(follower)).generation == generation


def test_generation_that_could_not_be_written_is_dropped(driver: GroupsDriver) -> None:
    leader, follower = driver.completing()
    generation = driver.generation
    waiting = driver.sync(follower, generation)
    request = SyncRequest("g", generation, leader, None, None, None, ((leader, b"x"),))
    outcome = driver.groups.sync(request, 999, driver.now)
    assert {ticket for ticket, _ in outcome.replies} == {waiting, 999}
    instead = dict(driver.groups.write_failed(outcome, driver.now))
    assert {type(answer) for answer in instead.values()} == {CoordinatorNotAvailableError}
    assert set(instead) == {waiting, 999}
    assert driver.state == "PreparingRebalance"
    assert driver.groups.describe("g").members[0].assignment == b""
    driver.join(leader)
    assert driver.joined(driver.join(follower)).generation == generation + 1


def test_removal_that_is_written_after_a_member_came_does_not_remove_it() -> None:
    driver = GroupsDriver()
    (leader,) = driver.stable()
    driver.leave(LeaveMember(leader))
    removal = driver.offsets.delete_group("g")
    member_id = driver.new_id()
    driver.run(removal)
    assert driver.joined(driver.join(member_id)).member_id == member_id
