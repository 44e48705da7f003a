"""One modern group: its members, what they have, and the target that they move to.

A group changes through its ``set_…`` and ``drop_…`` methods only. ``GroupChanges`` calls
them with each record that a command makes, and recovery with each record of the log, so both lead
to the same group. A group names its record format. This module must not know a request or a timer.

Source: Apache Kafka's ``ModernGroup``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tidemill.state.assignors.types import NO_PARTITIONS, Partitions
from tidemill.state.groups.members import Client
from tidemill.state.groups.memory import GROUP_BYTES, Total
from tidemill.state.modern_groups.format import RecordFormat, RecordKey, RecordKind


class Subscriber(Client, Protocol):
    """A member, as far as all kinds of groups know it."""

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The topics that it reads by name, sorted."""


M = TypeVar("M", bound=Subscriber)
C = TypeVar("C")


class ModernGroup(ABC, Generic[M, C]):
    """A group and its members, in the order in which they joined.

    Attributes:
        epoch: grows with each change of members, subscriptions or topics.
        target_epoch: the group epoch that the target assignment was made for.
        topics_hash: of the subscribed topics that exist, with their partitions.
        topics_version: the version of the topics that the hash is from; -1 after a restart.
        bytes: the memory that it takes, roughly.
        table: counts the memory of all groups. None until the group is in it.
    """

    FORMAT: ClassVar[RecordFormat[Any, Any]]
    """The records of the group."""
    PARTITION_BYTES: ClassVar[int]
    """The memory of a partition in the target assignment of a member."""
    uses_consumer_protocol: ClassVar[bool]
    """Whether its members are consumers that commit offsets."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        self.topics_hash = 0
        self.topics_version = -1
        self.members: dict[str, M] = {}
        self.currents: dict[str, C] = {}
        self.targets: dict[str, Partitions] = {}
        self.bytes = GROUP_BYTES + 2 * len(group_id)
        self.table: Total | None = None
        self._subscribed: frozenset[str] | None = None

    # --- what a kind of group says ---------------------------------------------------------------

    @property
    @abstractmethod
    def state_name(self) -> str:
        """The name of the state that clients see."""

    @property
    @abstractmethod
    def is_removable(self) -> bool:
        """Whether it can be removed when it is old."""

    @abstractmethod
    def current(self, member_id: str) -> C:
        """Return a member's epoch and partitions; those of a new member if it has none."""

    @abstractmethod
    def size_of(self, member_id: str, member: M | None) -> int:
        """Return the bytes that a member takes without its partitions; 0 for None."""

    def topics_of(self, member: M) -> frozenset[str]:
        """Return the names of the topics that a member reads, also of those that don't exist."""
        return frozenset(member.topic_names)

    # --- changes ---------------------------------------------------------------------------------

    def apply(self, key: RecordKey, value: bytes | None) -> None:
        """Apply one record of the group."""
        codec, name = self.FORMAT, key.name
        match key.kind:
            case RecordKind.GROUP:
                self.set_epoch(*((0, 0) if value is None else codec.decode_group(value)))
            case RecordKind.TARGET_EPOCH:
                self.set_target_epoch(0 if value is None else codec.decode_target_epoch(value))
            case RecordKind.MEMBER if value is None:
                self.drop_member(name)
            case RecordKind.MEMBER if value is not None:
                self.set_member(name, codec.decode_member(value))
            case RecordKind.TARGET if value is None:
                self.drop_target(name)
            case RecordKind.TARGET if value is not None:
                self.set_target(name, codec.decode_target(value))
            case RecordKind.CURRENT if value is None:
                self.drop_current(name)
            case RecordKind.CURRENT if value is not None:
                self.set_current(name, codec.decode_current(value))

    def set_epoch(self, epoch: int, topics_hash: int) -> None:
        """Set the group's epoch, and the hash of its topics."""
        self.epoch, self.topics_hash = epoch, topics_hash

    def set_target_epoch(self, epoch: int) -> None:
        """Set the epoch of the target assignment."""
        self.target_epoch = epoch

    def set_member(self, member_id: str, member: M) -> None:
        """Add a member, or change what it asks for."""
        before = self.members.get(member_id)
        self._grow(self.size_of(member_id, member) - self.size_of(member_id, before))
        self.members[member_id] = member
        self._subscribed = None

    def drop_member(self, member_id: str) -> None:
        """Remove what a member asks for."""
        self._grow(-self.size_of(member_id, self.members.pop(member_id, None)))
        self._subscribed = None

    def set_current(self, member_id: str, current: C) -> None:
        """Set a member's epoch and partitions."""
        self.drop_current(member_id)
        self.currents[member_id] = current

    def drop_current(self, member_id: str) -> None:
        """Remove a member's epoch and partitions."""
        self.currents.pop(member_id, None)

    def set_target(self, member_id: str, target: Partitions) -> None:
        """Set a member's part of the target assignment."""
        self.drop_target(member_id)
        self.targets[member_id] = target
        self._grow(self.PARTITION_BYTES * _count(target))

    def drop_target(self, member_id: str) -> None:
        """Remove a member's part of the target assignment."""
        self._grow(-self.PARTITION_BYTES * _count(self.targets.pop(member_id, NO_PARTITIONS)))

    def _grow(self, change: int) -> None:
        self.bytes += change
        if self.table is not None:
            self.table.bytes += change

    # --- views -----------------------------------------------------------------------------------

    def target(self, member_id: str) -> Partitions:
        """Return a member's part of the target assignment."""
        return self.targets.get(member_id, NO_PARTITIONS)

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    @property
    def subscribed(self) -> frozenset[str]:
        """The names of all topics that members read, also of those that don't exist."""
        if self._subscribed is None:
            self._subscribed = frozenset().union(*map(self.topics_of, self.members.values()))
        return self._subscribed

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member reads the topic."""
        return topic in self.subscribed

    def retained_since_ms(self, commit_timestamp_ms: int) -> int | None:
        """Return when the retention of a committed offset starts: at the commit."""
        return commit_timestamp_ms


def _count(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))
