"""Checks whether a client may commit or fetch offsets of a consumer group.

Pure functions of one group and one request. This module must not know the committed offsets.

Source: KIP-848, sections "OffsetCommit API" and "OffsetFetch API"; KIP-1251: a member can commit
with an older epoch if it has had the partitions since then.
"""

from __future__ import annotations

from tidemill.state.consumer_groups.group import ConsumerGroup
from tidemill.state.errors import (
    IllegalGenerationError,
    MemberEpochsNotSupportedError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from tidemill.state.modern_groups.types import Topics
from tidemill.state.types import CommitRequest


def check_commit(
    group: ConsumerGroup, request: CommitRequest, topics: Topics, *, in_transaction: bool
) -> None:
    """Check that the sender may commit offsets.

    A member may. If the group has no members, a client without an epoch may too.
    """
    if request.generation < 0 and group.is_empty:
        return
    if in_transaction and request.generation < 0 and not request.member_id:
        return  # a producer before KIP-447
    if not request.member_id:
        raise UnknownMemberIdError(
            f"group {group.group_id!r} has members, and only they can commit",
            hint="Use another group.id for a consumer that assigns its partitions itself.",
        )
    member = group.check_member(request.member_id, request.instance_id)
    if not in_transaction and member.classic is None and not request.knows_epochs:
        raise MemberEpochsNotSupportedError(
            f"group {group.group_id!r}: a member with the consumer protocol commits with a version "
            "that has no member epochs"
        )
    error = _epoch_error(group, request.member_id, request.generation)
    if error is None or _had_since(group, request, topics):
        return
    raise IllegalGenerationError(str(error)) if in_transaction else error


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Check that a client may fetch offsets. One that names no member may."""
    if not member_id and epoch < 0:
        return
    group.check_member(member_id or "", None)
    error = _epoch_error(group, member_id or "", epoch)
    if error is not None:
        raise error


def _epoch_error(
    group: ConsumerGroup, member_id: str, epoch: int
) -> StaleMemberEpochError | IllegalGenerationError | None:
    expected = group.current(member_id).epoch
    if epoch == expected:
        return None
    text = f"group {group.group_id!r}: member {member_id!r} has epoch {expected}, not {epoch}"
    if group.members[member_id].classic is not None:
        return IllegalGenerationError(text)
    return StaleMemberEpochError(text)


def _had_since(group: ConsumerGroup, request: CommitRequest, topics: Topics) -> bool:
    """Return whether the member has had all the partitions since the epoch of the request."""
    current = group.current(request.member_id)
    if not 0 <= request.generation < current.epoch:
        return False
    for each in request.offsets:
        found = topics.find(each.topic)
        since = None
        if found is not None:
            since = current.assigned.get(found[0], {}).get(each.partition)
            if since is None:
                since = current.revoking.get(found[0], {}).get(each.partition)
        if since is None or request.generation < since:
            return False
    return True
