"""Lists of modern groups, as admin clients ask for them.

This module must not know a kind of group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from tidemill.state.groups.types import GroupListing
from tidemill.state.modern_groups.group import ModernGroup


def listings(
    groups: Iterable[ModernGroup[Any, Any]],
    group_type: str,
    protocol_type: str,
    states: Collection[str] = (),
    types: Collection[str] = (),
) -> Iterator[GroupListing]:
    """Yield groups of one type: all, or those with one of ``states`` and of ``types``.

    Upper and lower case of states and types are the same.
    """
    if types and group_type not in {each.lower() for each in types}:
        return
    wanted = {state.lower() for state in states}
    for group in groups:
        state = group.state_name
        if not wanted or state.lower() in wanted:
            yield GroupListing(group.group_id, protocol_type, state, group_type)
