"""The data of a snapshot: topics with their partitions, groups with their members and offsets.

Must not know: how it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

T = TypeVar("T")
Offsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""


@dataclass(frozen=True)
class TopicState:
    """A topic at one moment. The tuples have one element for each partition.

    Attributes:
        starts: The first offset that is still there; -1 if it is unknown.
        ends: The offset behind the last record (the high watermark); -1 if it is unknown.
        sizes: Bytes on disk of the largest replica; -1 if it is unknown.
        leaders: The node id of the leader; -1 if there is none.
        replicas: The number of replicas.
        in_sync: The number of replicas that are in sync.
    """

    name: str
    is_internal: bool
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    sizes: tuple[int, ...]
    leaders: tuple[int, ...]
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.ends)

    @cached_property
    def records(self) -> int:
        """The number of offsets that are there. Gaps of compaction count as well."""
        pairs = zip(self.starts, self.ends, strict=True)
        return sum(max(0, end - start) for start, end in pairs if start >= 0)

    @cached_property
    def bytes(self) -> int | None:
        """The bytes on disk of one replica of each partition; None if that is unknown."""
        known = [size for size in self.sizes if size >= 0]
        return sum(known) if known else None

    @cached_property
    def under_replicated(self) -> int:
        """The number of partitions that lack a replica that is in sync."""
        return sum(map(int.__lt__, self.in_sync, self.replicas))


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member of a group, with the partitions that it has by topic."""

    id: str
    client: str
    host: str
    partitions: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group at one moment.

    Attributes:
        kind: ``classic``, ``consumer`` or ``share``.
        state: In lower case with hyphens, such as ``stable`` or ``preparing-rebalance``.
        committed: The offset to continue with, by topic and partition.
        lag: Records that are there and not read yet, in all partitions.
        lag_s: Age of the oldest of them in seconds, estimated from the history; None if unknown.
        is_older: Whether that record is older than the history, and ``lag_s`` a lower bound.
    """

    name: str
    kind: str
    state: str
    protocol: str
    members: tuple[MemberState, ...]
    committed: Offsets
    lag: int = 0
    lag_s: float | None = None
    is_older: bool = False

    @property
    def read(self) -> int:
        """The sum of all committed offsets, whose growth is what the group reads."""
        return sum(sum(offsets.values()) for offsets in self.committed.values())

    def lags(self, topics: Mapping[str, TopicState]) -> dict[str, dict[int, int]]:
        """Return the records that are there and not read yet, by topic and partition."""
        found: dict[str, dict[int, int]] = {}
        for name, offsets in self.committed.items():
            topic = topics.get(name)
            if topic is None:
                continue
            found[name] = {
                number: max(0, topic.ends[number] - max(offset, topic.starts[number]))
                for number, offset in offsets.items()
                if number < topic.partitions and topic.ends[number] >= 0
            }
        return found


@dataclass(frozen=True)
class Snapshot:
    """All topics and groups at about one moment.

    Attributes:
        at_ms: When it was asked for, in milliseconds since the epoch.
        took_s: How long that took.
        cluster_id: The id of the cluster; empty if it has none.
        brokers: The address of each broker by its id.
        topics: By name, in the order of names.
        groups: By name, in the order of names.
        problems: What could not be found out and why, for people.
    """

    at_ms: int
    took_s: float
    cluster_id: str
    controller: int
    brokers: Mapping[int, str]
    topics: Mapping[str, TopicState]
    groups: Mapping[str, GroupState]
    problems: tuple[str, ...] = ()
    readers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By topic, the groups that have committed on it or have members that read it."""
    lags: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By topic and group, records that are there and not read yet."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """By topic, records written per second since the snapshot before; empty without one."""
    read_rates: Mapping[str, float] = field(default_factory=dict)
    """By group, records that it has committed per second."""
    _made: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what a page makes of this snapshot; it is made at the first call for a name."""
        if name not in self._made:
            self._made[name] = make()
        found: T = self._made[name]
        return found
