"""The assignor of share groups: partitions can have several members.

Each partition of a subscribed topic gets a member, and each member gets a partition if a topic that
it subscribes to has one. Members beyond that share partitions evenly. What members have is kept as
far as that is even.

Source: KIP-932, section "Share group membership and rebalance".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TypeVar
from uuid import UUID

from tidemill.state.assignors.types import AssignedMember, Members, Partitions, Topics, frozen

Place = tuple[UUID, int]
K = TypeVar("K", str, Place)


def assign_shared(members: Members, topics: Topics) -> dict[str, Partitions]:
    """Return the partitions of all members."""
    assigned: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in members}
    for ids, subscribed in _classes(members, topics):
        _assign_class(ids, subscribed, members, topics, assigned)
    return {member_id: frozen(each) for member_id, each in assigned.items()}


def _classes(members: Members, topics: Topics) -> Iterator[tuple[list[str], list[UUID]]]:
    """Yield the members with equal subscriptions, and their topics that exist."""
    classes: dict[frozenset[UUID], list[str]] = {}
    for member_id in sorted(members):
        classes.setdefault(members[member_id].topics, []).append(member_id)
    for subscription, ids in classes.items():
        yield ids, sorted(topic for topic in subscription if topic in topics)


def _assign_class(
    ids: list[str],
    subscribed: list[UUID],
    members: Members,
    topics: Topics,
    assigned: dict[str, dict[UUID, set[int]]],
) -> None:
    """Assign the partitions of topics to members that subscribe to exactly these."""
    places = [(topic, number) for topic in subscribed for number in range(topics[topic])]
    if not places:
        return
    most = -(-len(places) // len(ids))  # partitions of a member
    readers = -(-len(ids) // len(places))  # members of a partition
    loads = dict.fromkeys(ids, 0)
    shared = dict.fromkeys(places, 0)
    for member_id in ids:
        for place in _kept(members[member_id], shared):
            if loads[member_id] < most and shared[place] < readers:
                _give(assigned, member_id, place)
                loads[member_id] += 1
                shared[place] += 1
    free = [place for place in places if not shared[place]]
    for place, member_id in zip(free, _fewest_first(loads), strict=False):
        _give(assigned, member_id, place)
        shared[place] += 1
    idle = [member_id for member_id, load in loads.items() if not load]
    for member_id, place in zip(idle, _fewest_first(shared), strict=False):
        _give(assigned, member_id, place)


def _kept(member: AssignedMember, known: dict[Place, int]) -> Iterator[Place]:
    for topic in sorted(member.target):
        for number in sorted(member.target[topic]):
            if (topic, number) in known:
                yield topic, number


def _fewest_first(counts: dict[K, int]) -> Iterator[K]:
    """Yield the key with the lowest count, which grows by one, again and again."""
    heap = [(count, key) for key, count in counts.items()]
    heapq.heapify(heap)
    while True:
        count, key = heap[0]
        heapq.heapreplace(heap, (count + 1, key))
        counts[key] = count + 1
        yield key


def _give(assigned: dict[str, dict[UUID, set[int]]], member_id: str, place: Place) -> None:
    assigned[member_id].setdefault(place[0], set()).add(place[1])
