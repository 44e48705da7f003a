"""Offset arithmetic: rate limits and splits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.reading.ranges import (
    OffsetRange,
    TopicPartition,
    limit_offsets,
    split_ranges,
)

A, B, C = ("a", 0), ("a", 1), ("b", 0)


def test_a_limit_is_shared_out_by_backlog() -> None:
    ends = limit_offsets({A: 0, B: 100, C: 5}, {A: 900, B: 200, C: 5}, 100)
    assert ends == {A: 90, B: 110, C: 5}


def test_below_the_limit_all_is_taken() -> None:
    assert limit_offsets({A: 0, B: 0}, {A: 60, B: 40}, 100) == {A: 60, B: 40}


def test_a_small_partition_does_not_starve_beside_a_large_one() -> None:
    assert limit_offsets({A: 0, B: 0}, {A: 10**15, B: 1}, 10) == {A: 9, B: 1}


def test_a_log_that_became_shorter_is_left_as_it_is() -> None:
    assert limit_offsets({A: 50, B: 0}, {A: 10, B: 100}, 10) == {A: 10, B: 10}


backlogs = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5)),
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)),
    min_size=1,
)


@given(backlogs, st.integers(1, 2**40))
def test_limited_ends_lie_between_start_and_latest_and_always_advance(
    backlog: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start = {tp: first for tp, (first, _) in backlog.items()}
    latest = {tp: first + size for tp, (first, size) in backlog.items()}
    ends = limit_offsets(start, latest, limit)
    assert ends.keys() == latest.keys()
    for tp, end in ends.items():
        assert start[tp] <= end <= latest[tp]
        assert (end > start[tp]) == (latest[tp] > start[tp])
    assert sum(ends[tp] - start[tp] for tp in ends) <= limit + len(ends)


def test_without_wishes_each_range_is_one_task_and_empty_ones_none() -> None:
    ranges = [OffsetRange("a", 0, 5, 9), OffsetRange("a", 1, 3, 3), OffsetRange("a", 2, 4, 1)]
    assert split_ranges(ranges) == [OffsetRange("a", 0, 5, 9)]


def test_larger_ranges_are_cut_into_more_parts() -> None:
    parts = split_ranges([OffsetRange("a", 0, 0, 300), OffsetRange("a", 1, 0, 100)], min_parts=4)
    assert parts == [
        OffsetRange("a", 0, 0, 100),
        OffsetRange("a", 0, 100, 200),
        OffsetRange("a", 0, 200, 300),
        OffsetRange("a", 1, 0, 100),
    ]


def test_parts_have_at_most_the_largest_size() -> None:
    parts = split_ranges([OffsetRange("a", 0, 0, 10)], max_size=4)
    assert [(p.start, p.end) for p in parts] == [(0, 3), (3, 6), (6, 10)]


@given(
    st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 500)), max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 50),
)
def test_parts_cover_each_range_once_and_in_order(
    sizes: list[tuple[int, int]], min_parts: int | None, max_size: int | None
) -> None:
    ranges = [OffsetRange("t", i, first, first + n) for i, (first, n) in enumerate(sizes)]
    parts = split_ranges(ranges, min_parts=min_parts, max_size=max_size)
    for r in ranges:
        mine = [p for p in parts if p.partition == r.partition]
        assert all(p.size > 0 for p in mine)
        assert all(max_size is None or p.size <= max_size for p in mine)
        edges = [r.start, *(p.end for p in mine)]
        assert [p.start for p in mine] == edges[:-1]
        assert edges[-1] == r.end
    total = sum(r.size for r in ranges)
    if min_parts is not None and total >= min_parts * 50:
        assert len(parts) >= min_parts
