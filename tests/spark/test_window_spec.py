"""What a window is, which modes it can have, and what is counted: all without Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import OutputModeError, WindowError
from tidemill.spark.window_check import check
from tidemill.spark.window_late import LateRecords, late
from tidemill.spark.window_spec import (
    Kind,
    hopping_spec,
    microseconds,
    session_spec,
    sliding_spec,
    tumbling_spec,
)

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6 minutes", 360 * SECOND),
        ("1 hour 30 minutes", 5400 * SECOND),
        ("interval 2 days", 172_800 * SECOND),
        ("  1  WEEK -1 day ", 6 * 86_400 * SECOND),
        ("1.5 seconds", 1_500_000),
        ("3 milliseconds 2 microseconds", 3_002),
        ("-1 minute", -60 * SECOND),
        (timedelta(days=1, microseconds=1), 86_400 * SECOND + 1),
    ],
)
def test_durations_are_sparks_intervals_or_timedeltas(text: Any, expected: int) -> None:
    assert microseconds(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "interval", "6", "minutes", "6minutes", "6 minutes!", "six minutes", "1.5 hours", "6 min",
     "1 hour,2 minutes", "1.1234567 seconds", "99999999999 weeks", 6, None],
)  # fmt: skip
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(WindowError) as refused:
        microseconds(text)
    assert repr(text) in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize("text", ["1 month", "2 months 3 days", "1 year", "3 quarters"])
def test_months_are_refused_for_having_no_fixed_length(text: str) -> None:
    with pytest.raises(WindowError, match="has no fixed length") as refused:
        microseconds(text)
    assert "30 days" in refused.value.hint


def test_a_window_must_last_and_slide() -> None:
    with pytest.raises(WindowError, match=r"the size .* must be longer than nothing"):
        tumbling_spec("0 seconds")
    with pytest.raises(WindowError, match=r"the gap .* must be longer than nothing"):
        session_spec(timedelta(0))
    with pytest.raises(WindowError, match=r"the hop .* must be longer than nothing"):
        hopping_spec("1 second", "-1 second")
    with pytest.raises(WindowError, match=r"the slide .* must be longer than nothing"):
        sliding_spec("1 minute", "0 minutes")
    with pytest.raises(WindowError, match="is longer than the size") as refused:
        sliding_spec("6 minutes", "10 minutes")
    assert "hopping" in refused.value.hint


def test_any_start_is_an_offset_within_the_step() -> None:
    assert tumbling_spec("1 hour", "-15 minutes").start == 45 * 60 * SECOND
    assert hopping_spec("6 minutes", "10 minutes", "25 minutes").start == 5 * 60 * SECOND
    assert sliding_spec("3 hours", "30 minutes").start == 0


def test_only_a_hop_longer_than_the_size_leaves_gaps() -> None:
    assert hopping_spec("6 minutes", "10 minutes").has_gaps
    assert not hopping_spec("6 minutes", "6 minutes").has_gaps
    assert not hopping_spec("6 minutes", "2 minutes").has_gaps
    assert not sliding_spec("6 minutes", "6 minutes").has_gaps


@given(size=st.integers(1, 10**9), ratio=st.floats(1.001, 100))
def test_a_slide_for_gaps_divides_the_hop_and_is_no_longer_than_the_size(
    size: int, ratio: float
) -> None:
    size, hop = size * 1_000, int(size * ratio + 1) * 1_000
    spec = hopping_spec(timedelta(microseconds=size), timedelta(microseconds=hop))
    slide = spec.slide_with_gaps()
    assert hop % slide == 0
    assert slide <= size < 100 * slide


def test_a_hop_without_such_a_slide_is_refused() -> None:
    spec = hopping_spec("1 second", timedelta(microseconds=999_999_999_989))  # a prime
    with pytest.raises(WindowError, match="no divisor near the size"):
        spec.slide_with_gaps()


ALIGNED = (Kind.TUMBLING, Kind.SLIDING, Kind.HOPPING)


def test_modes_that_spark_has_are_allowed() -> None:
    for kind in ALIGNED:
        assert check(kind, "append", has_watermark=True) == ()
        assert check(kind, "update", has_watermark=True) == ()
        assert "without a watermark" in check(kind, "update", has_watermark=False)[0]
    for kind in Kind:
        assert check(kind, "append", has_watermark=True, aggregations=2) == ()
        for has_watermark in (False, True):
            assert "keeps every" in check(kind, "complete", has_watermark=has_watermark)[0]


def test_modes_that_spark_has_not_are_refused_with_a_hint() -> None:
    for kind in Kind:
        with pytest.raises(OutputModeError, match="without a watermark") as refused:
            check(kind, "append", has_watermark=False)
        assert "withWatermark" in refused.value.hint
        for mode in ("update", "complete"):
            with pytest.raises(OutputModeError, match="2 aggregations in a row"):
                check(kind, mode, has_watermark=True, aggregations=2)
    with pytest.raises(OutputModeError, match="no session windows in update mode"):
        check("session", "update", has_watermark=True)
    with pytest.raises(OutputModeError, match="no output mode 'upsert'"):
        check("tumbling", "upsert", has_watermark=True)


def _progress(batch: int, *dropped: int, ran: bool = True) -> dict[str, Any]:
    return {
        "batchId": batch,
        "durationMs": {"addBatch": 5} if ran else {"latestOffset": 1},
        "stateOperators": [{"numRowsDroppedByWatermark": rows} for rows in dropped],
    }


def test_late_records_add_up_over_operators_and_batches() -> None:
    updates = [_progress(0, 0, 0), _progress(1, 2, 1), _progress(2, 0, 4)]
    assert late(updates) == LateRecords(7, 4, 2, (2, 5))
    assert late([]) == LateRecords()


def test_updates_of_an_idle_query_and_repeated_ones_count_nothing() -> None:
    one = LateRecords().plus(_progress(3, 2))
    assert one.plus(_progress(3, 2)) == one
    assert one.plus(_progress(4, 2, ran=False)) == one
    assert one.plus(_progress(4, 1)).rows == 3
