"""Who may commit offsets to a group: plainly, and inside a transaction.

Looks at one group and one request and changes neither; knows no offsets and no time.

Source: KIP-345 (static members), KIP-447 (transactions); Apache Kafka's ``ClassicGroup``.
"""

from __future__ import annotations

from tidemill.errors import (
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidemill.state.group import Group, GroupState
from tidemill.state.types import CommitRequest


def check_commit(group: Group | None, request: CommitRequest) -> None:
    """Prove that the sender may commit offsets: a member of the current generation, or anybody
    without a generation where the group (None: there is none yet) has no members.

    Raises:
        UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError: as they say.
        RebalanceInProgressError: the member has joined a new generation, but not synced.
    """
    if _is_simple(group, request) or group is None:
        return
    if request.generation < 0 and not _names_a_member(request):
        raise UnknownMemberIdError(
            f"group {group.group_id!r} has members, only they may commit",
            hint="Use another group.id for a consumer that assigns its partitions itself.",
        )
    group.check_member(request.member_id, request.instance_id)
    check_generation(group, request.generation)
    if group.is_in(GroupState.COMPLETING_REBALANCE):
        raise rebalancing(group)


def check_transactional_commit(group: Group | None, request: CommitRequest) -> None:
    """Prove that the sender may commit offsets inside a transaction.

    Unlike a plain commit: who says nothing of a member (clients before KIP-447) is admitted to any
    group, and a rebalance that is being completed is no hindrance.

    Raises:
        UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError: as they say.
    """
    if _is_simple(group, request) or group is None:
        return
    if request.generation >= 0 or _names_a_member(request):
        group.check_member(request.member_id, request.instance_id)
        check_generation(group, request.generation)


def check_generation(group: Group, generation: int) -> None:
    """
    Raises:
        IllegalGenerationError: it is not the group's current one.
    """
    if generation != group.generation:
        raise IllegalGenerationError(
            f"group {group.group_id!r} is in generation {group.generation}, not {generation}"
        )


def rebalancing(group: Group) -> RebalanceInProgressError:
    """The error that makes a member join again."""
    return RebalanceInProgressError(f"group {group.group_id!r} is rebalancing: join again")


def _is_simple(group: Group | None, request: CommitRequest) -> bool:
    """Whether it is a commit without a generation to a group without members."""
    if group is None:
        if request.generation >= 0:
            raise IllegalGenerationError(
                f"there is no group {request.group_id!r} in generation {request.generation}"
            )
        return True
    return request.generation < 0 and group.is_in(GroupState.EMPTY)


def _names_a_member(request: CommitRequest) -> bool:
    return bool(request.member_id) or request.instance_id is not None
