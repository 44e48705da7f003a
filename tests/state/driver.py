"""Drivers of machines: a log in memory; for groups and offsets also time and tickets."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from tidemill.errors import TidemillError
from tidemill.state.errors import MemberIdRequiredError
from tidemill.state.groups.machine import Groups
from tidemill.state.groups.types import (
    JoinRequest,
    JoinResult,
    LeaveMember,
    SyncRequest,
    SyncResult,
)
from tidemill.state.offsets.machine import Offsets
from tidemill.state.outcome import Outcome, StateRecord
from tidemill.state.types import (
    CommitRequest,
    CommittedOffset,
    OffsetToCommit,
    ProducerIdentity,
    TxnOffsetCommit,
)

START_MS = 1_700_000_000_000

R = TypeVar("R")


class Machine(Protocol):
    def replay(self, key: bytes, value: bytes | None) -> bool: ...


M = TypeVar("M", bound=Machine)


def subscription(*topics: str, user_data: bytes | None = None) -> bytes:
    """ConsumerProtocolSubscription version 0."""
    out = struct.pack(">hi", 0, len(topics))
    for topic in topics:
        out += struct.pack(">h", len(topic)) + topic.encode()
    return out + (
        b"\xff" * 4 if user_data is None else struct.pack(">i", len(user_data)) + user_data
    )


def compacted(log: list[StateRecord]) -> list[StateRecord]:
    """Return the last record of each key, as after compaction."""
    last = {record.key: index for index, record in enumerate(log)}
    return [record for index, record in enumerate(log) if last[record.key] == index]


class MachineDriver(Generic[M]):
    """Runs commands of one machine as the engine does: writes and replays their records."""

    def __init__(self, machine: M, log: Iterable[StateRecord] = ()) -> None:
        self.machine = machine
        self.log: list[StateRecord] = []
        self.run(Outcome(None, list(log)))

    def run(self, outcome: Outcome[R]) -> R:
        for record in outcome.records:
            self.log.append(record)
            assert self.machine.replay(record.key, record.value)
        return outcome.result


class GroupsDriver:
    """Runs commands as the engine does: writes and replays their records, and keeps the replies."""

    def __init__(self, log: list[StateRecord] | None = None, **settings: Any) -> None:
        settings.setdefault("initial_rebalance_delay_ms", 0)
        self._ids = settings.pop("ids", None) or itertools.count(1)
        offsets = {k: settings.pop(k) for k in ("retention_ms",) if k in settings}
        self.groups = Groups(new_id=lambda: f"id{next(self._ids)}", **settings)
        self.offsets = Offsets(self.groups, **offsets)
        self.log: list[StateRecord] = []
        self.now = START_MS
        self.replies: dict[int, object] = {}
        self.events: list[Any] = []
        self._tickets = itertools.count(1)
        for record in log or []:
            self.write(record)

    def restart(self, **settings: Any) -> GroupsDriver:
        """Return a new driver that has replayed the same log."""
        driver = type(self)(self.log, ids=self._ids, **settings)
        driver.now = self.now
        driver._tickets = self._tickets
        driver.run(driver.groups.loaded(driver.now))
        driver.offsets.loaded(driver.now)
        return driver

    def write(self, record: StateRecord, producer_id: int = -1) -> None:
        at = len(self.log)
        self.log.append(record)
        taken = [
            self.groups.replay(record.key, record.value),
            self.offsets.replay(record.key, record.value, at, producer_id),
        ]
        assert sum(taken) == 1

    def run(self, outcome: Outcome[Any], producer_id: int = -1) -> Any:
        for record in outcome.records:
            self.write(record, producer_id)
        for ticket, answer in outcome.replies:
            assert ticket not in self.replies, f"ticket {ticket} is answered twice"
            self.replies[ticket] = answer
        self.events += outcome.events
        return outcome.result

    def advance(self, milliseconds: int) -> None:
        """Advance the time, and call ``tick`` at each deadline."""
        end = self.now + milliseconds
        while (deadline := self.groups.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.run(self.groups.tick(self.now))
        self.now = end

    # --- requests --------------------------------------------------------------------------------

    def join(self, member_id: str = "", **changes: Any) -> int:
        """Send a JoinGroup and return its ticket."""
        topics = changes.pop("topics", ("t",))
        fields: dict[str, Any] = {
            "group_id": "g",
            "instance_id": None,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (("range", subscription(*topics)),),
            "require_known_member_id": False,
        }
        ticket = next(self._tickets)
        request = JoinRequest(member_id=member_id, **(fields | changes))
        self.run(self.groups.join(request, ticket, self.now))
        return ticket

    def joined(self, ticket: int) -> JoinResult:
        answer = self.replies[ticket]
        assert isinstance(answer, JoinResult), repr(answer)
        return answer

    def error(self, ticket: int) -> TidemillError:
        answer = self.replies[ticket]
        assert isinstance(answer, TidemillError), repr(answer)
        return answer

    def new_id(self, **changes: Any) -> str:
        """Join with JoinGroup 4 and return the member id of the first answer (KIP-394)."""
        error = self.error(self.join(require_known_member_id=True, **changes))
        assert isinstance(error, MemberIdRequiredError)
        return error.member_id

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        **kw: Any,
    ) -> int:
        """Send a SyncGroup and return its ticket."""
        fields: dict[str, Any] = {
            "group_id": "g",
            "instance_id": None,
            "protocol_type": "consumer",
            "protocol": "range",
        }
        ticket = next(self._tickets)
        request = SyncRequest(
            generation=generation,
            member_id=member_id,
            assignments=tuple((assignments or {}).items()),
            **(fields | kw),
        )
        self.run(self.groups.sync(request, ticket, self.now))
        return ticket

    def synced(self, ticket: int) -> SyncResult:
        answer = self.replies[ticket]
        assert isinstance(answer, SyncResult), repr(answer)
        return answer

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> None:
        self.run(self.groups.heartbeat("g", generation, member_id, instance_id, self.now))

    def leave(self, *members: LeaveMember) -> list[TidemillError | None]:
        result: list[TidemillError | None] = self.run(self.groups.leave("g", members, self.now))
        return result

    def commit(
        self,
        member_id: str,
        generation: int,
        *offsets: OffsetToCommit,
        instance_id: str | None = None,
        group_id: str = "g",
        retention_ms: int = -1,
    ) -> list[TidemillError | None]:
        request = CommitRequest(group_id, generation, member_id, instance_id, offsets, retention_ms)
        result: list[TidemillError | None] = self.run(self.offsets.commit(request, self.now))
        return result

    def commit_in_transaction(
        self,
        producer_id: int,
        *offsets: OffsetToCommit,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        group_id: str = "g",
    ) -> list[TidemillError | None]:
        request = TxnOffsetCommit(
            f"tx-{producer_id}",
            ProducerIdentity(producer_id, 0),
            CommitRequest(group_id, generation, member_id, instance_id, offsets),
        )
        outcome = self.offsets.commit_in_transaction(request, self.now)
        result: list[TidemillError | None] = self.run(outcome, producer_id)
        return result

    def seen(self, group_id: str = "g") -> dict[tuple[str, int], int]:
        """The offsets that a fetch finds."""
        found = self.offsets.fetch(group_id)
        return {at: each.offset for at, each in found.items() if isinstance(each, CommittedOffset)}

    # --- a whole group ---------------------------------------------------------------------------

    def stable(self, count: int = 1, **changes: Any) -> list[str]:
        """A Stable group of ``count`` members, the leader first; each is assigned its id."""
        instances = changes.pop("instances", [None] * count)
        ids: list[str] = []
        tickets: dict[str, int] = {}
        for instance in instances:
            ticket = self.join(instance_id=instance, **changes)
            for member_id in ids:
                tickets[member_id] = self.join(
                    member_id, instance_id=instances[ids.index(member_id)], **changes
                )
            member_id = self.joined(ticket).member_id
            tickets[member_id] = ticket
            ids.append(member_id)
        leader = self.joined(tickets[ids[0]])
        assert len(leader.members) == count
        for member_id, instance in zip(ids, instances, strict=True):
            assignment = {each: each.encode() for each in ids} if member_id == ids[0] else {}
            ticket = self.sync(member_id, leader.generation, assignment, instance_id=instance)
            assert self.synced(ticket).assignment == member_id.encode()
        return ids

    def completing(self, **changes: Any) -> tuple[str, str]:
        """A group that waits for the leader's assignment; its leader and its follower."""
        leader, follower = self.stable(2, **changes)
        self.join(leader, **changes)
        self.join(follower, **changes)
        return leader, follower

    @property
    def state(self) -> str:
        return self.groups.describe("g").state

    @property
    def generation(self) -> int:
        group = self.groups.get("g")
        assert group is not None
        return group.generation
