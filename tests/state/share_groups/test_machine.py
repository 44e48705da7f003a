"""Share groups: members, epochs, assignments, and what a restart replays."""

from __future__ import annotations

from typing import Any

import pytest

from tests.state.consumer_groups.support import FakeTopics
from tidemill.errors import TidemillError
from tidemill.state.errors import (
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidGroupIdError,
    InvalidRequestError,
    UnknownMemberIdError,
)
from tidemill.state.modern_groups.types import GroupTimes, HeartbeatResult
from tidemill.state.outcome import Outcome
from tidemill.state.share_groups.machine import ShareGroups
from tidemill.state.share_groups.types import ShareHeartbeat


class Driver:
    """The machine with a log."""

    def __init__(self) -> None:
        self.topics = FakeTopics(t=4)
        self.now = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.groups = self._machine()

    def _machine(self) -> ShareGroups:
        return ShareGroups(self.topics, times=lambda _: GroupTimes(1000, 100), max_size=3)

    def settle(self, outcome: Outcome[Any]) -> None:
        for record in outcome.records:
            self.log.append((record.key, record.value))
            assert self.groups.replay(record.key, record.value)

    def beat(
        self, member: str, epoch: int, topics: tuple[str, ...] | None = None, group: str = "g"
    ) -> HeartbeatResult:
        request = ShareHeartbeat(group, member, epoch, "c", "h", topic_names=topics)
        outcome = self.groups.heartbeat(request, self.now, is_taken=False)
        self.settle(outcome)
        return outcome.result

    def assigned(self) -> dict[str, list[int]]:
        info = self.groups.describe("g")
        return {
            each.member_id: [n for _, _, numbers in each.assigned for n in numbers]
            for each in info.members
        }

    def restart(self) -> None:
        self.groups = self._machine()
        for key, value in self.log:
            assert self.groups.replay(key, value)
        self.groups.loaded(self.now)


def test_members_share_the_partitions_and_learn_of_changes_with_their_heartbeats() -> None:
    driver = Driver()
    first = driver.beat("a", 0, ("t",))
    assert (first.member_epoch, first.heartbeat_interval_ms) == (1, 100)
    assert first.assignment is not None
    driver.beat("b", 0, ("t",))
    again = driver.beat("a", 1)
    assert again.member_epoch == 2
    assert sorted(n for each in driver.assigned().values() for n in each) == [0, 1, 2, 3]
    assert {len(each) for each in driver.assigned().values()} == {2}
    assert driver.beat("a", 2).assignment is None
    info = driver.groups.describe("g")
    assert (info.state, info.epoch, info.assignment_epoch) == ("Stable", 2, 2)


def test_more_members_than_partitions_share_them() -> None:
    driver = Driver()
    driver.topics = FakeTopics(t=1)
    driver.groups = driver._machine()
    for member in "abc":
        driver.beat(member, 0, ("t",))
    epochs = {each.member_id: each.epoch for each in driver.groups.describe("g").members}
    for member, epoch in epochs.items():
        driver.beat(member, epoch)
    assert driver.assigned() == {"a": [0], "b": [0], "c": [0]}


def test_a_restart_replays_members_and_epochs() -> None:
    driver = Driver()
    driver.beat("a", 0, ("t",))
    driver.beat("b", 0, ("t",))
    before = driver.groups.describe("g")
    driver.restart()
    assert driver.groups.describe("g") == before
    assert driver.beat("b", 2).member_epoch == 2
    driver.beat("b", -1)
    driver.restart()
    assert [each.member_id for each in driver.groups.describe("g").members] == ["a"]


def test_a_member_without_heartbeats_is_removed() -> None:
    driver = Driver()
    driver.beat("a", 0, ("t",))
    assert driver.groups.next_deadline() == driver.now + 1000
    driver.now += 1000
    driver.settle(driver.groups.tick(driver.now))
    assert driver.groups.describe("g").state == "Empty"
    with pytest.raises(UnknownMemberIdError):
        driver.beat("a", 1)


def test_new_partitions_are_assigned_with_the_next_heartbeat() -> None:
    driver = Driver()
    driver.beat("a", 0, ("t",))
    driver.topics.set("u", 2)
    assert driver.beat("a", 1).member_epoch == 1
    assert driver.beat("a", 1, ("t", "u")).member_epoch == 2
    assert sum(map(len, driver.assigned().values())) == 6


def test_a_lost_answer_is_repeated_and_an_older_epoch_is_fenced() -> None:
    driver = Driver()
    driver.beat("a", 0, ("t",))
    driver.beat("a", 1, ("t", "u"))
    assert driver.beat("a", 1).member_epoch == 2
    driver.beat("a", 2, ("t",))
    with pytest.raises(FencedMemberEpochError):
        driver.beat("a", 1)
    with pytest.raises(FencedMemberEpochError):
        driver.beat("a", 9)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ShareHeartbeat("", "a", 0, "c", "h", topic_names=("t",)), InvalidGroupIdError),
        (ShareHeartbeat("g", "", 0, "c", "h", topic_names=("t",)), InvalidRequestError),
        (ShareHeartbeat("g", "a", -2, "c", "h", topic_names=("t",)), InvalidRequestError),
        (ShareHeartbeat("g", "a", 0, "c", "h"), InvalidRequestError),
        (
            ShareHeartbeat("g", "a", 0, "c", "h", rack_id="", topic_names=("t",)),
            InvalidRequestError,
        ),
        (ShareHeartbeat("g", "a" * 70_000, 0, "c", "h", topic_names=("t",)), InvalidRequestError),
        (ShareHeartbeat("g", "a", 3, "c", "h"), UnknownMemberIdError),
        (ShareHeartbeat("g", "a", -1, "c", "h"), UnknownMemberIdError),
    ],
)
def test_a_refused_heartbeat_creates_no_group(
    request_: ShareHeartbeat, error: type[TidemillError]
) -> None:
    driver = Driver()
    with pytest.raises(error):
        driver.groups.heartbeat(request_, driver.now, is_taken=False)
    assert list(driver.groups.list_groups()) == []


def test_a_full_group_takes_no_more_members() -> None:
    driver = Driver()
    for member in "abc":
        driver.beat(member, 0, ("t",))
    with pytest.raises(GroupMaxSizeReachedError):
        driver.beat("d", 0, ("t",))


def test_the_id_of_another_kind_of_group_is_refused() -> None:
    driver = Driver()
    request = ShareHeartbeat("g", "a", 0, "c", "h", topic_names=("t",))
    with pytest.raises(GroupIdNotFoundError):
        driver.groups.heartbeat(request, driver.now, is_taken=True)


def test_a_group_is_created_before_its_first_member_and_survives_a_restart() -> None:
    driver = Driver()
    for _ in range(2):  # the second time it is there
        driver.settle(driver.groups.create("g", is_taken=False))
        driver.restart()
        info = driver.groups.describe("g")
        assert (info.state, info.epoch, info.assignment_epoch) == ("Empty", 1, 1)
    assert driver.beat("a", 0, ("t",)).member_epoch == 2


def test_a_group_is_not_created_with_the_id_of_another_kind_or_without_an_id() -> None:
    driver = Driver()
    with pytest.raises(GroupIdNotFoundError):
        driver.groups.create("g", is_taken=True)
    with pytest.raises(InvalidGroupIdError):
        driver.groups.create("", is_taken=False)
    assert driver.groups.table.all() == []
