"""Server-side assignors against the rules that every assignment keeps."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.state.assignors.range import assign_ranges
from tidemill.state.assignors.types import AssignedMember, Assignor, Members, Partitions, Topics
from tidemill.state.assignors.uniform import assign_uniformly

A, B, C = (UUID(int=number) for number in (10, 11, 12))
TOPIC_IDS = [A, B, C, UUID(int=13)]

topics_of = st.dictionaries(st.sampled_from(TOPIC_IDS), st.integers(1, 9))
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPIC_IDS)), max_size=6)


def members(*topics: frozenset[UUID], static: bool = False) -> dict[str, AssignedMember]:
    return {
        f"m{number}": AssignedMember(each, {}, f"i{number}" if static else None)
        for number, each in enumerate(topics)
    }


def after(previous: dict[str, Partitions], group: Members) -> dict[str, AssignedMember]:
    """Return the members with what they had."""
    return {
        key: AssignedMember(each.topics, previous.get(key, {}), each.instance_id)
        for key, each in group.items()
    }


def pairs(partitions: Partitions) -> set[tuple[UUID, int]]:
    return {(topic, number) for topic, numbers in partitions.items() for number in numbers}


def check(group: Members, topics: Topics, result: dict[str, Partitions]) -> None:
    """Check what ``Assignor`` promises."""
    assert result.keys() == group.keys()
    owners = Counter(pair for each in result.values() for pair in pairs(each))
    wanted = {t for each in group.values() for t in each.topics if t in topics}
    assert owners == {(topic, number): 1 for topic in wanted for number in range(topics[topic])}
    for key, each in result.items():
        assert set(each) <= group[key].topics
        assert all(each.values())


@pytest.mark.parametrize("assignor", [assign_ranges, assign_uniformly])
@given(topics=topics_of, first=subscriptions, second=subscriptions)
def test_every_partition_has_one_subscriber(
    assignor: Assignor,
    topics: dict[UUID, int],
    first: list[frozenset[UUID]],
    second: list[frozenset[UUID]],
) -> None:
    group = members(*first)
    result = assignor(group, topics)
    check(group, topics, result)
    changed = after(result, members(*second))
    check(changed, topics, assignor(changed, topics))


@given(topics=topics_of, before=st.integers(1, 6), now=st.integers(1, 6))
def test_uniform_shares_differ_by_one_and_moves_are_few(
    topics: dict[UUID, int], before: int, now: int
) -> None:
    everything = frozenset(TOPIC_IDS)
    first = assign_uniformly(members(*[everything] * before), topics)
    group = after(first, members(*[everything] * now))
    second = assign_uniformly(group, topics)
    sizes = [len(pairs(each)) for each in second.values()]
    assert max(sizes) - min(sizes) <= 1
    moved = sum(len(pairs(each) - pairs(first.get(key, {}))) for key, each in second.items())
    total = sum(topics.values())
    if now > before:  # only what the new members get moves
        assert moved == sum(len(pairs(second[f"m{n}"])) for n in range(before, now))
    elif now < before:  # only what the old members had moves
        assert moved == sum(len(pairs(first[f"m{n}"])) for n in range(now, before))
    else:
        assert moved == 0
    assert sum(sizes) == total


@given(topics=topics_of, subscribed=st.lists(st.frozensets(st.sampled_from(TOPIC_IDS)), min_size=1))
def test_no_move_makes_different_subscriptions_more_even(
    topics: dict[UUID, int], subscribed: list[frozenset[UUID]]
) -> None:
    group = members(*subscribed[:6])
    result = assign_uniformly(group, topics)
    sizes = {key: len(pairs(each)) for key, each in result.items()}
    for giver, partitions in result.items():
        for topic in partitions:
            for taker, member in group.items():
                if topic in member.topics:
                    assert sizes[giver] - sizes[taker] < 2


RANGES = [
    ({A: 3}, 2, [[(A, 0), (A, 1)], [(A, 2)]]),
    ({A: 2, B: 2}, 2, [[(A, 0), (B, 0)], [(A, 1), (B, 1)]]),
    ({A: 1, B: 1}, 2, [[(A, 0), (B, 0)], []]),
    ({A: 1}, 3, [[(A, 0)], [], []]),
]


@pytest.mark.parametrize(("topics", "count", "expected"), RANGES)
def test_ranges_of_topics_lie_side_by_side(
    topics: dict[UUID, int], count: int, expected: list[list[tuple[UUID, int]]]
) -> None:
    result = assign_ranges(members(*[frozenset(topics)] * count), topics)
    assert [sorted(pairs(result[f"m{n}"])) for n in range(count)] == expected


def test_static_members_keep_their_ranges_when_dynamic_ones_join() -> None:
    topics = {A: 4}
    group = members(frozenset([A]), static=True) | {"a": AssignedMember(frozenset([A]))}
    assert pairs(assign_ranges(group, topics)["m0"]) == {(A, 0), (A, 1)}


def test_a_topic_that_does_not_exist_is_left_out() -> None:
    for assignor in (assign_ranges, assign_uniformly):
        assert assignor(members(frozenset([C])), {A: 2}) == {"m0": {}}
