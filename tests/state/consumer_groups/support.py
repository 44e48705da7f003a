"""Drives the groups as the engine does: a command, then its records on disk, then the answers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from tidemill.errors import TidemillError
from tidemill.state.all_groups import AllGroups
from tidemill.state.assignors.types import Partitions
from tidemill.state.consumer_groups.machine import ConsumerGroups
from tidemill.state.consumer_groups.types import (
    ConsumerGroupInfo,
    ConsumerHeartbeat,
    MigrationPolicy,
)
from tidemill.state.groups.consumer_protocol import read_assignment, write_assignment
from tidemill.state.groups.machine import Groups
from tidemill.state.groups.types import JoinRequest, JoinResult, SyncRequest
from tidemill.state.modern_groups.types import GroupTimes, HeartbeatResult
from tidemill.state.outcome import Outcome
from tidemill.state.primitives import Writer
from tidemill.state.share_groups.machine import ShareGroups

R = TypeVar("R")
SESSION_MS, INTERVAL_MS, REBALANCE_MS = 45_000, 5_000, 60_000


class FakeTopics:
    """Topics that a test creates and deletes."""

    def __init__(self, **partitions: int) -> None:
        self.version = 0
        self._next = itertools.count(1)
        self._topics: dict[str, tuple[UUID, int]] = {}
        for name, count in partitions.items():
            self.set(name, count)

    def set(self, name: str, count: int) -> None:
        """Create a topic, or give it more partitions; delete it with 0."""
        self.version += 1
        before = self._topics.pop(name, None)
        if count:
            self._topics[name] = (before[0] if before else UUID(int=next(self._next)), count)

    def find(self, name: str) -> tuple[UUID, int] | None:
        return self._topics.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        return next((name for name, (each, _) in self._topics.items() if each == topic_id), None)

    def names(self) -> list[str]:
        return list(self._topics)


class Driver:
    """All groups, with a disk that is always fast and a clock that the test moves."""

    def __init__(
        self,
        topics: FakeTopics | None = None,
        policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL,
        max_size: int = 100,
    ) -> None:
        self.topics = topics or FakeTopics(t=4)
        self.policy, self.max_size = policy, max_size
        self.now = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self._tickets, self._ids = itertools.count(1), itertools.count(1)
        self.replies: dict[int, object] = {}
        self.groups = self._machine()

    def _machine(self) -> AllGroups:
        ids = self._ids
        classic = Groups(initial_rebalance_delay_ms=0, new_id=lambda: f"c{next(ids)}")
        consumers = ConsumerGroups(
            self.topics,
            times=lambda _: GroupTimes(SESSION_MS, INTERVAL_MS),
            max_size=self.max_size,
            new_id=lambda: f"n{next(ids)}",
        )
        return AllGroups(
            classic, consumers, ShareGroups(self.topics), self.topics, policy=self.policy
        )

    def restart(self) -> None:
        """Forget everything, and read the log."""
        self.groups = self._machine()
        self.topics.version += 1
        for key, value in self.log:
            self.groups.replay(key, value)
        self.settle(self.groups.loaded(self.now))

    def settle(self, outcome: Outcome[R]) -> R:
        """Put the records of an outcome on disk, and send its replies."""
        for record in outcome.records:
            self.log.append((record.key, record.value))
            self.groups.replay(record.key, record.value)
        for ticket, answer in outcome.replies:
            assert self.replies.get(ticket) is None, "a ticket has two answers"
            self.replies[ticket] = answer
        return outcome.result

    def wait(self, ms: int) -> None:
        """Let time pass."""
        end = self.now + ms
        while (deadline := self.groups.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.settle(self.groups.tick(self.now))
        self.now = end

    def beat(self, request: ConsumerHeartbeat) -> HeartbeatResult:
        return self.settle(self.groups.consumer_heartbeat(request, self.now))

    def describe(self, group_id: str = "g") -> ConsumerGroupInfo:
        return self.groups.describe_consumer_group(group_id)

    def assigned(self, group_id: str = "g") -> dict[str, set[tuple[str, int]]]:
        """Return the partitions of each member as the group has them."""
        return {
            each.member_id: {(name, n) for _, name, numbers in each.assigned for n in numbers}
            for each in self.describe(group_id).members
        }

    def kinds(self) -> dict[str, tuple[str, str]]:
        """Return type and state of all groups."""
        return {g.group_id: (g.group_type, g.state) for g in self.groups.list_groups()}

    def ask_join(self, request: JoinRequest) -> int:
        ticket = next(self._tickets)
        self.settle(self.groups.join(request, ticket, self.now))
        return ticket

    def ask_sync(self, request: SyncRequest) -> object:
        ticket = next(self._tickets)
        self.settle(self.groups.sync(request, ticket, self.now))
        return self.replies.get(ticket)


class Member:
    """A client with the consumer protocol, as KIP-848 wants it."""

    def __init__(
        self,
        driver: Driver,
        member_id: str,
        topics: Sequence[str] | None = ("t",),
        *,
        pattern: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
        group_id: str = "g",
    ) -> None:
        self.driver = driver
        self.member_id, self.group_id, self.instance_id = member_id, group_id, instance_id
        self.topics, self.pattern, self.assignor = topics, pattern, assignor
        self.epoch = 0
        self.owned: Partitions = {}
        self.wanted: Partitions = {}

    def request(self, **changes: object) -> ConsumerHeartbeat:
        """Return a full heartbeat."""
        fields: dict[str, Any] = {
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "rebalance_timeout_ms": REBALANCE_MS,
            "topic_names": None if self.topics is None else tuple(self.topics),
            "topic_pattern": self.pattern,
            "assignor": self.assignor,
            "owned": self.owned,
            **changes,
        }
        return ConsumerHeartbeat(
            self.group_id, self.member_id, client_id="c", client_host="h", **fields
        )

    def beat(self, **changes: object) -> HeartbeatResult:
        """Send a full heartbeat, and note what the answer says."""
        answer = self.driver.beat(self.request(**changes))
        self.member_id, self.epoch = answer.member_id, answer.member_epoch
        if answer.assignment is not None:
            self.wanted = answer.assignment
            kept = {t: n & self.wanted.get(t, frozenset()) for t, n in self.owned.items()}
            self.owned = {topic: numbers for topic, numbers in kept.items() if numbers}
        return answer

    def follow(self) -> None:
        """Take what the group gives, so that the next heartbeat says so."""
        self.owned = self.wanted

    def leave(self, epoch: int = -1) -> None:
        self.driver.beat(self.request(member_epoch=epoch))
        self.epoch, self.owned, self.wanted = 0, {}, {}

    @property
    def partitions(self) -> set[tuple[str, int]]:
        """What the client reads now."""
        names = {topic: self.driver.topics.name_of(topic) for topic in self.owned}
        return {(names[t] or "", n) for t, numbers in self.owned.items() for n in numbers}


class ClassicMember:
    """A client with the classic protocol and a cooperative assignor."""

    def __init__(
        self,
        driver: Driver,
        topics: Sequence[str] = ("t",),
        *,
        instance_id: str | None = None,
        group_id: str = "g",
    ) -> None:
        self.driver, self.topics = driver, topics
        self.group_id, self.instance_id = group_id, instance_id
        self.member_id, self.generation = "", -1
        self.owned: Mapping[str, frozenset[int]] = {}
        self.ticket = 0

    def join_request(self) -> JoinRequest:
        writer = Writer().i16(1).i32(len(self.topics))
        for name in self.topics:
            writer.string(name)
        writer.i32(-1).i32(len(self.owned))
        for name, numbers in self.owned.items():
            writer.string(name).i32(len(numbers))
            for number in sorted(numbers):
                writer.i32(number)
        return JoinRequest(
            self.group_id,
            self.member_id,
            self.instance_id,
            "c",
            "h",
            10_000,
            REBALANCE_MS,
            "consumer",
            (("cooperative", writer.done()),),
            require_known_member_id=False,
        )

    def ask_join(self) -> None:
        self.ticket = self.driver.ask_join(self.join_request())

    def join(self) -> JoinResult:
        """Join, and lead or follow; take the assignment."""
        self.ask_join()
        return self.joined()

    def joined(self) -> JoinResult:
        answer = self.driver.replies[self.ticket]
        if isinstance(answer, TidemillError):
            raise answer
        assert isinstance(answer, JoinResult), answer
        self.member_id, self.generation = answer.member_id, answer.generation
        return answer

    def sync(self, assignments: Mapping[str, Mapping[str, Sequence[int]]] | None = None) -> None:
        request = SyncRequest(
            self.group_id,
            self.generation,
            self.member_id,
            self.instance_id,
            "consumer",
            "cooperative",
            tuple((key, write_assignment(each, 1)) for key, each in (assignments or {}).items()),
        )
        answer = self.driver.ask_sync(request)
        if isinstance(answer, TidemillError):
            raise answer
        self.owned = read_assignment(answer.assignment)  # type: ignore[attr-defined]

    def beat(self) -> None:
        self.driver.settle(
            self.driver.groups.heartbeat(
                self.group_id, self.generation, self.member_id, self.instance_id, self.driver.now
            )
        )

    @property
    def partitions(self) -> set[tuple[str, int]]:
        return {(name, number) for name, numbers in self.owned.items() for number in numbers}


def converge(*members: Member, rounds: int = 10) -> None:
    """Let all members send heartbeats until nothing changes."""
    for _ in range(rounds):
        for member in members:
            member.beat()
            member.follow()
