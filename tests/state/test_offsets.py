"""Committed offsets: who may commit, what is fetched, deleted and expired."""

from __future__ import annotations

import pytest

from tests.state.harness import Desk
from tidemill.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidemill.state.offsets_format import GroupKey, GroupValue, encode_group_key, encode_group_value
from tidemill.state.outcome import StateRecord
from tidemill.state.types import (
    CommitRequest,
    CommittedOffset,
    LeaveMember,
    OffsetToCommit,
)

DAY = 86_400_000
WEEK = 7 * DAY


def at(topic: str, partition: int, offset: int, metadata: str | None = None) -> OffsetToCommit:
    return OffsetToCommit(topic, partition, offset, 3, metadata)


def test_committed_offsets_are_fetched_and_survive_a_restart() -> None:
    desk = Desk()
    (member,) = desk.stable()
    assert desk.commit(member, desk.generation, at("t", 0, 5, "mine"), at("t", 1, 7)) == [None] * 2
    expected = {
        ("t", 0): CommittedOffset(5, 3, "mine", desk.now),
        ("t", 1): CommittedOffset(7, 3, "", desk.now),
    }
    assert desk.offsets.fetch("g") == expected
    assert desk.offsets.fetch("g", [("t", 1), ("t", 9)]) == {("t", 1): expected["t", 1]}
    assert desk.offsets.fetch("nobody") == {}
    assert desk.restart().offsets.fetch("g") == expected


def test_commit_is_not_seen_before_its_record_is_written() -> None:
    desk = Desk()
    request = CommitRequest("g", -1, "", None, (at("t", 0, 5),))
    outcome = desk.offsets.commit(request, desk.now)
    assert desk.offsets.fetch("g") == {}
    desk.run(outcome)
    assert desk.seen() == {("t", 0): 5}


def test_last_commit_wins() -> None:
    desk = Desk()
    for offset in (5, 9, 2):
        desk.commit("", -1, at("t", 0, offset))
    assert desk.seen() == {("t", 0): 2}


def test_metadata_over_the_limit_is_refused_for_its_partition_only() -> None:
    desk = Desk()
    result = desk.commit("", -1, at("t", 0, 1, "é" * 2049), at("t", 1, 1, "x" * 4096))
    assert [type(error) for error in result] == [OffsetMetadataTooLargeError, type(None)]
    assert set(desk.offsets.fetch("g")) == {("t", 1)}


def test_simple_consumers_commit_to_groups_without_members_only() -> None:
    desk = Desk()
    assert desk.commit("", -1, at("t", 0, 1)) == [None]
    assert [(g.group_id, g.state, g.protocol_type) for g in desk.groups.list_groups()] == [
        ("g", "Empty", "")
    ]
    (member,) = desk.stable()
    with pytest.raises(UnknownMemberIdError):
        desk.commit("", -1, at("t", 0, 2))
    desk.leave(LeaveMember(member))
    assert desk.commit("", -1, at("t", 0, 3)) == [None]


def test_commit_is_refused_as_the_group_says() -> None:
    desk = Desk()
    with pytest.raises(IllegalGenerationError):
        desk.commit("x", 1, at("t", 0, 1))
    leader, follower = desk.stable(2)
    with pytest.raises(UnknownMemberIdError):
        desk.commit("x", desk.generation, at("t", 0, 1))
    with pytest.raises(IllegalGenerationError):
        desk.commit(leader, desk.generation - 1, at("t", 0, 1))
    desk.join(leader)
    assert desk.commit(follower, desk.generation, at("t", 0, 1)) == [None]  # before it rejoins
    desk.join(follower)
    with pytest.raises(RebalanceInProgressError):
        desk.commit(follower, desk.generation, at("t", 0, 1))


def test_offsets_expire_when_the_group_has_been_empty_for_the_retention() -> None:
    desk = Desk()
    (member,) = desk.stable()
    desk.commit(member, desk.generation, at("t", 0, 1))
    for _ in range(100):
        desk.advance(9000)
        desk.heartbeat(member, desk.generation)
    desk.leave(LeaveMember(member))
    desk.advance(WEEK - 1)
    desk.run(desk.offsets.expire(desk.now))
    assert desk.offsets.fetch("g")
    desk = desk.restart()  # the time since it became empty is kept
    desk.advance(1)
    desk.run(desk.offsets.expire(desk.now))
    assert desk.offsets.fetch("g") == {}
    assert desk.state == "Dead"
    assert desk.restart().groups.list_groups() == []


def test_offsets_of_members_that_live_do_not_expire() -> None:
    desk = Desk(retention_ms=1000)
    (member,) = desk.stable()
    desk.commit(member, desk.generation, at("t", 0, 1), at("gone", 0, 1))
    desk.advance(1000)
    desk.run(desk.offsets.expire(desk.now))
    assert set(desk.offsets.fetch("g")) == {("t", 0)}  # "gone" is not subscribed any longer
    desk.join(member)
    desk.run(desk.offsets.expire(desk.now + WEEK))
    assert set(desk.offsets.fetch("g")) == {("t", 0)}


def test_offsets_of_a_group_of_unknown_subscription_do_not_expire() -> None:
    desk = Desk(retention_ms=1000)
    (member,) = desk.stable(protocols=(("range", b"?"),))
    desk.commit(member, desk.generation, at("t", 0, 1))
    desk.advance(5000)
    desk.run(desk.offsets.expire(desk.now))
    assert set(desk.offsets.fetch("g")) == {("t", 0)}


def test_offsets_of_simple_consumers_expire_one_by_one() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 1))
    desk.advance(DAY)
    desk.commit("", -1, at("t", 1, 1))
    desk.advance(WEEK - DAY)
    desk.run(desk.offsets.expire(desk.now))
    assert set(desk.offsets.fetch("g")) == {("t", 1)}
    assert desk.state == "Empty"
    desk.advance(DAY)
    desk.run(desk.offsets.expire(desk.now))
    assert desk.state == "Dead"


def test_retention_of_the_commit_itself_is_honoured() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 1), retention_ms=1000)
    desk.commit("", -1, at("t", 1, 1), retention_ms=2 * WEEK)
    desk = desk.restart()
    desk.advance(1000)
    desk.run(desk.offsets.expire(desk.now))
    assert set(desk.offsets.fetch("g")) == {("t", 1)}
    desk.advance(WEEK)
    desk.run(desk.offsets.expire(desk.now))
    assert set(desk.offsets.fetch("g")) == {("t", 1)}


def test_old_group_records_without_a_time_expire_since_the_commit() -> None:
    desk = Desk()
    value = GroupValue("consumer", 3, None, None, -1, ())
    desk.write(StateRecord(encode_group_key(GroupKey("g")), encode_group_value(value)))
    desk.commit("", -1, at("t", 0, 1))
    desk = desk.restart()
    desk.run(desk.offsets.expire(desk.now + WEEK - 1))
    assert desk.offsets.fetch("g")
    desk.run(desk.offsets.expire(desk.now + WEEK))
    assert not desk.offsets.fetch("g")


def test_group_that_was_only_asked_about_leaves_no_record() -> None:
    desk = Desk()
    desk.new_id()
    desk.advance(10_000)
    assert desk.state == "Empty"
    assert desk.offsets.expire(desk.now).records == []
    assert desk.state == "Dead"


def test_offsets_of_topics_that_nobody_reads_can_be_deleted() -> None:
    desk = Desk()
    (member,) = desk.stable()
    desk.commit(member, desk.generation, at("t", 0, 1), at("u", 0, 1))
    result = desk.run(desk.offsets.delete("g", [("t", 0), ("u", 0), ("u", 1)]))
    assert [type(error) for error in result] == [
        GroupSubscribedToTopicError,
        type(None),
        type(None),
    ]
    assert set(desk.offsets.fetch("g")) == {("t", 0)}
    desk.leave(LeaveMember(member))
    assert desk.run(desk.offsets.delete("g", [("t", 0)])) == [None]
    assert desk.restart().offsets.fetch("g") == {}


def test_offsets_of_members_that_are_no_consumers_can_not_be_deleted() -> None:
    desk = Desk()
    with pytest.raises(GroupIdNotFoundError):
        desk.offsets.delete("g", [("t", 0)])
    ticket = desk.join(protocol_type="connect", protocols=(("p", b""),))
    assert desk.joined(ticket)
    with pytest.raises(NonEmptyGroupError):
        desk.offsets.delete("g", [("t", 0)])


def test_deleted_topics_are_forgotten_in_every_group() -> None:
    desk = Desk()
    for group_id in ("a", "b"):
        desk.commit("", -1, at("t", 0, 1), at("u", 0, 1), group_id=group_id)
    desk.run(desk.offsets.topics_deleted(["t"]))
    assert [set(desk.offsets.fetch(g)) for g in ("a", "b")] == [{("u", 0)}] * 2


def test_deleted_group_takes_its_offsets_along() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 1))
    desk.run(desk.offsets.delete_group("g"))
    assert desk.offsets.fetch("g") == {}
    assert desk.state == "Dead"


def test_commit_that_overlaps_the_groups_removal_keeps_a_group() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 1))
    removal = desk.offsets.delete_group("g")
    desk.commit("", -1, at("t", 1, 1))
    desk.run(removal)
    desk.run(desk.offsets.expire(desk.now))
    assert set(desk.offsets.fetch("g")) == {("t", 1)}
    assert desk.state == "Empty"


def test_empty_group_whose_record_is_on_its_way_is_removed_by_a_record() -> None:
    desk = Desk()
    (member,) = desk.stable()
    desk = desk.restart()
    for record in list(desk.log):
        desk.groups.replay(record.key, None)  # as if nothing had reached the disk yet
    leaving = desk.groups.leave("g", [LeaveMember(member)], desk.now)
    removal = desk.offsets.expire(desk.now)
    assert [record.value for record in removal.records] == [None]
    desk.run(leaving)
    desk.run(removal)
    assert desk.state == "Dead"
    assert desk.groups.stored() == {}


def test_a_group_of_which_nothing_is_left_does_not_come_back_with_a_restart() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 5))
    desk.run(desk.offsets.topics_deleted(["t"]))
    assert desk.restart().groups.list_groups() == []
