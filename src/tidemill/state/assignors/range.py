"""The range assignor: each subscriber of a topic gets a range of its partitions.

Members are sorted, so members with the same subscription get the same ranges of all topics with the
same number of partitions: records with equal keys of two topics meet at one member. Static members
come first, so that their ranges survive when dynamic members come and go.

Source: KIP-848, section "Server side assignors".
"""

from __future__ import annotations

from uuid import UUID

from tidemill.state.assignors.types import Members, Partitions, Topics, frozen


def assign_ranges(members: Members, topics: Topics) -> dict[str, Partitions]:
    """Return the ranges of all members; an ``Assignor``."""
    order = sorted(members, key=lambda member_id: _rank(members, member_id))
    subscribers: dict[UUID, list[str]] = {}
    for member_id in order:
        for topic in members[member_id].topics:
            if topic in topics:
                subscribers.setdefault(topic, []).append(member_id)
    assigned: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in members}
    for topic, readers in subscribers.items():
        size, larger = divmod(topics[topic], len(readers))
        start = 0
        for index, member_id in enumerate(readers):
            end = start + size + (index < larger)
            assigned[member_id][topic] = set(range(start, end))
            start = end
    return {member_id: frozen(each) for member_id, each in assigned.items()}


def _rank(members: Members, member_id: str) -> tuple[bool, str]:
    instance_id = members[member_id].instance_id
    return (False, instance_id) if instance_id is not None else (True, member_id)
