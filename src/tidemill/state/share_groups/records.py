"""Changes of a share group as records: each is applied to the group and added to an outcome.

Commands that follow before the records are on disk see the change, and no client does. This module
must not know a request or a rule of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.state.assignors.types import Partitions
from tidemill.state.consumer_groups.table import GroupTable
from tidemill.state.outcome import StateRecord
from tidemill.state.share_groups import format as codec
from tidemill.state.share_groups.format import RecordKind, ShareKey, encode_key
from tidemill.state.share_groups.group import ShareGroup
from tidemill.state.share_groups.types import ShareAssignment, ShareMember

_K = RecordKind

ShareTable = GroupTable[ShareKey, ShareGroup]


class Changes:
    """Changes a group, and collects the records of the changes.

    Args:
        group: the group to change.
        records: gets the records.
    """

    def __init__(self, group: ShareGroup, records: list[StateRecord]) -> None:
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

    def set_member(self, member_id: str, member: ShareMember) -> None:
        """Add or change a member."""
        self._add(_K.MEMBER, member_id, codec.encode_member(member))
        self.group.set_member(member_id, member)

    def set_target(self, member_id: str, target: Partitions) -> None:
        """Set a member's part of the target assignment."""
        self._add(_K.TARGET, member_id, codec.encode_target(target))
        self.group.set_target(member_id, target)

    def set_current(self, member_id: str, current: ShareAssignment) -> None:
        """Set a member's epoch and partitions."""
        self._add(_K.CURRENT, member_id, codec.encode_current(current))
        self.group.set_current(member_id, current)

    def drop_member(self, member_id: str) -> None:
        """Remove a member with its partitions."""
        for kind in (_K.CURRENT, _K.TARGET, _K.MEMBER):
            self._drop(kind, member_id)

    def drop_group(self) -> None:
        """Remove the group with its members."""
        for member_id in list(self.group.members):
            self.drop_member(member_id)
        for kind in (_K.TARGET_EPOCH, _K.STATE_PARTITIONS, _K.GROUP):
            self._drop(kind, "")

    def _add(self, kind: RecordKind, name: str, value: bytes | None) -> ShareKey:
        key = ShareKey(kind, self.group.group_id, name)
        self.records.append(StateRecord(encode_key(key), value))
        return key

    def _drop(self, kind: RecordKind, name: str) -> None:
        apply(self.group, self._add(kind, name, None), None)


def apply(group: ShareGroup, key: ShareKey, value: bytes | None) -> None:
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


def restored(group_id: str, records: Mapping[ShareKey, bytes]) -> ShareGroup | None:
    """Return the group of its records; None without an epoch.

    Raises:
        InvalidRecordError, FormatVersionError: a record can't be read.
    """
    if ShareKey(_K.GROUP, group_id) not in records:
        return None
    group = ShareGroup(group_id)
    for key, value in records.items():
        apply(group, key, value)
    for member_id in [*group.targets, *group.currents]:
        if member_id not in group.members:
            group.drop_target(member_id)
            group.drop_current(member_id)
    return group
