"""Changes of a consumer group as records, and consumer groups from their records.

This module must not know a request or a rule of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.state.consumer_groups.format import decode_pattern, encode_pattern
from tidemill.state.consumer_groups.group import ConsumerGroup
from tidemill.state.consumer_groups.types import ConsumerMember, MemberAssignment, ResolvedPattern
from tidemill.state.modern_groups.format import RecordKey, RecordKind
from tidemill.state.modern_groups.records import GroupChanges, apply
from tidemill.state.modern_groups.records import restored as restored_from
from tidemill.state.modern_groups.table import GroupTable

ConsumerTable = GroupTable[ConsumerGroup]


class Changes(GroupChanges[ConsumerGroup, ConsumerMember, MemberAssignment]):
    """Changes a group, and collects the records of the changes."""

    def set_pattern(self, pattern: str, resolved: ResolvedPattern) -> None:
        """Set the topics that a pattern matches."""
        self._add(RecordKind.PATTERN, pattern, encode_pattern(resolved))
        self.group.set_pattern(pattern, resolved)

    def drop_pattern(self, pattern: str) -> None:
        """Remove a pattern."""
        self._add(RecordKind.PATTERN, pattern, None)
        self.group.drop_pattern(pattern)

    def drop_group(self) -> None:
        """Remove the group with its members and patterns."""
        for pattern in list(self.group.patterns):
            self.drop_pattern(pattern)
        super().drop_group()


def restored(group_id: str, records: Mapping[RecordKey, bytes]) -> ConsumerGroup | None:
    """Return the group of its records; None without an epoch."""
    return restored_from(ConsumerGroup(group_id), records, _apply)


def _apply(group: ConsumerGroup, key: RecordKey, value: bytes) -> None:
    if key.kind is RecordKind.PATTERN:
        group.set_pattern(key.name, decode_pattern(value))
    else:
        apply(group, key, value)
