"""Random clients of both protocols against a model of a few lines.

The model: which client reads which partition, and the last epoch of each. At any time no partition
has two readers; and when all clients have done what they are asked, the partitions of all topics
are read, evenly, and nothing changes any more. Restarts and lost answers don't matter.
"""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.state.consumer_groups.support import (
    SESSION_MS,
    ClassicMember,
    Driver,
    FakeTopics,
    Member,
)
from tests.support.effort import examples
from tidemill.errors import TidemillError
from tidemill.state.errors import (
    FencedMemberEpochError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidemill.state.groups.types import LeaveMember

TOPICS = ("t", "u")
REJOIN = (
    FencedMemberEpochError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


class Clients(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(FakeTopics(t=3, u=2))
        self.members: list[Member] = []
        self.classic: list[ClassicMember] = []
        self.count = 0

    # --- what clients do -------------------------------------------------------------------------

    @precondition(lambda self: len(self.members) < 4)
    @rule(static=st.booleans(), assignor=st.sampled_from([None, "range", "uniform"]))
    def start(self, static: bool, assignor: str | None) -> None:
        self.count += 1
        name = f"m{self.count}"
        member = Member(
            self.driver, name, TOPICS, instance_id=name if static else None, assignor=assignor
        )
        if self._beat(member):
            self.members.append(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), follows=st.booleans(), answered=st.booleans())
    def beat(self, data: st.DataObject, follows: bool, answered: bool) -> None:
        member = data.draw(st.sampled_from(self.members))
        if answered:
            self._beat(member)
            if follows:
                member.follow()
        else:
            with contextlib.suppress(*REJOIN):
                self.driver.beat(member.request())

    def _beat(self, member: Member) -> bool:
        try:
            member.beat()
        except (FencedMemberEpochError, UnknownMemberIdError):
            member.epoch, member.owned, member.wanted = 0, {}, {}
            member.beat()
        return True

    @precondition(lambda self: self.members)
    @rule(data=st.data(), returns=st.booleans())
    def leave(self, data: st.DataObject, returns: bool) -> None:
        member = data.draw(st.sampled_from(self.members))
        returns = returns and member.instance_id is not None
        try:
            member.leave(-2 if returns else -1)
        except UnknownMemberIdError:  # its session was over
            member.epoch, member.owned, member.wanted = 0, {}, {}
        if returns:
            self.count += 1
            member.member_id = f"m{self.count}"
            member.beat()
        else:
            self.members.remove(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), topics=st.sampled_from([("t",), ("u",), TOPICS]))
    def subscribe(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        data.draw(st.sampled_from(self.members)).topics = topics

    @precondition(lambda self: len(self.classic) < 2 and self.members)
    @rule()
    def start_classic(self) -> None:
        member = ClassicMember(self.driver, TOPICS)
        self._join(member)
        self.classic.append(member)

    @precondition(lambda self: self.classic)
    @rule(data=st.data())
    def beat_classic(self, data: st.DataObject) -> None:
        self._beat_classic(data.draw(st.sampled_from(self.classic)))

    def _beat_classic(self, member: ClassicMember) -> None:
        try:
            member.beat()
        except REJOIN as error:
            if not isinstance(error, RebalanceInProgressError):
                member.owned = {}
            if isinstance(error, UnknownMemberIdError):
                member.member_id = ""
            self._join(member)

    def _join(self, member: ClassicMember) -> None:
        if self._is_classic():
            return  # tests of the classic protocol are elsewhere
        try:
            member.join()
            member.sync()
        except RebalanceInProgressError:
            pass

    @precondition(lambda self: self.classic)
    @rule()
    def leave_classic(self) -> None:
        member = self.classic.pop()
        with contextlib.suppress(UnknownMemberIdError):  # the group is gone
            self.driver.settle(
                self.driver.groups.leave("g", [LeaveMember(member.member_id)], self.driver.now)
            )

    # --- what happens to them --------------------------------------------------------------------

    @rule(name=st.sampled_from(TOPICS), count=st.integers(1, 5))
    def change_topic(self, name: str, count: int) -> None:
        found = self.driver.topics.find(name)
        self.driver.topics.set(name, max(count, found[1] if found else 0))

    @rule(ms=st.sampled_from([1000, 9000, SESSION_MS + 1]))
    def wait(self, ms: int) -> None:
        self.driver.wait(ms)
        if ms > SESSION_MS:  # all sessions are over, and clients notice without an answer
            for member in self.members:
                member.epoch, member.owned, member.wanted = 0, {}, {}
            for classic in self.classic:
                classic.owned = {}

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @rule()
    def lose_a_write(self) -> None:
        try:
            request = Member(self.driver, "lost", TOPICS).request()
            lost = self.driver.groups.consumer_heartbeat(request, self.driver.now)
        except TidemillError:
            return
        self.driver.groups.write_failed(lost, self.driver.now)

    # --- what holds ------------------------------------------------------------------------------

    def _clients(self) -> list[Member | ClassicMember]:
        return [*self.members, *self.classic]

    def _is_classic(self) -> bool:
        return self.driver.kinds().get("g", ("consumer", ""))[0] == "classic"

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        if self._is_classic():
            return
        seen: set[tuple[str, int]] = set()
        known = self.driver.assigned() if self.driver.kinds() else {}
        # A client whose session is over learns that from its next heartbeat only.
        clients = [client for client in self._clients() if client.member_id in known]
        for client in clients:
            assert not client.partitions & seen, f"{client.partitions & seen} has two readers"
            seen |= client.partitions

    @precondition(lambda self: self.members)
    @rule()
    def settle(self) -> None:
        """Let everyone do what the group asks for: it converges, and everything is read evenly."""
        for _ in range(20):
            self.driver.wait(4_000)  # the sessions of members without a client end
            for member in self.members:
                self._beat(member)
                member.follow()
            for classic in self.classic:
                self._beat_classic(classic)
        group = self.driver.describe()
        assert group.state == "Stable"
        assert group.epoch == group.assignment_epoch
        readers = self._clients()
        wanted = {
            (name, number)
            for name in {topic for client in readers for topic in client.topics or ()}
            for number in range((self.driver.topics.find(name) or (None, 0))[1])
        }
        assert {pair for client in readers for pair in client.partitions} == wanted
        if group.assignor == "uniform" and len({client.topics for client in readers}) == 1:
            sizes = [len(client.partitions) for client in readers]
            assert max(sizes) - min(sizes) <= 1
        before, log = group, len(self.driver.log)
        for member in self.members:
            member.beat()
        assert self.driver.describe() == before
        assert len(self.driver.log) == log


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
