"""The memory of groups: counted exactly, limited for a member, for a group and in total."""

from __future__ import annotations

import random

import pytest

from tests.state.driver import GroupsDriver
from tidemill.state.errors import (
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
)
from tidemill.state.groups.consumer_protocol import MAX_TOPICS, subscribed_topics
from tidemill.state.groups.join import MAX_PROTOCOLS
from tidemill.state.groups.memory import GroupLimits

SMALL = GroupLimits(member=10_000, group=30_000, total=50_000)


def subscription(count: int) -> bytes:
    return b"\0\1" + count.to_bytes(4, "big") + b"\0\1t" * count + b"\xff\xff\xff\xff"


def counted(driver: GroupsDriver) -> int:
    """The memory of the groups, computed from what they hold."""
    return sum(
        2048
        + 2 * len(group.group_id)
        + sum(member.size for member in group.members.values())
        + sum(512 + len(member_id) for member_id in group.pending_members)
        for group in driver.groups
    )


def test_a_member_that_sends_too_much_is_refused() -> None:
    driver = GroupsDriver(limits=SMALL)
    ticket = driver.join(protocols=(("range", b"x" * 10_001),))
    assert isinstance(driver.error(ticket), GroupMaxSizeReachedError)
    assert driver.groups.memory_bytes == 0
    assert driver.groups.get("g") is None


def test_a_group_that_would_be_too_large_refuses_a_member_and_keeps_the_others() -> None:
    driver = GroupsDriver(limits=SMALL, initial_rebalance_delay_ms=100)
    joined = [driver.join(protocols=(("range", b"x" * 7000),)) for _ in range(3)]
    refused = driver.join(protocols=(("range", b"x" * 7000),))
    assert isinstance(driver.error(refused), GroupMaxSizeReachedError)
    assert "30000" in str(driver.error(refused))
    driver.advance(200)
    assert [driver.joined(ticket).generation for ticket in joined] == [1, 1, 1]


def test_all_groups_together_are_limited() -> None:
    driver = GroupsDriver(limits=SMALL)
    tickets = [
        driver.join(group_id=f"g{number}", protocols=(("range", b"x" * 7000),))
        for number in range(8)
    ]
    refused = [
        ticket
        for ticket in tickets
        if isinstance(driver.replies.get(ticket), GroupMaxSizeReachedError)
    ]
    assert len(refused) >= 3
    assert driver.groups.memory_bytes <= SMALL.total


def test_clients_that_only_ask_for_ids_are_counted() -> None:
    driver = GroupsDriver(limits=SMALL)
    for number in range(100):
        driver.join(group_id=f"g{number}", require_known_member_id=True)
    assert driver.groups.memory_bytes <= SMALL.total
    assert len(list(driver.groups)) < 30


def test_assignments_count_and_too_large_ones_are_refused() -> None:
    driver = GroupsDriver(limits=SMALL)
    (member,) = driver.stable(1)
    before = driver.groups.memory_bytes
    ticket = driver.join(member_id=member)
    driver.advance(3000)
    generation = driver.joined(ticket).generation
    sync = driver.sync(member, generation, assignments={member: b"a" * 40_000})
    assert isinstance(driver.error(sync), GroupMaxSizeReachedError)
    sync = driver.sync(member, generation, assignments={member: b"a" * 5000})
    assert driver.synced(sync).assignment == b"a" * 5000
    assert driver.groups.memory_bytes >= before + 4900


def test_members_that_leave_free_what_they_took() -> None:
    driver = GroupsDriver(limits=SMALL)
    chance = random.Random(3)
    for _ in range(300):
        group_id = chance.choice(["a", "bb", "ccc"])
        kind = chance.choice(["join", "static", "pending", "advance", "late"])
        data = b"x" * chance.randrange(3000)
        if kind == "advance":
            driver.advance(chance.choice([100, 3000]))
        elif kind == "late":
            driver.advance(60_000)
        else:
            driver.join(
                group_id=group_id,
                instance_id=f"i{chance.randrange(2)}" if kind == "static" else None,
                require_known_member_id=kind == "pending",
                protocols=(("range", data),),
            )
        assert driver.groups.memory_bytes == counted(driver)
    assert driver.restart().groups.memory_bytes == counted(driver.restart())


def test_a_member_has_few_protocols(driver: GroupsDriver) -> None:
    protocols = tuple((f"p{number}", b"") for number in range(MAX_PROTOCOLS + 1))
    ticket = driver.join(protocols=protocols)
    assert isinstance(driver.error(ticket), InconsistentGroupProtocolError)
    assert driver.joined(driver.join(protocols=protocols[1:])).protocol == "p1"


@pytest.mark.parametrize("timeout_ms", [-1, 0, 5999, 1_800_001, 2**31 - 1])
def test_session_timeouts_are_bounded(driver: GroupsDriver, timeout_ms: int) -> None:
    ticket = driver.join(session_timeout_ms=timeout_ms)
    assert isinstance(driver.error(ticket), InvalidSessionTimeoutError)
    assert driver.groups.memory_bytes == 0


def test_the_topics_of_an_absurd_subscription_are_unknown() -> None:
    assert subscribed_topics(subscription(MAX_TOPICS)) == frozenset({"t"})
    assert subscribed_topics(subscription(MAX_TOPICS + 1)) is None
