"""Simulation of groups: clients behave, hesitate, crash and return, and the broker restarts.

These invariants hold at any time:

- A ticket is answered at most once, and exactly once when enough time passes.
- Generations do not decrease.
- In a generation each partition has one owner, which the leader has chosen.
- A restart reads what was written.
- When nothing else happens, the live members share all partitions in one Stable generation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.state.driver import GroupsDriver
from tests.support.effort import examples
from tidemill.errors import TidemillError
from tidemill.state.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    MemberIdRequiredError,
    UnknownMemberIdError,
)
from tidemill.state.groups.format import decode_group_value
from tidemill.state.groups.types import JoinResult, LeaveMember, SyncResult
from tidemill.state.outcome import Outcome

PARTITIONS = range(5)
SESSION_MS = 8_000
REBALANCE_MS = 20_000
MAX_SIZE = 5


class UnreliableDriver(GroupsDriver):
    """A coordinator with a disk that is slow now and then, and whose next write may fail.

    While the disk is slow, records are neither replayed nor their replies released, and further
    commands come in.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.fail_next = self.slow = False
        self.waiting: deque[Outcome[Any]] = deque()
        super().__init__(*args, **settings)

    def run(self, outcome: Outcome[Any], producer_id: int = -1) -> Any:
        if outcome.records and self.slow:
            self.waiting.append(outcome)
        elif outcome.records and self.fail_next:
            self.fail_next = False
            self._fail(outcome)
        else:
            super().run(outcome, producer_id)
        return outcome.result

    def disk_works(self) -> None:
        self.slow = False
        while self.waiting:
            super().run(self.waiting.popleft())

    def disk_fails(self) -> None:
        self.slow = False
        while self.waiting:
            self._fail(self.waiting.popleft())

    def _fail(self, outcome: Outcome[Any]) -> None:
        super().run(Outcome(None, [], self.groups.write_failed(outcome, self.now)))


@dataclass(eq=False)
class Client:
    """A consumer that follows the protocol, one step for each poll."""

    instance_id: str | None
    old_protocol: bool
    number: int
    topics: tuple[str, ...] = ("t",)
    member_id: str = ""
    generation: int = -1
    joining: int | None = None
    syncing: int | None = None
    owned: frozenset[int] | None = None
    """Partitions of the current generation; None while it has to join."""
    alive: bool = True
    tickets: list[int] = field(default_factory=list)

    @property
    def lineage(self) -> str:
        """The identity of the member: a static member keeps it when its id changes."""
        return self.instance_id or self.member_id


class GroupSimulation(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {"max_size": MAX_SIZE, "initial_rebalance_delay_ms": 500}
        self.driver = UnreliableDriver(**self.settings)
        self.all: list[Client] = []
        self.owners: dict[int, dict[int, str]] = {}
        """generation -> partition -> lineage"""
        self.named: dict[int, dict[str, bytes]] = {}
        """generation -> lineage -> what the leader assigned"""
        self.last_generation = 0

    # --- what clients do -------------------------------------------------------------------------

    @rule(target=clients, static=st.sampled_from([None, None, "a", "b"]), old=st.booleans())
    def start(self, static: str | None, old: bool) -> Client:
        for other in self.all:
            if static is not None and other.instance_id == static:
                other.alive = False  # the process restarts: its former self is gone
        client = Client(static, old, len(self.all))
        self.all.append(client)
        self.poll(client)
        return client

    @rule(client=clients)
    def poll(self, client: Client) -> None:
        if not client.alive:
            return
        if client.joining is not None:
            self._on_join_answer(client)
        elif client.syncing is not None:
            self._on_sync_answer(client)
        elif client.owned is None:
            self._join(client)

    def _join(self, client: Client) -> None:
        client.owned = None
        client.joining = self.driver.join(
            client.member_id,
            instance_id=client.instance_id,
            topics=client.topics,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            require_known_member_id=not client.old_protocol,
            supports_skipping_assignment=not client.old_protocol,
        )
        client.tickets.append(client.joining)

    def _on_join_answer(self, client: Client) -> None:
        assert client.joining is not None
        answer = self.driver.replies.get(client.joining)
        if answer is None:
            return
        client.joining = None
        if isinstance(answer, JoinResult):
            self._sync(client, answer)
        else:
            self._on_error(client, answer)

    def _sync(self, client: Client, result: JoinResult) -> None:
        client.member_id, client.generation = result.member_id, result.generation
        assignments = {}
        if result.leader == result.member_id and not result.skip_assignment:
            ids = [member.member_id for member in result.members]
            assert result.member_id in ids
            assert len(set(ids)) == len(ids) <= MAX_SIZE
            assignments = {
                member_id: bytes(p for p in PARTITIONS if p % len(ids) == index)
                for index, member_id in enumerate(ids)
            }
            self.named[result.generation] = {
                member.instance_id or member.member_id: assignments[member.member_id]
                for member in result.members
            }
        client.syncing = self.driver.sync(
            client.member_id, client.generation, assignments, instance_id=client.instance_id
        )
        client.tickets.append(client.syncing)

    def _on_sync_answer(self, client: Client) -> None:
        assert client.syncing is not None
        answer = self.driver.replies.get(client.syncing)
        if answer is None:
            return
        client.syncing = None
        if isinstance(answer, SyncResult):
            client.owned = frozenset(answer.assignment)
            assert answer.assignment == self.named[client.generation][client.lineage]
            owners = self.owners.setdefault(client.generation, {})
            for partition in client.owned:
                assert owners.setdefault(partition, client.lineage) == client.lineage
        else:
            self._on_error(client, answer)

    def _on_error(self, client: Client, error: object) -> None:
        assert isinstance(error, TidemillError), repr(error)
        client.owned = None
        if isinstance(error, MemberIdRequiredError):
            client.member_id = error.member_id
        elif isinstance(error, UnknownMemberIdError):
            client.member_id = ""
        elif isinstance(error, FencedInstanceIdError | GroupMaxSizeReachedError):
            client.alive = False
            client.member_id = ""

    @rule(client=clients)
    def heartbeat(self, client: Client) -> None:
        if not client.alive or client.owned is None:
            return
        try:
            self.driver.heartbeat(client.member_id, client.generation, client.instance_id)
        except TidemillError as error:
            self._on_error(client, error)

    @rule(client=clients)
    def subscribe_to_more(self, client: Client) -> None:
        if client.alive and client.joining is None and client.syncing is None:
            client.topics = (*client.topics, f"t{len(client.topics)}")
            self._join(client)

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        if not client.alive or not client.member_id:
            return
        client.alive = False
        error: TidemillError | None
        try:
            (error,) = self.driver.leave(LeaveMember(client.member_id, client.instance_id))
        except UnknownMemberIdError as unknown:
            error = unknown
        assert error is None or isinstance(error, UnknownMemberIdError | FencedInstanceIdError)

    @rule(client=consumes(clients), noticed=st.booleans())
    def crash(self, client: Client, noticed: bool) -> None:
        client.alive = False
        if noticed:
            self._cancel(client)

    @rule(client=clients)
    def reconnect(self, client: Client) -> None:
        """The connection breaks while a request is parked: the client asks again."""
        self._cancel(client)
        client.owned = None

    def _cancel(self, client: Client) -> None:
        for ticket in (client.joining, client.syncing):
            if ticket is not None and ticket not in self.driver.replies:
                self.driver.groups.cancel(ticket)
                client.tickets.remove(ticket)
        client.joining = client.syncing = None

    # --- what happens to them --------------------------------------------------------------------

    @rule(milliseconds=st.sampled_from([10, 500, 3_000, 7_900, 21_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.driver.advance(milliseconds)

    @rule()
    def next_write_fails(self) -> None:
        self.driver.fail_next = True

    @rule()
    def disk_gets_slow(self) -> None:
        self.driver.slow = True

    @rule()
    def disk_works_again(self) -> None:
        self.driver.disk_works()

    @rule()
    def disk_fails(self) -> None:
        self.driver.disk_fails()

    @rule()
    def broker_restarts(self) -> None:
        stored = self.driver.groups.stored()
        fresh = self.driver.restart(**self.settings)  # what waited for the disk is lost
        assert isinstance(fresh, UnreliableDriver)
        assert fresh.groups.stored() == stored
        for client in self.all:
            self._cancel(client)
            client.tickets.clear()
        self.driver = fresh
        value = stored.get("g")
        self.last_generation = decode_group_value(value).generation if value else 0
        # generations that were never written can occur again, with other owners
        self.owners = {g: o for g, o in self.owners.items() if g <= self.last_generation}
        for client in self.all:
            if client.generation > self.last_generation:
                client.owned = None

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def generations_do_not_run_backwards(self) -> None:
        group = self.driver.groups.get("g")
        if group is None:
            return
        assert group.generation >= self.last_generation
        self.last_generation = group.generation

    @invariant()
    def each_partition_has_one_owner(self) -> None:
        members = self.driver.groups.describe("g").members
        owned = [partition for member in members for partition in member.assignment]
        assert len(set(owned)) == len(owned)

    @invariant()
    def counts_are_those_of_the_members(self) -> None:
        group = self.driver.groups.get("g")
        if group is None:
            return
        assert group.awaiting_join == sum(m.awaits_join for m in group.members.values())
        assert group.leader in group.members or (not group.members and group.leader is None)
        assert set(group.static_members.values()) == {
            m.member_id for m in group.members.values() if m.is_static
        }
        assert group.pending_sync <= set(group.members)
        assert not group.pending_members & set(group.members)

    def teardown(self) -> None:
        self.driver.fail_next = False
        self.driver.disk_works()
        self._those_that_live_share_everything()
        tickets = [ticket for client in self.all for ticket in client.tickets]
        self.driver.advance(20 * 60_000)
        assert [ticket for ticket in tickets if ticket not in self.driver.replies] == []
        assert self.driver.state in ("Empty", "Dead")
        assert self.driver.groups.next_deadline() is None
        super().teardown()

    def _those_that_live_share_everything(self) -> None:
        living = [client for client in self.all if client.alive]
        for client in living[MAX_SIZE:]:
            client.alive = False
        for _ in range(200):
            for client in living:
                self.heartbeat(client)
                self.poll(client)
            self.driver.advance(1000)
        living = [client for client in living if client.alive]
        if not living:
            return
        assert self.driver.state == "Stable"
        assert {client.generation for client in living} == {self.driver.generation}
        owned = [partition for client in living for partition in client.owned or ()]
        assert sorted(owned) == list(PARTITIONS)


TestGroups = GroupSimulation.TestCase
TestGroups.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
