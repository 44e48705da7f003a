"""The acknowledgement window against a dict of states, with lost writes and restarts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.effort import examples
from tidemill.state.errors import NotAcquiredError
from tidemill.state.queues.window import AckWindow

AVAILABLE, OUT, DONE = "available", "out", "done"
NONE = ("", 0, None)
owners = st.integers(1, 3)
sizes = st.sampled_from([1, 1, 2, 3, 7, 40, 4100])
picks = st.integers(0, 10_000)


class WindowSimulation(RuleBasedStateMachine):
    """``states`` is the model: (state, owner, deadline) of each offset below ``next``."""

    def __init__(self) -> None:
        super().__init__()
        self.window = AckWindow()
        self.end = 0
        self.now = 0
        self.states: dict[int, tuple[str, int, int | None]] = {}
        self.counts: dict[int, int] = {}  # of those that were returned
        self.recovered = 0  # the others below it were possibly out when the process ended
        self.records: dict[int, bytes] = {}
        self.stored = dict(self.states), dict(self.counts)

    # --- commands --------------------------------------------------------------------------------

    @rule(size=sizes)
    def publish(self, size: int) -> None:
        self.end += size

    @precondition(lambda self: self.window.first_available(self.end) is not None)
    @rule(owner=owners, count=sizes, limit=st.sampled_from([None, None, 5, 10]))
    def acquire(self, owner: int, count: int, limit: int | None) -> None:
        deadline = None if limit is None else self.now + limit
        expected = sorted(o for o, each in self.states.items() if each[0] == AVAILABLE)[:count]
        fresh = range(len(self.states), min(self.end, len(self.states) + count - len(expected)))
        taken = [
            (offset, run.delivery_count)
            for run in self.window.acquire(owner, count, self.end, deadline)
            for offset in range(run.first, run.last + 1)
        ]
        assert taken == [(o, self._count(o)) for o in [*expected, *fresh]]
        for offset, _ in taken:
            self.states[offset] = (OUT, owner, deadline)

    def _count(self, offset: int) -> int:
        return self.counts.get(offset, 1 if offset < self.recovered else 0)

    def _held(self, pick: int, size: int) -> tuple[int, range]:
        """Return a range that one owner holds."""
        held = sorted(o for o, each in self.states.items() if each[0] == OUT)
        first = last = held[pick % len(held)]
        owner = self.states[first][1]
        while last - first + 1 < size and self.states.get(last + 1, NONE)[:2] == (OUT, owner):
            last += 1
        return owner, range(first, last + 1)

    @precondition(lambda self: self.window.acquired)
    @rule(pick=picks, size=sizes)
    def acknowledge(self, pick: int, size: int) -> None:
        owner, held = self._held(pick, size)
        self.window.acknowledge(owner, held[0], held[-1])
        self._done(held)

    def _done(self, offsets: range) -> None:
        for offset in offsets:
            self.states[offset] = (DONE, 0, None)
            self.counts.pop(offset, None)

    @precondition(lambda self: self.window.acquired)
    @rule(pick=picks, size=sizes, counted=st.booleans())
    def release(self, pick: int, size: int, counted: bool) -> None:
        owner, held = self._held(pick, size)
        self.window.release(owner, held[0], held[-1], counts=counted)
        self._returned(held, counted)

    def _returned(self, offsets: range, counted: bool = True) -> None:
        for offset in offsets:
            self.states[offset] = (AVAILABLE, 0, None)
            if counted:
                self.counts[offset] = self._count(offset) + 1

    @precondition(lambda self: self.window.acquired)
    @rule(owner=owners)
    def consumer_dies(self, owner: int) -> None:
        for first, last in self.window.release_owner(owner):
            assert all(self.states[o][:2] == (OUT, owner) for o in range(first, last + 1))
            self._returned(range(first, last + 1))
        assert not any(each[:2] == (OUT, owner) for each in self.states.values())

    @precondition(lambda self: self.window.acquired)
    @rule(owner=owners, pick=picks, size=sizes)
    def settle_what_is_not_held(self, owner: int, pick: int, size: int) -> None:
        first = pick % (self.end + 1)
        offsets = range(first, first + size)
        if all(self.states.get(o, NONE)[:2] == (OUT, owner) for o in offsets):
            return
        with pytest.raises(NotAcquiredError) as caught:
            self.window.acknowledge(owner, first, first + size - 1)
        wrong = next(o for o in offsets if self.states.get(o, NONE)[:2] != (OUT, owner))
        assert first <= caught.value.offset <= wrong

    @rule(ms=st.integers(1, 7))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        expected = sorted(
            (o, each[1])
            for o, each in self.states.items()
            if each[0] == OUT and each[2] is not None and each[2] <= self.now
        )
        assert sorted(self.window.expire(self.now)) == expected
        for offset, _ in expected:
            self._returned(range(offset, offset + 1))

    @precondition(lambda self: self.window.acquired)
    @rule(pick=picks, size=sizes)
    def renew(self, pick: int, size: int) -> None:
        owner, held = self._held(pick, size)
        self.window.renew(owner, held[0], held[-1], self.now + 20)
        for offset in held:
            self.states[offset] = (OUT, owner, self.now + 20)

    @rule(size=sizes)
    def drop_the_oldest(self, size: int) -> None:
        for _ in range(min(size, 200)):
            first = self.window.first_available(self.end)
            if first is None:
                return
            self.window.skip(first, first)
            self._done(range(first, first + 1))

    @rule(size=sizes)
    def skip_a_gap(self, size: int) -> None:
        first = len(self.states)
        last = min(self.end, first + size) - 1
        if first <= last:
            self.window.skip(first, last)
            self._done(range(first, last + 1))

    @rule(size=sizes)
    def the_log_begins_later(self, size: int) -> None:
        start = min(self.end, self.window.start + size)
        self.window.truncate(start)
        self._done(range(start))

    # --- disk ------------------------------------------------------------------------------------

    @rule()
    def store(self) -> None:
        for number, value in self.window.take_records():
            if value is None:
                del self.records[number]
            else:
                self.records[number] = value
        assert self.window.take_records() == []
        self.stored = dict(self.states), dict(self.counts)

    @rule()
    def restart(self) -> None:
        """Lose what was not stored. Records that were out are available, and count as delivered."""
        self.window = AckWindow.recover(self.records, self.end)
        states, counts = self.stored
        self.states = {
            offset: each if each[0] == DONE else (AVAILABLE, 0, None)
            for offset, each in states.items()
        }
        self.recovered = len(states)
        self.counts = {offset: count + 1 for offset, count in counts.items()}

    @invariant()
    def totals(self) -> None:
        window = self.window
        found = [each[0] for each in self.states.values()]
        assert window.next == len(self.states)
        assert window.acquired == found.count(OUT)
        assert window.returned == found.count(AVAILABLE)
        start = next((o for o in range(len(found)) if self.states[o][0] != DONE), len(found))
        assert window.start == start
        assert len(self.records) <= 1 + (len(found) >> 12) + 1


TestQueueWindow = WindowSimulation.TestCase
TestQueueWindow.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
