"""What a group's lag means: the limits, how long producers wait, and what is dropped."""

from __future__ import annotations

import pytest

from tidemill.state.lag import LEAST_HOLD_MS, MOST_HOLD_MS, Lag, LagLimit, Pace, first_within


@pytest.mark.parametrize(
    ("limit", "lag", "excess"),
    [
        (LagLimit(), Lag(10**12, 10**15, 10**9), 0.0),
        (LagLimit(records=100), Lag(100, 5000, 7), 0.0),
        (LagLimit(records=100), Lag(200, 5000, 7), 0.5),
        (LagLimit(size_bytes=1000), Lag(1, 4000, 7), 0.75),
        (LagLimit(age_ms=50), Lag(1, 1, 100), 0.5),
        (LagLimit(records=0), Lag(1, 1, 1), 1.0),
        (LagLimit(records=0), Lag(0, 0, 0), 0.0),
        (LagLimit(records=50, size_bytes=10, age_ms=99), Lag(100, 40, 100), 0.75),
    ],
)
def test_excess_is_the_share_of_the_lag_above_the_tightest_limit(
    limit: LagLimit, lag: Lag, excess: float
) -> None:
    assert limit.excess(lag) == excess


def test_producers_wait_as_long_as_the_group_needs() -> None:
    pace = Pace()
    pace.observe(0, 100)
    pace.observe(1000, 1100)  # one record in a millisecond
    assert pace.hold_ms(700) == 700
    assert pace.hold_ms(1) == LEAST_HOLD_MS
    assert pace.hold_ms(10**9) == MOST_HOLD_MS


def test_a_group_that_does_not_move_makes_producers_wait_longest() -> None:
    pace = Pace()
    assert pace.hold_ms(1) == MOST_HOLD_MS
    pace.observe(0, 100)
    pace.observe(5000, 100)
    assert pace.hold_ms(1) == MOST_HOLD_MS


def test_a_group_that_seeks_back_is_measured_again() -> None:
    pace = Pace()
    pace.observe(0, 1000)
    pace.observe(2000, 3000)
    pace.observe(2100, 0)
    pace.observe(3100, 2000)
    assert pace.hold_ms(1000) == 500


@pytest.mark.parametrize("limit", [0, 1, 7, 99, 100, 1000])
def test_the_first_offset_within_the_limit_is_found(limit: int) -> None:
    def lag_at(offset: int) -> Lag:
        return Lag(100 - offset, 0, 0)

    assert first_within(LagLimit(records=limit), 0, 100, lag_at) == max(100 - limit, 0)
