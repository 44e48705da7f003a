"""Takes one member from its present partitions to the target assignment, a step per heartbeat.

A member gives back what the target does not have before it gets anything new, and it gets a
partition only when no other member has it. So no partition has two owners, however late one is.

Pure functions of one member. This module must not know a group or a record.

Source: KIP-848, sections "Consumer group state machine" and "Assignment reconciliation"; KIP-1251.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from tidemill.state.assignors.types import Partitions
from tidemill.state.consumer_groups.types import MemberAssignment, MemberState, OwnedPartitions

IsTaken = Callable[[UUID, int], bool]
"""Whether another member has a partition, or has not given it back yet."""


def reconcile(
    current: MemberAssignment,
    target_epoch: int,
    target: Partitions,
    is_taken: IsTaken,
    owned: Partitions | None,
) -> MemberAssignment:
    """Return the member's next step; the present one if it has to wait.

    Args:
        is_taken: says which partitions the member can't get yet.
        owned: the partitions that the member says it has; None if it did not say.
    """
    if is_reconciled(current, target_epoch):
        return current
    epoch = current.epoch
    if current.state is MemberState.UNREVOKED:
        if _has_any(owned, current.revoking):
            return current
        epoch += 1
    kept: dict[UUID, Mapping[int, int]] = {}
    revoking: dict[UUID, Mapping[int, int]] = {}
    for topic, epochs in current.assigned.items():
        wanted = target.get(topic, frozenset())
        stay = {number: since for number, since in epochs.items() if number in wanted}
        go = {number: since for number, since in epochs.items() if number not in wanted}
        if stay:
            kept[topic] = stay
        if go:
            revoking[topic] = go
    state = MemberState.UNREVOKED
    if not revoking or not _has_any(owned, revoking):
        epoch, revoking, state = target_epoch, {}, MemberState.STABLE
        for topic, numbers in target.items():
            have = kept.get(topic, {})
            missing = numbers.difference(have)
            free = {number: epoch for number in missing if not is_taken(topic, number)}
            if free:
                kept[topic] = {**have, **free}
            if len(free) < len(missing):
                state = MemberState.UNRELEASED
    previous = current.previous_epoch if epoch == current.epoch else current.epoch
    return MemberAssignment(epoch, previous, state, kept, revoking)


def is_reconciled(current: MemberAssignment, target_epoch: int) -> bool:
    """Return whether the member has all that the target assignment gives it, and nothing else."""
    return current.state is MemberState.STABLE and current.epoch == target_epoch


def _has_any(owned: Partitions | None, partitions: OwnedPartitions) -> bool:
    """Return whether the member has one of the partitions. One that does not say might."""
    if owned is None:
        return True
    return any(
        not owned.get(topic, frozenset()).isdisjoint(partitions[topic]) for topic in partitions
    )
