"""Members with the consumer protocol: epochs, assignments, static members, time limits."""

from __future__ import annotations

import pytest

from tests.state.consumer_groups.support import (
    REBALANCE_MS,
    SESSION_MS,
    Driver,
    FakeTopics,
    Member,
    converge,
)
from tidemill.errors import TidemillError
from tidemill.state.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidGroupIdError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_the_first_member_gets_all_partitions(driver: Driver) -> None:
    a = Member(driver, "a")
    answer = a.beat()
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("a", 1, 5000)
    a.follow()
    assert a.partitions == {("t", n) for n in range(4)}
    assert driver.kinds() == {"g": ("consumer", "Stable")}


def test_a_short_heartbeat_of_a_settled_member_has_no_assignment(driver: Driver) -> None:
    a = Member(driver, "a")
    a.beat()
    answer = a.beat(rebalance_timeout_ms=-1, topic_names=None, owned=None)
    assert (answer.member_epoch, answer.assignment) == (1, None)
    log = len(driver.log)
    a.beat(rebalance_timeout_ms=-1, topic_names=None, owned=None)
    assert len(driver.log) == log  # it costs no record


def test_a_member_gets_partitions_only_after_they_were_given_back(driver: Driver) -> None:
    a, b = Member(driver, "a"), Member(driver, "b")
    converge(a)
    b.beat()
    assert (b.epoch, b.wanted) == (2, {})  # it waits
    assert driver.kinds()["g"][1] == "Reconciling"
    first = a.beat()
    assert first.member_epoch == 1  # it has to give two back before it gets the new epoch
    assert {n for numbers in a.wanted.values() for n in numbers} == {0, 1}
    b.beat()
    assert b.wanted == {}  # a has not said that it gave them back
    assert a.beat().member_epoch == 2
    b.beat()
    b.follow()
    assert b.partitions == {("t", 2), ("t", 3)}
    assert driver.kinds()["g"][1] == "Stable"


def test_a_member_that_leaves_makes_space(driver: Driver) -> None:
    a, b = Member(driver, "a"), Member(driver, "b")
    converge(a, b)
    b.leave()
    converge(a)
    assert a.partitions == {("t", n) for n in range(4)}
    a.leave()
    assert driver.kinds() == {"g": ("consumer", "Empty")}


def test_a_member_without_heartbeats_is_removed(driver: Driver) -> None:
    a, b = Member(driver, "a"), Member(driver, "b")
    converge(a, b)
    driver.wait(SESSION_MS - 1)
    a.beat()
    driver.wait(2)
    assert list(driver.assigned()) == ["a"]
    with pytest.raises(UnknownMemberIdError):
        b.beat()


def test_a_member_that_does_not_give_back_is_removed(driver: Driver) -> None:
    a, b = Member(driver, "a"), Member(driver, "b")
    converge(a)
    b.beat()
    everything = a.owned
    for _ in range(REBALANCE_MS // 10_000):
        a.beat(owned=everything)
        b.beat()
        driver.wait(10_000)
    assert list(driver.assigned()) == ["b"]


def test_a_wrong_epoch_is_fenced(driver: Driver) -> None:
    a, b = Member(driver, "a"), Member(driver, "b")
    converge(a, b)
    with pytest.raises(FencedMemberEpochError):
        a.beat(member_epoch=a.epoch + 1)
    with pytest.raises(FencedMemberEpochError):
        a.beat(member_epoch=a.epoch - 1, owned=None)
    assert a.epoch == 2


def test_the_epoch_before_is_accepted_while_the_answer_can_be_lost(driver: Driver) -> None:
    a, b = Member(driver, "a"), Member(driver, "b")
    converge(a)
    b.beat()
    a.beat()
    had = a.owned
    assert a.beat().member_epoch == 2  # suppose that this answer was lost
    assert a.beat(member_epoch=1, owned=had).member_epoch == 2
    stranger = {topic: frozenset(range(4)) for topic in had}
    with pytest.raises(FencedMemberEpochError):
        a.beat(member_epoch=1, owned=stranger)


def test_a_fenced_member_joins_again_with_its_id(driver: Driver) -> None:
    a, b = Member(driver, "a"), Member(driver, "b")
    converge(a, b)
    a.epoch, a.owned = 0, {}
    answer = a.beat()
    assert (answer.member_epoch, len(a.wanted)) == (2, 1)
    converge(a, b)
    assert a.partitions | b.partitions == {("t", n) for n in range(4)}
    assert len(driver.assigned()) == 2


INVALID: list[tuple[dict[str, object], type[TidemillError]]] = [
    ({"member_epoch": -3}, InvalidRequestError),
    ({"member_epoch": 0, "rebalance_timeout_ms": -1}, InvalidRequestError),
    ({"member_epoch": 0, "owned": None}, InvalidRequestError),
    ({"member_epoch": 0, "topic_names": None}, InvalidRequestError),
    ({"member_epoch": -2}, InvalidRequestError),
    ({"instance_id": " "}, InvalidRequestError),
    ({"rack_id": ""}, InvalidRequestError),
    ({"assignor": "sticky"}, UnsupportedAssignorError),
    ({"topic_pattern": "("}, InvalidRegularExpressionError),
    ({"topic_pattern": "a" * 5000}, InvalidRegularExpressionError),
    ({"instance_id": "i" * 40_000}, InvalidRequestError),
    ({"topic_names": tuple(f"t{n}" for n in range(20_001))}, InvalidRequestError),
    ({"member_epoch": 1}, UnknownMemberIdError),
    ({"member_epoch": -1}, UnknownMemberIdError),
]


@pytest.mark.parametrize(("changes", "error"), INVALID)
def test_an_invalid_heartbeat_changes_nothing(
    driver: Driver, changes: dict[str, object], error: type[TidemillError]
) -> None:
    with pytest.raises(error):
        Member(driver, "a").beat(**changes)
    assert driver.log == []
    assert driver.kinds() == {}


def test_ids_are_made_by_the_client_or_for_old_ones_by_the_broker(driver: Driver) -> None:
    with pytest.raises(InvalidRequestError):
        Member(driver, "").beat()
    old = Member(driver, "")
    assert old.beat(chooses_member_id=False).member_id == "n1"
    with pytest.raises(InvalidGroupIdError):
        Member(driver, "a", group_id="").beat()


def test_a_full_group_takes_no_more(driver: Driver) -> None:
    driver = Driver(max_size=1)
    a = Member(driver, "a")
    a.beat()
    with pytest.raises(GroupMaxSizeReachedError):
        Member(driver, "b").beat()
    a.beat()


def test_most_members_choose_the_assignor(driver: Driver) -> None:
    driver = Driver(FakeTopics(t=3, u=3))
    a = Member(driver, "a", ("t", "u"), assignor="range")
    b = Member(driver, "b", ("t", "u"), assignor="range")
    c = Member(driver, "c", ("t", "u"), assignor="uniform")
    converge(a, b)
    assert driver.describe().assignor == "range"
    assert a.partitions == {("t", 0), ("t", 1), ("u", 0), ("u", 1)}
    converge(a, b, c)
    assert driver.describe().assignor == "range"
    b.leave()
    converge(a, c)
    assert driver.describe().assignor == "uniform"
    assert len(a.partitions) == len(c.partitions) == 3


def test_a_new_subscription_is_a_new_epoch(driver: Driver) -> None:
    driver = Driver(FakeTopics(t=2, u=2))
    a = Member(driver, "a", ("t",))
    converge(a)
    a.topics = ("u",)
    converge(a)
    assert (a.partitions, a.epoch) == ({("u", 0), ("u", 1)}, 2)


def test_topics_are_noticed_when_they_come_grow_and_go(driver: Driver) -> None:
    a = Member(driver, "a", ("t", "later"))
    converge(a)
    driver.topics.set("later", 2)
    driver.topics.set("other", 5)
    converge(a)
    assert a.partitions == {("t", n) for n in range(4)} | {("later", 0), ("later", 1)}
    assert a.epoch == 2
    driver.topics.set("t", 6)
    converge(a)
    assert len(a.partitions) == 8
    driver.topics.set("t", 0)
    converge(a)
    assert a.partitions == {("later", 0), ("later", 1)}
    epoch = a.epoch
    driver.topics.set("other", 6)
    converge(a)
    assert a.epoch == epoch  # nothing for this group


# --- patterns ------------------------------------------------------------------------------------


def test_a_pattern_matches_whole_names_of_topics_now_and_later() -> None:
    driver = Driver(FakeTopics(**{"log-a": 1, "log-b": 1, "blog-a": 1}))
    a = Member(driver, "a", None, pattern="log-.*")
    converge(a)
    assert {name for name, _ in a.partitions} == {"log-a", "log-b"}
    driver.topics.set("log-c", 1)
    driver.topics.set("log-a", 0)
    converge(a)
    assert {name for name, _ in a.partitions} == {"log-b", "log-c"}
    driver.restart()
    converge(a)
    assert {name for name, _ in a.partitions} == {"log-b", "log-c"}
    a.topics, a.pattern = ("blog-a",), ""
    converge(a)
    assert {name for name, _ in a.partitions} == {"blog-a"}


def test_a_pattern_and_names_add_up_and_hidden_topics_are_left_out() -> None:
    driver = Driver(FakeTopics(**{"log-a": 1, "log-b": 1, "x": 1}))
    a = Member(driver, "a", ("x",), pattern="log-.*")
    a.beat(can_see=lambda name: name != "log-b")
    a.follow()
    assert {name for name, _ in a.partitions} == {"log-a", "x"}


def test_a_group_has_a_bounded_number_of_patterns() -> None:
    driver = Driver()
    for number in range(16):
        Member(driver, f"m{number}", None, pattern=f"t{number}.*").beat()
    with pytest.raises(InvalidRegularExpressionError):
        Member(driver, "x", None, pattern="y.*").beat()
    Member(driver, "x", None, pattern="t1.*").beat()


# --- static members ------------------------------------------------------------------------------


def test_a_static_member_returns_to_its_partitions_without_a_rebalance(driver: Driver) -> None:
    a, b = Member(driver, "a", instance_id="i"), Member(driver, "b", instance_id="j")
    converge(a, b)
    had, epoch = a.partitions, driver.describe().epoch
    a.leave(-2)
    assert {m.member_id: m.epoch for m in driver.describe().members}["a"] == -2
    again = Member(driver, "a2", instance_id="i")
    converge(again, rounds=1)
    assert again.partitions == had
    assert driver.describe().epoch == epoch
    b.beat()
    assert len(driver.assigned()) == 2
    with pytest.raises(FencedInstanceIdError):
        Member(driver, "a", instance_id="i").beat(member_epoch=epoch)


def test_a_static_member_can_return_with_the_same_id(driver: Driver) -> None:
    a = Member(driver, "a", instance_id="i")
    converge(a)
    a.leave(-2)
    converge(a)
    assert len(a.partitions) == 4


def test_an_instance_id_is_used_once_until_its_member_leaves(driver: Driver) -> None:
    a = Member(driver, "a", instance_id="i")
    converge(a)
    with pytest.raises(UnreleasedInstanceIdError):
        Member(driver, "b", instance_id="i").beat()
    driver.wait(SESSION_MS)
    Member(driver, "b", instance_id="i").beat()
    assert list(driver.assigned()) == ["b"]


def test_a_static_member_that_does_not_return_is_removed(driver: Driver) -> None:
    a = Member(driver, "a", instance_id="i")
    converge(a)
    a.leave(-2)
    driver.wait(SESSION_MS + 1)
    assert driver.kinds() == {"g": ("consumer", "Empty")}


# --- restart and disk ----------------------------------------------------------------------------


def test_members_continue_after_a_restart(driver: Driver) -> None:
    a, b = Member(driver, "a"), Member(driver, "b", instance_id="i")
    converge(a)
    b.beat()
    before = driver.describe()
    driver.restart()
    assert driver.describe() == before
    converge(a, b)
    assert (len(a.partitions), len(b.partitions)) == (2, 2)
    assert driver.describe().epoch == before.epoch
    driver.wait(SESSION_MS + 1)
    assert driver.kinds() == {"g": ("consumer", "Empty")}


def test_records_that_are_not_written_leave_no_trace(driver: Driver) -> None:
    a = Member(driver, "a")
    converge(a)
    before = driver.describe()
    lost = driver.groups.consumer_heartbeat(Member(driver, "b").request(), driver.now)
    driver.groups.write_failed(lost, driver.now)
    assert driver.describe() == before
    converge(a)
    assert len(a.partitions) == 4


def test_a_group_waits_for_the_records_behind_a_failed_one(driver: Driver) -> None:
    a = Member(driver, "a")
    converge(a)
    lost = driver.groups.consumer_heartbeat(Member(driver, "b").request(), driver.now)
    behind = driver.groups.consumer_heartbeat(Member(driver, "c").request(), driver.now)
    driver.groups.write_failed(lost, driver.now)
    with pytest.raises(TidemillError, match="could not be written"):
        a.beat()
    driver.settle(behind)
    converge(a, Member(driver, "b"))
    assert set(driver.assigned()) >= {"a", "b"}


def test_a_deleted_group_is_gone_after_a_restart(driver: Driver) -> None:
    a = Member(driver, "a")
    converge(a)
    a.leave()
    driver.groups.check_removable("g")
    for record in driver.groups.tombstones("g"):
        driver.log.append((record.key, record.value))
        driver.groups.replay(record.key, record.value)
    with pytest.raises(GroupIdNotFoundError):
        driver.describe()
    driver.restart()
    assert driver.kinds() == {}
