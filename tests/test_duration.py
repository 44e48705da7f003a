"""Parsing durations: Spark's interval texts and timedeltas."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tidemill.duration import as_interval, microseconds
from tidemill.errors import DurationError

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
def test_invalid_durations_are_refused(text: Any) -> None:
    with pytest.raises(DurationError) as refused:
        microseconds(text)
    assert repr(text) in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize("text", ["1 month", "2 months 3 days", "1 year", "3 quarters"])
def test_months_are_refused_for_having_no_fixed_length(text: str) -> None:
    with pytest.raises(DurationError, match="has no fixed length") as refused:
        microseconds(text)
    assert "30 days" in refused.value.hint


def test_an_interval_is_a_text_that_spark_parses() -> None:
    assert as_interval("1 hour") == "1 hour"
    assert as_interval(timedelta(milliseconds=1)) == "1000 microseconds"
