"""Committed offsets: who may commit, what is fetched, deleted and expired."""

from __future__ import annotations

import pytest

from tests.state.driver import GroupsDriver
from tidemill.state.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidemill.state.groups.format import GroupKey, GroupValue, encode_group_key, encode_group_value
from tidemill.state.groups.types import LeaveMember
from tidemill.state.outcome import StateRecord
from tidemill.state.types import CommitRequest, CommittedOffset, OffsetToCommit

DAY = 86_400_000
WEEK = 7 * DAY


def at(topic: str, partition: int, offset: int, metadata: str | None = None) -> OffsetToCommit:
    return OffsetToCommit(topic, partition, offset, 3, metadata)


def test_committed_offsets_are_fetched_and_survive_a_restart(driver: GroupsDriver) -> None:
    (member,) = driver.stable()
    assert (
        driver.commit(member, driver.generation, at("t", 0, 5, "mine"), at("t", 1, 7)) == [None] * 2
    )
    expected = {
        ("t", 0): CommittedOffset(5, 3, "mine", driver.now),
        ("t", 1): CommittedOffset(7, 3, "", driver.now),
    }
    assert driver.offsets.fetch("g") == expected
    assert driver.offsets.fetch("g", [("t", 1), ("t", 9)]) == {("t", 1): expected["t", 1]}
    assert driver.offsets.fetch("unknown") == {}
    assert driver.restart().offsets.fetch("g") == expected


def test_commit_is_not_seen_before_its_record_is_written(driver: GroupsDriver) -> None:
    request = CommitRequest("g", -1, "", None, (at("t", 0, 5),))
    outcome = driver.offsets.commit(request, driver.now)
    assert driver.offsets.fetch("g") == {}
    driver.run(outcome)
    assert driver.seen() == {("t", 0): 5}


def test_last_commit_wins(driver: GroupsDriver) -> None:
    for offset in (5, 9, 2):
        driver.commit("", -1, at("t", 0, offset))
    assert driver.seen() == {("t", 0): 2}


def test_metadata_over_the_limit_is_refused_for_its_partition_only(driver: GroupsDriver) -> None:
    result = driver.commit("", -1, at("t", 0, 1, "é" * 2049), at("t", 1, 1, "x" * 4096))
    assert [type(error) for error in result] == [OffsetMetadataTooLargeError, type(None)]
    assert set(driver.offsets.fetch("g")) == {("t", 1)}


def test_simple_consumers_commit_to_groups_without_members_only(driver: GroupsDriver) -> None:
    assert driver.commit("", -1, at("t", 0, 1)) == [None]
    assert [(g.group_id, g.state, g.protocol_type) for g in driver.groups.list_groups()] == [
        ("g", "Empty", "")
    ]
    (member,) = driver.stable()
    with pytest.raises(UnknownMemberIdError):
        driver.commit("", -1, at("t", 0, 2))
    driver.leave(LeaveMember(member))
    assert driver.commit("", -1, at("t", 0, 3)) == [None]


def test_commit_is_refused_as_the_group_says(driver: GroupsDriver) -> None:
    with pytest.raises(IllegalGenerationError):
        driver.commit("x", 1, at("t", 0, 1))
    leader, follower = driver.stable(2)
    with pytest.raises(UnknownMemberIdError):
        driver.commit("x", driver.generation, at("t", 0, 1))
    with pytest.raises(IllegalGenerationError):
        driver.commit(leader, driver.generation - 1, at("t", 0, 1))
    driver.join(leader)
    assert driver.commit(follower, driver.generation, at("t", 0, 1)) == [None]  # before it rejoins
    driver.join(follower)
    with pytest.raises(RebalanceInProgressError):
        driver.commit(follower, driver.generation, at("t", 0, 1))


def test_offsets_expire_when_the_group_has_been_empty_for_the_retention() -> None:
    driver = GroupsDriver()
    (member,) = driver.stable()
    driver.commit(member, driver.generation, at("t", 0, 1))
    for _ in range(100):
        driver.advance(9000)
        driver.heartbeat(member, driver.generation)
    driver.leave(LeaveMember(member))
    driver.advance(WEEK - 1)
    driver.run(driver.offsets.expire(driver.now))
    assert driver.offsets.fetch("g")
    driver = driver.restart()  # the time since it became empty is kept
    driver.advance(1)
    driver.run(driver.offsets.expire(driver.now))
    assert driver.offsets.fetch("g") == {}
    assert driver.state == "Dead"
    assert list(driver.restart().groups.list_groups()) == []


def test_offsets_of_members_that_live_do_not_expire() -> None:
    driver = GroupsDriver(retention_ms=1000)
    (member,) = driver.stable()
    driver.commit(member, driver.generation, at("t", 0, 1), at("gone", 0, 1))
    driver.advance(1000)
    driver.run(driver.offsets.expire(driver.now))
    assert set(driver.offsets.fetch("g")) == {("t", 0)}  # "gone" is not subscribed any longer
    driver.join(member)
    driver.run(driver.offsets.expire(driver.now + WEEK))
    assert set(driver.offsets.fetch("g")) == {("t", 0)}


def test_offsets_of_a_group_of_unknown_subscription_do_not_expire() -> None:
    driver = GroupsDriver(retention_ms=1000)
    (member,) = driver.stable(protocols=(("range", b"?"),))
    driver.commit(member, driver.generation, at("t", 0, 1))
    driver.advance(5000)
    driver.run(driver.offsets.expire(driver.now))
    assert set(driver.offsets.fetch("g")) == {("t", 0)}


def test_offsets_of_simple_consumers_expire_one_by_one(driver: GroupsDriver) -> None:
    driver.commit("", -1, at("t", 0, 1))
    driver.advance(DAY)
    driver.commit("", -1, at("t", 1, 1))
    driver.advance(WEEK - DAY)
    driver.run(driver.offsets.expire(driver.now))
    assert set(driver.offsets.fetch("g")) == {("t", 1)}
    assert driver.state == "Empty"
    driver.advance(DAY)
    driver.run(driver.offsets.expire(driver.now))
    assert driver.state == "Dead"


def test_retention_of_the_commit_itself_is_honoured(driver: GroupsDriver) -> None:
    driver.commit("", -1, at("t", 0, 1), retention_ms=1000)
    driver.commit("", -1, at("t", 1, 1), retention_ms=2 * WEEK)
    driver = driver.restart()
    driver.advance(1000)
    driver.run(driver.offsets.expire(driver.now))
    assert set(driver.offsets.fetch("g")) == {("t", 1)}
    driver.advance(WEEK)
    driver.run(driver.offsets.expire(driver.now))
    assert set(driver.offsets.fetch("g")) == {("t", 1)}


def test_old_group_records_without_a_time_expire_since_the_commit(driver: GroupsDriver) -> None:
    value = GroupValue("consumer", 3, None, None, -1, ())
    driver.write(StateRecord(encode_group_key(GroupKey("g")), encode_group_value(value)))
    driver.commit("", -1, at("t", 0, 1))
    driver = driver.restart()
    driver.run(driver.offsets.expire(driver.now + WEEK - 1))
    assert driver.offsets.fetch("g")
    driver.run(driver.offsets.expire(driver.now + WEEK))
    assert not driver.offsets.fetch("g")


def test_group_that_was_only_asked_about_leaves_no_record(driver: GroupsDriver) -> None:
    driver.new_id()
    driver.advance(10_000)
    assert driver.state == "Empty"
    assert driver.offsets.expire(driver.now).records == []
    assert driver.state == "Dead"


def test_offsets_of_topics_without_readers_can_be_deleted(driver: GroupsDriver) -> None:
    (member,) = driver.stable()
    driver.commit(member, driver.generation, at("t", 0, 1), at("u", 0, 1))
    result = driver.run(driver.offsets.delete("g", [("t", 0), ("u", 0), ("u", 1)]))
    assert [type(error) for error in result] == [
        GroupSubscribedToTopicError,
        type(None),
        type(None),
    ]
    assert set(driver.offsets.fetch("g")) == {("t", 0)}
    driver.leave(LeaveMember(member))
    assert driver.run(driver.offsets.delete("g", [("t", 0)])) == [None]
    assert driver.restart().offsets.fetch("g") == {}


def test_offsets_of_members_that_are_not_consumers_can_not_be_deleted(driver: GroupsDriver) -> None:
    with pytest.raises(GroupIdNotFoundError):
        driver.offsets.delete("g", [("t", 0)])
    ticket = driver.join(protocol_type="connect", protocols=(("p", b""),))
    assert driver.joined(ticket)
    with pytest.raises(NonEmptyGroupError):
        driver.offsets.delete("g", [("t", 0)])


def test_deleted_topics_are_forgotten_in_every_group(driver: GroupsDriver) -> None:
    for group_id in ("a", "b"):
        driver.commit("", -1, at("t", 0, 1), at("u", 0, 1), group_id=group_id)
    driver.run(driver.offsets.topics_deleted(["t"]))
    assert [set(driver.offsets.fetch(g)) for g in ("a", "b")] == [{("u", 0)}] * 2


def test_deleted_group_takes_its_offsets_along(driver: GroupsDriver) -> None:
    driver.commit("", -1, at("t", 0, 1))
    driver.run(driver.offsets.delete_group("g"))
    assert driver.offsets.fetch("g") == {}
    assert driver.state == "Dead"


def test_commit_that_overlaps_the_groups_removal_keeps_a_group(driver: GroupsDriver) -> None:
    driver.commit("", -1, at("t", 0, 1))
    removal = driver.offsets.delete_group("g")
    driver.commit("", -1, at("t", 1, 1))
    driver.run(removal)
    driver.run(driver.offsets.expire(driver.now))
    assert set(driver.offsets.fetch("g")) == {("t", 1)}
    assert driver.state == "Empty"


def test_empty_group_whose_record_is_on_its_way_is_removed_by_a_record() -> None:
    driver = GroupsDriver()
    (member,) = driver.stable()
    driver = driver.restart()
    for record in list(driver.log):
        driver.groups.replay(record.key, None)  # as if nothing had reached the disk yet
    leaving = driver.groups.leave("g", [LeaveMember(member)], driver.now)
    removal = driver.offsets.expire(driver.now)
    assert [record.value for record in removal.records] == [None]
    driver.run(leaving)
    driver.run(removal)
    assert driver.state == "Dead"
    assert driver.groups.stored() == {}


def test_a_group_of_which_nothing_is_left_does_not_come_back_with_a_restart() -> None:
    driver = GroupsDriver()
    driver.commit("", -1, at("t", 0, 5))
    driver.run(driver.offsets.topics_deleted(["t"]))
    assert list(driver.restart().groups.list_groups()) == []
