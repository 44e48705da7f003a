"""The uniform assignor: equal numbers of partitions for all members, and few changes.

If all members have the same subscription, the numbers differ by one at most. If not, no partition
can move to a member that has at least two fewer. Members keep what they had as far as that allows.

Source: KIP-848, section "Server side assignors".
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import chain
from uuid import UUID

from tidemill.state.assignors.types import Members, Partitions, Topics, frozen

MOST_PASSES = 100
"""Passes over all topics that balance different subscriptions. Each move makes the assignment more
even, so the passes end by themselves; a few are enough in practice."""

_Owned = dict[UUID, set[int]]
_Free = list[tuple[UUID, int]]


def assign_uniformly(members: Members, topics: Topics) -> dict[str, Partitions]:
    """Return an even assignment for all members; an ``Assignor``."""
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        assigned = _same_topics(members, {t: topics[t] for t in subscriptions.pop() if t in topics})
    else:
        assigned = _different_topics(members, topics)
    return {member_id: frozen(each) for member_id, each in assigned.items()}


def _same_topics(members: Members, topics: Topics) -> dict[str, _Owned]:
    """Fill each member up to its share. The first ``extra`` members that need it get one more."""
    share, extra = divmod(sum(topics.values()), len(members))
    taken: set[tuple[UUID, int]] = set()
    assigned: dict[str, _Owned] = {}
    sizes: dict[str, int] = {}
    for member_id in sorted(members):
        had = _valid(members[member_id].target, topics, taken)
        size = min(len(had), share)
        if len(had) > share and extra:
            size, extra = share + 1, extra - 1
        assigned[member_id] = _grouped(had[:size])
        taken.update(had[:size])
        sizes[member_id] = size
    free = deque(_free(topics, taken))
    for member_id, size in sizes.items():
        wanted = share - size
        if size <= share and extra:
            wanted, extra = wanted + 1, extra - 1
        for _ in range(wanted):
            topic, number = free.popleft()
            assigned[member_id].setdefault(topic, set()).add(number)
    return assigned


def _different_topics(members: Members, topics: Topics) -> dict[str, _Owned]:
    """Give each free partition to the subscriber with the fewest, then balance."""
    taken: set[tuple[UUID, int]] = set()
    assigned: dict[str, _Owned] = {}
    loads: dict[str, int] = {}
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        member = members[member_id]
        own = {topic: topics[topic] for topic in member.topics if topic in topics}
        had = _valid(member.target, own, taken)
        taken.update(had)
        assigned[member_id] = _grouped(had)
        loads[member_id] = len(had)
        for topic in own:
            subscribers.setdefault(topic, []).append(member_id)
    order = sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic))
    for topic in order:
        heap = [(loads[member_id], member_id) for member_id in subscribers[topic]]
        heapq.heapify(heap)
        for number in range(topics[topic]):
            if (topic, number) not in taken:
                load, member_id = heapq.heappop(heap)
                assigned[member_id].setdefault(topic, set()).add(number)
                loads[member_id] = load + 1
                heapq.heappush(heap, (load + 1, member_id))
    for _ in range(MOST_PASSES):
        if not sum([_balance(t, subscribers[t], assigned, loads) for t in order]):
            break
    return assigned


def _balance(
    topic: UUID, readers: list[str], assigned: dict[str, _Owned], loads: dict[str, int]
) -> int:
    """Move partitions of a topic from members with many partitions to those with few.

    Returns:
        The number of moves.
    """
    givers = [(-loads[m], m) for m in readers if assigned[m].get(topic)]
    takers = [(loads[m], m) for m in readers]
    heapq.heapify(givers)
    heapq.heapify(takers)
    moves = 0
    while givers:
        load, giver = givers[0]
        if -load != loads[giver] or not assigned[giver].get(topic):
            heapq.heappop(givers)
            if -load != loads[giver] and assigned[giver].get(topic):
                heapq.heappush(givers, (-loads[giver], giver))
            continue
        few, taker = takers[0]
        if few != loads[taker]:
            heapq.heapreplace(takers, (loads[taker], taker))
            continue
        if loads[giver] - few < 2:
            break
        number = max(assigned[giver][topic])
        assigned[giver][topic].remove(number)
        assigned[taker].setdefault(topic, set()).add(number)
        loads[giver] -= 1
        loads[taker] += 1
        moves += 1
    return moves


def _valid(target: Partitions, topics: Topics, taken: set[tuple[UUID, int]]) -> _Free:
    """Return the partitions of a previous assignment that the member can keep, sorted."""
    return [
        (topic, number)
        for topic in sorted(target)
        if topic in topics
        for number in sorted(target[topic])
        if number < topics[topic] and (topic, number) not in taken
    ]


def _free(topics: Topics, taken: set[tuple[UUID, int]]) -> Iterable[tuple[UUID, int]]:
    every = ([(topic, number) for number in range(topics[topic])] for topic in sorted(topics))
    return (each for each in chain.from_iterable(every) if each not in taken)


def _grouped(partitions: _Free) -> _Owned:
    grouped: _Owned = {}
    for topic, number in partitions:
        grouped.setdefault(topic, set()).add(number)
    return grouped
