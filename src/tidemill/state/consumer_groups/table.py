"""The consumer groups by id, the records of theirs that are on disk, and the limits of memory.

This module must not know a rule of the protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from tidemill.state.consumer_groups.format import ConsumerKey, RecordKind, decode_key
from tidemill.state.consumer_groups.group import ConsumerGroup, size_of
from tidemill.state.consumer_groups.records import apply
from tidemill.state.consumer_groups.types import ConsumerMember
from tidemill.state.errors import CoordinatorNotAvailableError, GroupMaxSizeReachedError
from tidemill.state.groups.memory import GroupLimits
from tidemill.state.outcome import StateRecord

_HINT = "Subscribe to fewer topics, or raise groups.{} of the broker."


class ConsumerTable:
    """The groups as commands see them, and as they are on disk.

    Args:
        limits: of the memory of groups.
        other_bytes: returns what other groups take of the total.
    """

    def __init__(self, limits: GroupLimits, other_bytes: Callable[[], int] = lambda: 0) -> None:
        self.bytes = 0
        self._limits = limits
        self._other_bytes = other_bytes
        self._groups: dict[str, ConsumerGroup] = {}
        self._stored: dict[str, dict[ConsumerKey, bytes]] = {}
        self._in_flight: Counter[str] = Counter()
        """Group -> its records that are being written."""
        self._failed: set[str] = set()
        """Groups with a record that could not be written, until the others are on disk."""

    # --- groups ----------------------------------------------------------------------------------

    def get(self, group_id: str) -> ConsumerGroup | None:
        """Return a group as commands see it, or None.

        Raises:
            CoordinatorNotAvailableError: a record of it could not be written just now.
        """
        if group_id in self._failed:
            raise CoordinatorNotAvailableError(
                f"the state of group {group_id!r} could not be written: ask again"
            )
        return self._groups.get(group_id)

    def find(self, group_id: str) -> ConsumerGroup | None:
        """Return a group, or None, also while its records can't be written."""
        return self._groups.get(group_id)

    def all(self) -> list[ConsumerGroup]:
        """Return all groups."""
        return list(self._groups.values())

    def add(self, group: ConsumerGroup) -> None:
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

    def check_growth(self, group: ConsumerGroup, member_id: str, member: ConsumerMember) -> None:
        """Check that there is memory for a member, new or changed.

        Raises:
            GroupMaxSizeReachedError: the member, the group or all groups would be too large.
        """
        size = size_of(member_id, member)
        if size > self._limits.member:
            raise GroupMaxSizeReachedError(
                f"a member of group {group.group_id!r} takes {size} bytes: the limit for a member "
                f"is {self._limits.member}",
                hint=_HINT.format("max_member_bytes"),
            )
        before = group.members.get(member_id)
        change = size - (0 if before is None else size_of(member_id, before))
        if change <= 0:
            return
        if group.bytes + change > self._limits.group:
            raise GroupMaxSizeReachedError(
                f"group {group.group_id!r} would take {group.bytes + change} bytes: the limit for "
                f"a group is {self._limits.group}",
                hint=_HINT.format("max_group_bytes"),
            )
        new = 0 if group.table is self else group.bytes
        if self.bytes + self._other_bytes() + new + change > self._limits.total:
            raise GroupMaxSizeReachedError(
                f"all groups together would take more than {self._limits.total} bytes",
                hint="Find the clients that create groups and members, or raise "
                "groups.max_total_bytes of the broker.",
            )

    # --- records ---------------------------------------------------------------------------------

    def expect(self, records: Iterable[StateRecord]) -> None:
        """Note that these records are being written, and applied already."""
        for record in records:
            key = decode_key(record.key)
            if key is not None:
                self._in_flight[key.group_id] += 1

    def written(self, key: ConsumerKey, value: bytes | None) -> None:
        """Store a record that is on disk."""
        stored = self._stored.setdefault(key.group_id, {})
        if value is None:
            stored.pop(key, None)
        else:
            stored[key] = value
        if not stored:
            del self._stored[key.group_id]
        self._landed(key.group_id)

    def write_failed(self, records: Iterable[StateRecord]) -> set[str]:
        """Forget records that could not be written; return their groups."""
        failed = [key.group_id for record in records if (key := decode_key(record.key))]
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
        """Make a group from its records that are on disk. There is none without an epoch."""
        self.remove(group_id)
        stored = self._stored.get(group_id, {})
        if ConsumerKey(RecordKind.GROUP, group_id) not in stored:
            return
        group = ConsumerGroup(group_id)
        for key, value in stored.items():
            apply(group, key, value)
        for member_id in [*group.targets, *group.currents]:
            if member_id not in group.members:
                group.drop_target(member_id)
                group.drop_current(member_id)
        self.add(group)

    def restore_all(self) -> None:
        """Make all groups from the records that are on disk."""
        for group_id in self._stored:
            self.restore(group_id)

    def needs_tombstone(self, group_id: str) -> bool:
        """Return whether records of a group are in the log, or are being written."""
        return group_id in self._stored or self._in_flight[group_id] > 0

    def stored(self) -> dict[str, dict[ConsumerKey, bytes]]:
        """Return the state that survives a restart."""
        return {group_id: dict(records) for group_id, records in self._stored.items()}
