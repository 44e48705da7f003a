"""Makes the target assignment of a group when its epoch has grown.

This module must not know a request or a member's present partitions.

Source: KIP-848, section "Target assignment".
"""

from __future__ import annotations

from collections import Counter

from tidemill.state.assignors.range import assign_ranges
from tidemill.state.assignors.types import Assignor
from tidemill.state.assignors.uniform import assign_uniformly
from tidemill.state.consumer_groups.group import Changes, ConsumerGroup
from tidemill.state.consumer_groups.subscriptions import CanSee, resolve_patterns
from tidemill.state.errors import UnsupportedAssignorError
from tidemill.state.modern_groups.machine import assign, start_epoch
from tidemill.state.modern_groups.types import Topics

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
"""The assignors by name. The first one is the default."""
DEFAULT_ASSIGNOR = "uniform"


def check_assignor(name: str | None) -> None:
    """Check that an assignor exists."""
    if name is not None and name not in ASSIGNORS:
        raise UnsupportedAssignorError(
            f"assignor {name!r} is not supported: use one of {', '.join(ASSIGNORS)}",
            hint="Set group.remote.assignor of the consumers.",
        )


def preferred_assignor(group: ConsumerGroup) -> str:
    """Return the assignor that most members ask for. The default one wins if they ask for none."""
    votes = Counter(m.assignor for m in group.members.values() if m.assignor in ASSIGNORS)
    if not votes:
        return DEFAULT_ASSIGNOR
    most = max(votes.values())
    return next(name for name in ASSIGNORS if votes[name] == most)


def update_epoch(
    changes: Changes,
    topics: Topics,
    now_ms: int,
    *,
    bump: bool,
    can_see: CanSee | None = None,
) -> None:
    """Start a new epoch if members or topics have changed.

    Args:
        bump: whether members have changed. Topics are compared here, if their version has grown.
        can_see: see ``resolve_patterns``.
    """
    new_topics = changes.group.topics_version != topics.version
    if not bump and not new_topics:
        return
    resolve_patterns(changes, topics, can_see, now_ms, again=new_topics)
    start_epoch(changes, topics, members_changed=bump)


def update_target(changes: Changes, topics: Topics) -> None:
    """Make the target assignment of the group's epoch, if that is newer than the present one."""
    group = changes.group
    if group.epoch > group.target_epoch:
        assign(changes, topics, ASSIGNORS[preferred_assignor(group)])
