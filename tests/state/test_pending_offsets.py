"""Offsets committed inside transactions: who may, when they are seen, what holds them back."""

from __future__ import annotations

import pytest

from tests.state.harness import Desk
from tests.state.test_offsets import DAY, WEEK, at
from tidemill.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InvalidGroupIdError,
    OffsetMetadataTooLargeError,
    UnknownMemberIdError,
    UnstableOffsetCommitError,
)
from tidemill.state.types import CommittedOffset, LeaveMember

P, Q = 7, 8
T0, T1 = ("t", 0), ("t", 1)


def unstable(desk: Desk, *positions: tuple[str, int]) -> set[tuple[str, int]]:
    found = desk.offsets.fetch("g", positions or None, require_stable=True)
    return {key for key, each in found.items() if isinstance(each, UnstableOffsetCommitError)}


# --- when they are seen --------------------------------------------------------------------------


def test_offsets_of_a_transaction_are_seen_when_it_commits() -> None:
    desk = Desk()
    assert desk.commit_in_transaction(P, at("t", 0, 5, "mine"), at("t", 1, 6)) == [None, None]
    assert desk.seen() == {}
    desk.offsets.end_transaction(P, commit=True)
    assert desk.offsets.fetch("g") == {
        T0: CommittedOffset(5, 3, "mine", desk.now),
        T1: CommittedOffset(6, 3, "", desk.now),
    }
    assert desk.offsets.pending() == {}


def test_offsets_of_an_aborted_transaction_are_never_seen() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 1))
    desk.commit_in_transaction(P, at("t", 0, 5), at("t", 1, 5))
    desk.offsets.end_transaction(P, commit=False)
    assert desk.seen() == {T0: 1}
    assert desk.offsets.pending() == {}


def test_the_last_commit_of_a_transaction_counts() -> None:
    desk = Desk()
    desk.commit_in_transaction(P, at("t", 0, 9))
    desk.commit_in_transaction(P, at("t", 0, 4))
    desk.offsets.end_transaction(P, commit=True)
    assert desk.seen() == {T0: 4}


def test_a_plain_commit_after_that_of_the_transaction_stays() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 1), at("t", 1, 1))
    desk.commit_in_transaction(P, at("t", 0, 5), at("t", 1, 5))
    desk.commit("", -1, at("t", 0, 2))
    assert desk.seen() == {T0: 2, T1: 1}
    desk.offsets.end_transaction(P, commit=True)
    assert desk.seen() == {T0: 2, T1: 5}


@pytest.mark.parametrize("first", [P, Q])
def test_of_two_transactions_the_later_record_counts_whichever_ends_first(first: int) -> None:
    desk = Desk()
    desk.commit_in_transaction(P, at("t", 0, 5))
    desk.commit_in_transaction(Q, at("t", 0, 3))
    desk.offsets.end_transaction(first, commit=True)
    assert desk.seen() == {T0: 5 if first == P else 3}
    desk.offsets.end_transaction(P + Q - first, commit=True)
    assert desk.seen() == {T0: 3}


def test_the_marker_of_a_producer_that_committed_nothing_changes_nothing() -> None:
    desk = Desk()
    desk.commit_in_transaction(P, at("t", 0, 5))
    desk.offsets.end_transaction(Q, commit=True)
    assert desk.seen() == {}
    assert unstable(desk, T0) == {T0}


def test_metadata_over_the_limit_is_refused_for_its_partition_only() -> None:
    desk = Desk()
    result = desk.commit_in_transaction(P, at("t", 0, 1, "x" * 4097), at("t", 1, 1))
    assert [type(error) for error in result] == [OffsetMetadataTooLargeError, type(None)]
    desk.offsets.end_transaction(P, commit=True)
    assert desk.seen() == {T1: 1}


# --- stable offsets ------------------------------------------------------------------------------


def test_positions_of_open_transactions_are_unstable() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 1), at("t", 1, 1))
    desk.commit_in_transaction(P, at("t", 1, 5), at("u", 0, 5))
    desk.commit_in_transaction(Q, at("t", 1, 6))
    assert unstable(desk, T0, T1, ("u", 0), ("u", 1)) == {T1, ("u", 0)}
    assert unstable(desk) == {T1}  # of all that is stored
    desk.offsets.end_transaction(P, commit=False)
    assert unstable(desk, T0, T1, ("u", 0)) == {T1}
    desk.offsets.end_transaction(Q, commit=True)
    assert unstable(desk, T0, T1, ("u", 0)) == set()
    assert desk.seen() == {T0: 1, T1: 6}


def test_other_groups_are_stable() -> None:
    desk = Desk()
    desk.commit_in_transaction(P, at("t", 0, 5), group_id="other")
    assert unstable(desk, T0) == set()


# --- who may (KIP-447) ---------------------------------------------------------------------------


def test_whoever_does_not_say_which_member_it_is_may_commit_to_any_group() -> None:
    desk = Desk()
    assert desk.commit_in_transaction(P, at("t", 0, 1)) == [None]
    desk.stable()
    assert desk.commit_in_transaction(P, at("t", 0, 2)) == [None]


def test_members_of_the_generation_may_commit_also_while_it_is_completed() -> None:
    desk = Desk()
    (member,) = desk.stable()
    old = desk.generation
    assert desk.commit_in_transaction(P, at("t", 0, 1), member_id=member, generation=old) == [None]
    desk.join(member)
    assert desk.state == "CompletingRebalance"
    with pytest.raises(IllegalGenerationError):
        desk.commit_in_transaction(P, at("t", 0, 1), member_id=member, generation=old)
    current = desk.generation
    assert desk.commit_in_transaction(P, at("t", 0, 2), member_id=member, generation=current) == [
        None
    ]


def test_those_who_are_no_members_any_more_are_fenced() -> None:
    desk = Desk()
    (member,) = desk.stable(instances=["i"])
    now = desk.generation
    with pytest.raises(UnknownMemberIdError):
        desk.commit_in_transaction(P, at("t", 0, 1), member_id="x", generation=now)
    with pytest.raises(UnknownMemberIdError):
        desk.commit_in_transaction(P, at("t", 0, 1), generation=now)
    with pytest.raises(IllegalGenerationError):
        desk.commit_in_transaction(P, at("t", 0, 1), member_id=member)
    with pytest.raises(IllegalGenerationError):
        desk.commit_in_transaction(P, at("t", 0, 1), member_id=member, generation=now - 1)
    with pytest.raises(FencedInstanceIdError):
        desk.commit_in_transaction(
            P, at("t", 0, 1), member_id="older", generation=now, instance_id="i"
        )
    with pytest.raises(UnknownMemberIdError):
        desk.commit_in_transaction(
            P, at("t", 0, 1), member_id=member, generation=now, instance_id="j"
        )
    assert desk.offsets.pending() == {}


def test_a_generation_of_an_unknown_or_emptied_group_is_fenced() -> None:
    desk = Desk()
    with pytest.raises(IllegalGenerationError):
        desk.commit_in_transaction(P, at("t", 0, 1), member_id="x", generation=1)
    (member,) = desk.stable()
    left = desk.generation
    desk.leave(LeaveMember(member))
    with pytest.raises(UnknownMemberIdError):
        desk.commit_in_transaction(P, at("t", 0, 1), member_id=member, generation=left)
    assert desk.commit_in_transaction(P, at("t", 0, 1), member_id=member) == [None]  # as Kafka


def test_an_empty_group_id_is_refused() -> None:
    with pytest.raises(InvalidGroupIdError):
        Desk().commit_in_transaction(P, at("t", 0, 1), group_id="")


def test_commits_in_transactions_do_not_keep_a_member_alive() -> None:
    desk = Desk()
    (member,) = desk.stable(session_timeout_ms=10_000)
    desk.advance(9_000)
    desk.commit_in_transaction(P, at("t", 0, 1), member_id=member, generation=desk.generation)
    desk.advance(1_000)
    assert desk.state == "Empty"


# --- groups, expiry, deletion --------------------------------------------------------------------


def test_a_group_lives_while_a_transaction_of_it_is_open() -> None:
    desk = Desk()
    desk.commit_in_transaction(P, at("t", 0, 1))
    desk.advance(2 * WEEK)
    desk.run(desk.offsets.expire(desk.now))
    assert desk.state == "Empty"
    desk.offsets.end_transaction(P, commit=False)
    desk.run(desk.offsets.expire(desk.now))
    assert desk.state == "Dead"


def test_what_an_open_transaction_has_committed_does_not_expire() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 1), at("t", 1, 1))
    desk.commit_in_transaction(P, at("t", 0, 2))
    desk.advance(WEEK)
    desk.run(desk.offsets.expire(desk.now))
    assert desk.seen() == {T0: 1}
    desk.offsets.end_transaction(P, commit=True)
    assert desk.seen() == {T0: 2}  # committed a week ago
    desk.run(desk.offsets.expire(desk.now))
    assert desk.seen() == {}


def test_offsets_of_deleted_topics_do_not_come_back_with_the_marker() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 1))
    desk.commit_in_transaction(P, at("t", 0, 2), at("t", 1, 2), at("u", 0, 2))
    desk.commit_in_transaction(Q, at("t", 1, 3), group_id="only-pending")
    desk.run(desk.offsets.topics_deleted(["t"]))
    assert unstable(desk, T0, T1, ("u", 0)) == {("u", 0)}
    for producer_id in (P, Q):
        desk.offsets.end_transaction(producer_id, commit=True)
    assert desk.seen() == {("u", 0): 2}
    assert desk.seen("only-pending") == {}


def test_a_commit_after_the_deletion_is_seen() -> None:
    desk = Desk()
    desk.commit_in_transaction(P, at("t", 0, 2))
    desk.run(desk.offsets.topics_deleted(["t"]))
    desk.commit_in_transaction(P, at("t", 0, 3))
    desk.offsets.end_transaction(P, commit=True)
    assert desk.seen() == {T0: 3}


def test_a_deleted_group_takes_what_is_pending_along() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 1))
    desk.commit_in_transaction(P, at("t", 0, 2), at("t", 1, 2))
    desk.run(desk.offsets.delete_group("g"))
    assert desk.state == "Dead"
    desk.offsets.end_transaction(P, commit=True)
    assert desk.seen() == {}
    assert desk.state == "Dead"


def test_deleted_offsets_do_not_come_back_with_the_marker() -> None:
    desk = Desk()
    desk.commit_in_transaction(P, at("t", 0, 2), at("t", 1, 2))
    assert desk.run(desk.offsets.delete("g", [T0])) == [None]
    desk.offsets.end_transaction(P, commit=True)
    assert desk.seen() == {T1: 2}


def test_a_group_removed_while_a_commit_was_on_its_way_comes_back() -> None:
    desk = Desk()
    desk.commit("", -1, at("t", 0, 1))
    removal = desk.offsets.delete_group("g")
    desk.commit_in_transaction(P, at("t", 1, 2))
    desk.run(removal)
    desk.run(desk.offsets.expire(desk.now + DAY))
    assert desk.state == "Empty"
    desk.offsets.end_transaction(P, commit=True)
    assert desk.seen() == {T1: 2}
