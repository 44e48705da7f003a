"""Changes of a share group as records, and share groups from their records.

This module must not know a request or a rule of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.state.modern_groups.format import RecordKey
from tidemill.state.modern_groups.records import GroupChanges, apply
from tidemill.state.modern_groups.records import restored as restored_from
from tidemill.state.modern_groups.table import GroupTable
from tidemill.state.outcome import StateRecord
from tidemill.state.share_groups.format import FORMAT
from tidemill.state.share_groups.group import ShareGroup
from tidemill.state.share_groups.types import ShareAssignment, ShareMember

ShareTable = GroupTable[ShareGroup]


class Changes(GroupChanges[ShareGroup, ShareMember, ShareAssignment]):
    """Changes a group, and collects the records of the changes."""

    def __init__(self, group: ShareGroup, records: list[StateRecord]) -> None:
        super().__init__(group, records, FORMAT)


def restored(group_id: str, records: Mapping[RecordKey, bytes]) -> ShareGroup | None:
    """Return the group of its records; None without an epoch."""
    return restored_from(
        ShareGroup(group_id), records, lambda group, key, value: apply(group, FORMAT, key, value)
    )
