"""Windows, their output modes, and the count of late records: all without Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.spark.errors import OutputModeError, WindowError
from tidemill.spark.windows.check import check_window
from tidemill.spark.windows.late import LateRecords, late_records
from tidemill.spark.windows.spec import (
    Kind,
    hopping_spec,
    session_spec,
    sliding_spec,
    tumbling_spec,
)

SECOND = 1_000_000


def test_a_window_must_last_and_slide() -> None:
    with pytest.raises(WindowError, match=r"the size .* must be greater than zero"):
        tumbling_spec("0 seconds")
    with pytest.raises(WindowError, match=r"the gap .* must be greater than zero"):
        session_spec(timedelta(0))
    with pytest.raises(WindowError, match=r"the hop .* must be greater than zero"):
        hopping_spec("1 second", "-1 second")
    with pytest.raises(WindowError, match=r"the slide .* must be greater than zero"):
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
        assert check_window(kind, "append", has_watermark=True) == ()
        assert check_window(kind, "update", has_watermark=True) == ()
        assert "without a watermark" in check_window(kind, "update", has_watermark=False)[0]
    for kind in Kind:
        assert check_window(kind, "append", has_watermark=True, aggregations=2) == ()
        for has_watermark in (False, True):
            assert "keeps every" in check_window(kind, "complete", has_watermark=has_watermark)[0]


def test_modes_that_spark_has_not_are_refused_with_a_hint() -> None:
    for kind in Kind:
        with pytest.raises(OutputModeError, match="without a watermark") as refused:
            check_window(kind, "append", has_watermark=False)
        assert "withWatermark" in refused.value.hint
        for mode in ("update", "complete"):
            with pytest.raises(OutputModeError, match="2 aggregations in a row"):
                check_window(kind, mode, has_watermark=True, aggregations=2)
    with pytest.raises(OutputModeError, match="does not support session windows in update"):
        check_window("session", "update", has_watermark=True)
    with pytest.raises(OutputModeError, match="invalid output mode 'upsert'"):
        check_window("tumbling", "upsert", has_watermark=True)


def _progress(batch: int, *dropped: int, ran: bool = True) -> dict[str, Any]:
    return {
        "batchId": batch,
        "durationMs": {"addBatch": 5} if ran else {"latestOffset": 1},
        "stateOperators": [{"numRowsDroppedByWatermark": rows} for rows in dropped],
    }


def test_late_records_add_up_over_operators_and_batches() -> None:
    updates = [_progress(0, 0, 0), _progress(1, 2, 1), _progress(2, 0, 4)]
    assert late_records(updates) == LateRecords(7, 4, 2, (2, 5))
    assert late_records([]) == LateRecords()


def test_updates_of_an_idle_query_and_repeated_ones_count_nothing() -> None:
    one = LateRecords().plus(_progress(3, 2))
    assert one.plus(_progress(3, 2)) == one
    assert one.plus(_progress(4, 2, ran=False)) == one
    assert one.plus(_progress(4, 1)).rows == 3
