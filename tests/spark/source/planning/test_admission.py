"""Batches of a backlog take about the same time, whatever the query does with a record."""

from __future__ import annotations

import pytest

from tidemill.clock import ManualClock
from tidemill.spark.source.planning.admission import AIM_MS, FIRST, LEAST, Admission

START_MS = 1_700_000_000_370  # not at a whole second
TRANSACTION_TIMEOUT_MS = 120_000


class Stream:
    """A backlog, and a query that handles so many records in a second.

    Args:
        backlog: Number of records.
        rate: Records that the query handles in a second.
        trigger_ms: Interval of the trigger, as Spark's ProcessingTimeExecutor keeps it.
        overhead_ms: What each batch takes besides its records.
    """

    def __init__(
        self, backlog: int, rate: float, *, trigger_ms: int = 0, overhead_ms: int = 137
    ) -> None:
        self.clock = ManualClock(START_MS)
        self.backlog, self.rate = backlog, rate
        self.trigger_ms, self.overhead_ms = trigger_ms, overhead_ms
        self.sizes: list[int] = []
        self.took: list[int] = []
        self.admission = Admission(self.clock)

    def batches(self, count: int) -> None:
        for _ in range(count):
            self.batch()

    def batch(self) -> None:
        """Run a trigger, and wait for the next one."""
        began = self.clock.now_ms()
        size = min(self.backlog, self.admission.next_limit())
        self.admission.planned(size)
        self.backlog -= size
        took = int(size / self.rate * 1000) + self.overhead_ms if size else 1
        if size:
            self.sizes.append(size)
            self.took.append(took)
        self.clock.advance(took)
        if self.trigger_ms:
            next_ms = (began // self.trigger_ms + 1) * self.trigger_ms
            self.clock.advance(max(0, next_ms + 3 - self.clock.now_ms()))

    def drain(self, most: int = 10_000) -> None:
        for _ in range(most):
            if not self.backlog:
                return
            self.batch()
        raise AssertionError(f"{self.backlog} records are left")


@pytest.mark.parametrize("rate", [4_000, 20_000, 100_000, 1_000_000, 20_000_000])
def test_no_batch_of_a_large_backlog_takes_as_long_as_a_transaction_may(rate: int) -> None:
    stream = Stream(rate * 600, rate)
    stream.drain()
    assert max(stream.took) <= 0.85 * TRANSACTION_TIMEOUT_MS
    assert max(stream.took[1:]) <= 1.2 * AIM_MS


@pytest.mark.parametrize("rate", [20_000, 100_000, 1_000_000])
def test_a_backlog_takes_few_batches(rate: int) -> None:
    """The bound costs a fast query almost nothing."""
    stream = Stream(rate * 600, rate)
    stream.drain()
    assert len(stream.sizes) <= 600_000 / AIM_MS * 1.4
    assert sum(stream.took) <= 1.05 * 600_000


def test_a_query_that_becomes_slow_gets_smaller_batches() -> None:
    stream = Stream(500_000_000, 1_000_000)
    stream.batches(5)
    stream.rate = 20_000  # its state grows
    stream.batch()
    assert stream.took[-1] > TRANSACTION_TIMEOUT_MS  # it can't be known before
    stream.batches(3)
    assert stream.took[-1] <= 1.2 * AIM_MS


def test_a_batch_below_the_bound_shows_how_slow_the_query_is_too() -> None:
    stream = Stream(40_000_000, 1_000_000)
    stream.drain()
    stream.rate = 10_000
    stream.backlog = 400_000  # takes 40 s
    stream.drain()
    stream.backlog = 10_000_000
    stream.batches(3)
    assert stream.took[-1] <= 1.2 * AIM_MS


def test_small_batches_change_nothing() -> None:
    stream = Stream(0, 1_000_000, overhead_ms=120)
    for number in range(1_000):
        stream.backlog = number % 3
        stream.batch()
    stream.backlog = 1_000_000
    stream.batch()
    assert stream.sizes[-1] == FIRST


def test_a_pause_of_the_machine_does_not_stop_a_query() -> None:
    """A notebook sleeps for an hour in a batch of ten records."""
    stream = Stream(10, 1_000_000, overhead_ms=3_600_137)
    stream.batch()
    stream.overhead_ms, stream.backlog = 137, 20_000_000
    stream.drain()
    assert len(stream.sizes) <= 6


def test_the_bound_never_falls_below_a_least_one() -> None:
    stream = Stream(1_000_000, 1)
    stream.batches(20)
    assert stream.sizes[-1] == LEAST


@pytest.mark.parametrize("trigger_ms", [10_000, 30_000, 60_000, 600_000, 3_600_000])
def test_waiting_for_a_trigger_does_not_count_as_work(trigger_ms: int) -> None:
    """A query that is behind, and whose batches are much shorter than its trigger, catches up."""
    stream = Stream(400_000_000, 1_000_000, trigger_ms=trigger_ms)
    stream.batches(16)
    assert max(stream.sizes) > 4 * FIRST
    assert max(stream.took) < 0.85 * TRANSACTION_TIMEOUT_MS or trigger_ms >= 600_000


def test_batches_longer_than_their_trigger_are_measured() -> None:
    stream = Stream(60_000_000, 50_000, trigger_ms=10_000)
    stream.drain()
    assert max(stream.took[1:]) <= 2.5 * AIM_MS


@pytest.mark.parametrize("trigger_ms", [0, 200])
def test_a_limit_is_asked_for_although_nothing_is_new(trigger_ms: int) -> None:
    stream = Stream(0, 1000, trigger_ms=trigger_ms)
    stream.batches(100)
    assert stream.admission.next_limit() == FIRST
