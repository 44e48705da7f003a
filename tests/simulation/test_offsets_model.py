"""Offsets against a dict: commits, deletions, expiry and restarts in any order."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.state.driver import GroupsDriver, compacted
from tests.support.effort import examples
from tidemill.state.errors import GroupSubscribedToTopicError, UnknownMemberIdError
from tidemill.state.groups.format import OffsetKey
from tidemill.state.groups.types import LeaveMember
from tidemill.state.types import CommittedOffset, OffsetToCommit

RETENTION_MS = 10_000
SESSION_MS = 6_000
positions = st.tuples(st.sampled_from(["t", "u", "v"]), st.integers(0, 2))


@dataclass
class Stored:
    offset: int
    metadata: str
    committed_ms: int
    expires_ms: int | None


class OffsetSimulation(RuleBasedStateMachine):
    """One group that has a member of topics "t" and "u", or none, and simple commits in between."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = GroupsDriver(retention_ms=RETENTION_MS)
        self.model: dict[tuple[str, int], Stored] = {}
        self.member: str | None = None
        self.was_joined = False
        self.empty_since = 0

    # --- the member ------------------------------------------------------------------------------

    @precondition(lambda self: self.member is None)
    @rule()
    def join(self) -> None:
        (self.member,) = self.driver.stable(topics=("t", "u"), session_timeout_ms=SESSION_MS)
        self.was_joined = True

    @precondition(lambda self: self.member is not None)
    @rule()
    def leave(self) -> None:
        assert self.driver.leave(LeaveMember(self.member or "")) == [None]
        self.member, self.empty_since = None, self.driver.now

    @rule(milliseconds=st.sampled_from([1, 4_000, 5_999, 10_000]))
    def time_passes(self, milliseconds: int) -> None:
        if self.member is not None and milliseconds >= SESSION_MS:
            self.driver.heartbeat(self.member, self.driver.generation)
            self.member, self.empty_since = None, self.driver.now + SESSION_MS
        elif self.member is not None:
            self.driver.heartbeat(self.member, self.driver.generation)
        self.driver.advance(milliseconds)
        if self.member is not None:
            self.driver.heartbeat(self.member, self.driver.generation)

    # --- offsets ---------------------------------------------------------------------------------

    @rule(
        at=positions,
        offset=st.integers(0, 2**63 - 1),
        metadata=st.text(max_size=8).map(lambda text: text.encode("utf-8", "ignore").decode()),
        retention_ms=st.sampled_from([-1, -1, 1_000, 30_000]),
    )
    def commit(self, at: tuple[str, int], offset: int, metadata: str, retention_ms: int) -> None:
        item = OffsetToCommit(*at, offset, -1, metadata)
        generation = self.driver.generation if self.member is not None else -1
        result = self.driver.commit(self.member or "", generation, item, retention_ms=retention_ms)
        assert result == [None]
        expires = self.driver.now + retention_ms if retention_ms >= 0 else None
        self.model[at] = Stored(offset, metadata, self.driver.now, expires)

    @precondition(lambda self: self.member is not None)
    @rule(at=positions)
    def commit_without_membership_is_refused(self, at: tuple[str, int]) -> None:
        try:
            self.driver.commit("", -1, OffsetToCommit(*at, 1))
        except UnknownMemberIdError:
            return
        raise AssertionError("a simple consumer committed to a group with members")

    @rule(at=positions)
    def delete(self, at: tuple[str, int]) -> None:
        if self.driver.groups.get("g") is None:
            return
        (error,) = self.driver.run(self.driver.offsets.delete("g", [at]))
        if self.member is not None and at[0] != "v":
            assert isinstance(error, GroupSubscribedToTopicError)
        else:
            assert error is None
            self.model.pop(at, None)

    @rule(topic=st.sampled_from(["t", "u", "v"]))
    def topic_is_deleted(self, topic: str) -> None:
        self.driver.run(self.driver.offsets.topics_deleted([topic]))
        self.model = {at: stored for at, stored in self.model.items() if at[0] != topic}

    @precondition(lambda self: self.member is None)
    @rule()
    def group_is_deleted(self) -> None:
        if self.driver.groups.get("g") is None:
            return
        self.driver.run(self.driver.offsets.delete_group("g"))
        self.model, self.was_joined = {}, False

    @rule()
    def expire(self) -> None:
        self.driver.run(self.driver.offsets.expire(self.driver.now))
        self.model = {at: s for at, s in self.model.items() if not self._is_due(at[0], s)}
        if not self.model and self.member is None:
            self.was_joined = False
            assert self.driver.state == "Dead"

    def _is_due(self, topic: str, stored: Stored) -> bool:
        if self.member is not None and topic != "v":
            return False
        if stored.expires_ms is not None:
            return stored.expires_ms <= self.driver.now
        since = stored.committed_ms
        if self.member is None and self.was_joined:
            since = self.empty_since
        return self.driver.now - since >= RETENTION_MS

    @rule()
    def restart(self) -> None:
        self.driver = self.driver.restart(retention_ms=RETENTION_MS)

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def fetched_is_what_was_committed(self) -> None:
        fetched = {
            at: (found.offset, found.metadata, found.commit_timestamp_ms)
            for at, found in self.driver.offsets.fetch("g").items()
            if isinstance(found, CommittedOffset)
        }
        assert fetched == {
            at: (stored.offset, stored.metadata, stored.committed_ms)
            for at, stored in self.model.items()
        }

    @invariant()
    def replaying_the_log_gives_the_same(self) -> None:
        for log in (self.driver.log, compacted(self.driver.log)):
            fresh = GroupsDriver(log)
            fresh.groups.loaded(fresh.now)
            fresh.offsets.loaded(fresh.now)
            assert _values(fresh) == _values(self.driver)
            assert fresh.groups.stored() == self.driver.groups.stored()
            known = self.driver.groups.list_groups()  # and some of which nothing is stored
            assert all(listing in known for listing in list(fresh.groups.list_groups()))


def _values(driver: GroupsDriver) -> dict[OffsetKey, CommittedOffset]:
    return {key: logged.value for key, logged in driver.offsets.stored()}


TestOffsets = OffsetSimulation.TestCase
TestOffsets.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
