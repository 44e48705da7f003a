"""Functions over the topics that a group reads.

This module must not know a group or a member.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from uuid import UUID

from tidemill.state.assignors.types import Partitions
from tidemill.state.modern_groups.types import NamedPartitions, Topics


def topics_hash(subscribed: Iterable[str], topics: Topics) -> int:
    """Return a hash of the subscribed topics that exist, which changes when one of them does.

    It is stable over restarts, and never 0 if there is a topic.
    """
    digest = hashlib.blake2b(digest_size=8)
    empty = True
    for name in sorted(subscribed):
        found = topics.find(name)
        if found is not None:
            empty = False
            digest.update(f"{name}\0{found[0].hex}\0{found[1]}\0".encode())
    return 0 if empty else int.from_bytes(digest.digest(), "big", signed=True) or 1


def partition_counts(subscribed: Iterable[str], topics: Topics) -> dict[UUID, int]:
    """Return id and number of partitions of each subscribed topic that exists."""
    return dict(found for name in subscribed if (found := topics.find(name)) is not None)


def named_partitions(partitions: Partitions, topics: Topics) -> NamedPartitions:
    """Return partitions with the names of their topics, without topics that are deleted."""
    named = [
        (name, topic, tuple(sorted(numbers)))
        for topic, numbers in partitions.items()
        if (name := topics.name_of(topic)) is not None
    ]
    return tuple((topic, name, numbers) for name, topic, numbers in sorted(named))
