"""The uniform assignor: equal numbers of partitions for all members, and few changes.

If all members have the same subscription, the numbers differ by one at most. If not, no partition
can move to a member that has at least two fewer. Members keep what they had as far as that allows.

Source: KIP-848, section "Server side assignors".
"""

from __future__ import annotations

import heapq
from uuid import UUID

from tidemill.state.assignors.types import Members, Partitions, Topics, frozen

MOST_PASSES = 100
"""Passes over all topics that balance different subscriptions. Each move makes the assignment more
even, so the passes end by themselves; a few are enough in practice."""

_Owned = dict[UUID, set[int]]


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
    taken: _Owned = {topic: set() for topic in topics}
    assigned: dict[str, _Owned] = {}
    sizes: dict[str, int] = {}
    for member_id in sorted(members):
        had = _valid(members[member_id].target, topics, taken)
        total = sum(map(len, had.values()))
        size = min(total, share)
        if total > share and extra:
            size, extra = share + 1, extra - 1
        assigned[member_id] = _first(had, size)
        for topic, numbers in assigned[member_id].items():
            taken[topic] |= numbers
        sizes[member_id] = size
    free = [
        (topic, number)
        for topic in sorted(topics)
        for number in sorted(set(range(topics[topic])) - taken[topic])
    ]
    start = 0
    for member_id, size in sizes.items():
        wanted = max(share - size, 0)
        if size <= share and extra:
            wanted, extra = wanted + 1, extra - 1
        for topic, number in free[start : start + wanted]:
            assigned[member_id].setdefault(topic, set()).add(number)
        start += wanted
    return assigned


def _different_topics(members: Members, topics: Topics) -> dict[str, _Owned]:
    """Give each free partition to the subscriber with the fewest, then balance."""
    taken: _Owned = {topic: set() for topic in topics}
    assigned: dict[str, _Owned] = {}
    loads: dict[str, int] = {}
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        member = members[member_id]
        own = {topic: topics[topic] for topic in member.topics if topic in topics}
        had = _valid(member.target, own, taken)
        for topic, numbers in had.items():
            taken[topic] |= numbers
        assigned[member_id] = had
        loads[member_id] = sum(map(len, had.values()))
        for topic in own:
            subscribers.setdefault(topic, []).append(member_id)
    order = sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic))
    for topic in order:
        heap = [(loads[member_id], member_id) for member_id in subscribers[topic]]
        heapq.heapify(heap)
        for number in range(topics[topic]):
            if number not in taken[topic]:
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


def _valid(target: Partitions, topics: Topics, taken: _Owned) -> _Owned:
    """Return the partitions of a previous assignment that the member can keep."""
    kept = {}
    for topic in sorted(target):
        if topic in topics:
            count = topics[topic]
            numbers = {number for number in target[topic] if number < count} - taken[topic]
            if numbers:
                kept[topic] = numbers
    return kept


def _first(owned: _Owned, size: int) -> _Owned:
    """Return the first partitions, in the order of topics and numbers."""
    kept: _Owned = {}
    for topic, numbers in owned.items():
        if size <= 0:
            break
        kept[topic] = numbers if len(numbers) <= size else set(sorted(numbers)[:size])
        size -= len(kept[topic])
    return kept
