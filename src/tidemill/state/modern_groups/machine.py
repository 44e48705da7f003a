"""Share records, time limits and lists among the machines of all kinds of modern groups.

This module must not know what happens when a limit is over, or a rule of a protocol.
"""

from __future__ import annotations

import enum
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar
from uuid import UUID

from tidemill.state.assignors.types import AssignedMember, Assignor, Partitions
from tidemill.state.errors import GroupIdNotFoundError, InvalidRequestError
from tidemill.state.groups.consumer_protocol import MAX_TOPICS
from tidemill.state.groups.events import GroupChange, GroupEvent, MemberChange, note_member
from tidemill.state.groups.join import check_strings
from tidemill.state.groups.memory import GroupLimits
from tidemill.state.groups.types import GroupListing
from tidemill.state.modern_groups.group import ModernGroup
from tidemill.state.modern_groups.records import GroupChanges
from tidemill.state.modern_groups.table import GroupTable
from tidemill.state.modern_groups.types import (
    GroupInfo,
    GroupTimes,
    MemberInfo,
    NamedPartitions,
    Topics,
)
from tidemill.state.outcome import Outcome, StateRecord, nothing
from tidemill.state.timers import Timers

AnyGroup: TypeAlias = ModernGroup[Any, Any]
G = TypeVar("G", bound=AnyGroup)


class Limit(enum.Enum):
    """A kind of time limit."""

    SESSION = "session"
    """Until the next heartbeat."""
    REVOKE = "revoke"
    """Until the member has given its partitions back."""
    JOIN = "join"
    """Until a classic member has joined again."""
    SYNC = "sync"
    """Until a classic member has asked for its assignment."""


REASONS = {
    Limit.SESSION: "no heartbeat within the session timeout",
    Limit.REVOKE: "it did not give its partitions back within the rebalance timeout",
    Limit.JOIN: "it did not join again within the rebalance timeout",
    Limit.SYNC: "it did not ask for its assignment within the rebalance timeout",
}

TimerKey = tuple[Limit, str, str]
"""(kind, group, member)."""


class Sessions:
    """The time limits of all members."""

    def __init__(self) -> None:
        self.timers: Timers[TimerKey] = Timers()

    def start(self, kind: Limit, group: AnyGroup, member_id: str, limit: int, now_ms: int) -> None:
        """Start a time limit (in ms), from the beginning if it runs already."""
        self.timers.set((kind, group.group_id, member_id), now_ms + max(limit, 1))

    def start_once(
        self, kind: Limit, group: AnyGroup, member_id: str, limit: int, now_ms: int
    ) -> None:
        """Start a time limit (in ms) if it does not run already."""
        if self.timers.get((kind, group.group_id, member_id)) is None:
            self.start(kind, group, member_id, limit, now_ms)

    def end(self, kind: Limit, group: AnyGroup, member_id: str) -> None:
        """End a time limit, if it runs."""
        self.timers.cancel((kind, group.group_id, member_id))

    def forget(self, group: AnyGroup, member_id: str) -> None:
        """End all time limits of a member that is gone."""
        for kind in Limit:
            self.end(kind, group, member_id)


class GroupMachine(ABC, Generic[G]):
    """All groups of one kind.

    Args:
        times: returns the time limits of a group's members.
        other_bytes: returns what other groups take of the total.
    """

    GROUP_TYPE: ClassVar[str]
    PROTOCOL_TYPE: ClassVar[str]
    KIND: type[G]
    """The class of the groups."""
    CHANGES: ClassVar[type[GroupChanges[Any, Any, Any]]]
    """Changes a group of this kind."""

    def __init__(
        self,
        topics: Topics,
        *,
        times: Callable[[str], GroupTimes] = lambda _: GroupTimes(),
        max_size: int = 2**31 - 1,
        limits: GroupLimits | None = None,
        other_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._topics = topics
        self._times = times
        self.table = GroupTable(self.KIND, limits or GroupLimits(), max_size, other_bytes)
        self._sessions = Sessions()
        self.downgrade: Callable[[G, str, int, Outcome[None]], bool] = lambda *_: False
        """(group, member that goes, time, outcome): make the group classic if it should be."""

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of ``__consumer_offsets``: each that was written, and all at start.

        Returns:
            False if the record is not about a group of this kind. Then nothing changes.
        """
        return self.table.replay(key, value)

    def loaded(self, now_ms: int) -> None:
        """Create the groups after all records were replayed at start. Sessions start now."""
        self.table.restore_all()
        for group in self.table.all():
            self.start_sessions(group, now_ms)

    def write_failed(self, outcome: Outcome[Any], now_ms: int) -> None:
        """Return to the records on disk where an outcome's records could not be written."""
        for group_id in self.table.write_failed(outcome.records):
            group = self.table.find(group_id)
            if group is not None:
                self.start_sessions(group, now_ms)

    def start_sessions(self, group: G, now_ms: int) -> None:
        """Start the sessions of all members of a group."""
        for member_id in group.members:
            self._start_session(group, member_id, now_ms)

    @abstractmethod
    def _start_session(self, group: G, member_id: str, now_ms: int) -> None:
        """Start a member's session, again if it runs."""

    def remove(
        self,
        group: G,
        member_id: str,
        now_ms: int,
        out: Outcome[None],
        reason: str = "",
        what: MemberChange = MemberChange.REMOVED,
    ) -> None:
        """Remove a member and start a new epoch, or make the group classic."""
        note_member(what, group, member_id, group.members[member_id], reason, out)
        if self.downgrade(group, member_id, now_ms, out):
            return
        self._sessions.forget(group, member_id)
        changes = self.CHANGES(group, out.records)
        changes.drop_member(member_id)
        epoch = group.epoch
        self._members_changed(changes, now_ms)
        note_epoch(group, epoch, f"member {member_id} is gone", out)

    @abstractmethod
    def _members_changed(self, changes: Any, now_ms: int) -> None:
        """Start a new epoch, because members have changed. ``changes`` are ``CHANGES``."""

    def drop_group(self, group: G) -> list[StateRecord]:
        """Remove a group; return the records that do it."""
        records: list[StateRecord] = []
        for member_id in group.members:
            self._sessions.forget(group, member_id)
        self.CHANGES(group, records).drop_group()
        self.table.remove(group.group_id)
        return records

    def tick(self, now_ms: int) -> Outcome[None]:
        """Remove the members whose time limits have passed."""
        out = nothing()
        while (due := self._sessions.timers.pop_due(now_ms)) is not None:
            kind, group_id, member_id = due
            group = self.table.find(group_id)
            if group is not None and member_id in group.members:
                self.remove(group, member_id, now_ms, out, REASONS[kind])
        self.table.expect(out.records)
        return out

    def next_deadline(self) -> int | None:
        """Return when ``tick`` is needed next, in ms since the epoch, or None if nothing waits."""
        return self._sessions.timers.next_deadline()

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Iterator[GroupListing]:
        """Yield all groups, or those with one of ``states`` and of ``types`` (in any case)."""
        if types and self.GROUP_TYPE not in {each.lower() for each in types}:
            return
        wanted = {state.lower() for state in states}
        for group in self.table.all():
            state = group.state_name
            if not wanted or state.lower() in wanted:
                yield GroupListing(group.group_id, self.PROTOCOL_TYPE, state, self.GROUP_TYPE)

    def describe(self, group_id: str) -> GroupInfo[Any]:
        """Return a group with its members.

        Raises:
            GroupIdNotFoundError: there is no such group, or it is of another kind.
        """
        group = self.table.get(group_id)
        if group is None:
            raise self.of_another_kind(group_id)
        return GroupInfo(
            group_id,
            group.state_name,
            group.epoch,
            group.target_epoch,
            self._assignor_of(group),
            tuple(
                MemberInfo(
                    member_id,
                    member,
                    group.current(member_id).epoch,
                    named_partitions(group.current(member_id).partitions, self._topics),
                    named_partitions(group.target(member_id), self._topics),
                )
                for member_id, member in group.members.items()
            ),
        )

    @abstractmethod
    def _assignor_of(self, group: G) -> str:
        """Return the name of the assignor that the group uses."""

    def of_another_kind(self, group_id: str) -> GroupIdNotFoundError:
        """Return the error for the id of a group that is not one of these."""
        return GroupIdNotFoundError(f"Group {group_id} is not a {self.GROUP_TYPE} group.")


def note_epoch(group: ModernGroup[Any, Any], before: int, reason: str, out: Outcome[None]) -> None:
    """Add a new epoch of the group to an outcome, if there is one."""
    if group.epoch != before:
        what = GroupChange.REBALANCING if group.members else GroupChange.EMPTY
        out.events.append(GroupEvent(what, group.group_id, group.epoch, len(group.members), reason))


def topics_hash(subscribed: Iterable[str], topics: Topics) -> int:
    """Return a hash of the subscribed topics that exist, which changes when one of them does.

    It is stable over restarts, and never 0 if there is a topic.
    """
    digest = hashlib.blake2b(digest_size=8)
    empty = True
    for name in sorted(subscribed):
        found = topics.find(name)
        if found is not None:
            empty = False
            digest.update(f"{name}\0{found[0].hex}\0{found[1]}\0".encode())
    return 0 if empty else int.from_bytes(digest.digest(), "big", signed=True) or 1


def start_epoch(
    changes: GroupChanges[Any, Any, Any], topics: Topics, *, members_changed: bool
) -> None:
    """Start a new epoch if members, or topics that they read, have changed."""
    group = changes.group
    group.topics_version = topics.version
    present = topics_hash(group.subscribed, topics)
    if members_changed or present != group.topics_hash:
        changes.set_epoch(group.epoch + 1, present)


def assign(changes: GroupChanges[Any, Any, Any], topics: Topics, assignor: Assignor) -> None:
    """Make the target assignment of the group's epoch."""
    group = changes.group
    found = {name: topic for name in group.subscribed if (topic := topics.find(name)) is not None}
    subscriptions: dict[frozenset[str], frozenset[UUID]] = {}
    members = {}
    for member_id, member in group.members.items():
        names = group.topics_of(member)
        if names not in subscriptions:  # members often have the same one
            subscriptions[names] = frozenset(found[name][0] for name in names if name in found)
        members[member_id] = AssignedMember(
            subscriptions[names], group.target(member_id), member.instance_id
        )
    for member_id, target in assignor(members, dict(found.values())).items():
        if target != group.target(member_id) or member_id not in group.targets:
            changes.set_target(member_id, target)
    changes.set_target_epoch(group.epoch)


def check_lengths(strings: Iterable[str | None], topic_names: Collection[str] | None) -> None:
    """Check that what a member sends fits into the group's records, and the number of topics."""
    check_strings(strings)
    if len(topic_names or ()) > MAX_TOPICS:
        raise InvalidRequestError(
            f"the member subscribes to {len(topic_names or ())} topics: at most {MAX_TOPICS} are "
            "allowed"
        )


def named_partitions(partitions: Partitions, topics: Topics) -> NamedPartitions:
    """Return partitions with the names of their topics, without topics that are deleted."""
    named = [
        (name, topic, tuple(sorted(numbers)))
        for topic, numbers in partitions.items()
        if (name := topics.name_of(topic)) is not None
    ]
    return tuple((topic, name, numbers) for name, topic, numbers in sorted(named))
