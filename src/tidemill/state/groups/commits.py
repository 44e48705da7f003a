"""Checks whether a client may commit offsets to a group, plainly or in a transaction.

Pure functions of one group and one request. This module must not know the committed offsets.

Source: KIP-345 (static members), KIP-447 (transactions); Apache Kafka's ``ClassicGroup``.
"""

from __future__ import annotations

from tidemill.state.errors import (
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidemill.state.groups.group import Group, GroupState
from tidemill.state.groups.members import WithId, check_ids
from tidemill.state.types import CommitRequest


def check_commit(group: Group | None, request: CommitRequest) -> None:
    """Check that the sender may commit offsets.

    A member of the current generation may. If the group has no members, a client without a
    generation may too.

    Args:
        group: the group; None if it does not exist yet.

    Raises:
        UnknownMemberIdError, FencedInstanceIdError: the sender is not a member.
        IllegalGenerationError: the generation is not the current one.
        RebalanceInProgressError: the member has joined a new generation, but not synced.
    """
    if _is_simple(group, request) or group is None:
        return
    if request.generation < 0 and not _names_a_member(request):
        raise UnknownMemberIdError(
            f"group {group.group_id!r} has members, and only they can commit",
            hint="Use another group.id for a consumer that assigns its partitions itself.",
        )
    check_ids(group, request.member_id, request.instance_id)
    check_generation(group, request.generation)
    if group.is_in(GroupState.COMPLETING_REBALANCE):
        raise rebalancing(group)


def check_transactional_commit(group: Group | None, request: CommitRequest) -> None:
    """Check that the sender may commit offsets in a transaction.

    Two rules differ from ``check_commit``: a client that names no member (as clients before
    KIP-447) may commit to any group, and a member may commit before it has synced.

    Raises:
        UnknownMemberIdError, FencedInstanceIdError: the sender is not a member.
        IllegalGenerationError: the generation is not the current one.
    """
    if _is_simple(group, request) or group is None:
        return
    if request.generation >= 0 or _names_a_member(request):
        check_ids(group, request.member_id, request.instance_id)
        check_generation(group, request.generation)


def check_generation(group: Group, generation: int) -> None:
    """Check that the generation is the group's current one."""
    if generation != group.generation:
        raise IllegalGenerationError(
            f"group {group.group_id!r} is in generation {group.generation}, not {generation}"
        )


def rebalancing(group: WithId) -> RebalanceInProgressError:
    """Return the error that makes a member join again."""
    return RebalanceInProgressError(f"group {group.group_id!r} is rebalancing: join again")


def _is_simple(group: Group | None, request: CommitRequest) -> bool:
    """Return whether this is a commit without a generation to a group without members."""
    if group is None:
        if request.generation >= 0:
            raise IllegalGenerationError(
                f"group {request.group_id!r} does not exist: it has no generation "
                f"{request.generation}"
            )
        return True
    return request.generation < 0 and group.is_in(GroupState.EMPTY)


def _names_a_member(request: CommitRequest) -> bool:
    return bool(request.member_id) or request.instance_id is not None
