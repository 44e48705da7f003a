"""Says which topics the members of a group read: by name, and by pattern.

A pattern is resolved with the topics that exist, and again when a topic is created or deleted. The
result is stored, so that it survives a restart. Internal topics match no pattern.

This module must not know an epoch or an assignment.

Source: KIP-848, section "Regular expressions".
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.state.consumer_groups.group import Changes
from tidemill.state.consumer_groups.types import ResolvedPattern
from tidemill.state.errors import InvalidRegularExpressionError
from tidemill.state.modern_groups.types import Topics
from tidemill.state.patterns import id_matcher

MAX_PATTERN_CHARACTERS = 4096

CanSee = Callable[[str], bool]


def check_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether the pattern matches the whole name of a topic."""
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
