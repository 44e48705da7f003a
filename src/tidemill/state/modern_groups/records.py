"""Changes of a modern group as records: each is applied to the group and added to an outcome.

Commands that follow before the records are on disk see the change, and no client does. If the
records can't be written, the machine makes the group again from those that are on disk.

This module must not know a request, a rule of the protocol or a kind of group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from tidemill.state.assignors.types import Partitions
from tidemill.state.modern_groups.format import RecordFormat, RecordKey, RecordKind
from tidemill.state.modern_groups.group import ModernGroup, Subscriber
from tidemill.state.outcome import StateRecord

_K = RecordKind

G = TypeVar("G", bound=ModernGroup[Any, Any])
M = TypeVar("M", bound=Subscriber)
C = TypeVar("C")


class GroupChanges(Generic[G, M, C]):
    """Changes a group, and collects the records of the changes."""

    def __init__(self, group: G, records: list[StateRecord]) -> None:
        self.group = group
        self.records = records
        self._format: RecordFormat[M, C] = group.FORMAT

    def set_epoch(self, epoch: int, topics_hash: int) -> None:
        """Set the group's epoch and the hash of its topics."""
        self._add(_K.GROUP, "", self._format.encode_group(epoch, topics_hash))
        self.group.set_epoch(epoch, topics_hash)

    def set_target_epoch(self, epoch: int) -> None:
        """Set the epoch of the target assignment."""
        self._add(_K.TARGET_EPOCH, "", self._format.encode_target_epoch(epoch))
        self.group.set_target_epoch(epoch)

    def set_member(self, member_id: str, member: M) -> None:
        """Add or change a member."""
        self._add(_K.MEMBER, member_id, self._format.encode_member(member))
        self.group.set_member(member_id, member)

    def set_target(self, member_id: str, target: Partitions) -> None:
        """Set a member's part of the target assignment."""
        self._add(_K.TARGET, member_id, self._format.encode_target(target))
        self.group.set_target(member_id, target)

    def set_current(self, member_id: str, current: C) -> None:
        """Set a member's epoch and partitions."""
        self._add(_K.CURRENT, member_id, self._format.encode_current(current))
        self.group.set_current(member_id, current)

    def drop_member(self, member_id: str) -> None:
        """Remove a member with its partitions."""
        for kind in (_K.CURRENT, _K.TARGET, _K.MEMBER):
            self._drop(kind, member_id)

    def drop_group(self) -> None:
        """Remove the group with its members."""
        for member_id in list(self.group.members):
            self.drop_member(member_id)
        for kind in (_K.TARGET_EPOCH, _K.IGNORED, _K.GROUP):
            self._drop(kind, "")

    def _add(self, kind: RecordKind, name: str, value: bytes | None) -> RecordKey:
        key = RecordKey(kind, self.group.group_id, name)
        self.records.append(StateRecord(self._format.encode_key(key), value))
        return key

    def _drop(self, kind: RecordKind, name: str) -> None:
        self.group.apply(self._add(kind, name, None), None)


def restored(group: G, records: Mapping[RecordKey, bytes]) -> G | None:
    """Apply the records of a new group to it, and return it; None without an epoch."""
    if RecordKey(_K.GROUP, group.group_id) not in records:
        return None
    for key, value in records.items():
        group.apply(key, value)
    for member_id in [*group.targets, *group.currents]:
        if member_id not in group.members:
            group.drop_target(member_id)
            group.drop_current(member_id)
    return group
