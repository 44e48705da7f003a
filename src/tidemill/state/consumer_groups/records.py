"""Changes of a consumer group as records: each is applied to the group and added to an outcome.

Commands that follow before the records are on disk see the change, and no client does. If the
records can't be written, the machine makes the group again from those that are on disk.

This module must not know a request or a rule of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.state.assignors.types import Partitions
from tidemill.state.consumer_groups import format as codec
from tidemill.state.consumer_groups.format import ConsumerKey, RecordKind, encode_key
from tidemill.state.consumer_groups.group import ConsumerGroup
from tidemill.state.consumer_groups.table import GroupTable
from tidemill.state.consumer_groups.types import (
    ConsumerMember,
    MemberAssignment,
    ResolvedPattern,
)
from tidemill.state.outcome import StateRecord

_K = RecordKind

ConsumerTable = GroupTable[ConsumerKey, ConsumerGroup]


class Changes:
    """Changes a group, and collects the records of the changes.

    Args:
        group: the group to change.
        records: gets the records.
    """

    def __init__(self, group: ConsumerGroup, records: list[StateRecord]) -> None:
        self.group = group
        self.records = records

    def set_epoch(self, epoch: int, topics_hash: int) -> None:
        """Set the group's epoch and the hash of its topics."""
        self._add(_K.GROUP, "", codec.encode_group(epoch, topics_hash))
        self.group.set_epoch(epoch, topics_hash)

    def set_target_epoch(self, epoch: int) -> None:
        """Set the epoch of the target assignment."""
        self._add(_K.TARGET_EPOCH, "", codec.encode_target_epoch(epoch))
        self.group.set_target_epoch(epoch)

    def set_member(self, member_id: str, member: ConsumerMember) -> None:
        """Add or change a member."""
        self._add(_K.MEMBER, member_id, codec.encode_member(member))
        self.group.set_member(member_id, member)

    def set_target(self, member_id: str, target: Partitions) -> None:
        """Set a member's part of the target assignment."""
        self._add(_K.TARGET, member_id, codec.encode_target(target))
        self.group.set_target(member_id, target)

    def set_current(self, member_id: str, current: MemberAssignment) -> None:
        """Set a member's epoch and partitions."""
        self._add(_K.CURRENT, member_id, codec.encode_current(current))
        self.group.set_current(member_id, current)

    def set_pattern(self, pattern: str, resolved: ResolvedPattern) -> None:
        """Set the topics that a pattern matches."""
        self._add(_K.PATTERN, pattern, codec.encode_pattern(resolved))
        self.group.set_pattern(pattern, resolved)

    def drop_pattern(self, pattern: str) -> None:
        """Remove a pattern."""
        self._drop(_K.PATTERN, pattern)

    def drop_member(self, member_id: str) -> None:
        """Remove a member with its partitions."""
        for kind in (_K.CURRENT, _K.TARGET, _K.MEMBER):
            self._drop(kind, member_id)

    def drop_group(self) -> None:
        """Remove the group with its members."""
        group = self.group
        for member_id in list(group.members):
            self.drop_member(member_id)
        for pattern in list(group.patterns):
            self.drop_pattern(pattern)
        for kind in (_K.TARGET_EPOCH, _K.PARTITION_METADATA, _K.GROUP):
            self._drop(kind, "")

    def _add(self, kind: RecordKind, name: str, value: bytes | None) -> ConsumerKey:
        key = ConsumerKey(kind, self.group.group_id, name)
        self.records.append(StateRecord(encode_key(key), value))
        return key

    def _drop(self, kind: RecordKind, name: str) -> None:
        apply(self.group, self._add(kind, name, None), None)


def apply(group: ConsumerGroup, key: ConsumerKey, value: bytes | None) -> None:
    """Apply one record to its group.

    Raises:
        InvalidRecordError, FormatVersionError: the record can't be read.
    """
    match key.kind:
        case _K.GROUP:
            group.set_epoch(*((0, 0) if value is None else codec.decode_group(value)))
        case _K.TARGET_EPOCH:
            group.set_target_epoch(0 if value is None else codec.decode_target_epoch(value))
        case _K.MEMBER if value is None:
            group.drop_member(key.name)
        case _K.MEMBER if value is not None:
            group.set_member(key.name, codec.decode_member(value))
        case _K.TARGET if value is None:
            group.drop_target(key.name)
        case _K.TARGET if value is not None:
            group.set_target(key.name, codec.decode_target(value))
        case _K.CURRENT if value is None:
            group.drop_current(key.name)
        case _K.CURRENT if value is not None:
            group.set_current(key.name, codec.decode_current(value))
        case _K.PATTERN if value is None:
            group.drop_pattern(key.name)
        case _K.PATTERN if value is not None:
            group.set_pattern(key.name, codec.decode_pattern(value))


def restored(group_id: str, records: Mapping[ConsumerKey, bytes]) -> ConsumerGroup | None:
    """Return the group of its records; None without an epoch.

    Raises:
        InvalidRecordError, FormatVersionError: a record can't be read.
    """
    if ConsumerKey(_K.GROUP, group_id) not in records:
        return None
    group = ConsumerGroup(group_id)
    for key, value in records.items():
        apply(group, key, value)
    for member_id in [*group.targets, *group.currents]:
        if member_id not in group.members:
            group.drop_target(member_id)
            group.drop_current(member_id)
    return group
