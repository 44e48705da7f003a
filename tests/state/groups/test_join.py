"""JoinGroup of dynamic members: ids, delays, votes, limits, who triggers a rebalance."""

from __future__ import annotations

from typing import Any

import pytest

from tests.state.driver import START_MS, GroupsDriver, subscription
from tidemill.state.errors import (
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidRequestError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


def test_first_member_leads_the_first_generation(driver: GroupsDriver) -> None:
    result = driver.joined(driver.join())
    assert (result.generation, result.protocol, result.leader) == (1, "range", result.member_id)
    assert [m.member_id for m in result.members] == [result.member_id]
    assert driver.state == "CompletingRebalance"


def test_new_member_first_gets_its_id_and_is_waited_for() -> None:
    driver = GroupsDriver(initial_rebalance_delay_ms=3000)
    error = driver.error(driver.join(require_known_member_id=True, client_id="app"))
    assert isinstance(error, MemberIdRequiredError)
    assert error.member_id == "app-id1"
    assert driver.state == "Empty"
    ticket = driver.join(error.member_id)
    driver.advance(3000)
    assert driver.joined(ticket).member_id == "app-id1"


def test_static_members_get_no_id_round_trip(driver: GroupsDriver) -> None:
    ticket = driver.join(instance_id="i1", require_known_member_id=True)
    assert driver.joined(ticket).generation == 1


def test_join_phase_waits_for_a_pending_member_until_its_session_ends(driver: GroupsDriver) -> None:
    first = driver.stable()[0]
    driver.new_id()
    second = driver.new_id()
    tickets = [driver.join(second), driver.join(first)]
    assert not any(ticket in driver.replies for ticket in tickets)
    driver.advance(10_000)
    assert {driver.joined(ticket).generation for ticket in tickets} == {2}


def test_an_id_that_is_not_used_expires(driver: GroupsDriver) -> None:
    member_id = driver.new_id()
    driver.advance(10_000)
    assert isinstance(driver.error(driver.join(member_id)), UnknownMemberIdError)
    driver.run(driver.offsets.expire(driver.now))
    assert driver.state == "Dead"


def test_initial_delay_is_extended_while_members_come_up_to_the_rebalance_timeout() -> None:
    driver = GroupsDriver(initial_rebalance_delay_ms=1000)
    tickets = []
    for _ in range(5):
        tickets.append(driver.join(rebalance_timeout_ms=3500))
        driver.advance(900)
    assert tickets[0] in driver.replies
    assert driver.now - START_MS == 4500
    joined = [ticket for ticket in tickets if ticket in driver.replies]
    assert joined == tickets[:4]  # 3500 ms after the first, the fifth came too late
    assert len(driver.joined(tickets[0]).members) == 4


def test_initial_delay_ends_if_no_member_joined_during_it() -> None:
    driver = GroupsDriver(initial_rebalance_delay_ms=1000)
    ticket = driver.join()
    driver.advance(999)
    assert ticket not in driver.replies
    driver.advance(1)
    assert driver.joined(ticket).generation == 1


def test_members_that_do_not_rejoin_in_time_are_dropped(driver: GroupsDriver) -> None:
    leader, other = driver.stable(2, session_timeout_ms=100_000)
    newcomer = driver.join()
    again = driver.join(other)
    driver.advance(59_999)
    assert newcomer not in driver.replies
    driver.advance(1)
    assert driver.joined(newcomer).leader == other
    assert driver.joined(again).members[0].member_id == other
    assert isinstance(driver.error(driver.join(leader)), UnknownMemberIdError)


def test_rebalance_timeout_is_the_longest_of_the_members(driver: GroupsDriver) -> None:
    driver.stable(rebalance_timeout_ms=90_000, session_timeout_ms=200_000)
    ticket = driver.join(rebalance_timeout_ms=10_000)
    driver.advance(89_999)
    assert ticket not in driver.replies
    driver.advance(1)
    assert driver.joined(ticket).generation == 2


def test_all_members_rejoining_at_once_keep_their_ids(driver: GroupsDriver) -> None:
    ids = driver.stable(5)
    driver.join()
    tickets = {member_id: driver.join(member_id) for member_id in reversed(ids)}
    results = {member_id: driver.joined(ticket) for member_id, ticket in tickets.items()}
    assert {member_id: result.member_id for member_id, result in results.items()} == {
        member_id: member_id for member_id in ids
    }
    assert {result.leader for result in results.values()} == {ids[0]}


def test_follower_that_rejoins_unchanged_gets_the_current_generation(driver: GroupsDriver) -> None:
    _, follower = driver.stable(2)
    result = driver.joined(driver.join(follower))
    assert (result.generation, result.members) == (driver.generation, ())
    assert driver.state == "Stable"


def test_follower_with_new_metadata_triggers_a_rebalance(driver: GroupsDriver) -> None:
    _, follower = driver.stable(2)
    assert driver.join(follower, topics=("t", "u")) not in driver.replies
    assert driver.state == "PreparingRebalance"


def test_leader_that_rejoins_triggers_a_rebalance(driver: GroupsDriver) -> None:
    leader, follower = driver.stable(2)
    generation = driver.generation
    ticket = driver.join(leader)
    assert driver.state == "PreparingRebalance"
    driver.join(follower)
    assert driver.joined(ticket).generation == generation + 1


def test_member_that_missed_its_answer_gets_the_generation_again(driver: GroupsDriver) -> None:
    result = driver.joined(driver.join())
    again = driver.joined(driver.join(result.member_id))
    assert again == result


def test_new_member_during_completing_rebalance_makes_the_others_rejoin() -> None:
    driver = GroupsDriver()
    _, follower = driver.completing()
    waiting = driver.sync(follower, driver.generation)
    driver.join()
    assert isinstance(driver.error(waiting), RebalanceInProgressError)
    assert driver.state == "PreparingRebalance"


def test_second_join_of_a_member_replaces_the_first(driver: GroupsDriver) -> None:
    leader, follower = driver.stable(2)
    first = driver.join(leader)
    second = driver.join(leader)
    assert isinstance(driver.error(first), RebalanceInProgressError)
    driver.join(follower)
    assert driver.joined(second).member_id == leader


def test_protocol_with_most_votes_among_the_common_ones_wins() -> None:
    driver = GroupsDriver(initial_rebalance_delay_ms=10)
    meta = subscription("t")
    for names in (("a", "b", "c"), ("c", "b", "x"), ("b", "c")):
        ticket = driver.join(protocols=tuple((name, meta) for name in names))
    driver.advance(20)
    assert driver.joined(ticket).protocol == "b"


def test_the_votes_of_one_member_count_only_for_its_first_choice() -> None:
    driver = GroupsDriver(initial_rebalance_delay_ms=10)
    for names in (("a", "b"), ("b", "a"), ("b", "a")):
        ticket = driver.join(protocols=tuple((name, name.encode()) for name in names))
    driver.advance(20)
    assert driver.joined(ticket).protocol == "b"


@pytest.mark.parametrize(
    "changes",
    [
        {"protocols": (("other", b""),)},
        {"protocol_type": "connect"},
        {"protocols": ()},
    ],
)
def test_member_without_a_common_protocol_is_refused(changes: dict[str, Any]) -> None:
    driver = GroupsDriver()
    driver.stable()
    error = driver.error(driver.join(**changes))
    assert isinstance(error, InconsistentGroupProtocolError)
    assert driver.state == "Stable"


@pytest.mark.parametrize("changes", [{"protocols": ()}, {"protocol_type": ""}])
def test_first_member_must_have_a_protocol(driver: GroupsDriver, changes: dict[str, Any]) -> None:
    assert isinstance(driver.error(driver.join(**changes)), InconsistentGroupProtocolError)
    assert driver.state == "Dead"


def test_bad_ids_are_refused(driver: GroupsDriver) -> None:
    assert isinstance(driver.error(driver.join(group_id="")), InvalidGroupIdError)
    assert isinstance(driver.error(driver.join(group_id="x" * 40_000)), InvalidGroupIdError)
    assert isinstance(driver.error(driver.join(client_id="x" * 40_000)), InvalidRequestError)
    assert isinstance(driver.error(driver.join("unknown")), UnknownMemberIdError)
    driver.stable()
    assert isinstance(driver.error(driver.join("unknown")), UnknownMemberIdError)


def test_group_does_not_grow_over_its_limit() -> None:
    driver = GroupsDriver(max_size=2)
    first, second = driver.stable(2)
    assert isinstance(driver.error(driver.join()), GroupMaxSizeReachedError)
    third = driver.error(driver.join(require_known_member_id=True))
    assert isinstance(third, GroupMaxSizeReachedError)
    assert driver.state == "Stable"
    assert driver.joined(driver.join(second)).member_id == second
    driver.join(first)
    driver.join(second)
    assert driver.state == "CompletingRebalance"


def test_ids_are_not_given_out_over_the_limit() -> None:
    driver = GroupsDriver(max_size=1, initial_rebalance_delay_ms=100)
    first = driver.new_id()
    error = driver.error(driver.join(require_known_member_id=True))
    assert isinstance(error, GroupMaxSizeReachedError)
    ticket = driver.join(first)
    driver.advance(100)
    assert driver.joined(ticket).member_id == first


def test_group_over_a_lowered_limit_rebalances_after_a_restart(driver: GroupsDriver) -> None:
    ids = driver.stable(3)
    driver = driver.restart(max_size=2)
    assert driver.state == "PreparingRebalance"
    tickets = [driver.join(member_id) for member_id in ids]
    assert isinstance(driver.error(tickets[2]), GroupMaxSizeReachedError)
    assert len(driver.joined(tickets[0]).members) == 2


def test_cancelled_ticket_is_never_answered_and_the_member_counts() -> None:
    driver = GroupsDriver(initial_rebalance_delay_ms=100)
    gone = driver.join()
    driver.groups.cancel(gone)
    driver.groups.cancel(12345)
    other = driver.join()
    driver.advance(200)
    assert gone not in driver.replies
    assert len(driver.joined(other).members or driver.groups.describe("g").members) == 2


def test_parked_join_of_a_new_member_ends_after_five_minutes(driver: GroupsDriver) -> None:
    driver.stable(rebalance_timeout_ms=1_000_000, session_timeout_ms=1_000_000)
    ticket = driver.join()
    driver.advance(299_999)
    assert ticket not in driver.replies
    driver.advance(1)
    assert isinstance(driver.error(ticket), UnknownMemberIdError)
