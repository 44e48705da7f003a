"""A share partition: acquiring, settling, deadlines, the delivery limit, and stored records."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.state.share_partitions.support import KEY, Disk
from tests.support.effort import examples
from tidemill.log.errors import InvalidRecordError
from tidemill.state.errors import NotAcquiredError
from tidemill.state.share_partitions.format import Kind, State, StateBatch, Stored
from tidemill.state.share_partitions.partition import (
    UPDATES_PER_SNAPSHOT,
    AckBatch,
    Acknowledge,
    ShareLimits,
    SharePartition,
    Span,
)
from tidemill.state.share_partitions.ranges import Ranges

LIMITS = ShareLimits(lock_ms=100, deliveries=3, in_flight=1000)
A, B = 1, 2
GAP, ACCEPT, RELEASE, REJECT, RENEW = Acknowledge


@pytest.fixture
def partition() -> SharePartition:
    return SharePartition(KEY, 0)


@pytest.fixture
def disk(partition: SharePartition) -> Disk:
    """A disk that has the partition as it is at the beginning."""
    disk = Disk()
    disk.store(partition)
    return disk


def readable(first: int, last: int) -> list[Span]:
    return [Span(first, last, True)]


def acquire(
    partition: SharePartition,
    owner: int,
    first: int,
    last: int,
    most: int = 10_000,
    now: int = 0,
    limits: ShareLimits = LIMITS,
) -> list[tuple[int, int, int]]:
    spans = readable(first, last)
    runs = partition.acquire(owner, spans, most, limits, now, exact=True)
    return [(run.first, run.last, run.delivery_count) for run in runs]


def settle(partition: SharePartition, owner: int, first: int, last: int, *types: int) -> None:
    partition.acknowledge(owner, [AckBatch(first, last, types)], LIMITS, 0)


def test_records_go_to_one_member_and_the_start_follows_what_is_accepted() -> None:
    partition = SharePartition(KEY, 10)
    assert acquire(partition, A, 10, 30, most=5) == [(10, 14, 0)]
    assert acquire(partition, B, 10, 30, most=5) == [(15, 19, 0)]
    settle(partition, B, 15, 19, ACCEPT)
    assert partition.window.start == 10
    assert partition.complete == 5
    settle(partition, A, 10, 14, ACCEPT)
    assert (partition.window.start, partition.complete) == (20, 0)


def test_a_batch_is_acquired_completely_unless_the_member_wants_an_exact_number() -> None:
    spans = [Span(0, 4, True), Span(5, 9, True), Span(10, 14, True)]
    partition = SharePartition(KEY, 0)
    runs = partition.acquire(A, spans, 6, LIMITS, 0, exact=False)
    assert [(run.first, run.last) for run in runs] == [(0, 9)]
    partition = SharePartition(KEY, 0)
    runs = partition.acquire(A, spans, 6, LIMITS, 0, exact=True)
    assert [(run.first, run.last) for run in runs] == [(0, 5)]


def test_released_records_are_delivered_again_with_their_count_and_at_their_place() -> None:
    partition = SharePartition(KEY, 0)
    acquire(partition, A, 0, 9)
    settle(partition, A, 2, 4, RELEASE)
    assert partition.first_available(10, LIMITS) == 2
    assert acquire(partition, B, 2, 9) == [(2, 4, 1)]


def test_a_record_at_the_delivery_limit_is_archived(partition: SharePartition) -> None:
    for delivery in range(LIMITS.deliveries):
        assert acquire(partition, A, 0, 0) == [(0, 0, delivery)]
        settle(partition, A, 0, 0, RELEASE)
    assert partition.first_available(1, LIMITS) is None
    assert partition.window.start == 1


def test_a_lock_that_runs_out_counts_as_a_delivery_and_a_renewed_one_does_not_run_out() -> None:
    partition = SharePartition(KEY, 0)
    acquire(partition, A, 0, 1)
    partition.acknowledge(A, [AckBatch(1, 1, [RENEW])], LIMITS, 90)
    assert partition.expire(100, LIMITS)
    assert acquire(partition, B, 0, 1, now=100) == [(0, 0, 1)]
    assert not partition.expire(189, LIMITS)
    assert partition.expire(190, LIMITS)
    assert acquire(partition, B, 1, 1, now=190) == [(1, 1, 1)]


def test_locks_that_run_out_at_the_limit_archive(partition: SharePartition) -> None:
    for delivery in range(LIMITS.deliveries):
        acquire(partition, A, 0, 2, now=1000 * delivery)
        assert partition.expire(1000 * delivery + 100, LIMITS)
    assert (partition.window.start, partition.window.next) == (3, 3)


def test_what_a_member_holds_that_leaves_is_delivered_again_without_a_count() -> None:
    partition = SharePartition(KEY, 0)
    acquire(partition, A, 0, 9)
    assert partition.release_member(A)
    assert not partition.release_member(A)
    assert acquire(partition, B, 0, 9) == [(0, 9, 0)]


def test_a_type_for_each_record_settles_them_one_by_one(partition: SharePartition) -> None:
    acquire(partition, A, 0, 4)
    settle(partition, A, 0, 4, ACCEPT, RELEASE, REJECT, GAP, ACCEPT)
    assert acquire(partition, B, 1, 4) == [(1, 1, 1)]
    assert partition.window.start == 1
    assert partition.complete == 3


@pytest.mark.parametrize(
    ("owner", "first", "last"), [(B, 0, 0), (A, 4, 5), (A, 3, 2**62), (A, 2**61, 2**62)]
)
def test_what_a_member_does_not_hold_it_can_not_settle(owner: int, first: int, last: int) -> None:
    partition = SharePartition(KEY, 0)
    acquire(partition, A, 0, 4)
    with pytest.raises(NotAcquiredError):
        settle(partition, owner, first, last, ACCEPT)
    assert partition.window.acquired == 5


def test_one_bad_batch_of_a_request_changes_nothing(partition: SharePartition) -> None:
    acquire(partition, A, 0, 4)
    batches = [AckBatch(0, 1, [1]), AckBatch(4, 6, [1])]
    with pytest.raises(NotAcquiredError):
        partition.acknowledge(A, batches, LIMITS, 0)
    assert (partition.window.acquired, partition.window.start) == (5, 0)


def test_what_is_below_the_start_is_settled_without_an_error(partition: SharePartition) -> None:
    acquire(partition, A, 0, 9)
    assert partition.truncate(5)
    assert not partition.truncate(5)
    settle(partition, A, 0, 3, RELEASE)
    settle(partition, A, 3, 6, ACCEPT)
    assert (partition.window.start, partition.window.acquired) == (7, 3)


def test_no_more_than_the_limit_is_in_flight(partition: SharePartition) -> None:
    limits = LIMITS._replace(in_flight=10)
    assert acquire(partition, A, 0, 99, limits=limits) == [(0, 9, 0)]
    assert partition.first_available(100, limits) is None
    settle(partition, A, 5, 9, ACCEPT)
    assert partition.first_available(100, limits) is None
    settle(partition, A, 0, 1, ACCEPT)
    assert acquire(partition, A, 10, 99, limits=limits) == [(10, 11, 0)]


def test_what_readers_do_not_see_is_archived(partition: SharePartition) -> None:
    spans = [Span(0, 9, False), Span(10, 11, True), Span(12, 10**9, False)]
    runs = partition.acquire(A, spans, 100, LIMITS, 0, exact=False)
    assert [(run.first, run.last) for run in runs] == [(10, 11)]
    assert partition.window.start == 10
    settle(partition, A, 10, 11, ACCEPT)
    assert partition.window.start == 10**9 + 1


# --- records -------------------------------------------------------------------------------------


def test_a_restart_knows_what_was_stored_and_returns_what_was_out() -> None:
    partition, disk = SharePartition(KEY, 5), Disk()
    disk.store(partition)
    acquire(partition, A, 5, 20)
    settle(partition, A, 6, 9, ACCEPT, RELEASE, REJECT, GAP)
    disk.store(partition)
    assert disk.last_kind is Kind.UPDATE
    assert disk.last.batches == [
        StateBatch(6, 6, State.ACKNOWLEDGED, 1),
        StateBatch(7, 7, State.AVAILABLE, 1),
        StateBatch(8, 9, State.ARCHIVED, 1),
    ]
    assert (disk.last.start, disk.last.complete) == (5, 3)
    again = disk.restarted()
    assert acquire(again, B, 5, 30) == [(5, 5, 0), (7, 7, 1), (10, 30, 0)]


def test_a_million_accepted_records_are_one_range(partition: SharePartition, disk: Disk) -> None:
    limits = LIMITS._replace(in_flight=2_000_000)
    acquire(partition, A, 0, 1_000_000, most=2_000_000, limits=limits)
    settle(partition, A, 1, 1_000_000, ACCEPT)
    disk.store(partition)
    assert disk.last.batches == [StateBatch(1, 1_000_000, State.ACKNOWLEDGED, 1)]
    assert len(partition.window._blocks) == 2
    assert disk.restarted().first_available(1_000_001, limits) == 0


def test_changes_of_many_ranges_become_a_snapshot(partition: SharePartition, disk: Disk) -> None:
    acquire(partition, A, 0, 999)
    for offset in range(1, 1000, 2):
        settle(partition, A, offset, offset, ACCEPT)
        disk.store(partition)
        assert len(disk.last.batches) <= 64 or disk.last_kind is Kind.SNAPSHOT
    assert disk.kinds.count(Kind.SNAPSHOT) < 20
    again = disk.restarted()
    assert acquire(again, B, 0, 3) == [(0, 0, 0), (2, 2, 0)]
    assert again.complete == 500


def test_many_changes_become_a_snapshot(partition: SharePartition, disk: Disk) -> None:
    for offset in range(UPDATES_PER_SNAPSHOT + 1):
        acquire(partition, A, offset, offset)
        settle(partition, A, offset, offset, ACCEPT)
        disk.store(partition)
    assert disk.kinds.count(Kind.SNAPSHOT) == 2
    assert disk.restarted().window.start == UPDATES_PER_SNAPSHOT + 1


def test_a_change_of_an_older_snapshot_is_ignored() -> None:
    snapshot = Stored(7, 100, [StateBatch(101, 101, State.ARCHIVED, 2)], 1, 3)
    change = Stored(6, 50, [StateBatch(60, 70, State.ACKNOWLEDGED, 1)], 11)
    partition = SharePartition.of_stored(KEY, snapshot, 1, change)
    assert partition.state_epoch == 3
    assert acquire(partition, A, 100, 102) == [(100, 100, 0), (102, 102, 0)]


@pytest.mark.parametrize("state", list(State))
def test_a_stored_range_that_no_group_could_have_is_refused(state: State) -> None:
    snapshot = Stored(0, 0, [StateBatch(2**40, 2**41, state, 1)], 1, 0)
    with pytest.raises(InvalidRecordError):
        SharePartition.of_stored(KEY, snapshot, 1, None)


def test_a_moved_partition_begins_with_a_snapshot(partition: SharePartition, disk: Disk) -> None:
    acquire(partition, A, 0, 9)
    settle(partition, A, 3, 9, ACCEPT)
    disk.store(partition)
    moved = partition.moved(2)
    disk.store(moved)
    assert (disk.last_kind, disk.last.start, disk.last.state_epoch) == (Kind.SNAPSHOT, 2, 1)
    assert acquire(disk.restarted(), B, 2, 9) == [(2, 9, 0)]


pairs = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1]))


@settings(max_examples=examples(100))
@given(added=st.lists(pairs), cut=st.integers(0, 80), asked=pairs)
def test_ranges_are_a_set(added: list[tuple[int, int]], cut: int, asked: tuple[int, int]) -> None:
    ranges, model = Ranges(), set[int]()
    for first, last in added:
        ranges.add(first, last)
        model.update(range(first, last + 1))
    ranges.remove_below(cut)
    model = {each for each in model if each >= cut}
    found = list(ranges)
    assert {o for first, last in found for o in range(first, last + 1)} == model
    assert all(a[1] + 1 < b[0] for a, b in pairwise(found))
    parts = list(ranges.split(*asked))
    assert [o for first, last, _ in parts for o in range(first, last + 1)] == list(
        range(asked[0], asked[1] + 1)
    )
    assert all((o in model) == inside for f, last, inside in parts for o in range(f, last + 1))
    ranges.clear()
    assert len(ranges) == 0
