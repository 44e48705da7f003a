"""Static members (KIP-345, KIP-814): a restart within the session costs no rebalance."""

from __future__ import annotations

import pytest

from tests.state.driver import GroupsDriver, subscription
from tidemill.state.errors import FencedInstanceIdError, UnknownMemberIdError
from tidemill.state.groups.types import LeaveMember
from tidemill.state.types import OffsetToCommit


def test_restarted_member_takes_its_place_without_a_rebalance(driver: GroupsDriver) -> None:
    _, old = driver.stable(2, instances=["a", "b"])
    generation = driver.generation
    result = driver.joined(driver.join(instance_id="b"))
    assert (result.generation, result.skip_assignment) == (generation, False)
    assert result.member_id != old
    assert driver.state == "Stable"
    ticket = driver.sync(result.member_id, generation, instance_id="b")
    assert driver.synced(ticket).assignment == old.encode()


def test_old_id_of_a_restarted_member_is_fenced_everywhere(driver: GroupsDriver) -> None:
    _, old = driver.stable(2, instances=["a", "b"])
    generation = driver.generation
    driver.join(instance_id="b")
    with pytest.raises(FencedInstanceIdError):
        driver.heartbeat(old, generation, "b")
    with pytest.raises(FencedInstanceIdError):
        driver.commit(old, generation, OffsetToCommit("t", 0, 1), instance_id="b")
    assert isinstance(driver.error(driver.join(old, instance_id="b")), FencedInstanceIdError)
    assert isinstance(
        driver.error(driver.sync(old, generation, instance_id="b")), FencedInstanceIdError
    )
    assert isinstance(driver.leave(LeaveMember(old, "b"))[0], FencedInstanceIdError)
    with pytest.raises(UnknownMemberIdError):
        driver.heartbeat(old, generation)


def test_restarted_leader_of_an_old_client_gets_the_old_leader_id(driver: GroupsDriver) -> None:
    old, _ = driver.stable(2, instances=["a", "b"])
    result = driver.joined(driver.join(instance_id="a"))
    assert (result.leader, result.members) == (old, ())
    assert result.member_id != old


def test_restarted_leader_of_a_new_client_skips_the_assignment(driver: GroupsDriver) -> None:
    driver.stable(2, instances=["a", "b"])
    result = driver.joined(driver.join(instance_id="a", supports_skipping_assignment=True))
    assert result.leader == result.member_id
    assert result.skip_assignment
    assert {m.instance_id for m in result.members} == {"a", "b"}


def test_restarted_follower_of_a_new_client_skips_nothing(driver: GroupsDriver) -> None:
    leader, _ = driver.stable(2, instances=["a", "b"])
    result = driver.joined(driver.join(instance_id="b", supports_skipping_assignment=True))
    assert (result.leader, result.skip_assignment, result.members) == (leader, False, ())


def test_user_data_alone_does_not_count_as_another_subscription(driver: GroupsDriver) -> None:
    driver.stable(2, instances=["a", "b"])
    changed = (("range", subscription("t", user_data=b"owned")),)
    result = driver.joined(driver.join(instance_id="b", protocols=changed))
    assert result.generation == driver.generation
    assert driver.state == "Stable"


def test_another_subscription_rebalances(driver: GroupsDriver) -> None:
    driver.stable(2, instances=["a", "b"])
    driver.join(instance_id="b", topics=("t", "u"))
    assert driver.state == "PreparingRebalance"


def test_restart_while_assignments_are_awaited_rebalances_and_fences_the_waiting() -> None:
    driver = GroupsDriver()
    a, b = driver.stable(2, instances=["a", "b"])
    driver.join(a, instance_id="a")
    driver.join(b, instance_id="b")
    waiting = driver.sync(b, driver.generation, instance_id="b")
    driver.join(instance_id="b")
    assert isinstance(driver.error(waiting), FencedInstanceIdError)
    assert driver.state == "PreparingRebalance"


def test_restart_while_joins_are_awaited_fences_the_older_join(driver: GroupsDriver) -> None:
    a, b = driver.stable(2, instances=["a", "b"])
    older = driver.join(b, instance_id="b", topics=("t", "u"))
    newer = driver.join(instance_id="b")
    assert isinstance(driver.error(older), FencedInstanceIdError)
    driver.join(a, instance_id="a")
    assert driver.joined(newer).generation == driver.generation


def test_static_member_that_does_not_rejoin_keeps_its_place_until_its_session_ends() -> None:
    driver = GroupsDriver()
    _, b = driver.stable(2, instances=["a", "b"], session_timeout_ms=300_000)
    ticket = driver.join(instance_id="c", session_timeout_ms=300_000)
    again = driver.join(b, instance_id="b", session_timeout_ms=300_000)
    driver.advance(60_000)
    members = driver.joined(again).members or driver.joined(ticket).members
    assert {m.instance_id for m in members} == {"a", "b", "c"}


def test_group_of_absent_static_members_waits_for_their_sessions(driver: GroupsDriver) -> None:
    driver.stable(1, instances=["a"], session_timeout_ms=100_000)
    ticket = driver.join()  # makes it rebalance, then gives up
    newcomer = driver.groups.describe("g").members[-1].member_id
    driver.leave(LeaveMember(newcomer))
    assert isinstance(driver.error(ticket), UnknownMemberIdError)
    driver.advance(60_000)
    assert driver.state == "PreparingRebalance"
    driver.advance(40_000)
    assert driver.state == "Empty"


def test_admin_removes_static_members_by_instance_id(driver: GroupsDriver) -> None:
    driver.stable(2, instances=["a", "b"])
    assert driver.leave(LeaveMember("", "b")) == [None]
    assert isinstance(driver.leave(LeaveMember("", "zzz"))[0], UnknownMemberIdError)
    assert len(driver.groups.describe("g").members) == 1


def test_replaced_static_member_survives_a_restart_of_the_broker(driver: GroupsDriver) -> None:
    driver.stable(2, instances=["a", "b"])
    new = driver.joined(driver.join(instance_id="b")).member_id
    driver = driver.restart()
    driver.heartbeat(new, driver.generation, "b")


def test_full_group_takes_a_restarted_static_member() -> None:
    driver = GroupsDriver(max_size=2)
    driver.stable(2, instances=["a", "b"])
    assert driver.joined(driver.join(instance_id="a")).generation == driver.generation
