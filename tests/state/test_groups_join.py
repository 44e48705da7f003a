"""JoinGroup of dynamic members: ids, delays, votes, limits, who triggers a rebalance."""

from __future__ import annotations

from typing import Any

import pytest

from tests.state.harness import START_MS, Desk, subscription
from tidemill.errors import (
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


def test_first_member_leads_the_first_generation() -> None:
    desk = Desk()
    result = desk.joined(desk.join())
    assert (result.generation, result.protocol, result.leader) == (1, "range", result.member_id)
    assert [m.member_id for m in result.members] == [result.member_id]
    assert desk.state == "CompletingRebalance"


def test_unknown_member_is_told_its_id_first_and_waited_for() -> None:
    desk = Desk(initial_rebalance_delay_ms=3000)
    error = desk.error(desk.join(require_known_member_id=True, client_id="app"))
    assert isinstance(error, MemberIdRequiredError)
    assert error.member_id == "app-id1"
    assert desk.state == "Empty"
    ticket = desk.join(error.member_id)
    desk.advance(3000)
    assert desk.joined(ticket).member_id == "app-id1"


def test_static_members_get_no_id_round_trip() -> None:
    desk = Desk()
    assert desk.joined(desk.join(instance_id="i1", require_known_member_id=True)).generation == 1


def test_join_phase_waits_for_a_pending_member_until_its_session_ends() -> None:
    desk = Desk()
    first = desk.stable()[0]
    desk.new_id()
    second = desk.new_id()
    tickets = [desk.join(second), desk.join(first)]
    assert not any(ticket in desk.replies for ticket in tickets)
    desk.advance(10_000)
    assert {desk.joined(ticket).generation for ticket in tickets} == {2}


def test_an_id_that_is_not_used_expires() -> None:
    desk = Desk()
    member_id = desk.new_id()
    desk.advance(10_000)
    assert isinstance(desk.error(desk.join(member_id)), UnknownMemberIdError)
    desk.run(desk.offsets.expire(desk.now))
    assert desk.state == "Dead"


def test_initial_delay_is_extended_while_members_come_up_to_the_rebalance_timeout() -> None:
    desk = Desk(initial_rebalance_delay_ms=1000)
    tickets = []
    for _ in range(5):
        tickets.append(desk.join(rebalance_timeout_ms=3500))
        desk.advance(900)
    assert tickets[0] in desk.replies
    assert desk.now - START_MS == 4500
    joined = [ticket for ticket in tickets if ticket in desk.replies]
    assert joined == tickets[:4]  # 3500 ms after the first, the fifth came too late
    assert len(desk.joined(tickets[0]).members) == 4


def test_initial_delay_ends_when_nobody_came_during_it() -> None:
    desk = Desk(initial_rebalance_delay_ms=1000)
    ticket = desk.join()
    desk.advance(999)
    assert ticket not in desk.replies
    desk.advance(1)
    assert desk.joined(ticket).generation == 1


def test_members_that_do_not_rejoin_in_time_are_dropped() -> None:
    desk = Desk()
    leader, other = desk.stable(2, session_timeout_ms=100_000)
    newcomer = desk.join()
    again = desk.join(other)
    desk.advance(59_999)
    assert newcomer not in desk.replies
    desk.advance(1)
    assert desk.joined(newcomer).leader == other
    assert desk.joined(again).members[0].member_id == other
    assert isinstance(desk.error(desk.join(leader)), UnknownMemberIdError)


def test_rebalance_timeout_is_the_longest_of_the_members() -> None:
    desk = Desk()
    desk.stable(rebalance_timeout_ms=90_000, session_timeout_ms=200_000)
    ticket = desk.join(rebalance_timeout_ms=10_000)
    desk.advance(89_999)
    assert ticket not in desk.replies
    desk.advance(1)
    assert desk.joined(ticket).generation == 2


def test_all_members_rejoining_at_once_keep_their_ids() -> None:
    desk = Desk()
    ids = desk.stable(5)
    desk.join()
    tickets = {member_id: desk.join(member_id) for member_id in reversed(ids)}
    results = {member_id: desk.joined(ticket) for member_id, ticket in tickets.items()}
    assert {member_id: result.member_id for member_id, result in results.items()} == {
        member_id: member_id for member_id in ids
    }
    assert {result.leader for result in results.values()} == {ids[0]}


def test_follower_that_rejoins_unchanged_gets_the_current_generation() -> None:
    desk = Desk()
    _, follower = desk.stable(2)
    result = desk.joined(desk.join(follower))
    assert (result.generation, result.members) == (desk.generation, ())
    assert desk.state == "Stable"


def test_follower_with_new_metadata_triggers_a_rebalance() -> None:
    desk = Desk()
    _, follower = desk.stable(2)
    assert desk.join(follower, topics=("t", "u")) not in desk.replies
    assert desk.state == "PreparingRebalance"


def test_leader_that_rejoins_triggers_a_rebalance() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    generation = desk.generation
    ticket = desk.join(leader)
    assert desk.state == "PreparingRebalance"
    desk.join(follower)
    assert desk.joined(ticket).generation == generation + 1


def test_member_that_missed_its_answer_gets_the_generation_again() -> None:
    desk = Desk()
    result = desk.joined(desk.join())
    again = desk.joined(desk.join(result.member_id))
    assert again == result


def test_new_member_during_completing_rebalance_sends_the_waiting_back() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    desk.join(leader)
    desk.join(follower)
    waiting = desk.sync(follower, desk.generation)
    desk.join()
    assert isinstance(desk.error(waiting), RebalanceInProgressError)
    assert desk.state == "PreparingRebalance"


def test_second_join_of_a_member_replaces_the_first() -> None:
    desk = Desk()
    leader, follower = desk.stable(2)
    first = desk.join(leader)
    second = desk.join(leader)
    assert isinstance(desk.error(first), RebalanceInProgressError)
    desk.join(follower)
    assert desk.joined(second).member_id == leader


def test_protocol_with_most_votes_among_the_common_ones_wins() -> None:
    desk = Desk(initial_rebalance_delay_ms=10)
    meta = subscription("t")
    for names in (("a", "b", "c"), ("c", "b", "x"), ("b", "c")):
        ticket = desk.join(protocols=tuple((name, meta) for name in names))
    desk.advance(20)
    assert desk.joined(ticket).protocol == "b"


def test_the_votes_of_one_member_count_only_for_its_first_choice() -> None:
    desk = Desk(initial_rebalance_delay_ms=10)
    for names in (("a", "b"), ("b", "a"), ("b", "a")):
        ticket = desk.join(protocols=tuple((name, name.encode()) for name in names))
    desk.advance(20)
    assert desk.joined(ticket).protocol == "b"


@pytest.mark.parametrize(
    "changes",
    [
        {"protocols": (("other", b""),)},
        {"protocol_type": "connect"},
        {"protocols": ()},
    ],
)
def test_member_without_a_common_protocol_is_refused(changes: dict[str, Any]) -> None:
    desk = Desk()
    desk.stable()
    error = desk.error(desk.join(**changes))
    assert isinstance(error, InconsistentGroupProtocolError)
    assert desk.state == "Stable"


@pytest.mark.parametrize("changes", [{"protocols": ()}, {"protocol_type": ""}])
def test_first_member_must_have_a_protocol(changes: dict[str, Any]) -> None:
    desk = Desk()
    assert isinstance(desk.error(desk.join(**changes)), InconsistentGroupProtocolError)
    assert desk.state == "Dead"


@pytest.mark.parametrize("timeout", [5999, 1_800_001, -1])
def test_session_timeout_out_of_bounds_is_refused(timeout: int) -> None:
    desk = Desk()
    error = desk.error(desk.join(session_timeout_ms=timeout))
    assert isinstance(error, InvalidSessionTimeoutError)


def test_bad_ids_are_refused() -> None:
    desk = Desk()
    assert isinstance(desk.error(desk.join(group_id="")), InvalidGroupIdError)
    assert isinstance(desk.error(desk.join(group_id="x" * 40_000)), InvalidGroupIdError)
    assert isinstance(desk.error(desk.join(client_id="x" * 40_000)), InvalidRequestError)
    assert isinstance(desk.error(desk.join("nobody")), UnknownMemberIdError)
    desk.stable()
    assert isinstance(desk.error(desk.join("nobody")), UnknownMemberIdError)


def test_group_does_not_grow_over_its_limit() -> None:
    desk = Desk(max_size=2)
    first, second = desk.stable(2)
    assert isinstance(desk.error(desk.join()), GroupMaxSizeReachedError)
    third = desk.error(desk.join(require_known_member_id=True))
    assert isinstance(third, GroupMaxSizeReachedError)
    assert desk.state == "Stable"
    assert desk.joined(desk.join(second)).member_id == second
    desk.join(first)
    desk.join(second)
    assert desk.state == "CompletingRebalance"


def test_ids_are_not_given_out_over_the_limit() -> None:
    desk = Desk(max_size=1, initial_rebalance_delay_ms=100)
    first = desk.new_id()
    error = desk.error(desk.join(require_known_member_id=True))
    assert isinstance(error, GroupMaxSizeReachedError)
    ticket = desk.join(first)
    desk.advance(100)
    assert desk.joined(ticket).member_id == first


def test_group_over_a_lowered_limit_rebalances_after_a_restart() -> None:
    desk = Desk()
    ids = desk.stable(3)
    desk = desk.restart(max_size=2)
    assert desk.state == "PreparingRebalance"
    tickets = [desk.join(member_id) for member_id in ids]
    assert isinstance(desk.error(tickets[2]), GroupMaxSizeReachedError)
    assert len(desk.joined(tickets[0]).members) == 2


def test_cancelled_ticket_is_never_answered_and_the_member_counts() -> None:
    desk = Desk(initial_rebalance_delay_ms=100)
    gone = desk.join()
    desk.groups.cancel(gone)
    desk.groups.cancel(12345)
    other = desk.join()
    desk.advance(200)
    assert gone not in desk.replies
    assert len(desk.joined(other).members or desk.groups.describe("g").members) == 2


def test_parked_join_of_a_new_member_ends_after_five_minutes() -> None:
    desk = Desk()
    desk.stable(rebalance_timeout_ms=1_000_000, session_timeout_ms=1_000_000)
    ticket = desk.join()
    desk.advance(299_999)
    assert ticket not in desk.replies
    desk.advance(1)
    assert isinstance(desk.error(ticket), UnknownMemberIdError)
