"""Offsets committed inside transactions: who may, when they are seen, what holds them back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.state.driver import GroupsDriver
from tests.state.offsets.test_machine import DAY, WEEK, at
from tidemill.errors import TidemillError
from tidemill.state.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InvalidGroupIdError,
    OffsetMetadataTooLargeError,
    UnknownMemberIdError,
    UnstableOffsetCommitError,
)
from tidemill.state.groups.types import LeaveMember
from tidemill.state.types import CommittedOffset

P, Q = 7, 8
T0, T1 = ("t", 0), ("t", 1)


def unstable(driver: GroupsDriver, *positions: tuple[str, int]) -> set[tuple[str, int]]:
    found = driver.offsets.fetch("g", positions or None, require_stable=True)
    return {key for key, each in found.items() if isinstance(each, UnstableOffsetCommitError)}


# --- when they are seen --------------------------------------------------------------------------


def test_offsets_of_a_transaction_are_seen_when_it_commits(driver: GroupsDriver) -> None:
    assert driver.commit_in_transaction(P, at("t", 0, 5, "mine"), at("t", 1, 6)) == [None, None]
    assert driver.seen() == {}
    driver.offsets.end_transaction(P, commit=True)
    assert driver.offsets.fetch("g") == {
        T0: CommittedOffset(5, 3, "mine", driver.now),
        T1: CommittedOffset(6, 3, "", driver.now),
    }
    assert driver.offsets.pending() == {}


def test_offsets_of_an_aborted_transaction_are_never_seen(driver: GroupsDriver) -> None:
    driver.commit("", -1, at("t", 0, 1))
    driver.commit_in_transaction(P, at("t", 0, 5), at("t", 1, 5))
    driver.offsets.end_transaction(P, commit=False)
    assert driver.seen() == {T0: 1}
    assert driver.offsets.pending() == {}


def test_the_last_commit_of_a_transaction_counts(driver: GroupsDriver) -> None:
    driver.commit_in_transaction(P, at("t", 0, 9))
    driver.commit_in_transaction(P, at("t", 0, 4))
    driver.offsets.end_transaction(P, commit=True)
    assert driver.seen() == {T0: 4}


def test_a_plain_commit_after_that_of_the_transaction_stays(driver: GroupsDriver) -> None:
    driver.commit("", -1, at("t", 0, 1), at("t", 1, 1))
    driver.commit_in_transaction(P, at("t", 0, 5), at("t", 1, 5))
    driver.commit("", -1, at("t", 0, 2))
    assert driver.seen() == {T0: 2, T1: 1}
    driver.offsets.end_transaction(P, commit=True)
    assert driver.seen() == {T0: 2, T1: 5}


@pytest.mark.parametrize("first", [P, Q])
def test_of_two_transactions_the_later_record_counts_whichever_ends_first(first: int) -> None:
    driver = GroupsDriver()
    driver.commit_in_transaction(P, at("t", 0, 5))
    driver.commit_in_transaction(Q, at("t", 0, 3))
    driver.offsets.end_transaction(first, commit=True)
    assert driver.seen() == {T0: 5 if first == P else 3}
    driver.offsets.end_transaction(P + Q - first, commit=True)
    assert driver.seen() == {T0: 3}


def test_the_marker_of_a_producer_that_committed_nothing_changes_nothing() -> None:
    driver = GroupsDriver()
    driver.commit_in_transaction(P, at("t", 0, 5))
    driver.offsets.end_transaction(Q, commit=True)
    assert driver.seen() == {}
    assert unstable(driver, T0) == {T0}


def test_metadata_over_the_limit_is_refused_for_its_partition_only(driver: GroupsDriver) -> None:
    result = driver.commit_in_transaction(P, at("t", 0, 1, "x" * 4097), at("t", 1, 1))
    assert [type(error) for error in result] == [OffsetMetadataTooLargeError, type(None)]
    driver.offsets.end_transaction(P, commit=True)
    assert driver.seen() == {T1: 1}


# --- stable offsets ------------------------------------------------------------------------------


def test_positions_of_open_transactions_are_unstable(driver: GroupsDriver) -> None:
    driver.commit("", -1, at("t", 0, 1), at("t", 1, 1))
    driver.commit_in_transaction(P, at("t", 1, 5), at("u", 0, 5))
    driver.commit_in_transaction(Q, at("t", 1, 6))
    assert unstable(driver, T0, T1, ("u", 0), ("u", 1)) == {T1, ("u", 0)}
    assert unstable(driver) == {T1}  # of all that is stored
    driver.offsets.end_transaction(P, commit=False)
    assert unstable(driver, T0, T1, ("u", 0)) == {T1}
    driver.offsets.end_transaction(Q, commit=True)
    assert unstable(driver, T0, T1, ("u", 0)) == set()
    assert driver.seen() == {T0: 1, T1: 6}


def test_other_groups_are_stable(driver: GroupsDriver) -> None:
    driver.commit_in_transaction(P, at("t", 0, 5), group_id="other")
    assert unstable(driver, T0) == set()


# --- who may (KIP-447) ---------------------------------------------------------------------------


def test_a_commit_without_a_member_id_is_accepted_by_any_group(driver: GroupsDriver) -> None:
    assert driver.commit_in_transaction(P, at("t", 0, 1)) == [None]
    driver.stable()
    assert driver.commit_in_transaction(P, at("t", 0, 2)) == [None]


def test_members_of_the_generation_may_commit_also_while_it_is_completed() -> None:
    driver = GroupsDriver()
    (member,) = driver.stable()
    old = driver.generation
    result = driver.commit_in_transaction(P, at("t", 0, 1), member_id=member, generation=old)
    assert result == [None]
    driver.join(member)
    assert driver.state == "CompletingRebalance"
    with pytest.raises(IllegalGenerationError):
        driver.commit_in_transaction(P, at("t", 0, 1), member_id=member, generation=old)
    now = driver.generation
    result = driver.commit_in_transaction(P, at("t", 0, 2), member_id=member, generation=now)
    assert result == [None]


def test_former_members_are_fenced(driver: GroupsDriver) -> None:
    (member,) = driver.stable(instances=["i"])
    now = driver.generation
    senders: list[tuple[dict[str, Any], type[TidemillError]]] = [
        ({"member_id": "x", "generation": now}, UnknownMemberIdError),
        ({"generation": now}, UnknownMemberIdError),
        ({"member_id": member}, IllegalGenerationError),
        ({"member_id": member, "generation": now - 1}, IllegalGenerationError),
        ({"member_id": "older", "generation": now, "instance_id": "i"}, FencedInstanceIdError),
        ({"member_id": member, "generation": now, "instance_id": "j"}, UnknownMemberIdError),
    ]
    for sender, error in senders:
        with pytest.raises(error):
            driver.commit_in_transaction(P, at("t", 0, 1), **sender)
    assert driver.offsets.pending() == {}


def test_a_generation_of_an_unknown_or_emptied_group_is_fenced(driver: GroupsDriver) -> None:
    with pytest.raises(IllegalGenerationError):
        driver.commit_in_transaction(P, at("t", 0, 1), member_id="x", generation=1)
    (member,) = driver.stable()
    left = driver.generation
    driver.leave(LeaveMember(member))
    with pytest.raises(UnknownMemberIdError):
        driver.commit_in_transaction(P, at("t", 0, 1), member_id=member, generation=left)
    assert driver.commit_in_transaction(P, at("t", 0, 1), member_id=member) == [None]  # as Kafka


def test_an_empty_group_id_is_refused() -> None:
    with pytest.raises(InvalidGroupIdError):
        GroupsDriver().commit_in_transaction(P, at("t", 0, 1), group_id="")


def test_commits_in_transactions_do_not_keep_a_member_alive(driver: GroupsDriver) -> None:
    (member,) = driver.stable(session_timeout_ms=10_000)
    driver.advance(9_000)
    driver.commit_in_transaction(P, at("t", 0, 1), member_id=member, generation=driver.generation)
    driver.advance(1_000)
    assert driver.state == "Empty"


# --- groups, expiry, deletion --------------------------------------------------------------------


def test_a_group_lives_while_a_transaction_of_it_is_open(driver: GroupsDriver) -> None:
    driver.commit_in_transaction(P, at("t", 0, 1))
    driver.advance(2 * WEEK)
    driver.run(driver.offsets.expire(driver.now))
    assert driver.state == "Empty"
    driver.offsets.end_transaction(P, commit=False)
    driver.run(driver.offsets.expire(driver.now))
    assert driver.state == "Dead"


def test_what_an_open_transaction_has_committed_does_not_expire(driver: GroupsDriver) -> None:
    driver.commit("", -1, at("t", 0, 1), at("t", 1, 1))
    driver.commit_in_transaction(P, at("t", 0, 2))
    driver.advance(WEEK)
    driver.run(driver.offsets.expire(driver.now))
    assert driver.seen() == {T0: 1}
    driver.offsets.end_transaction(P, commit=True)
    assert driver.seen() == {T0: 2}  # committed a week ago
    driver.run(driver.offsets.expire(driver.now))
    assert driver.seen() == {}


def test_offsets_of_deleted_topics_do_not_come_back_with_the_marker(driver: GroupsDriver) -> None:
    driver.commit("", -1, at("t", 0, 1))
    driver.commit_in_transaction(P, at("t", 0, 2), at("t", 1, 2), at("u", 0, 2))
    driver.commit_in_transaction(Q, at("t", 1, 3), group_id="only-pending")
    driver.run(driver.offsets.topics_deleted(["t"]))
    assert unstable(driver, T0, T1, ("u", 0)) == {("u", 0)}
    for producer_id in (P, Q):
        driver.offsets.end_transaction(producer_id, commit=True)
    assert driver.seen() == {("u", 0): 2}
    assert driver.seen("only-pending") == {}


def test_a_commit_after_the_deletion_is_seen(driver: GroupsDriver) -> None:
    driver.commit_in_transaction(P, at("t", 0, 2))
    driver.run(driver.offsets.topics_deleted(["t"]))
    driver.commit_in_transaction(P, at("t", 0, 3))
    driver.offsets.end_transaction(P, commit=True)
    assert driver.seen() == {T0: 3}


def test_a_deleted_group_takes_what_is_pending_along(driver: GroupsDriver) -> None:
    driver.commit("", -1, at("t", 0, 1))
    driver.commit_in_transaction(P, at("t", 0, 2), at("t", 1, 2))
    driver.run(driver.offsets.delete_group("g"))
    assert driver.state == "Dead"
    driver.offsets.end_transaction(P, commit=True)
    assert driver.seen() == {}
    assert driver.state == "Dead"


def test_deleted_offsets_do_not_come_back_with_the_marker(driver: GroupsDriver) -> None:
    driver.commit_in_transaction(P, at("t", 0, 2), at("t", 1, 2))
    assert driver.run(driver.offsets.delete("g", [T0])) == [None]
    driver.offsets.end_transaction(P, commit=True)
    assert driver.seen() == {T1: 2}


def test_a_group_removed_while_a_commit_was_on_its_way_comes_back(driver: GroupsDriver) -> None:
    driver.commit("", -1, at("t", 0, 1))
    removal = driver.offsets.delete_group("g")
    driver.commit_in_transaction(P, at("t", 1, 2))
    driver.run(removal)
    driver.run(driver.offsets.expire(driver.now + DAY))
    assert driver.state == "Empty"
    driver.offsets.end_transaction(P, commit=True)
    assert driver.seen() == {T1: 2}
