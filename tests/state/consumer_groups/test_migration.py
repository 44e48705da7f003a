"""Members with both protocols in one group, and groups that change their protocol."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.state.consumer_groups.support import (
    SESSION_MS,
    ClassicMember,
    Driver,
    FakeTopics,
    Member,
    converge,
)
from tidemill.state.consumer_groups.types import MigrationPolicy
from tidemill.state.errors import (
    FencedInstanceIdError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from tidemill.state.groups.types import LeaveMember
from tidemill.state.types import CommitRequest, OffsetToCommit

ALL = {("t", n) for n in range(4)}


@pytest.fixture
def driver() -> Driver:
    return Driver()


def classic_group(driver: Driver, **options: str) -> ClassicMember:
    """Return the one member of a stable classic group, which has all partitions."""
    member = ClassicMember(driver, **options)
    member.join()
    member.sync({member.member_id: {"t": [0, 1, 2, 3]}})
    return member


def follow(driver: Driver, classic: ClassicMember, *members: Member) -> None:
    """Let a classic member do what its heartbeats say, beside the others."""
    for _ in range(6):
        try:
            classic.beat()
        except RebalanceInProgressError:
            classic.join()
            classic.sync()
        converge(*members, rounds=1)


def mixed(driver: Driver, **options: str) -> tuple[ClassicMember, Member]:
    """Return the members of a consumer group; the first one uses the classic protocol."""
    new, old = Member(driver, "new", **options), ClassicMember(driver)
    converge(new)
    old.join()
    old.sync()
    follow(driver, old, new)
    return old, new


def commit(driver: Driver, member_id: str, epoch: int, **options: object) -> None:
    request = CommitRequest(
        "g",
        epoch,
        member_id,
        None,
        (OffsetToCommit("t", 0, 5),),
        **options,  # type: ignore[arg-type]
    )
    driver.groups.check_commit(request, driver.now)


# --- upgrade -------------------------------------------------------------------------------------


def test_a_classic_group_becomes_a_consumer_group_with_its_members(driver: Driver) -> None:
    old = classic_group(driver)
    assert driver.kinds() == {"g": ("classic", "Stable")}
    new = Member(driver, "new")
    new.beat()
    assert driver.kinds() == {"g": ("consumer", "Reconciling")}
    assert new.wanted == {}  # the classic member has all partitions still
    with pytest.raises(RebalanceInProgressError):
        old.beat()
    joined = old.join()
    assert (joined.protocol_type, joined.leader, joined.members) == ("consumer", "", ())
    old.sync()
    assert len(old.partitions) == 2
    follow(driver, old, new)
    assert old.partitions | new.partitions == ALL
    assert len(old.partitions) == len(new.partitions) == 2
    assert driver.kinds() == {"g": ("consumer", "Stable")}
    assert driver.groups.describe("g").state == "Dead"  # DescribeGroups knows classic groups only


def test_a_rebalance_of_classic_members_is_cut_short_by_an_upgrade(driver: Driver) -> None:
    old = classic_group(driver)
    second = ClassicMember(driver)
    second.ask_join()  # parked until the first one joins again
    Member(driver, "new").beat()
    assert isinstance(driver.replies[second.ticket], RebalanceInProgressError)
    follow(driver, old)


def test_an_empty_classic_group_is_replaced(driver: Driver) -> None:
    old = classic_group(driver)
    driver.settle(driver.groups.leave("g", [LeaveMember(old.member_id)], driver.now))
    assert driver.kinds() == {"g": ("classic", "Empty")}
    converge(Member(driver, "new"))
    assert driver.kinds() == {"g": ("consumer", "Stable")}
    driver.restart()
    assert driver.kinds() == {"g": ("consumer", "Stable")}


@pytest.mark.parametrize("policy", [MigrationPolicy.DOWNGRADE, MigrationPolicy.DISABLED])
def test_an_upgrade_can_be_forbidden(policy: MigrationPolicy) -> None:
    driver = Driver(policy=policy)
    old = classic_group(driver)
    with pytest.raises(GroupIdNotFoundError):
        Member(driver, "new").beat()
    old.beat()
    assert driver.kinds() == {"g": ("classic", "Stable")}


def test_an_upgrade_that_is_not_written_leaves_the_classic_group(driver: Driver) -> None:
    old = classic_group(driver)
    lost = driver.groups.consumer_heartbeat(Member(driver, "new").request(), driver.now)
    driver.groups.write_failed(lost, driver.now)
    assert driver.kinds()["g"][0] == "classic"
    with pytest.raises(RebalanceInProgressError):
        old.beat()


# --- classic members in a consumer group ---------------------------------------------------------


def test_a_classic_member_joins_a_consumer_group(driver: Driver) -> None:
    new = Member(driver, "new")
    converge(new)
    old = ClassicMember(driver)
    old.join()
    old.sync()
    assert old.owned == {}
    follow(driver, old, new)
    assert old.partitions | new.partitions == ALL
    assert len(old.partitions) == 2
    driver.restart()
    follow(driver, old, new)
    assert old.partitions | new.partitions == ALL


def test_classic_members_are_checked_as_in_a_classic_group(driver: Driver) -> None:
    new = Member(driver, "new")
    converge(new)
    old = ClassicMember(driver, instance_id="i")
    old.join()
    old.sync()
    generation = old.generation
    old.generation += 1
    with pytest.raises(IllegalGenerationError):
        old.beat()
    old.generation, old.member_id = generation, "other"
    with pytest.raises(FencedInstanceIdError):
        old.beat()
    old.instance_id = None
    with pytest.raises(UnknownMemberIdError):
        old.beat()
    old.member_id = new.member_id  # a member of the other protocol
    with pytest.raises(UnknownMemberIdError):
        old.beat()
    stranger = ClassicMember(driver)
    request = replace(stranger.join_request(), protocols=(("range", b"\0\1"),))
    ticket = driver.ask_join(request)
    assert isinstance(driver.replies[ticket], InconsistentGroupProtocolError)
    assert len(driver.assigned()) == 2


def test_a_classic_member_that_does_not_join_again_is_removed(driver: Driver) -> None:
    old, new = mixed(driver)
    third = Member(driver, "third")
    third.beat()
    for _ in range(8):  # it is alive, but it ignores that it has to join
        driver.wait(9_000)
        converge(new, third, rounds=1)
        with pytest.raises((RebalanceInProgressError, UnknownMemberIdError)):
            old.beat()
    assert set(driver.assigned()) == {"new", "third"}


def test_a_classic_member_that_leaves_makes_space(driver: Driver) -> None:
    old, new = mixed(driver)
    leaving = [LeaveMember(old.member_id), LeaveMember("other"), LeaveMember(new.member_id)]
    result = driver.settle(driver.groups.leave("g", leaving, driver.now))
    assert [type(each) for each in result] == [type(None), *[UnknownMemberIdError] * 2]
    converge(new)
    assert new.partitions == ALL


# --- downgrade -----------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
def test_a_group_without_consumer_members_becomes_classic(driver: Driver, killed: bool) -> None:
    old, new = mixed(driver)
    if killed:
        for _ in range(SESSION_MS // 9_000 + 1):
            driver.wait(9_000)
            try:
                old.beat()
            except RebalanceInProgressError:
                break
    else:
        new.leave()
    assert driver.kinds()["g"][0] == "classic"
    with pytest.raises(RebalanceInProgressError):
        old.beat()
    joined = old.join()
    assert joined.leader == old.member_id
    old.sync({old.member_id: {"t": [0, 1, 2, 3]}})
    assert driver.kinds() == {"g": ("classic", "Stable")}
    driver.restart()
    old.beat()
    assert driver.kinds() == {"g": ("classic", "Stable")}


@pytest.mark.parametrize("policy", [MigrationPolicy.UPGRADE, MigrationPolicy.DISABLED])
def test_a_downgrade_can_be_forbidden(policy: MigrationPolicy) -> None:
    driver = Driver(policy=policy)
    old, new = mixed(driver)
    new.leave()
    follow(driver, old)
    assert driver.kinds() == {"g": ("consumer", "Stable")}
    assert old.partitions == ALL


def test_a_static_member_changes_the_protocol_with_the_group(driver: Driver) -> None:
    new = Member(driver, "new", instance_id="i")
    converge(new)
    old = ClassicMember(driver, instance_id="i")
    old.join()
    old.sync({old.member_id: {"t": [0, 1, 2, 3]}})
    assert driver.kinds() == {"g": ("classic", "Stable")}
    back = Member(driver, "back", instance_id="i")
    converge(back)
    assert (driver.kinds(), back.partitions) == ({"g": ("consumer", "Stable")}, ALL)
    with pytest.raises(FencedInstanceIdError):
        old.beat()


def test_the_last_static_consumer_member_takes_the_group_back(driver: Driver) -> None:
    old, _ = mixed(driver, instance_id="i")
    replacement = ClassicMember(driver, instance_id="i")
    replacement.ask_join()  # the other one has to join too
    assert driver.kinds() == {"g": ("classic", "PreparingRebalance")}
    old.ask_join()
    assert {old.joined().generation} == {replacement.joined().generation}


def test_an_empty_consumer_group_is_replaced_by_a_classic_one(driver: Driver) -> None:
    new = Member(driver, "new")
    converge(new)
    new.leave()
    old = classic_group(driver)
    assert driver.kinds() == {"g": ("classic", "Stable")}
    driver.restart()
    assert driver.kinds() == {"g": ("classic", "Stable")}
    old.beat()


# --- committed offsets ---------------------------------------------------------------------------


def test_commits_need_the_epoch_of_the_member(driver: Driver) -> None:
    a, b = Member(driver, "a"), Member(driver, "b")
    converge(a)
    commit(driver, "a", 1)
    b.beat()
    a.beat()
    a.beat()
    assert a.epoch == 2
    commit(driver, "a", 2)
    commit(driver, "a", 1)  # it has had the partition since then (KIP-1251)
    for epoch in (0, 3, -1):
        with pytest.raises(StaleMemberEpochError):
            commit(driver, "a", epoch)
    with pytest.raises(StaleMemberEpochError):
        commit(driver, "b", 1)
    for member_id in ("", "x"):
        with pytest.raises(UnknownMemberIdError):
            commit(driver, member_id, 1)


def test_a_transaction_gets_the_error_of_its_protocol(driver: Driver) -> None:
    converge(Member(driver, "a"))
    wrong = CommitRequest("g", 7, "a", None, (OffsetToCommit("t", 0, 5),))
    with pytest.raises(IllegalGenerationError):
        driver.groups.check_transactional_commit(wrong)
    driver.groups.check_transactional_commit(CommitRequest("g", -1, "", None, ()))


def test_an_old_commit_of_a_consumer_member_is_refused(driver: Driver) -> None:
    old, _ = mixed(driver)
    with pytest.raises(Exception, match="no member epochs"):
        commit(driver, "new", 2, knows_epochs=False)
    commit(driver, old.member_id, old.generation, knows_epochs=False)
    with pytest.raises(IllegalGenerationError):
        commit(driver, old.member_id, old.generation + 1, knows_epochs=False)


def test_a_client_without_a_member_commits_to_an_empty_group_only(driver: Driver) -> None:
    a = Member(driver, "a")
    converge(a)
    with pytest.raises(UnknownMemberIdError):
        commit(driver, "", -1)
    a.leave()
    commit(driver, "", -1)


def test_fetches_are_checked_where_they_name_a_member(driver: Driver) -> None:
    a = Member(driver, "a")
    converge(a)
    check = driver.groups.check_fetch
    check("g", None, -1)
    check("g", "a", 1)
    check("unknown", "x", 5)
    with pytest.raises(UnknownMemberIdError):
        check("g", "x", 1)
    with pytest.raises(StaleMemberEpochError):
        check("g", "a", 2)


# --- lists ---------------------------------------------------------------------------------------


def test_groups_are_listed_by_type_and_state() -> None:
    driver = Driver(FakeTopics(t=4))
    classic_group(driver, group_id="old")
    converge(Member(driver, "a"))

    def listed(states: list[str], types: list[str]) -> set[str]:
        return {group.group_id for group in driver.groups.list_groups(states, types)}

    assert listed([], []) == {"old", "g"}
    assert listed([], ["Classic"]) == {"old"}
    assert listed([], ["CONSUMER"]) == {"g"}
    assert listed(["stable"], []) == {"old", "g"}
    assert listed(["Empty"], []) == set()
    assert listed([], ["share"]) == set()
