"""Says which topics the members of a group read: by name, and by pattern.

A pattern is resolved with the topics that exist, and again when a topic is created or deleted. The
result is stored, so that it survives a restart. Internal topics match no pattern.

This module must not know an epoch or an assignment.

Source: KIP-848, section "Regular expressions".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from uuid import UUID

from tidemill.state.consumer_groups.group import ConsumerGroup
from tidemill.state.consumer_groups.records import Changes
from tidemill.state.consumer_groups.types import ConsumerMember, ResolvedPattern, Topics
from tidemill.state.errors import InvalidRegularExpressionError
from tidemill.state.patterns import id_matcher

MAX_PATTERN_CHARACTERS = 4096

CanSee = Callable[[str], bool]


def check_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether the pattern matches the whole name of a topic.

    Raises:
        InvalidRegularExpressionError: the pattern is invalid, too long, or needs google-re2.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise InvalidRegularExpressionError(
            f"the regular expression has {len(pattern)} characters: at most "
            f"{MAX_PATTERN_CHARACTERS} are allowed"
        )
    return id_matcher(pattern)


def resolve_patterns(
    changes: Changes, topics: Topics, can_see: CanSee | None, now_ms: int, *, again: bool
) -> None:
    """Resolve the patterns of a group, and remove those that no member uses.

    Args:
        topics: the topics that exist.
        can_see: which of them the member's user can describe; None: all.
        again: whether to resolve patterns that have a result, too.
    """
    group = changes.group
    used = group.used_patterns()
    for pattern in set(group.patterns) - used:
        changes.drop_pattern(pattern)
    names: list[str] | None = None
    for pattern in sorted(used):
        before = group.patterns.get(pattern)
        if before is not None and not again:
            continue
        names = topics.names() if names is None else names
        matches = check_pattern(pattern)
        found = frozenset(n for n in names if matches(n) and (can_see is None or can_see(n)))
        if before is None or before.topics != found:
            changes.set_pattern(pattern, ResolvedPattern(found, topics.version, now_ms))


def topic_names_of(group: ConsumerGroup, member: ConsumerMember) -> frozenset[str]:
    """Return the names of the topics that a member reads."""
    names = frozenset(member.topic_names)
    resolved = group.patterns.get(member.topic_pattern or "")
    return names if resolved is None else names | resolved.topics


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
