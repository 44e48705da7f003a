"""Share groups: members, epochs, assignments, and what a restart replays."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.state.consumer_groups.support import FakeTopics
from tests.state.driver import MachineDriver
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
from tidemill.state.outcome import StateRecord
from tidemill.state.share_groups.machine import ShareGroups
from tidemill.state.share_groups.types import ShareHeartbeat


class Driver(MachineDriver[ShareGroups]):
    """The machine with a log."""

    def __init__(self, topics: FakeTopics, log: Iterable[StateRecord] = ()) -> None:
        groups = ShareGroups(topics, times=lambda _: GroupTimes(1000, 100), max_size=3)
        super().__init__(groups, log)
        self.topics, self.groups = topics, groups
        self.now = 1_000_000
        self.groups.loaded(self.now)

    def beat(
        self, member: str, epoch: int, topics: tuple[str, ...] | None = None
    ) -> HeartbeatResult:
        request = ShareHeartbeat("g", member, epoch, "c", "h", topic_names=topics)
        return self.run(self.groups.heartbeat(request, self.now, is_taken=False))

    def assigned(self) -> dict[str, list[int]]:
        info = self.groups.describe("g")
        return {
            each.member_id: [n for _, _, numbers in each.assigned for n in numbers]
            for each in info.members
        }

    def restart(self) -> Driver:
        return Driver(self.topics, self.log)


@pytest.fixture
def driver() -> Driver:
    return Driver(FakeTopics(t=4))


def test_members_share_partitions_and_learn_of_changes_with_heartbeats(
    driver: Driver,
) -> None:
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
    driver = Driver(FakeTopics(t=1))
    for member in "abc":
        driver.beat(member, 0, ("t",))
    epochs = {each.member_id: each.epoch for each in driver.groups.describe("g").members}
    for member, epoch in epochs.items():
        driver.beat(member, epoch)
    assert driver.assigned() == {"a": [0], "b": [0], "c": [0]}


def test_a_restart_replays_members_and_epochs(driver: Driver) -> None:
    driver.beat("a", 0, ("t",))
    driver.beat("b", 0, ("t",))
    before = driver.groups.describe("g")
    driver = driver.restart()
    assert driver.groups.describe("g") == before
    assert driver.beat("b", 2).member_epoch == 2
    driver.beat("b", -1)
    driver = driver.restart()
    assert [each.member_id for each in driver.groups.describe("g").members] == ["a"]


def test_a_member_without_heartbeats_is_removed(driver: Driver) -> None:
    driver.beat("a", 0, ("t",))
    assert driver.groups.next_deadline() == driver.now + 1000
    driver.now += 1000
    driver.run(driver.groups.tick(driver.now))
    assert driver.groups.describe("g").state == "Empty"
    with pytest.raises(UnknownMemberIdError):
        driver.beat("a", 1)


def test_new_partitions_are_assigned_with_the_next_heartbeat(driver: Driver) -> None:
    driver.beat("a", 0, ("t",))
    driver.topics.set("u", 2)
    assert driver.beat("a", 1).member_epoch == 1
    assert driver.beat("a", 1, ("t", "u")).member_epoch == 2
    assert sum(map(len, driver.assigned().values())) == 6


def test_a_lost_answer_is_repeated_and_an_older_epoch_is_fenced(driver: Driver) -> None:
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
    driver: Driver, request_: ShareHeartbeat, error: type[TidemillError]
) -> None:
    with pytest.raises(error):
        driver.groups.heartbeat(request_, driver.now, is_taken=False)
    assert list(driver.groups.list_groups()) == []


def test_a_full_group_takes_no_more_members(driver: Driver) -> None:
    for member in "abc":
        driver.beat(member, 0, ("t",))
    with pytest.raises(GroupMaxSizeReachedError):
        driver.beat("d", 0, ("t",))


def test_the_id_of_another_kind_of_group_is_refused(driver: Driver) -> None:
    request = ShareHeartbeat("g", "a", 0, "c", "h", topic_names=("t",))
    with pytest.raises(GroupIdNotFoundError):
        driver.groups.heartbeat(request, driver.now, is_taken=True)


def test_a_group_is_created_before_its_first_member_and_survives_a_restart(driver: Driver) -> None:
    for _ in range(2):  # the second time it is there
        driver.run(driver.groups.create("g", is_taken=False))
        driver = driver.restart()
        info = driver.groups.describe("g")
        assert (info.state, info.epoch, info.assignment_epoch) == ("Empty", 1, 1)
    assert driver.beat("a", 0, ("t",)).member_epoch == 2


def test_a_group_is_not_created_with_the_id_of_another_kind_or_without_one(driver: Driver) -> None:
    with pytest.raises(GroupIdNotFoundError):
        driver.groups.create("g", is_taken=True)
    with pytest.raises(InvalidGroupIdError):
        driver.groups.create("", is_taken=False)
    assert driver.groups.table.all() == []
