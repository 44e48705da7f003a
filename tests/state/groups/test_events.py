"""Every join, leave, removal and rebalance is described with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.state.driver import GroupsDriver, subscription
from tidemill.state.errors import RebalanceInProgressError
from tidemill.state.groups.events import GroupEvent, MemberEvent
from tidemill.state.groups.types import LeaveMember, SyncRequest


def told(driver: GroupsDriver) -> list[str]:
    """Return the events since the last call, one text each."""
    events: list[Any] = list(driver.events)
    driver.events.clear()
    return [
        f"{each.what.value} {each.member_id}: {each.reason}"
        if isinstance(each, MemberEvent)
        else f"{each.what.value} {each.generation} {each.members}: {each.reason}"
        for each in events
    ]


def settled(count: int, **settings: Any) -> tuple[GroupsDriver, list[str]]:
    driver = GroupsDriver(**settings)
    members = driver.stable(count)
    driver.events.clear()
    return driver, members


def test_a_new_group_joins_rebalances_and_is_stable(driver: GroupsDriver) -> None:
    (member,) = driver.stable(1)
    assert told(driver) == [
        f"joined {member}: ",
        f"rebalancing 0 1: member {member} joined",
        "stable 1 1: ",
    ]


def test_an_event_says_who_the_member_is(driver: GroupsDriver) -> None:
    driver.join(instance_id="i", client_id="c", client_host="/10.0.0.1", reason="first")
    event = driver.events[0]
    assert isinstance(event, MemberEvent)
    assert (event.group_id, event.instance_id, event.client_id) == ("g", "i", "c")
    assert (event.client_host, event.reason) == ("/10.0.0.1", "first")


def test_a_member_that_leaves_gives_its_own_reason() -> None:
    driver, (first, second) = settled(2)
    driver.leave(LeaveMember(second, None, "the consumer was closed"))
    assert told(driver) == [
        f"left {second}: the consumer was closed",
        "rebalancing 2 1: members left",
    ]
    driver.leave(LeaveMember(first))
    assert told(driver) == [f"left {first}: ", "empty 3 0: "]


def test_a_member_without_heartbeats_is_removed_with_its_session_timeout() -> None:
    driver, (first, second) = settled(2)
    driver.advance(9_000)
    driver.heartbeat(first, driver.generation)
    driver.advance(1_000)
    reason = "no heartbeat for 10000 ms (session timeout)"
    assert told(driver) == [
        f"removed {second}: {reason}",
        f"rebalancing 2 1: member {second}: {reason}",
    ]


def test_a_member_that_does_not_join_again_is_removed_with_the_rebalance_timeout() -> None:
    driver, (first, second) = settled(2)
    driver.join(first, protocols=(("range", subscription("other")),))
    assert told(driver) == [f"rebalancing 2 2: member with a new subscription {first} joined again"]
    for _ in range(7):
        driver.advance(9_000)
        if second in {m.member_id for m in driver.groups.describe("g").members}:
            with pytest.raises(RebalanceInProgressError):
                driver.heartbeat(second, 2)
    assert f"removed {second}: it did not join again within 60000 ms (rebalance timeout)" in told(
        driver
    )


def test_members_that_never_ask_for_their_assignment_are_removed() -> None:
    driver, (first, second) = settled(2)
    driver.join(first)
    driver.join(second)
    for _ in range(7):  # both live, and neither sends its SyncGroup
        driver.advance(9_000)
        for member in (first, second):
            if member in {m.member_id for m in driver.groups.describe("g").members}:
                driver.heartbeat(member, driver.generation)
    reasons = [line for line in told(driver) if line.startswith("removed")]
    assert len(reasons) == 2
    assert all("did not ask for its assignment within 60000 ms" in line for line in reasons)


def test_the_leader_asks_for_a_rebalance_with_a_reason() -> None:
    driver, (leader, _) = settled(2)
    driver.join(leader, reason="new partitions")
    assert told(driver) == [f"rebalancing 2 2: leader {leader} joined again: new partitions"]


def test_a_restarted_static_member_replaces_its_old_id(driver: GroupsDriver) -> None:
    ticket = driver.join(instance_id="i")
    old = driver.joined(ticket).member_id
    driver.sync(old, 1, {old: b"A"}, instance_id="i")
    driver.events.clear()
    new = driver.joined(driver.join(instance_id="i")).member_id
    assert told(driver) == [f"replaced {new}: its id was {old}"]


def test_a_group_over_a_lowered_limit_says_so() -> None:
    driver, members = settled(3)
    smaller = driver.restart(max_size=2)
    assert told(smaller) == ["rebalancing 3 3: it has more than 2 members (groups.max_size)"]
    for member in members:
        smaller.join(member)
    assert f"removed {members[2]}: the group has 2 members already (groups.max_size)" in told(
        smaller
    )


def test_a_generation_that_can_not_be_stored_is_told(driver: GroupsDriver) -> None:
    member = driver.joined(driver.join()).member_id
    request = SyncRequest("g", 1, member, None, "consumer", "range", ((member, b"A"),))
    outcome = driver.groups.sync(request, 99, driver.now)
    driver.groups.write_failed(outcome, driver.now)
    (event,) = outcome.events
    assert isinstance(event, GroupEvent)
    assert event.reason == "its state could not be written"
