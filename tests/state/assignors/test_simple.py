"""The assignor of share groups."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.state.assignors.simple import assign_shared
from tidemill.state.assignors.types import AssignedMember, Partitions

TOPICS = [UUID(int=number) for number in range(4)]


@settings(max_examples=examples(60))
@given(
    counts=st.lists(st.integers(1, 7), min_size=4, max_size=4),
    subscriptions=st.lists(st.sets(st.sampled_from(TOPICS)), min_size=1, max_size=12),
    gone=st.integers(0, 11),
)
def test_each_partition_has_a_member_and_each_member_a_partition(
    counts: list[int], subscriptions: list[set[UUID]], gone: int
) -> None:
    topics = dict(zip(TOPICS, counts, strict=True))
    members = {f"m{n}": AssignedMember(frozenset(s)) for n, s in enumerate(subscriptions)}
    assigned = assign_shared(members, topics)
    check(members, topics, assigned)
    kept = {
        member_id: AssignedMember(member.topics, assigned[member_id])
        for member_id, member in members.items()
    }
    assert assign_shared(kept, topics) == assigned
    kept.pop(f"m{gone}", None)
    if kept:
        check(kept, topics, assign_shared(kept, topics))


def check(
    members: dict[str, AssignedMember], topics: dict[UUID, int], assigned: dict[str, Partitions]
) -> None:
    assert assigned.keys() == members.keys()
    for member_id, member in members.items():
        assert assigned[member_id].keys() <= member.topics
        assert bool(assigned[member_id]) == bool(member.topics)
    read = {(t, n) for each in assigned.values() for t, numbers in each.items() for n in numbers}
    subscribed = {topic for member in members.values() for topic in member.topics}
    assert read == {(topic, n) for topic in subscribed for n in range(topics[topic])}


def test_members_with_equal_subscriptions_get_equally_much() -> None:
    members = {f"m{n}": AssignedMember(frozenset(TOPICS)) for n in range(3)}
    assigned = assign_shared(members, dict.fromkeys(TOPICS, 2))
    sizes = [sum(map(len, each.values())) for each in assigned.values()]
    assert sorted(sizes) == [2, 3, 3]


def test_nothing_to_assign() -> None:
    assert assign_shared({}, {}) == {}
    assert assign_shared({"m": AssignedMember(frozenset(TOPICS))}, {}) == {"m": {}}
