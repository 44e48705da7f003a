"""A query asks often while records arrive, and rarely when none do."""

from __future__ import annotations

import pytest

from tidemill.clock import ManualClock
from tidemill.spark.source.planning.pacing import LONGEST_MS, Pacing

POLLING_MS = 10
"""What Spark waits before it asks the source again."""


class Query:
    """A query without a trigger. It asks when the one before was answered."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.slept_ms = 0
        self.pacing = Pacing(self.clock, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept_ms += round(seconds * 1000)
        self.clock.advance(round(seconds * 1000))

    def ask(self, *, has_news: bool = False, after_ms: int = POLLING_MS) -> int:
        """Return the milliseconds until the brokers are asked."""
        self.clock.advance(after_ms)
        before = self.clock.monotonic_ms()
        self.pacing.wait()
        self.pacing.answered(has_news=has_news)
        return self.clock.monotonic_ms() - before

    def idle(self, for_ms: int) -> int:
        """Return how often it asks in some time without new records."""
        until, count = self.clock.monotonic_ms() + for_ms, 0
        while self.clock.monotonic_ms() < until:
            self.ask()
            count += 1
        return count


@pytest.fixture
def query() -> Query:
    return Query()


def test_the_first_question_and_those_while_records_arrive_do_not_wait(query: Query) -> None:
    assert query.ask(after_ms=0) == 0
    for _ in range(100):
        query.ask(has_news=True)
    assert query.slept_ms == 0


def test_an_idle_query_asks_ever_more_rarely_but_never_more_rarely_than_the_bound(
    query: Query,
) -> None:
    query.ask(has_news=True)
    counts = [query.idle(100), query.idle(900), query.idle(10_000), query.idle(10_000)]
    assert counts[0] == 10
    assert 20 <= counts[1] <= 40
    assert counts[2] == counts[3] == 10_000 // LONGEST_MS
    query.ask(has_news=True)
    assert query.idle(100) == 10


@pytest.mark.parametrize("trigger_ms", [LONGEST_MS, 200, 10_000])
def test_a_query_with_a_trigger_never_waits(query: Query, trigger_ms: int) -> None:
    for number in range(200):
        query.ask(has_news=number == 3, after_ms=trigger_ms)
    assert query.slept_ms == 0


def test_a_record_waits_for_a_tenth_of_the_time_without_records_at_most() -> None:
    for pause_ms in (50, 150, 250, 400, 5000):
        query = Query()
        query.ask(has_news=True)
        query.idle(pause_ms)
        assert query.ask() + POLLING_MS <= max(POLLING_MS, pause_ms // 10 + 5)
