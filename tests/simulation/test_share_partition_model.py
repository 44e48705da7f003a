"""A share partition against a dict of states, with lost writes and restarts."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.state.share_partitions.support import KEY, Disk
from tests.support.effort import examples
from tidemill.state.errors import NotAcquiredError
from tidemill.state.share_partitions.partition import (
    AckBatch,
    Acknowledge,
    ShareLimits,
    SharePartition,
    Span,
)

FREE, OUT, DONE = "free", "out", "done"
LIMITS = ShareLimits(lock_ms=50, deliveries=3, in_flight=40)
owners = st.integers(1, 3)


class ShareSimulation(RuleBasedStateMachine):
    """``states`` is the model: state, owner and deadline of each offset; ``counts``: deliveries."""

    def __init__(self) -> None:
        super().__init__()
        self.partition = SharePartition(KEY, 0)
        self.disk = Disk()
        self.now = self.next = 0
        self.states: dict[int, tuple[str, int, int]] = {}
        self.counts: dict[int, int] = {}
        self.store()

    @property
    def start(self) -> int:
        done = (o for o, each in sorted(self.states.items()) if each[0] != DONE)
        return next(done, self.next)

    def returned(self, offset: int, *, counts: bool = True) -> None:
        self.counts[offset] = self.counts.get(offset, 0) + counts
        full = counts and self.counts[offset] >= LIMITS.deliveries
        self.states[offset] = (DONE if full else FREE, 0, 0)

    @rule(owner=owners, sizes=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=6))
    def acquire(self, owner: int, sizes: list[tuple[int, bool]]) -> None:
        at = first = min([o for o, each in self.states.items() if each[0] == FREE] + [self.next])
        spans, limit = [], max(self.start + LIMITS.in_flight, self.next)
        for size, is_readable in sizes:
            spans.append(Span(at, at + size - 1, is_readable))
            at += size
        runs = self.partition.acquire(owner, spans, 1000, LIMITS, self.now, exact=False)
        taken = {o: run.delivery_count for run in runs for o in range(run.first, run.last + 1)}
        expected = {}
        for span in spans:
            if span.first > self.next:
                break
            for offset in range(span.first, span.last + 1):
                known = offset < self.next
                if known and self.states[offset][0] != FREE:
                    continue
                if not span.readable:
                    self.states[offset] = (DONE, 0, 0)
                    self.next = max(self.next, offset + 1)
                elif known or offset < limit:
                    expected[offset] = self.counts.get(offset, 0)
                    self.states[offset] = (OUT, owner, self.now + LIMITS.lock_ms)
                    self.next = max(self.next, offset + 1)
        assert first <= self.next
        assert taken == expected

    @rule(owner=owners, pick=st.integers(0, 1000), size=st.integers(1, 8), kind=st.integers(0, 4))
    def acknowledge(self, owner: int, pick: int, size: int, kind: int) -> None:
        first = self.start + pick % (self.next - self.start + 1)
        last = first + size - 1
        offsets = range(first, last + 1)
        held = all(self.states.get(o, (FREE, 0, 0))[:2] == (OUT, owner) for o in offsets)
        try:
            self.partition.acknowledge(owner, [AckBatch(first, last, [kind])], LIMITS, self.now)
        except NotAcquiredError:
            assert not held
            return
        assert held
        for offset in offsets:
            if kind == Acknowledge.RENEW:
                self.states[offset] = (OUT, owner, self.now + LIMITS.lock_ms)
            elif kind == Acknowledge.RELEASE:
                self.returned(offset)
            else:
                self.states[offset] = (DONE, 0, 0)

    @rule(owner=owners)
    def leave(self, owner: int) -> None:
        held = [o for o, each in self.states.items() if each[:2] == (OUT, owner)]
        assert self.partition.release_member(owner) == bool(held)
        for offset in held:
            self.returned(offset, counts=False)

    @rule(step=st.integers(1, 40))
    def pass_time(self, step: int) -> None:
        self.now += step
        due = [o for o, each in self.states.items() if each[0] == OUT and each[2] <= self.now]
        assert self.partition.expire(self.now, LIMITS) == bool(due)
        for offset in due:
            self.returned(offset)

    @rule(step=st.integers(1, 20))
    def truncate(self, step: int) -> None:
        offset = self.start + step
        self.partition.truncate(offset)
        self.next = max(self.next, offset)
        for each in range(offset):
            self.states[each] = (DONE, 0, 0)

    @rule()
    def store(self) -> None:
        self.disk.store(self.partition)
        self.stored = dict(self.states), dict(self.counts), self.next

    @precondition(lambda self: self.next > 0)
    @rule()
    def restart(self) -> None:
        """Lose what was not stored. What was out is available, with its stored count."""
        self.partition = self.disk.restarted()
        self.states, self.counts, self.next = (
            dict(self.stored[0]),
            dict(self.stored[1]),
            self.stored[2],
        )
        for offset, each in self.states.items():
            if each[0] != DONE:
                self.states[offset] = (FREE, 0, 0)
        while self.next > self.partition.window.next:  # what was never returned is not stored
            self.next -= 1
            assert self.states.pop(self.next)[0] == FREE
            assert not self.counts.pop(self.next, 0)

    @invariant()
    def agrees(self) -> None:
        window = self.partition.window
        assert (window.start, window.next) == (self.start, self.next)
        kinds = [each[0] for each in self.states.values()]
        assert window.acquired == kinds.count(OUT)
        assert window.returned == kinds.count(FREE)
        done = [o for o, each in self.states.items() if each[0] == DONE and o >= self.start]
        assert self.partition.complete == len(done)


ShareSimulation.TestCase.settings = settings(
    max_examples=examples(30), stateful_step_count=25, deadline=None
)
TestShareSimulation = ShareSimulation.TestCase
