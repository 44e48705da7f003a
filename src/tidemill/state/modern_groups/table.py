"""The groups by id, the records of theirs that are on disk, and the limits of memory.

This module must not know a kind of group, or a rule of a protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from tidemill.state.errors import CoordinatorNotAvailableError, GroupMaxSizeReachedError
from tidemill.state.groups.memory import GroupLimits
from tidemill.state.modern_groups.format import RecordKey
from tidemill.state.modern_groups.group import ModernGroup
from tidemill.state.modern_groups.records import restored
from tidemill.state.outcome import StateRecord

G = TypeVar("G", bound=ModernGroup[Any, Any])


class GroupTable(Generic[G]):
    """The groups as commands see them, and as they are on disk.

    Args:
        kind: makes a group without records of its id.
        limits: of the memory of groups.
        max_size: the largest number of members of a group.
        other_bytes: returns what other groups take of the total.
    """

    def __init__(
        self,
        kind: type[G],
        limits: GroupLimits,
        max_size: int,
        other_bytes: Callable[[], int],
    ) -> None:
        self.bytes = 0
        self._kind = kind
        self._decode_key = kind.FORMAT.decode_key
        self._limits = limits
        self._max_size = max_size
        self._other_bytes = other_bytes
        self._groups: dict[str, G] = {}
        self._stored: dict[str, dict[RecordKey, bytes]] = {}
        self._in_flight: Counter[str] = Counter()
        """Group -> its records that are being written."""
        self._failed: set[str] = set()
        """Groups with a record that could not be written, until the others are on disk."""

    # --- groups ----------------------------------------------------------------------------------

    def get(self, group_id: str) -> G | None:
        """Return a group as commands see it, or None.

        Raises:
            CoordinatorNotAvailableError: a record of it could not be written just now.
        """
        if group_id in self._failed:
            raise CoordinatorNotAvailableError(
                f"the state of group {group_id!r} could not be written: ask again"
            )
        return self._groups.get(group_id)

    def find(self, group_id: str) -> G | None:
        """Return a group, or None, also while its records can't be written."""
        return self._groups.get(group_id)

    def all(self) -> list[G]:
        """Return all groups."""
        return list(self._groups.values())

    def add(self, group: G) -> None:
        """Add a group."""
        self.remove(group.group_id)
        self._groups[group.group_id] = group
        group.table = self
        self.bytes += group.bytes

    def remove(self, group_id: str) -> None:
        """Remove a group."""
        group = self._groups.pop(group_id, None)
        if group is not None:
            group.table = None
            self.bytes -= group.bytes

    def check_size(self, group_id: str, members: int) -> None:
        """Check that a group with so many members can get another one."""
        if members >= self._max_size:
            raise GroupMaxSizeReachedError(f"group {group_id!r} is full: it has {members} members")

    def check_growth(self, group: G, member_id: str, member: object) -> None:
        """Check that there is memory for a member, new or changed.

        Args:
            member: what the member asks for, in the type of the group's kind.
        """
        before = group.size_of(member_id, group.members.get(member_id))
        size = group.size_of(member_id, member)
        if size > self._limits.member:
            raise GroupMaxSizeReachedError(
                f"a member of group {group.group_id!r} takes {size} bytes: the limit for a member "
                f"is {self._limits.member}",
                hint="Subscribe to fewer topics, or raise groups.max_member_bytes of the broker.",
            )
        change = size - before
        if change <= 0:
            return
        new = 0 if group.table is self else group.bytes
        total = self.bytes + self._other_bytes() + new + change
        self._limits.check_growth(group.group_id, group.bytes + change, total)

    def check_new(self, group: G) -> None:
        """Check that there is memory for a group without members."""
        total = self.bytes + self._other_bytes() + group.bytes
        self._limits.check_growth(group.group_id, group.bytes, total)

    # --- records ---------------------------------------------------------------------------------

    def expect(self, records: Iterable[StateRecord]) -> None:
        """Note that these records are being written, and applied already."""
        for record in records:
            key = self._decode_key(record.key)
            if key is not None:
                self._in_flight[key.group_id] += 1

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Store a record of ``__consumer_offsets`` that is on disk.

        Returns:
            False if the record is not about a group of this kind. Then nothing changes.
        """
        group_key = self._decode_key(key)
        if group_key is None:
            return False
        stored = self._stored.setdefault(group_key.group_id, {})
        if value is None:
            stored.pop(group_key, None)
        else:
            stored[group_key] = value
        if not stored:
            del self._stored[group_key.group_id]
        self._landed(group_key.group_id)
        return True

    def write_failed(self, records: Iterable[StateRecord]) -> set[str]:
        """Forget records that could not be written; return their groups."""
        failed = [key.group_id for record in records if (key := self._decode_key(record.key))]
        self._failed.update(failed)
        for group_id in failed:
            self._landed(group_id)
        return set(failed)

    def _landed(self, group_id: str) -> None:
        if self._in_flight[group_id] > 1:
            self._in_flight[group_id] -= 1
            return
        del self._in_flight[group_id]
        if group_id in self._failed:
            self._failed.remove(group_id)
            self.restore(group_id)

    def restore(self, group_id: str) -> None:
        """Make a group from its records that are on disk."""
        self.remove(group_id)
        group = restored(self._kind(group_id), self._stored.get(group_id, {}))
        if group is not None:
            self.add(group)

    def restore_all(self) -> None:
        """Make all groups from the records that are on disk."""
        for group_id in list(self._stored):
            self.restore(group_id)

    def needs_tombstone(self, group_id: str) -> bool:
        """Return whether records of a group are in the log, or are being written."""
        return group_id in self._stored or self._in_flight[group_id] > 0
